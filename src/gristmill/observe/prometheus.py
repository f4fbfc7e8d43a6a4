"""Metrics of a run for Prometheus: an HTTP endpoint, and Ray's own metrics when the run is on a cluster.

    with MetricsEndpoint(9464) as endpoint:
        pipeline.run(observer=Several(default_progress(), endpoint))

The endpoint is on the driver and answers while the run lasts. It listens on this machine only, unless told otherwise.

Gives up: the last seconds of a run, if they are not scraped before it ends. The report has them.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from gristmill.core import VERSION
from gristmill.core.errors import GristmillError
from gristmill.core.executor import Observer, Progress
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.observe.run_snapshot import ProgressTracker, RunSnapshot, StageProgress

if TYPE_CHECKING:
    from typing import Self

    from gristmill.core.plan.planner import Plan

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = "127.0.0.1"
_EVERY_S = 0.5
_RAY_EVERY_S = 2.0

MetricSample = tuple[dict[str, str], float]


@fast_dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric: its name, type and help, and its values."""

    name: str
    kind: str
    help: str
    samples: Callable[[RunSnapshot], Iterable[MetricSample]]


def _of_stages(value: Callable[[StageProgress], float]) -> Callable[[RunSnapshot], Iterable[MetricSample]]:
    def samples(snapshot: RunSnapshot) -> Iterable[MetricSample]:
        for position, line in enumerate(snapshot.stages):  # two stages may have one name
            yield {"stage": line.name, "position": str(position)}, value(line)

    return samples


def _of_pools(*values: tuple[dict[str, str], str]) -> Callable[[RunSnapshot], Iterable[MetricSample]]:
    def samples(snapshot: RunSnapshot) -> Iterable[MetricSample]:
        for position, pool in enumerate(snapshot.pools):
            states = {"busy": pool.busy, "idle": max(pool.workers - pool.busy, 0)}
            for labels, what in values:
                amount = states[what] if what in states else getattr(pool, what)
                yield {"pool": pool.name, "position": str(position), **labels}, float(amount)

    return samples


def _of_run(value: Callable[[RunSnapshot], float | None]) -> Callable[[RunSnapshot], Iterable[MetricSample]]:
    def samples(snapshot: RunSnapshot) -> Iterable[MetricSample]:
        found = value(snapshot)
        yield {}, math.nan if found is None else float(found)

    return samples


METRIC_FAMILIES = (
    MetricFamily(
        "gristmill_stage_rows_in_total", "counter", "Rows that entered the stage.", _of_stages(lambda x: x.rows_in)
    ),
    MetricFamily(
        "gristmill_stage_rows_out_total", "counter", "Rows that left the stage.", _of_stages(lambda x: x.kept)
    ),
    MetricFamily(
        "gristmill_stage_rows_dropped_total", "counter", "Rows that the stage dropped.", _of_stages(lambda x: x.dropped)
    ),
    MetricFamily(
        "gristmill_stage_rows_quarantined_total",
        "counter",
        "Records that a stage could not process.",
        _of_stages(lambda line: line.quarantined),
    ),
    MetricFamily(
        "gristmill_stage_seconds_total",
        "counter",
        "Time that workers spent in a stage, summed over workers.",
        _of_stages(lambda line: line.seconds),
    ),
    MetricFamily(
        "gristmill_stage_bytes_in_total", "counter", "Bytes that a stage was given.", _of_stages(lambda x: x.bytes_in)
    ),
    MetricFamily(
        "gristmill_stage_bytes_out_total", "counter", "Bytes that a stage gave.", _of_stages(lambda x: x.bytes_out)
    ),
    MetricFamily(
        "gristmill_stage_rows_per_second",
        "gauge",
        "Rows per second over the last seconds.",
        _of_stages(lambda line: line.rate),
    ),
    MetricFamily(
        "gristmill_pool_workers",
        "gauge",
        "Workers of a pool by what they do.",
        _of_pools(({"state": "busy"}, "busy"), ({"state": "idle"}, "idle")),
    ),
    MetricFamily(
        "gristmill_pool_busy_share", "gauge", "Share of time that workers were busy.", _of_pools(({}, "busy_share"))
    ),
    MetricFamily("gristmill_pool_queued_tasks", "gauge", "Tasks queued for the pool.", _of_pools(({}, "queued"))),
    MetricFamily("gristmill_pool_queued_bytes", "gauge", "Bytes queued for the pool.", _of_pools(({}, "queued_bytes"))),
    MetricFamily(
        "gristmill_sources_done_total", "counter", "Sources that are done.", _of_run(lambda x: x.sources_done)
    ),
    MetricFamily(
        "gristmill_sources_seen_total", "counter", "Sources listed so far.", _of_run(lambda x: x.sources_seen)
    ),
    MetricFamily("gristmill_run_seconds", "gauge", "Time since the run began.", _of_run(lambda x: x.seconds)),
    MetricFamily(
        "gristmill_run_seconds_left",
        "gauge",
        "Estimated time left in seconds; NaN until it is known.",
        _of_run(lambda snapshot: snapshot.seconds_left),
    ),
    MetricFamily(
        "gristmill_run_segment", "gauge", "The segment that is running, from 1.", _of_run(lambda x: x.segment + 1)
    ),
)


