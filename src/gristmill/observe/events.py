"""Events of a run for programs, one JSON object per line (`gristmill run --json`).

    estimate     first, with `--estimate`: what the run will take
    start        the plan
    progress     once a second: what each stage has done, the workers, the time left, the bottleneck
    quarantine   records that failed in a stage
    stage        when the run is over: the counts of each stage
    finish       the summary, the files, the run directory; or
    failed       why it stopped

Every event has `event`, `time` (UTC) and, from the first progress on, `seconds` since the start. Fields may be added.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from gristmill.core import VERSION
from gristmill.core.executor import Observer, Progress
from gristmill.core.result import Summary
from gristmill.observe.run_snapshot import Bottleneck, ProgressTracker, RunSnapshot, StageProgress

if TYPE_CHECKING:
    from gristmill.core.plan.planner import Plan

EVENT_EVERY_S = 1.0


class Events(Observer):
    """Gives each event to `write` as a line of JSON."""

    def __init__(self, write: Callable[[str], None], every_s: float = EVENT_EVERY_S) -> None:
        self.write, self.every_s = write, every_s
        self._tracker, self._due = ProgressTracker(), 0.0
        self._reported_failures: dict[int, int] = {}

    def tell(self, event: str, **facts: Any) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        options = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
        self.write(orjson.dumps({"event": event, "time": now, **facts}, default=repr, option=options).decode())

    def noticed(self, message: str) -> None:
        self.tell("notice", message=message)

    def started(self, plan: Plan) -> None:
        self._tracker = ProgressTracker(plan)
        self._due = time.monotonic() + self.every_s
        self.tell("start", pipeline=plan.name, gristmill=VERSION, plan=_plan(plan))

    def progressed(self, progress: Progress) -> None:
        self._tracker.update(progress)
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self.every_s
        self._tell_failures(progress)
        self.tell("progress", **_snapshot_event(self._tracker.snapshot()))

    def finished(self, progress: Progress) -> None:
        self._tell_failures(progress)
        for line in Summary.of(progress).stages:
            counts = {"rows_in": line.rows_in, "kept": line.rows_out, "dropped": line.dropped}
            more = {"quarantined": line.quarantined, "stage_seconds": round(line.seconds, 6), "counts": line.counts}
            self.tell("stage", seconds=_round(progress.seconds), stage=line.name, **counts, **more)

    def _tell_failures(self, progress: Progress) -> None:
        now = progress.attempt_stages
        for index, (name, stats) in enumerate(progress.stages):
            if more := now[index][1].quarantined - self._reported_failures.get(index, 0):
                self._reported_failures[index] = now[index][1].quarantined
                at = _round(progress.seconds)
                self.tell("quarantine", seconds=at, stage=name, records=more, so_far=stats.quarantined)


def _plan(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "source": segment.source.name if segment.source else None,
            "groups": [
                {
                    "stages": [stage.name for stage in group.stages],
                    "cpus": group.resources.cpus,
                    "gpus": group.resources.gpus,
                    "workers": group.num_workers,
                }
                for group in segment.main_groups
            ],
        }
        for segment in plan.segments
    ]


def _snapshot_event(snapshot: RunSnapshot) -> dict[str, Any]:
    return {
        "seconds": _round(snapshot.seconds),
        "seconds_left": None if snapshot.seconds_left is None else _round(snapshot.seconds_left),
        "segment": snapshot.segment + 1,
        "segments": snapshot.segments,
        "sources_done": snapshot.sources_done,
        "sources_seen": snapshot.sources_seen,
        "listing_done": snapshot.listing_done,
        "rows_in": snapshot.rows_in,
        "rows_out": snapshot.rows_out,
        "quarantined": snapshot.quarantined,
        "rows_per_s": _round(snapshot.rate),
        "bottleneck": _bottleneck(snapshot.bottleneck) if snapshot.bottleneck else None,
        "stages": [_stage_event(line) for line in snapshot.stages],
        "pools": [
            {
                "stages": pool.stages,
                "workers": pool.workers,
                "busy": pool.busy,
                "busy_share": _round(pool.busy_share),
                "queued": pool.queued,
                "queued_bytes": pool.queued_bytes,
            }
            for pool in snapshot.pools
        ],
    }


def _bottleneck(found: Bottleneck) -> dict[str, Any]:
    idle = {"idle": found.idlest_pool[0], "idle_share": _round(found.idlest_pool[1])} if found.idlest_pool else {}
    return {"stage": found.name, "share": _round(found.share), "workers": found.workers, **idle, "text": str(found)}


def _stage_event(line: StageProgress) -> dict[str, Any]:
    return {
        "stage": line.name,
        "rows_in": line.rows_in,
        "kept": line.kept,
        "dropped": line.dropped,
        "quarantined": line.quarantined,
        "rows_per_s": _round(line.rate),
    }


def _round(number: float) -> float:
    return round(number, 3)


@contextlib.contextmanager
def stdout_for_events() -> Iterator[Callable[[str], None]]:
    """Keep standard output for events: whatever else is printed there, also by workers, goes to standard error."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # no real file, as in tests
        number = -1
    if number != 1:
        yield _print
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)

    def write(line: str) -> None:
        left = line.encode()
        while left:
            left = left[os.write(kept, left) :]

    try:
        yield write
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _print(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
