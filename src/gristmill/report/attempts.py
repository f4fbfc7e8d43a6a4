"""Counts of each attempt of a run, kept in its directory, so that the last report covers all attempts.

An attempt writes what it has counted now and then, and when it is over. A later one adds what those have counted whose
sources it has kept, segment by segment: of an attempt whose files were read, and whose duplicates had to be looked for
again since there are more files now, only the reading counts. Shares and the like are made of the sums.

Gives up: the last seconds of an attempt that is killed; and telling apart, in the counts of stages, the rows of sources
that an attempt did not finish. They were read again, and the report says how many.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from gristmill.core.executor import Progress, rows_read
from gristmill.core.records.row_sketch import RowSketch
from gristmill.core.run.stage_stats import StageStats
from gristmill.core.stage_roles import ReportingRole

if TYPE_CHECKING:
    from gristmill.core.plan.planner import Plan
    from gristmill.core.records.record_store import RecordStore
    from gristmill.core.records.run_directory import Run
    from gristmill.core.stage import ProcessingStage

    Stage = ProcessingStage[Any, Any]

NamedStats = tuple[str, StageStats]
"""A stage by its name, and what it has done."""

ATTEMPTS_DIRECTORY = "attempts"
WRITE_EVERY_S = 10.0


@dataclass
class AttemptCounts:
    """What one attempt has counted."""

    id: str
    plan: str
    seconds: float
    stages: list[NamedStats]


class AttemptLog:
    """Saves the counts of the running attempt. Does nothing if the store holds no run."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._about: dict[str, Any] | None = None
        self._written = time.monotonic()

    def update(self, progress: Progress) -> None:
        if time.monotonic() - self._written > WRITE_EVERY_S and progress.sources_done:
            self.write(progress)

    def write(self, progress: Progress) -> None:
        self._written = time.monotonic()
        self._about = self._about or self._store.read("plan.json")
        if self._about is None or not progress.stages:
            return
        stages = [{"name": name, **_stats_to_json(stats)} for name, stats in progress.stages]
        told = {"attempt": self._about["attempt"], "plan": self._about["plan"], "seconds": progress.seconds}
        content = json.dumps({**told, "stages": stages}, default=str).encode()
        self._store.put(f"{ATTEMPTS_DIRECTORY}/{told['attempt']}.json", content)

    def earlier_attempts(self, plan: Plan, run: Run) -> list[AttemptCounts]:
        """The attempts before this one whose work is part of what there is now, with the part that is."""
        if not self._about or run.store is None or run.restarts:
            return []
        now = self._about["attempt"]
        segments: dict[str, set[str]] = {}
        for entry in latest_entries(run.store.lines("ledger")):
            segments.setdefault(entry["attempt"], set()).add(entry["plan"])
        found = [_read(self._store, name) for name in segments if name and name != now]
        mine = [one for one in found if one and one.plan == self._about["plan"]]
        counted = {one.id: [segment in segments[one.id] for segment in run.segments] for one in mine}
        return [replace(one, stages=_only_in_segments(one.stages, plan, counted[one.id])) for one in mine]


def _only_in_segments(stages: Sequence[NamedStats], plan: Plan, segments: Sequence[bool]) -> list[NamedStats]:
    """What stages have counted, as far as it is in these segments."""
    pairs = zip(plan.segments, segments, strict=True)
    counts = [counts for segment, counts in pairs for _ in segment.stages]
    blank = [(name, StageStats(part_of=stats.part_of)) for name, stats in stages]
    return [one if there else none for one, none, there in zip(stages, blank, counts, strict=False)]


def latest_entries(lines: Any, record: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Of each source, the entry of the ledger that was made last; in a run that did all, as its `record` says, by
    the last attempt."""
    only = record.get("attempt") if record and record.get("whole") else None
    return list({entry["source"]: entry for entry in lines if only in (None, entry["attempt"])}.values())


def _read(store: RecordStore, name: str) -> AttemptCounts | None:
    content = store.get(f"{ATTEMPTS_DIRECTORY}/{name}.json")
    if content is None:
        return None
    told = json.loads(content)
    stages = [(stage.pop("name"), _stats_from_json(stage)) for stage in told["stages"]]
    return AttemptCounts(told["attempt"], told["plan"], told["seconds"], stages)


def combine_attempts(progress: Progress, attempts: Sequence[AttemptCounts], planned: Sequence[Stage] = ()) -> Progress:
    """What all attempts have counted, as the stages that are `planned` want it to be seen."""
    stages = [(name, replace(stats, counts=_raw(stats), raw=None, sketch=None)) for name, stats in progress.stages]
    for (_, total), (_, now) in zip(stages, progress.stages, strict=True):
        if now.sketch:
            total.sketch = RowSketch()
            total.sketch.add(now.sketch)
    seconds = progress.seconds
    for attempt in attempts:
        if all(name == other for (name, _), (other, _) in zip(stages, attempt.stages, strict=False)):
            seconds += attempt.seconds
            missing = attempt.stages[len(stages) :]  # where this one did not get
            stages += [(name, StageStats(part_of=more.part_of)) for name, more in missing]
            for (_, total), (_, more) in zip(stages, attempt.stages, strict=False):
                total.add(replace(more, counts=_raw(more)))
    for stage, (_, stats) in zip(planned, stages, strict=False):
        if isinstance(stage, ReportingRole):
            stats.counts = dict(stage.displayed_counts(stats.counts))
    return replace(progress, stages=stages, seconds=seconds)


def _raw(stats: StageStats) -> dict[str, float]:
    return dict(stats.counts if stats.raw is None else stats.raw)


def rows_read_twice(attempts: Sequence[AttemptCounts], entries: Sequence[Mapping[str, Any]]) -> int:
    """Rows that earlier attempts have read of sources that they did not finish."""
    finished: Counter[str] = Counter()
    for entry in entries:
        finished[entry["attempt"]] += entry.get("read", 0)
    return sum(max(rows_read(stats for _, stats in one.stages) - finished[one.id], 0) for one in attempts)


def _stats_to_json(stats: StageStats) -> dict[str, Any]:
    told = {field.name: getattr(stats, field.name) for field in fields(stats) if field.name != "sketch"}
    sketch = stats.sketch
    if sketch is None:
        return told
    spread = {name: list(buckets.items()) for name, buckets in sketch.histograms.items()}
    values = {name: dict(counts) for name, counts in sketch.values.items()}
    return {**told, "sketch": {"spread": spread, "values": values, "samples": sketch.samples}}


def _stats_from_json(told: Mapping[str, Any]) -> StageStats:
    known = {field.name for field in fields(StageStats)} - {"sketch"}
    stats = StageStats(**{name: value for name, value in told.items() if name in known})
    if sketch := told.get("sketch"):
        stats.sketch = RowSketch(
            {name: Counter(dict(pairs)) for name, pairs in sketch["spread"].items()},
            {name: Counter(counts) for name, counts in sketch["values"].items()},
            [(draw, sample) for draw, sample in sketch["samples"]],
        )
    return stats