class MetricValues:
    """The numbers of a run. Counters never fall: what a call had counted before it failed is counted again later."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self._most: dict[tuple[str, ...], float] = {}

    def samples(self, snapshot: RunSnapshot) -> Iterator[tuple[MetricFamily, dict[str, str], float]]:
        for family in METRIC_FAMILIES:
            for labels, value in family.samples(snapshot):
                tags = {"pipeline": self.pipeline, **labels}
                yield family, tags, self._grown(family, tags, value) if family.kind == "counter" else value

    def _grown(self, family: MetricFamily, tags: dict[str, str], value: float) -> float:
        key = (family.name, *tags.values())
        most = self._most[key] = max(value, self._most.get(key, 0.0))
        return most


def prometheus_text(tally: MetricValues, snapshot: RunSnapshot | None) -> str:
    """All metrics, as Prometheus reads them."""
    lines = [
        "# HELP gristmill_run_info Name and version of the running pipeline.",
        "# TYPE gristmill_run_info gauge",
        f"gristmill_run_info{_labels({'pipeline': tally.pipeline, 'version': VERSION})} 1",
    ]
    for family, members in groupby(tally.samples(snapshot) if snapshot else (), key=itemgetter(0)):
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        lines += [f"{family.name}{_labels(tags)} {_number(value)}" for _, tags, value in members]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    safe = value.encode("utf-8", "replace").decode()
    return safe.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) else repr(float(value))


class MetricsEndpoint(Observer):
    """Serves the metrics of a run on `http://host:port/metrics`; port 0 takes any that is free. On a Ray cluster they
    also go to Ray's own metrics, as `ray_gristmill_...`."""

    def __init__(self, port: int, host: str = LOOPBACK) -> None:
        self.host, self.port = host, port
        self._server: _Server | None = None
        self._tracker, self._tally, self._due = ProgressTracker(), MetricValues(""), 0.0
        self._ray = _RayMetrics()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/metrics"

    def __enter__(self) -> Self:
        if self._server is None:
            try:
                self._server = _Server((self.host, self.port), _Handler)
            except (OSError, OverflowError) as error:
                raise GristmillError(
                    f"cannot serve metrics on {self.host}:{self.port}: {error}. Choose another port, or 0 for "
                    "any free port"
                ) from error
            self.port = self._server.server_address[1]
            threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def started(self, plan: Plan) -> None:
        self.__enter__()
        self._tracker, self._tally = ProgressTracker(plan), MetricValues(plan.name)
        self._show(None)

    def progressed(self, progress: Progress) -> None:
        self._tracker.update(progress)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _EVERY_S
            self._publish()

    def finished(self, progress: Progress) -> None:
        self._tracker.update(progress)
        self._publish(last=True)
        self.__exit__()

    def _publish(self, last: bool = False) -> None:
        snapshot = self._tracker.snapshot()
        self._show(snapshot)
        self._ray.publish(self._tally, snapshot, last)

    def _show(self, snapshot: RunSnapshot | None) -> None:
        if self._server is not None:
            self._server.text = prometheus_text(self._tally, snapshot)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    text = ""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        known = self.path.partition("?")[0] in ("/metrics", "/")
        body = (self.server.text if known else "see /metrics\n").encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the library's
        """Requests are not logged."""


class _RayMetrics:
    """Hands the same numbers to Ray, which exports them on every node, if this process is part of a cluster."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._before: dict[tuple[str, ...], float] = {}
        self._due = 0.0

    def publish(self, tally: MetricValues, snapshot: RunSnapshot, last: bool) -> None:
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized() or (time.monotonic() < self._due and not last):
            return
        self._due = time.monotonic() + _RAY_EVERY_S
        for family, tags, value in tally.samples(snapshot):
            if not math.isnan(value):
                self._set(family, tags, value)

    def _set(self, family: MetricFamily, tags: dict[str, str], value: float) -> None:
        from ray.util.metrics import Counter, Gauge

        metric = self._metrics.get(family.name)
        if metric is None:
            kind: Any = Counter if family.kind == "counter" else Gauge
            metric = self._metrics[family.name] = kind(family.name, family.help, tag_keys=tuple(tags))
        if family.kind == "gauge":
            metric.set(value, tags)
            return
        key = (family.name, *tags.values())
        more = value - self._before.get(key, 0.0)
        if more > 0:
            self._before[key] = value
            metric.inc(more, tags)
