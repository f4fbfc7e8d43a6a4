"""Metrics: what the endpoint says while a run goes on, and that a real Prometheus understands it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, RayActorPoolExecutor
from gristmill.cli.main import app
from gristmill.core.errors import GristmillError
from gristmill.core.executor import PoolProgress, Progress
from gristmill.core.records.stage_stats import StageStats
from gristmill.observe import MetricsEndpoint, Several
from gristmill.observe.grafana_files import PANELS
from gristmill.observe.prometheus import MetricValues, prometheus_text
from gristmill.observe.run_snapshot import ProgressTracker
from tests.ray_cluster import ray_cluster


class Make(ProcessingStage[Any, DocumentBatch]):
    """Makes batches of ten rows, and does something in between."""

    def __init__(self, batches: int, between: Callable[[int], None] = lambda _: None) -> None:
        self.batches, self.between = batches, between

    def process(self, task: Any) -> Any:
        for number in range(self.batches):
            self.between(number)
            yield DocumentBatch(data=[{"text": f"{number}"}] * 10)


class DropOne(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task.slice(0, 9)


def ask(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return str(answer.read().decode())


def numbers(text: str) -> dict[str, float]:
    """Every sample, by its name and labels. Raises when a line is none."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            sample = re.fullmatch(r'(\w+\{(?:\w+="(?:[^"\\\n]|\\.)*",?)*\}) (NaN|[-+0-9.e]+)', line)
            assert sample, f"no sample: {line}"
            assert sample[1] not in found, f"told twice: {line}"
            found[sample[1]] = float(sample[2])
    return found


def test_a_run_is_served_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.observe.prometheus._EVERY_S", 0.0)
    seen: list[dict[str, float]] = []

    class Asking(MetricsEndpoint):
        def progressed(self, progress: Progress) -> None:
            super().progressed(progress)
            seen.append(numbers(ask(self.url)))

    with Asking(0) as endpoint:
        url = endpoint.url
        assert url.startswith("http://127.0.0.1:")
        stages = [Make(4, lambda _: time.sleep(0.25)), DropOne(), DropOne()]
        Pipeline("served", stages=stages).run(LocalExecutor(num_workers=0), observer=Several(endpoint))
        with pytest.raises(urllib.error.URLError):
            ask(url)
    stage = 'pipeline="served",stage="DropOne",position="1"'
    assert seen[-1][f"gristmill_stage_rows_in_total{{{stage}}}"] > 0
    taken, given, dropped = (
        [sample[f"gristmill_stage_rows_{what}_total{{{stage}}}"] for sample in seen]
        for what in ("in", "out", "dropped")
    )
    assert sorted(taken) == taken
    assert [10 * kept for kept in given] == [9 * rows for rows in taken]
    assert [rows - kept for rows, kept in zip(taken, given, strict=True)] == dropped
    assert 'gristmill_stage_rows_in_total{pipeline="served",stage="DropOne",position="2"}' in seen[-1]


def test_the_endpoint_answers_before_the_first_row_and_only_for_metrics() -> None:
    plan = Pipeline("early", stages=[Make(1)]).plan()
    with MetricsEndpoint(0) as endpoint:
        endpoint.started(plan)
        assert re.fullmatch(r'gristmill_run_info\{pipeline="early",version="[^"]+"\}', *numbers(ask(endpoint.url)))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(endpoint.url.replace("/metrics", "/etc"))


def test_a_port_that_is_taken_is_told_before_the_run() -> None:
    with MetricsEndpoint(0) as endpoint:
        message = rf"cannot serve metrics on 127.0.0.1:{endpoint.port}: .*Choose another port, or 0"
        with pytest.raises(GristmillError, match=message), MetricsEndpoint(endpoint.port):
            pass


@pytest.mark.parametrize(
    ("port", "message"),
    [("much", "--metrics-port much: write a port up to 65535"), ("70000", "--metrics-port 70000: write a port up to")],
)
def test_a_wrong_port_is_named(tmp_path: Path, port: str, message: str) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("stages: ['tests.recipes.user_stages:MakeDocuments']\n")
    done = CliRunner().invoke(app, ["run", str(recipe), "--workers", "0", "--metrics-port", port])
    assert done.exit_code == 2
    assert message in done.stderr


def text_of(*moments: Progress, name: str = "p") -> str:
    tally, watch = MetricValues(name), ProgressTracker()
    text = ""
    for moment in moments:
        watch.update(moment)
        text = prometheus_text(tally, watch.snapshot())
    return text


def test_names_are_escaped() -> None:
    odd = 'a "quoted" \\ name\nof two lines'
    text = text_of(Progress(stages=[(odd, StageStats(rows_in=3))], seconds=1.0), name=odd)
    assert len(numbers(text)) == text.count("\n") - text.count("# ")
    assert r'stage="a \"quoted\" \\ name\nof two lines",position="0"} 3' in text


def test_counters_do_not_fall_when_a_call_is_done_again() -> None:
    before = Progress(stages=[("a", StageStats(rows_in=50, rows_out=40))], seconds=1.0)
    after = Progress(stages=[("a", StageStats(rows_in=30, rows_out=20))], seconds=2.0)
    found = numbers(text_of(before, after))
    assert found['gristmill_stage_rows_in_total{pipeline="p",stage="a",position="0"}'] == 50
    assert found['gristmill_run_seconds{pipeline="p"}'] == 2


def test_workers_are_told_by_what_they_do() -> None:
    pools = [PoolProgress("a + b", 4, 3, 7, 1_000_000)]
    found = numbers(text_of(Progress(stages=[("a", StageStats())], pools=pools, seconds=1.0)))
    pool = 'pipeline="p",pool="a + b",position="0"'
    assert found[f'gristmill_pool_workers{{{pool},state="busy"}}'] == 3
    assert found[f'gristmill_pool_workers{{{pool},state="idle"}}'] == 1
    assert found[f"gristmill_pool_queued_bytes{{{pool}}}"] == 1_000_000


