"""Traces: the spans that a collector gets of a run, by OTLP over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill import LocalExecutor, Pipeline
from gristmill.cli.main import app
from gristmill.core.errors import StageError
from gristmill.dedup import ExactDeduplicationStage
from gristmill.observe import Traces
from gristmill.text import JsonlReader, JsonlWriter, Modify, ScoreFilter, WordCountFilter

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'gristmill[otel]'")

ERROR = 2


class Collector(HTTPServer):
    """Takes what an exporter sends."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.services: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans_by_name(self) -> dict[str, dict[str, Any]]:
        """The attributes of each span, by its name."""
        return {
            span.name: {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
            for span in self.spans
        }

    def parents(self) -> dict[str, str]:
        names = {span.span_id: span.name for span in self.spans}
        return {span.name: names.get(span.parent_span_id, "") for span in self.spans}


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        assert self.path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for sent in request.resource_spans:
            self.server.services |= {
                one.value.string_value for one in sent.resource.attributes if one.key == "service.name"
            }
            self.server.spans += [span for scope in sent.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nobody wants to read of every request."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rows = [{"id": n, "text": "grist " * (n % 10)} for n in range(100)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "in.jsonl"


def test_a_collector_gets_a_span_for_the_run_each_segment_and_each_stage(
    collector: Collector, corpus: Path, tmp_path: Path
) -> None:
    stages = [JsonlReader(corpus), ScoreFilter(WordCountFilter(min_words=5)), ExactDeduplicationStage()]
    pipeline = Pipeline("traced", stages=[*stages, JsonlWriter(tmp_path / "out")])
    with Traces(collector.url) as traces:
        pipeline.run(LocalExecutor(0), observer=traces)
    found, parents = collector.spans_by_name(), collector.parents()
    assert collector.services == {"gristmill"}
    assert found["run traced"]["gristmill.rows_in"] == 100
    assert parents["run traced"] == ""
    assert parents["segment 1"] == parents["segment 2"] == "run traced"
    assert parents["WordCountFilter"] == "segment 1"
    assert parents["commit_jsonl"] == f"segment {found['commit_jsonl']['gristmill.segment']}" != "segment 1"
    judged = found["WordCountFilter"]
    assert [judged[f"gristmill.rows_{what}"] for what in ("in", "out", "dropped")] == [100, 50, 50]
    assert len({span.trace_id for span in collector.spans}) == 1
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in collector.spans)


def test_what_went_wrong_is_on_the_span_of_the_run(collector: Collector, corpus: Path, tmp_path: Path) -> None:
    def fails(text: str) -> str:
        raise RuntimeError("no flour")

    pipeline = Pipeline("fails", stages=[JsonlReader(corpus), Modify(fails), JsonlWriter(tmp_path / "out")])
    with pytest.raises(StageError), Traces(collector.url) as traces:
        pipeline.run(LocalExecutor(0), observer=traces, on_error="raise")
    [run] = [span for span in collector.spans if span.name == "run fails"]
    assert run.status.code == ERROR
    assert "no flour" in str(run.events)


def test_the_command_sends_them_too(collector: Collector, corpus: Path, tmp_path: Path) -> None:
    more = ["--set", f"input={corpus}", "--set", f"output={tmp_path / 'out'}", "--workers", "0", "-q"]
    done = CliRunner().invoke(app, ["run", "quickstart", *more, "--traces", collector.url])
    assert done.exit_code == 0, done.output
    assert "run quickstart" in collector.spans_by_name()
    refused = CliRunner().invoke(app, ["run", "quickstart", *more, "--traces", "localhost:4318"])
    assert (refused.exit_code, "such as http://localhost:4318" in refused.stderr) == (2, True)


def test_nothing_is_imported_when_nobody_asks() -> None:
    code = "import sys, gristmill.cli.main, gristmill.observe.traces; print('opentelemetry' in str(list(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
