"""What each source has counted in the attempt that finished it: the account that all numbers of a run are made of.

    counts/      one line for each source that was finished: the counts of every stage of its segment

A source counts once, with what the attempt did that the ledger names for it. What other attempts did of it, which were
killed before they finished it or were made before its input changed, is not in these counts.

Gives up: samples of rows that are not among those with the smallest draws of their attempt; and the time between the
last source that an attempt finished and the moment when it was killed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.core.records.row_summary import SAMPLES, RowSummary
from gristmill.core.records.run_record_store import parse_line, to_json_line
from gristmill.core.records.stage_stats import ADDITIVE, StageStats

if TYPE_CHECKING:
    from gristmill.core.plan.planner import Plan
    from gristmill.core.records.run_record_store import RecordStore

NamedStats = tuple[str, StageStats]
"""A stage by its name, and what it has done."""

COUNTS_DIRECTORY = "counts"


class SourceCounts:
    """The counts of the running attempt by source, and those of the sources that it keeps of earlier ones."""

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        self.kept: list[NamedStats] = []
        """The counts of the current segment's sources that earlier attempts have finished."""
        self.sources_kept = 0
        self.sources_unknown = 0
        """Sources that an earlier attempt has finished without recording its counts, as version 0.1 did."""
        self.lines: list[bytes] = []
        """Lines that are to be written."""
        self._began: float | None = None
        self._names: list[tuple[str, str]] = []
        self._first: list[int] = []
        self.segment = 0
        self._open: dict[str, list[StageStats]] = {}
        self._earlier: dict[str, list[bytes]] = {}
        self._clocks: dict[str, float] = {}
        self._used: set[str] = set()
        self._draws: dict[tuple[int, int], list[float]] = {}

    @property
    def earlier_attempts(self) -> int:
        """How many earlier attempts have finished sources that are kept."""
        return len(self._used)

    @property
    def earlier_seconds(self) -> float:
        """How long those attempts took, up to what is known of them."""
        return sum(self._clocks.get(attempt, 0.0) for attempt in self._used)

    def load(self, store: RecordStore, attempts: Mapping[str, str]) -> None:
        """Read the counts of earlier attempts. `attempts` names, for each source, the one that has finished it."""
        for content, line in store.parsed_lines(COUNTS_DIRECTORY):
            attempt, source = line["attempt"], line.get("source")
            self._clocks[attempt] = max(line["at"], self._clocks.get(attempt, 0.0))
            if source is not None and attempts.get(source) == attempt:
                self._earlier.setdefault(source, []).append(content)

    def begin_segment(self, plan: Plan) -> None:
        """Start a segment, or another turn of it."""
        self.segment = plan.number
        self._began = self._began or time.monotonic()
        self._names = [(stage.name, stage._planned.part_of) for stage in plan.stages]
        self._first, place = [], int(plan.source is not None)
        for group in plan.main_groups:
            self._first.append(place)
            place += len(group.stages)
        self.kept, self.sources_kept = self._blank(), 0
        self._open.clear()

    def _blank(self) -> list[NamedStats]:
        return [(name, StageStats(part_of=part_of)) for name, part_of in self._names]

    def keep(self, source: str, attempt: str) -> None:
        """An earlier attempt has finished the source, and its output is kept."""
        self.sources_kept += 1
        self._used.add(attempt)
        lines = self._earlier.pop(source, None)
        if lines is None:
            self.sources_unknown += 1
            return
        for line in map(parse_line, lines):
            if len(line["stages"]) == len(self.kept):
                for (_, total), stage in zip(self.kept, line["stages"], strict=True):
                    total.add(_stats_of_json(stage))

    def add(self, source: str, group: int, stats: Sequence[StageStats]) -> None:
        """Work on a source is done by the stages of a group."""
        if group >= len(self._first):  # the group that commits side outputs, which are no stages of the user
            return
        opened = self._open.get(source)
        if opened is None:
            opened = self._open[source] = [stats for _, stats in self._blank()]
        for place, more in enumerate(stats, self._first[group]):
            opened[place].add(more)

    def finish(self, source: str, record: bool) -> list[StageStats]:
        """The source is finished: what it has counted is final, and returned."""
        stats = self._open.pop(source, None) or [stats for _, stats in self._blank()]
        if not record:
            return stats
        written = [_stats_to_json(stat, self._bound(place, stat.summary)) for place, stat in enumerate(stats)]
        self._add_line(time.monotonic() - (self._began or 0.0), source=source, segment=self.segment, stages=written)
        return stats

    def _bound(self, place: int, summary: RowSummary | None) -> float:
        """The draw up to which samples of a stage may be among the smallest of the attempt."""
        if summary is None or not summary.samples:
            return 1.0
        draws = [*self._draws.get((self.segment, place), ()), *(draw for draw, _ in summary.samples)]
        best: list[float] = sorted(draws)[:SAMPLES]
        self._draws[self.segment, place] = best
        return best[-1]

    def _add_line(self, seconds: float, **content: Any) -> None:
        self.lines.append(to_json_line({"attempt": self.attempt, "at": round(seconds, 3), **content}))

    def end(self, seconds: float) -> None:
        """Note how long the attempt took."""
        self._add_line(seconds)

    def take_lines(self) -> list[bytes]:
        """The lines that are to be written, once."""
        taken, self.lines = self.lines, []
        return taken


def summed(parts: Iterable[Sequence[NamedStats]], summaries: bool = True) -> list[NamedStats]:
    """Counts of the same stages, added up. Without summaries it is quick enough for a display."""
    totals: list[NamedStats] = []
    for part in parts:
        totals = totals or [(name, StageStats(part_of=stats.part_of)) for name, stats in part]
        for (_, total), (_, more) in zip(totals, part, strict=True):
            total.add(more if summaries else more.without_summary())
    return totals


def _stats_to_json(stats: StageStats, most_draw: float) -> list[Any]:
    summary = stats.summary
    described: dict[str, Any] | None = None
    if summary is not None:
        described = {
            "spread": {name: list(buckets.items()) for name, buckets in summary.histograms.items()},
            "values": {name: dict(counts) for name, counts in summary.values.items()},
            "samples": [sample for sample in summary.samples if sample[0] <= most_draw],
            "drops": {name: dict(drops) for name, drops in summary.drops.items()},
            "labels": summary.labels,
        }
    return [*(getattr(stats, name) for name in ADDITIVE), stats.counts or None, described]


def _stats_of_json(described: Sequence[Any]) -> StageStats:
    *numbers, counts, summary = described
    stats = StageStats(**dict(zip(ADDITIVE, numbers, strict=True)), counts=counts or {})
    if summary:
        stats.summary = RowSummary(
            {name: Counter(dict(pairs)) for name, pairs in summary["spread"].items()},
            {name: Counter(counts) for name, counts in summary["values"].items()},
            [(draw, sample) for draw, sample in summary["samples"]],
            {name: Counter(drops) for name, drops in summary.get("drops", {}).items()},
            summary.get("labels", {}),
        )
    return stats
