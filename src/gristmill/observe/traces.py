"""OpenTelemetry spans of a run, sent by OTLP over HTTP: one for the run, for each segment and for each stage.

    with Traces("http://localhost:4318") as traces:
        pipeline.run(observer=Several(default_progress(), traces))

Spans are children of the span that is open where the run is started, if there is one. The libraries are loaded when a
run begins (`pip install 'gristmill[otel]'`), and what they are told stays apart from a program's own traces.

Gives up: single tasks. Workers are not asked for more than they tell anyway, so a stage's span goes from the
first of its rows that was seen to the last, as the driver sees them, a few times a second.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gristmill.core import VERSION
from gristmill.core.errors import require
from gristmill.core.executor import Observer, Progress
from gristmill.observe.run_snapshot import StagePosition, stage_positions

if TYPE_CHECKING:
    from typing import Self

    from gristmill.core.plan.planner import Plan
    from gristmill.core.records.stage_stats import StageStats

PATH = "/v1/traces"
_TIMEOUT_S = 5.0


class Traces(Observer):
    """Sends the spans of a run to a collector; without an `endpoint` to that of OTEL_EXPORTER_OTLP_ENDPOINT."""

    def __init__(self, endpoint: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.endpoint, self.headers = endpoint, dict(headers or {})
        self._provider: Any = None
        self._run: Any = None
        self._positions: list[StagePosition] = []
        self._times: dict[int, tuple[int, int]] = {}
        """When the first rows of each stage were seen, and the last."""
        self._rows: dict[int, int] = {}
        self._segment, self._began, self._looked = 0, 0, 0
        self._entered = False

    def __enter__(self) -> Self:
        self._tracer()  # what is missing is told before the run
        self._entered = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._entered = False
        self._close(error)

    def started(self, plan: Plan) -> None:
        tracer = self._tracer()
        self._positions = list(stage_positions(plan))
        self._began = self._looked = time.time_ns()
        text = plan.describe(verbose=True)
        about = {"gristmill.pipeline": plan.name, "gristmill.version": VERSION, "gristmill.plan": text}
        self._run = tracer.start_span(f"run {plan.name}", attributes=about, start_time=self._began)

    def progressed(self, progress: Progress) -> None:
        now = time.time_ns()
        for index, (_, stats) in enumerate(progress.stages):
            rows = stats.rows_in + stats.rows_out + stats.quarantined
            if rows > self._rows.get(index, 0):
                first, _ = self._times.get(index, (self._looked, now))
                self._times[index], self._rows[index] = (first, now), rows
        self._looked = now
        here = self._positions[min(len(progress.stages), len(self._positions)) - 1].segment if progress.stages else 0
        if here > self._segment:
            self._tell(progress, here)

    def finished(self, progress: Progress) -> None:
        self.progressed(progress)
        self._tell(progress, self._segment + 1)
        if self._run is not None:
            attributes = {"gristmill.sources": progress.sources_done, "gristmill.rows_in": progress.rows_read}
            self._run.set_attributes(attributes)
        if not self._entered:  # else it is known a little later whether it failed
            self._close(None)

    def _tell(self, progress: Progress, following: int) -> None:
        """A segment is over: send it, with its stages."""
        if self._run is None:
            return
        tracer, now = self._tracer(), time.time_ns()
        api = require("opentelemetry.trace", "otel", "traces")
        parent = api.set_span_in_context(self._run)
        if self._positions and self._positions[-1].segment:
            span = tracer.start_span(f"segment {self._segment + 1}", parent, start_time=self._began)
            parent = api.set_span_in_context(span)
            span.end(now)
        for index, (name, stats) in enumerate(progress.stages):
            position = self._positions[index] if index < len(self._positions) else None
            if index in self._times and position and position.segment == self._segment:
                first, last = self._times[index]
                tracer.start_span(name, parent, attributes=_facts(position, stats), start_time=first).end(last)
        self._segment, self._began = following, now

    def _tracer(self) -> Any:
        if self._provider is None:
            sdk = require("opentelemetry.sdk.trace", "otel", "traces")
            export = require("opentelemetry.sdk.trace.export", "otel", "traces")
            http = require("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otel", "traces")
            resources = require("opentelemetry.sdk.resources", "otel", "traces")
            url = None
            if self.endpoint is not None:
                url = self.endpoint if self.endpoint.endswith(PATH) else self.endpoint.rstrip("/") + PATH
            exporter = http.OTLPSpanExporter(endpoint=url, headers=self.headers or None, timeout=_TIMEOUT_S)
            about = resources.Resource.create({"service.name": "gristmill", "service.version": VERSION})
            self._provider = sdk.TracerProvider(resource=about, shutdown_on_exit=False)
            self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        return self._provider.get_tracer("gristmill", VERSION)

    def _close(self, error: BaseException | None) -> None:
        run, self._run = self._run, None
        provider, self._provider = self._provider, None
        if run is not None:
            status = require("opentelemetry.trace.status", "otel", "traces")
            if error is not None:
                run.record_exception(error)
                run.set_status(status.Status(status.StatusCode.ERROR, str(error).partition("\n")[0]))
            run.end()
        if provider is not None:
            provider.shutdown()  # sends what waits


def _facts(position: StagePosition, stats: StageStats) -> dict[str, Any]:
    """What a stage has done."""
    facts: dict[str, Any] = {
        "gristmill.stage": position.user_stage,
        "gristmill.segment": position.segment + 1,
        "gristmill.rows_in": stats.rows_in,
        "gristmill.rows_out": stats.rows_out,
        "gristmill.rows_dropped": max(stats.rows_in - stats.rows_out - stats.quarantined, 0) if stats.rows_in else 0,
        "gristmill.rows_quarantined": stats.quarantined,
        "gristmill.seconds": stats.seconds,
        "gristmill.bytes_in": stats.bytes_in,
        "gristmill.bytes_out": stats.bytes_out,
    }
    if position.group is not None:
        facts["gristmill.group"] = position.group
    return facts
