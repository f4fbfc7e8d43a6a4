"""The state of a run in the driver: which task waits where, which source is done, what is retried.

Shared by the executors that schedule calls themselves. It holds references, never payloads: its memory grows with the
tasks in flight, which are bounded, and with the number of open sources.

A call of one item streams: its outputs count as they arrive, so a huge file needs no buffer. If the worker dies, the
item runs again, and outputs that had arrived are skipped (`WorkItem.sent_outputs`, `WorkItem.shared_outputs`). Stages
must be deterministic for that, which `RetryCheck` verifies. A call of several items counts as a whole or not at all.
Outputs that are lost after their call has ended are recomputed (`recovery.py`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import AnswerCountError, WorkerLostError
from gristmill.core.executor import PoolProgress, Progress, rows_read
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.quarantine import ErrorBudget, Quarantine, QuarantinedRecord
from gristmill.core.records.rejected_rows import REJECTED_POSITION
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.run.isolation import FailureHistory, OverBudget, RowLocation
from gristmill.core.run.lost_tasks import OutputKey, Recovery, SentDigest, TaskOrigin, descends_from
from gristmill.core.run.schedule import EDGE_BYTES, PoolLoad, TaskRate
from gristmill.core.stage_roles import can_set_records_aside
from gristmill.core.task import Lineage

if TYPE_CHECKING:
    from gristmill.core.errors import StageError
    from gristmill.core.plan.planner import Plan

CALL_BYTES = 32 * 2**20
"""The most bytes that a call takes, unless its stages need that many items for a batch."""

LOOK_SECONDS = 0.1
"""How stale the number of rows read may be in the error budget of a call; summing it for each call is too slow."""

BATCH_SECONDS = 0.5
"""How long an incomplete batch waits for more items."""

MOST_MOVES = 10
"""How many workers may be lost with their node while they work on the same item."""


@fast_dataclass(slots=True)
class WorkItem:
    """A task, or the gathered tasks of a source, queued for a stage of a group."""

    lineage: Lineage
    refs: list[Any]
    nbytes: int = 0
    start: int = 0
    history: FailureHistory = field(default_factory=FailureHistory)
    runs_alone: bool = False
    sent_outputs: SentDigest = field(default_factory=SentDigest)
    shared_outputs: set[OutputKey] = field(default_factory=set)
    origins: list[TaskOrigin | None] = field(default_factory=list)
    """How to recompute each of the references, where they may be lost."""
    wanted: set[OutputKey] | None = None
    """The lost outputs that the item is run again for; None for a normal run, which yields all outputs."""
    losses: int = 0
    moves: int = 0
    passed: int = 0
    """How many calls with later items have overtaken it."""
    holds_whole_source: bool = False
    """Whether its source has no other items, so that the worker itself can gather its tasks."""


@fast_dataclass(slots=True)
class CallOutput:
    """A task that left a call: its lineage, a reference to its data, and the position of its next stage."""

    lineage: Lineage
    ref: Any
    nbytes: int
    position: int
    origin: TaskOrigin | None = None


@fast_dataclass(slots=True)
class WorkerCall:
    """The items that a worker processes in one call."""

    group: int
    items: list[WorkItem]
    began: float
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    """The error budget left when the call was made."""
    outputs: list[CallOutput] = field(default_factory=list)
    partial_stats: list[StageStats] = field(default_factory=list)
    """Counts so far of a running call, for display only; the final ones replace them."""
    waits: bool = False
    """Whether it has been sent to its worker and waits behind another call."""

    @property
    def start(self) -> int:
        return self.items[0].start

    @property
    def streams(self) -> bool:
        return len(self.items) == 1

    @property
    def alone(self) -> bool:
        """Whether its item may have caused an earlier failure."""
        return self.items[0].runs_alone

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for item in self.items)

    @property
    def is_recovery(self) -> bool:
        """Whether it recomputes lost outputs; nothing else that it yields counts."""
        return self.items[0].wanted is not None

    def discard(self) -> None:
        """Discard the input, which is no longer needed."""
        for item in self.items:
            for ref in item.refs:
                ref.discard()


def item_from_outputs(lineage: Lineage, parts: Sequence[CallOutput], start: int = 0) -> WorkItem:
    """A work item from outputs of an earlier stage."""
    origins = [part.origin for part in parts] if any(part.origin for part in parts) else []
    return WorkItem(lineage, [part.ref for part in parts], sum(part.nbytes for part in parts), start, origins=origins)


@fast_dataclass(slots=True)
class GroupQueue:
    """The queue of a group, and counts of the items that have arrived and finished."""

    queue: deque[WorkItem] = field(default_factory=deque)
    queued_bytes: int = 0
    waiting_bytes: int = 0
    """Bytes of calls that wait at a worker behind another call."""
    since: float = 0.0
    began: float = 0.0
    running: int = 0
    arrived: int = 0
    arrived_bytes: int = 0
    tasks_done: int = 0
    pace: TaskRate = field(default_factory=TaskRate)

    def load(self) -> PoolLoad:
        waiting = self.arrived - self.tasks_done
        return PoolLoad(self.pace.seconds, waiting, self.arrived, self.tasks_done, len(self.queue), self.arrived_bytes)


class Flow:
    """Moves items from group to group. The executor asks for the next call and reports its outcome."""

    def __init__(self, plan: Plan, sources: Iterator[Sequence[WorkItem]], quarantine: Quarantine | None = None) -> None:
        self.plan, self.group_count = plan, len(plan.main_groups)
        self.quarantine = quarantine or Quarantine()
        self.pools = [GroupQueue() for _ in plan.groups]
        self.stats = [[StageStats(part_of=stage._planned.part_of) for stage in group.stages] for group in plan.groups]
        self.source_stats = StageStats(part_of=plan.source._planned.part_of if plan.source else "")
        self.results: deque[tuple[Lineage, Any]] = deque()
        """Outputs of the last stage; an entry without a reference marks its source as done."""
        self.sources_seen = self.sources_done = 0
        self.listing_done = False
        self._began = time.perf_counter()
        self._sources = sources
        self._calls: dict[int, WorkerCall] = {}
        self._rows, self._looked = 0, 0.0
        self._live: dict[str, list[int]] = {}
        self._meets = [group.gather_position for group in plan.groups]
        self._gathered: dict[tuple[str, int], list[CallOutput]] = {}
        self._rejected: dict[str, dict[str, CallOutput]] = {}
        """By source and id, so that fragments of a repeated call replace those of the first."""
        self.may_be_lost: Callable[[Any], bool] = lambda ref: False
        """Whether the data behind a reference may be lost with a node."""
        self._recovery = Recovery()

    # -- in ------------------------------------------------------------------------------------------

    def list_sources(self, enough: int) -> None:
        """List more sources until `enough` items are queued for the first group."""
        pool = self.pools[0]
        while not self.listing_done and len(pool.queue) < enough and pool.queued_bytes < EDGE_BYTES:
            items = next(self._sources, None)
            if items is None:
                self.listing_done = True
                return
            if items:
                self.sources_seen += 1
                self.source_stats.tasks_out += len(items)
            for item in items:
                self._enqueue(0, item)

    def _enqueue(self, group: int, item: WorkItem, first: bool = False) -> None:
        self._live.setdefault(item.lineage.source, [0] * len(self.pools))[group] += 1
        self.pools[group].arrived += 1
        self.pools[group].arrived_bytes += item.nbytes
        self._queue(group, item, first)

    def _queue(self, group: int, item: WorkItem, first: bool = False) -> None:
        pool = self.pools[group]
        pool.queued_bytes += item.nbytes
        if not pool.queue:
            pool.since = time.perf_counter()
        if first:
            pool.queue.appendleft(item)
        else:
            pool.queue.append(item)

    # -- work ----------------------------------------------------------------------------------------

    def downstream_bytes(self, group: int) -> int:
        if group + 1 >= self.group_count:
            return 0
        after = self.pools[group + 1]
        return after.queued_bytes + after.waiting_bytes

    def ready(self, group: int) -> int:
        """How many queued items of a group may start; none while an incomplete batch waits for more."""
        pool = self.pools[group]
        wanted = self.plan.groups[group].batch_size
        count = len(pool.queue)
        if not count or count >= wanted or pool.queue[0].runs_alone or self._starved(group):
            return count
        late = time.perf_counter() - pool.since > BATCH_SECONDS
        return count if late or pool.queued_bytes > EDGE_BYTES // 2 else 0

    def _starved(self, group: int) -> bool:
        """Whether no more items can arrive at a group."""
        if group == 0:
            return self.listing_done
        return self.is_over(group - 1)

    def next_call(self, group: int, most: int, waits: bool = False) -> WorkerCall:
        """The next items of a group as one call. All start at the same stage; a suspect item gets a call of its own.

        A call that `waits` is sent to a busy worker: it begins later, or is put back.
        """
        pool = self.pools[group]
        at_least = self.plan.groups[group].batch_size
        items = [self._pop(pool)]
        size = items[0].nbytes
        while len(items) < most and pool.queue and not items[0].runs_alone:
            following = pool.queue[0]
            size += following.nbytes
            too_large = size > CALL_BYTES and len(items) >= at_least
            if following.start != items[0].start or following.runs_alone or too_large:
                break
            items.append(self._pop(pool))
        pool.running += 1
        self._see_all(group, items)
        known = any(stat.rows_in or stat.rows_out for stats in self.stats[:group] for stat in stats)
        reads = items[0].start == 0 and not known
        now = time.perf_counter()
        pool.began = pool.began or now
        if now - self._looked > LOOK_SECONDS:
            self._rows, self._looked = self.rows_read, now
        call = WorkerCall(group, items, now, self.quarantine.remaining_budget(self._rows, reads), waits=waits)
        if call.is_recovery:
            self._recovery.started(group, items[0])
            call.budget = ErrorBudget()  # unlimited: its quarantined records were counted the first time
        self._calls[id(call)] = call
        if waits:
            pool.waiting_bytes += call.nbytes
        return call

    def _see_all(self, group: int, items: Sequence[WorkItem]) -> None:
        """Note which items are the only ones of their source. An item that has already sent outputs keeps its value,
        since a repeated attempt must gather in the same place as the first."""
        meets = self._meets[group] or 0
        for item in items if meets else ():
            if not item.sent_outputs.count and not item.shared_outputs:
                source = item.lineage.source
                alone = sum(self._live[source]) == 1 and (source, group) not in self._gathered
                item.holds_whole_source = alone and item.start < meets

    def begin(self, call: WorkerCall) -> None:
        """A waiting call has started to run."""
        if call.waits:
            call.waits, call.began = False, time.perf_counter()
            self.pools[call.group].waiting_bytes -= call.nbytes

    def put_back(self, call: WorkerCall) -> None:
        """Return the items of a call that never ran to the front of the queue, without counting an attempt."""
        self.begin(call)
        self._end_call(call)
        for item in reversed(call.items):
            self._queue(call.group, item, first=True)

    @staticmethod
    def _pop(pool: GroupQueue) -> WorkItem:
        item = pool.queue.popleft()
        pool.queued_bytes -= item.nbytes
        return item

    def add_output(self, call: WorkerCall, output: CallOutput) -> None:
        """Take an output of a running call."""
        if call.is_recovery:
            self._requeue(self._recovery.deliver(call.group, call.items[0], output))
            return
        if self.may_be_lost(output.ref):
            output.origin = self._origin(call, output)
        # Rejected rows are not streamed either: a repeated attempt may cut them into other fragments.
        if not call.streams or output.position == REJECTED_POSITION:
            call.outputs.append(output)
            return
        item, ends = call.items[0], len(self.plan.groups[call.group].stages)
        item.holds_whole_source = item.holds_whole_source and output.position > (self._meets[call.group] or 0)
        if output.position in (ends, self._meets[call.group]):
            item.sent_outputs.add(output.lineage.id)
        else:
            item.shared_outputs.add((output.lineage.id, output.position))
        self._route(call.group, output)

    @staticmethod
    def _origin(call: WorkerCall, output: CallOutput) -> TaskOrigin:
        task_id = output.lineage.id
        parent = next(item for item in call.items if call.streams or descends_from(task_id, item.lineage.id))
        return TaskOrigin(call.group, parent, (task_id, output.position))

    def _route(self, group: int, output: CallOutput) -> None:
        if output.position == REJECTED_POSITION:
            self._rejected.setdefault(output.lineage.source, {})[output.lineage.id] = output
            return
        if output.position == self._meets[group]:
            self._gathered.setdefault((output.lineage.source, group), []).append(output)
            return
        if output.position < len(self.plan.groups[group].stages):
            self._enqueue(group, item_from_outputs(output.lineage, [output], output.position))
            return
        lineage = output.lineage
        if group == 0 and self.plan.tasks_are_sources:
            lineage = output.lineage = lineage.as_source()
            self.sources_seen += 1
        after = group + 1
        if after >= self.group_count:
            self.sources_done += group == 0 and self.plan.tasks_are_sources
            self.results.append((lineage, output.ref))
        elif self._meets[after] == 0:
            self._gathered.setdefault((lineage.source, after), []).append(output)
            if group == 0 and self.plan.tasks_are_sources:
                self._live.setdefault(lineage.source, [0] * len(self.pools))[0] += 1
                self._close(lineage.source, 0)
        else:
            self._enqueue(after, item_from_outputs(lineage, [output]))

    def finish_call(
        self, call: WorkerCall, stats: Sequence[StageStats], aside: Sequence[QuarantinedRecord] = ()
    ) -> None:
        """End a successful call: its counts and quarantined records are final."""
        if call.is_recovery:
            self._end_call(call)
            self._recovery.check(call.items[0], self.plan.groups[call.group].name)
            return
        for output in call.outputs:
            self._route(call.group, output)
        pool = self.pools[call.group]
        self._end_call(call)
        pool.tasks_done += len(call.items)
        pool.pace.add(len(call.items), sum(stat.seconds for stat in stats), time.perf_counter())
        for total, more in zip(self.stats[call.group], stats, strict=True):
            total.add(more)
        for source, part in _parts_by_source(call, stats):
            self.quarantine.counted(source, call.group, part)
        if aside:
            self.quarantine.take(aside, self.rows_read)
        for item in call.items:
            self._close(item.lineage.source, call.group)

    def _end_call(self, call: WorkerCall) -> None:
        self.pools[call.group].running -= 1
        del self._calls[id(call)]

    @property
    def rows_read(self) -> int:
        """Rows read by the pipeline, good and bad, including the partial counts of running calls."""
        return rows_read(self._stats_so_far())

    def _stats_so_far(self) -> Iterator[StageStats]:
        calls = [call for call in self._calls.values() if call.partial_stats and not call.is_recovery]
        for group, stats in enumerate(self.stats):
            running = [call.partial_stats for call in calls if call.group == group]
            for position, stat in enumerate(stats):
                parts = [stat, *(so_far[position] for so_far in running)]
                yield StageStats(
                    rows_in=sum(part.rows_in for part in parts),
                    rows_out=sum(part.rows_out for part in parts),
                    quarantined=sum(part.quarantined for part in parts),
                )

    def _close(self, source: str, group: int) -> None:
        """One item of a source has left a group: gather the source where it is complete, or mark it as done."""
        counts = self._live[source]
        counts[group] -= 1
        for after in range(group, self.group_count):
            inside = bool(self._meets[after])  # gathered in mid-group, so the group's own items count too
            if any(counts[: after + inside]):
                return
            if parts := self._gathered.pop((source, after), None):
                self._gather(after, parts)
                return
        if not any(counts) and (rejected := self._rejected.pop(source, None)):
            self._gather(self.group_count, list(rejected.values()))
        elif not any(counts):
            del self._live[source]
            self.sources_done += 1
            self.results.append((Lineage(source, source), None))

    def _gather(self, group: int, parts: list[CallOutput]) -> None:
        parts.sort(key=lambda part: part.lineage.sort_key())
        start = self._meets[group] or 0
        self._enqueue(group, item_from_outputs(parts[0].lineage.gathered(), parts, start), first=start > 0)

    def retry_call(
        self,
        call: WorkerCall,
        error: StageError,
        place: RowLocation | None = None,
        aside: Sequence[QuarantinedRecord] = (),
    ) -> None:
        """Queue the items of a failed call again, each alone, to find the one at fault; raise once its retries are used
        up. `place` is where a worker died; repeated attempts narrow it down to the failing record."""
        self._end_call(call)
        if isinstance(error, AnswerCountError):
            raise error
        if isinstance(error, OverBudget):
            self._check_budget(error, aside)
            for item in reversed(call.items):
                self._queue(call.group, item, first=True)
            return
        for item in reversed(call.items):
            item.runs_alone = True
            self._queue(call.group, item, first=True)
        if call.streams:
            item.history.attempts += 1
            stages = self.plan.groups[call.group].stages
            stage = stages[min(error.position, len(stages) - 1)]
            if place is not None and self.quarantine.enabled and can_set_records_aside(stage):
                if not item.history.record_failure(place, error, stage.max_retries):
                    raise error
            elif error.hopeless or item.history.failures_without_record > stage.max_retries:
                raise error

    def recover(self, call: WorkerCall, missing: Iterable[tuple[int, int]]) -> None:
        """A call failed because some of its input is lost: recompute the `missing` pairs of item and part numbers."""
        self._end_call(call)
        lost: dict[int, list[int]] = {}
        for number, part in missing:
            lost.setdefault(number, []).append(part)
        for number, item in reversed(list(enumerate(call.items))):
            if number in lost:
                self._requeue(self._recovery.request(call.group, item, lost[number]))
            else:
                self._queue(call.group, item, first=True)

    def requeue_moved(self, call: WorkerCall) -> None:
        """A worker was lost with its node: queue its items again, without counting an attempt."""
        self._end_call(call)
        for output in call.outputs:
            output.ref.discard()
        for item in reversed(call.items):
            item.moves += 1
            if item.moves > MOST_MOVES:
                stage, lineage = self.plan.groups[call.group].name, item.lineage
                reason = (
                    f"{item.moves} nodes were lost while they worked on it: start the run again on more stable nodes"
                )
                raise WorkerLostError(stage, lineage.id, lineage.files, reason)
            self._queue(call.group, item, first=True)

    def _requeue(self, items: Iterable[tuple[int, WorkItem]]) -> None:
        for group, item in items:
            self._queue(group, item, first=True)

    def _check_budget(self, error: OverBudget, aside: Sequence[QuarantinedRecord]) -> None:
        """Raise if the error budget is exhausted. The call knew only the rows read before it began; more rows read
        since may have enlarged the budget, and the call is then repeated."""
        rows = self.rows_read + error.rows
        if self.quarantine.remaining_budget(rows, reads=False).is_exhausted(sum(record.records for record in aside), 0):
            raise self.quarantine.overspent(aside, rows)
        self._looked = 0.0

    # -- out -----------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self.is_over(len(self.pools) - 1)

    def is_over(self, group: int) -> bool:
        """Whether a group and all before it are empty, and no more sources will be listed."""
        waiting = any(pool.queue or pool.running for pool in self.pools[: group + 1])
        return self.listing_done and not waiting

    def progress(self, pools: Sequence[tuple[int, int]] = (), calls: Iterable[WorkerCall] = ()) -> Progress:
        """A snapshot. `pools` holds the numbers of workers and of busy workers per group, `calls` the running calls."""
        shown = [[stat.copy() for stat in stats] for stats in self.stats]
        for call in calls:
            for total, more in zip(shown[call.group], () if call.is_recovery else call.partial_stats, strict=False):
                total.add(more)
        stages = [(self.plan.source.name, self.source_stats)] if self.plan.source else []
        for group, stats in zip(self.plan.main_groups, shown, strict=False):
            stages += [(stage.name, stat) for stage, stat in zip(group.stages, stats, strict=True)]
        states = [
            PoolProgress(group.name, workers, busy, len(pool.queue), pool.queued_bytes)
            for group, pool, (workers, busy) in zip(self.plan.groups, self.pools, pools, strict=False)
        ]
        elapsed = time.perf_counter() - self._began
        return Progress(stages, states, self.sources_seen, self.sources_done, self.listing_done, elapsed)


def _parts_by_source(call: WorkerCall, stats: Sequence[StageStats]) -> Iterator[tuple[str, Sequence[StageStats]]]:
    """The counts of a call by source."""
    parts = [stat.by_source for stat in stats if stat.by_source]
    if not parts:
        yield call.items[0].lineage.source, stats
        return
    for source in parts[0]:
        yield source, [(stat.by_source or {}).get(source) or StageStats() for stat in stats]