def test_the_dashboard_asks_for_metrics_that_there_are(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["metrics", "grafana", "--out", str(tmp_path), "--target", "here:1"])
    assert done.exit_code == 0, done.output
    assert sorted(done.stdout.split()) == sorted(str(path) for path in tmp_path.rglob("*") if path.is_file())
    board = json.loads((tmp_path / "grafana/dashboards/gristmill.json").read_text())
    asked = {target["expr"] for panel in board["panels"] for target in panel["targets"]}
    stage_stats = set(re.findall(r"# TYPE (\w+) ", text_of(Progress([("a", StageStats())], [PoolProgress("a")]))))
    assert {re.search(r"gristmill_\w+", query)[0] for query in asked} <= stage_stats  # type: ignore[index]
    config = yaml.safe_load((tmp_path / "prometheus.yml").read_text())
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": ["here:1"]}]


def test_the_dashboard_for_ray_asks_for_what_ray_exports(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["metrics", "grafana", "--out", str(tmp_path), "--ray"])
    board = json.loads((tmp_path / "grafana/dashboards/gristmill.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert all(query.count("ray_gristmill_") == query.count("gristmill_") == 1 for query in asked)


@pytest.mark.ray
def test_on_a_cluster_ray_exports_them_too() -> None:
    port = free_port()
    with ray_cluster(num_cpus=2, ray_metrics_port=port):
        found = ""
        with MetricsEndpoint(0) as endpoint:
            stages = [Make(30, lambda _: time.sleep(0.5)), DropOne()]
            tasks = Pipeline("on ray", stages=stages).stream(RayActorPoolExecutor(), observer=endpoint)
            for _ in tasks:
                with contextlib.suppress(OSError):  # its exporter may start late
                    found = ask_anyhow(f"http://127.0.0.1:{port}/metrics")
                if re.search(r'ray_gristmill_stage_rows_in_total\{.*stage="DropOne"', found):
                    break
            tasks.close()  # type: ignore[attr-defined]
    dropped = re.search(
        r'ray_gristmill_stage_rows_dropped_total\{.*pipeline="on ray".*stage="DropOne".*\} ([\d.]+)', found
    )
    assert dropped
    assert float(dropped[1]) >= 1


def ask_anyhow(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


# -- a real Prometheus ---------------------------------------------------------------------------------------

PROMETHEUS = os.environ.get("GRISTMILL_PROMETHEUS") or shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    not PROMETHEUS, reason="no prometheus here: apt-get install prometheus, or GRISTMILL_PROMETHEUS=its path"
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Server:
    """A Prometheus that scrapes one endpoint every half second."""

    def __init__(self, folder: Path, target: str) -> None:
        assert PROMETHEUS
        CliRunner().invoke(app, ["metrics", "grafana", "--out", str(folder), "--target", target])
        config = folder / "prometheus.yml"
        config.write_text(config.read_text().replace("scrape_interval: 5s", "scrape_interval: 500ms"))
        self.address = f"127.0.0.1:{free_port()}"
        options = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        command = [PROMETHEUS, *options, f"--web.listen-address={self.address}"]
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def query(self, expression: str) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://{self.address}/api/v1/query?{query}", timeout=10) as answer:
            facts = json.load(answer)
        assert facts["status"] == "success", facts
        found: list[dict[str, Any]] = facts["data"]["result"]
        return found

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        for _ in range(300):
            try:
                if found := self.query(expression):
                    return found
            except urllib.error.URLError:  # it has not started yet
                pass
            time.sleep(0.1)
        raise AssertionError(f"Prometheus has nothing for {expression}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


@needs_prometheus
@pytest.mark.slow
def test_prometheus_scrapes_a_run_and_the_dashboard_has_data(tmp_path: Path) -> None:
    assert PROMETHEUS
    (tmp_path / "in").mkdir()
    for number in range(40):
        (tmp_path / "in" / f"{number}.jsonl").write_text('{"text": "some words of a document"}\n' * 50)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"name: scraped\nstages:\n  - JsonlReader: {{file_paths: {tmp_path}/in}}\n"
        "  - tests.recipes.user_stages:Slow: {seconds: 0.5}\n"
        f"  - JsonlWriter: {{path: {tmp_path}/out}}\n"
    )
    port = free_port()
    server = Server(tmp_path, f"127.0.0.1:{port}")
    command = [sys.executable, "-m", "gristmill.cli.main", "run", str(recipe), "--workers", "2", "--quiet"]
    command += ["--metrics-port", str(port)]
    run = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)
    try:
        check = Path(PROMETHEUS).with_name("promtool")
        subprocess.run([check, "check", "config", tmp_path / "prometheus.yml"], check=True, stdout=subprocess.DEVNULL)
        server.wait_for('gristmill_stage_rows_in_total{stage="Slow"} > 100')
        text = ask(f"http://127.0.0.1:{port}/metrics")
        lint = subprocess.run([check, "check", "metrics"], input=text, text=True, capture_output=True)
        assert (lint.returncode, lint.stdout + lint.stderr) == (0, "")
        for title, _, _, query in PANELS:
            expression = query.replace("$pipeline", ".*")
            assert server.wait_for(expression), f"{title}: no data for {expression}"
        types = {entry["metric"]["stage"] for entry in server.query("gristmill_stage_rows_in_total")}
        assert {"read_jsonl", "Slow", "write_jsonl", "commit_jsonl"} <= types
    finally:
        status = run.wait(60)
        server.stop()
    assert status == 0
