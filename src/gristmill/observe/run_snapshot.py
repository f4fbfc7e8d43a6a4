"""The state of a run at one moment, used by the terminal display, progress lines, JSON events and metrics.

Rates and bottleneck cover the last seconds. A composite stage is one line, with the counts of all its parts.

Gives up: the time left of a whole pipeline with exchanges. Only that of the running segment is estimated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import shorten
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.result import Summary
from gristmill.core.stage_roles import GatherRole, PlanningRole

if TYPE_CHECKING:
    from gristmill.core.executor import Progress
    from gristmill.core.plan.planner import Plan
    from gristmill.core.records.stage_stats import StageStats

WINDOW_S = 10.0
_SAMPLE_EVERY_S = 0.2
_UNCOMPRESSED_SUFFIXES = (".jsonl", ".json", ".ndjson", ".txt", ".csv", ".tsv")
"""Of such files as many bytes are parsed as they have on disk."""


@fast_dataclass(frozen=True, slots=True)
class StagePosition:
    """Where a stage stands: its segment, and its group there; None for a source, which runs in the driver."""

    name: str
    segment: int
    group: int | None
    user_stage: str
    """The stage that it is a part of, or its own name."""
    gathers: bool = False
    """It waits for whole sources, so its workers are idle most of the time."""


@fast_dataclass(slots=True)
class StageProgress:
    """One stage, with all its parts."""

    name: str
    segment: int = 0
    group: int | None = None
    rows_in: int = 0
    kept: int = 0
    dropped: int = 0
    quarantined: int = 0
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    rate: float = 0.0
    stages: int = 1
    pools: list[int] = field(default_factory=list)
    """The pools of workers that begin with it."""

    def add_part(self, other: StageProgress) -> None:
        """Another part, which comes after."""
        self.rows_in = self.rows_in or other.rows_in
        self.kept, self.dropped = other.kept, other.dropped
        self.quarantined += other.quarantined
        self.seconds += other.seconds
        self.bytes_in, self.bytes_out = self.bytes_in or other.bytes_in, other.bytes_out
        self.rate = other.rate or self.rate
        self.stages += other.stages
        self.pools += other.pools


@fast_dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The workers of one group, over the last seconds."""

    name: str
    stages: tuple[str, ...]
    workers: int
    busy: int
    queued: int
    queued_bytes: int
    busy_share: float


@fast_dataclass(frozen=True, slots=True)
class Bottleneck:
    """What holds up the rest: a pool whose workers are busy, or the stage that takes most of the time."""

    name: str
    share: float
    workers: int = 0
    idlest_pool: tuple[str, float] | None = None
    """The pool that waits most, and what share of the time."""

    def __str__(self) -> str:
        if not self.workers:
            return f"slowest stage: {self.name}, {self.share:.0%} of the time"
        workers = f"{self.workers:,} worker{'' if self.workers == 1 else 's'}"
        if self.share < 0.5:
            return f"no bottleneck; busiest stage: {self.name} ({workers}, {self.share:.0%} busy)"
        waits = f"; {self.idlest_pool[0]} is {self.idlest_pool[1]:.0%} idle" if self.idlest_pool else ""
        return f"bottleneck: {self.name} ({workers}, {self.share:.0%} busy){waits}"


@fast_dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run at a moment."""

    stages: list[StageProgress]
    pools: list[PoolSnapshot]
    rows_in: int
    rows_out: int
    quarantined: int
    rate: float
    sources_done: int
    sources_seen: int
    listing_done: bool
    seconds: float
    seconds_left: float | None
    segment: int
    segments: int
    bottleneck: Bottleneck | None


@fast_dataclass(frozen=True, slots=True)
class _ProgressSample:
    seconds: float
    rows: tuple[int, ...]
    stage_seconds: tuple[float, ...]
    pools: tuple[tuple[int, int], ...]
    """How many workers each pool has, and how many are busy."""


class ProgressTracker:
    """Remembers the last seconds of a run, and says how it is."""

    def __init__(self, plan: Plan | None = None) -> None:
        self._positions = list(stage_positions(plan)) if plan else []
        self._segments = len(plan.segments) if plan else 1
        self._total = _InputTotal.of(plan)
        self._samples: deque[_ProgressSample] = deque()
        self._before = (0, 0, 0.0)
        """Sources seen, sources done and seconds when the segment began that runs now."""
        self._last: Progress | None = None

    def update(self, progress: Progress) -> None:
        last = self._last
        if last and len(progress.stages) > len(last.stages):
            self._samples.clear()
            done = progress.sources_done - progress.sources_kept
            self._before = (done, done, progress.seconds)
        self._last = progress
        if self._samples and progress.seconds - self._samples[-1].seconds < _SAMPLE_EVERY_S:
            return
        while self._samples and progress.seconds - self._samples[0].seconds > WINDOW_S:
            self._samples.popleft()
        self._samples.append(
            _ProgressSample(
                progress.seconds,
                tuple(_rows(stats) - _kept_rows(progress, place) for place, (_, stats) in enumerate(progress.stages)),
                tuple(stats.seconds for _, stats in progress.attempt_stages),
                tuple((pool.workers, pool.busy) for pool in progress.pools),
            )
        )

    def snapshot(self) -> RunSnapshot:
        progress = self._last
        if progress is None:
            raise RuntimeError("no progress has been reported yet")
        summary = Summary.of(progress)
        lines = _fold_parts(self._stage_lines(progress), self._positions)
        pools = self._pools(progress)
        return RunSnapshot(
            stages=lines,
            pools=pools,
            rows_in=summary.rows_in,
            rows_out=summary.rows_out if len(progress.stages) >= len(self._positions) else 0,
            quarantined=summary.quarantined,
            rate=next((line.rate for line in lines if line.rate), 0.0),
            sources_done=progress.sources_done,
            sources_seen=progress.sources_seen,
            listing_done=progress.listing_done,
            seconds=progress.seconds,
            seconds_left=self._seconds_left(progress),
            segment=self._segment(progress),
            segments=self._segments,
            bottleneck=self._bottleneck(progress, pools),
        )

    def _segment(self, progress: Progress) -> int:
        seen = self._positions[: len(progress.stages)]
        return seen[-1].segment if seen else 0

    def _stage_lines(self, progress: Progress) -> list[StageProgress]:
        """A line for each stage, as they were planned."""
        lines = []
        now = self._segment(progress)
        taken: set[int] = set()
        for index, (name, stats) in enumerate(progress.stages):
            position = self._positions[index] if index < len(self._positions) else StagePosition(name, 0, None, name)
            pools = (
                [position.group]
                if position.group is not None and position.segment == now and position.group not in taken
                else []
            )
            taken.update(pools)
            line = StageProgress(name, position.segment, position.group, stats.rows_in, stats.rows_out)
            line.dropped = stats.dropped
            line.quarantined, line.seconds = stats.quarantined, stats.seconds
            line.bytes_in, line.bytes_out = stats.bytes_in, stats.bytes_out
            rows = _rows(stats) - _kept_rows(progress, index)
            line.rate, line.pools = self._rate(index, rows, progress.seconds), pools
            lines.append(line)
        return lines

    def _rate(self, index: int, rows: int, seconds: float) -> float:
        """Rows per second: of the last seconds, or of the whole run when it has just begun."""
        first = self._samples[0] if self._samples else None
        if first is None or seconds - first.seconds < 1.0:
            return rows / seconds if seconds and self._segments == 1 else 0.0
        before = first.rows[index] if index < len(first.rows) else 0
        return max(rows - before, 0) / (seconds - first.seconds)

    def _pools(self, progress: Progress) -> list[PoolSnapshot]:
        pools = []
        for index, pool in enumerate(progress.pools):
            counts = [sample.pools[index] for sample in self._samples if index < len(sample.pools)]
            workers, busy = sum(have for have, _ in counts), sum(works for _, works in counts)
            names = tuple(pool.name.split(" + "))
            share = busy / workers if workers else 0.0
            pools.append(
                PoolSnapshot(pool.name, names, pool.workers, pool.busy, pool.queued, pool.queued_bytes, min(share, 1.0))
            )
        return pools

    # -- the bottleneck ------------------------------------------------------------------------------------

    def _bottleneck(self, progress: Progress, pools: Sequence[PoolSnapshot]) -> Bottleneck | None:
        pools_at_work = [(index, pool) for index, pool in enumerate(pools) if pool.workers]
        if not pools_at_work:
            return self._slowest(progress)
        # of pools that are about as busy, those behind a long queue hold up the others
        index, top = max(
            pools_at_work, key=lambda pair: (round(pair[1].busy_share, 1), pair[1].queued_bytes, pair[1].queued)
        )
        if not top.busy_share:
            return None
        name = self._slowest_in_pool(progress, index, top)
        rest = [
            (1 - pool.busy_share, *self._pool_name(progress, other, pool))
            for other, pool in pools_at_work
            if other != index
        ]
        share, waits, gathers = max(rest, default=(0.0, "", False))
        idle = (waits, share) if share > 0.3 and waits != name and not gathers else None
        return Bottleneck(name, top.busy_share, top.workers, idle)

    def _pool_name(self, progress: Progress, group: int, pool: PoolSnapshot) -> tuple[str, bool]:
        """The name of a pool in few words, and whether it does nothing but gather."""
        mine = [self._positions[index] for index in self._members(progress, group)]
        names = list(dict.fromkeys(position.user_stage for position in mine)) or pool.stages
        return short_group_name(names), bool(mine) and mine[0].gathers

    def _members(self, progress: Progress, group: int) -> list[int]:
        segment = self._segment(progress)
        known = self._positions[: len(progress.stages)]
        return [index for index, position in enumerate(known) if (position.segment, position.group) == (segment, group)]

    def _slowest_in_pool(self, progress: Progress, group: int, pool: PoolSnapshot) -> str:
        """The stage that takes most of the time of the pool, or else the pool."""
        found = self._largest(progress, self._members(progress, group))
        return found[0] if found and found[1] > 0.6 else self._pool_name(progress, group, pool)[0]

    def _slowest(self, progress: Progress) -> Bottleneck | None:
        """Where no workers are known: the stage that the last seconds went to."""
        found = self._largest(progress, range(len(progress.stages)))
        return Bottleneck(*found) if found else None

    def _largest(self, progress: Progress, stages: Iterable[int]) -> tuple[str, float] | None:
        done = progress.attempt_stages
        before = self._samples[0].stage_seconds if len(self._samples) > 1 else ()
        spent = {index: done[index][1].seconds - (before[index] if index < len(before) else 0.0) for index in stages}
        total = sum(spent.values())
        if total <= 0:
            return None
        most = max(spent, key=spent.__getitem__)
        whole = self._positions[most].user_stage if most < len(self._positions) else progress.stages[most][0]
        return whole, spent[most] / total

    # -- the time left -------------------------------------------------------------------------------------

    def _seconds_left(self, progress: Progress) -> float | None:
        """By the share that is done of the segment that runs now, as far as its size is known."""
        seen, done, began = self._before
        kept = progress.sources_kept
        seen, done = progress.sources_seen - kept - seen, progress.sources_done - kept - done
        spent = progress.seconds - began
        shares = []
        if progress.listing_done:
            shares.append(done / seen if seen else 0.0)
        if self._segment(progress) == 0:
            read, before = (_bytes_read(stages) for stages in (progress.stages, progress.kept))
            shares.append(self._total.share(read - before, done, before, kept))
        share = min(max(shares, default=0.0), 1.0)
        return spent * (1 - share) / share if share > 0 else None


@fast_dataclass(frozen=True, slots=True)
class _InputTotal:
    """How much there is to read, when that is known without opening files."""

    sources: int = 0
    nbytes: int = 0
    """Of files whose size is also that of what is parsed."""

    @classmethod
    def of(cls, plan: Plan | None) -> _InputTotal:
        source: Any = plan.source if plan else None
        files = source.input_files() if isinstance(source, PlanningRole) else ()
        if not files:  # it lists something else, such as URLs to download
            return cls()
        plain = all(str(path).endswith(_UNCOMPRESSED_SUFFIXES) for path in files)
        each = getattr(source, "files_per_partition", 1)
        return cls(-(-len(files) // each), (source.input_bytes() or 0) if plain else 0)

    def share(self, read: float, done: int, read_before: float, done_before: int) -> float:
        """How much is done of what earlier attempts have left to do."""
        left, sources = self.nbytes - read_before, self.sources - done_before
        by_bytes = read / left if self.nbytes and left > 0 else 0.0
        return max(by_bytes, done / sources if sources > 0 else 0.0)


def stage_positions(plan: Plan) -> Iterable[StagePosition]:
    """The stages in the order in which a run counts them."""
    for segment in plan.segments:
        if segment.source:
            source = segment.source
            yield StagePosition(source.name, segment.number, None, source._planned.part_of or source.name)
        for group in segment.main_groups:
            for stage in group.stages:
                shown, gathers = stage._planned.part_of or stage.name, isinstance(stage, GatherRole)
                yield StagePosition(stage.name, segment.number, group.index, shown, gathers)


def _rows(stats: StageStats) -> int:
    return stats.rows_in or stats.rows_out


def _kept_rows(progress: Progress, place: int) -> int:
    """The rows of a stage that earlier attempts did."""
    return _rows(progress.kept[place][1]) if progress.kept else 0


def _bytes_read(stages: Iterable[tuple[str, StageStats]]) -> float:
    return sum(stats.counts.get("bytes_read", 0) for _, stats in stages)


def _fold_parts(lines: Sequence[StageProgress], places: Sequence[StagePosition]) -> list[StageProgress]:
    """Neighbours that are parts of one stage become its line. What it keeps is what its last part gives."""
    folded: list[StageProgress] = []
    last, among_parts = "", False
    for index, line in enumerate(lines):
        whole = places[index].user_stage if index < len(places) else line.name
        is_part = whole != line.name
        if is_part and any(place.user_stage == whole for place in places[index + 1 : index + 2]):
            line.kept = line.dropped = 0
        if folded and last == whole and (is_part or among_parts):
            folded[-1].add_part(line)
        else:
            folded.append(line)
            among_parts = False
        line.name, last, among_parts = whole, whole, is_part or among_parts
    return folded


def merge_by_group(lines: Iterable[StageProgress]) -> list[StageProgress]:
    """One line for all stages that share workers, for a screen that has no room for each."""
    joined: list[StageProgress] = []
    names: list[list[str]] = []
    for line in lines:
        if joined and (joined[-1].segment, joined[-1].group) == (line.segment, line.group) and line.group is not None:
            dropped, rate = joined[-1].dropped + line.dropped, joined[-1].rate or line.rate
            joined[-1].add_part(line)
            joined[-1].dropped, joined[-1].rate = dropped, rate
            names[-1].append(line.name)
        else:
            joined.append(line)
            names.append([line.name])
    for line, members in zip(joined, names, strict=True):
        line.name = short_group_name(members)
    return joined


def short_group_name(stages: Sequence[str]) -> str:
    """The name of a group of stages, in few words."""
    return shorten(stages, 1) if len(stages) > 2 else " + ".join(stages)
