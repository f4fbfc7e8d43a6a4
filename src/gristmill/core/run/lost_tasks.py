"""Recompute tasks that were lost with a node from the items they were made of.

A task in a store that may vanish knows its origin: the item it was made of, and the group that made it. When it is
lost, the item that needs it waits while the origin is run again; if that is lost too, its own origin is run first. So
losing a node costs only the tasks stored on it. Stages must be deterministic: a task is recognised by its id.
Everything else that a repeated call yields (other outputs, counts, quarantined records) was counted before: dropped.

A call of one item streams its outputs and is repeated if it fails, skipping the outputs that were already sent. If a
stage were not deterministic, rows would silently be lost or duplicated, so `RetryCheck` compares the skipped outputs
with those that were sent.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.core.errors import LostTaskError, StageError
from gristmill.core.fast_dataclass import fast_dataclass

if TYPE_CHECKING:
    from gristmill.core.run.task_flow import CallOutput, WorkItem
    from gristmill.core.stage import ProcessingStage
    from gristmill.core.task import Lineage, Task

MAX_LOSSES = 5
"""How often a task may be lost before the run fails."""

OutputKey = tuple[str, int]
"""A task's id, and the position of its next stage in the group."""


@fast_dataclass(slots=True)
class SentDigest:
    """The outputs sent for an item, in order: their number, and a checksum of their ids."""

    count: int = 0
    total: int = 0

    def add(self, task_id: str) -> None:
        self.count += 1
        self.total = zlib.crc32(task_id.encode("utf-8", "surrogatepass"), self.total)


class RetryCheck:
    """Checks a repeated attempt against the outputs `sent` by earlier ones."""

    def __init__(self, sent: SentDigest, stages: Sequence[ProcessingStage[Any, Any]], lineage: Lineage) -> None:
        self.sent, self.stage, self.lineage = replace(sent), stages[-1].name, lineage
        self.again = SentDigest()

    @property
    def lags(self) -> bool:
        """Whether some of the sent outputs have not been repeated yet."""
        return self.again.count < self.sent.count

    def leaves_out(self, task: Task[Any]) -> bool:
        """Whether an output was sent before and must be skipped."""
        if not self.lags:
            return False
        self.again.add(task.id)
        if self.again.count == self.sent.count:
            self.check()
        return True

    def rest(self, outputs: Iterable[Task[Any]]) -> Iterator[Task[Any]]:
        for task in outputs:
            if not self.leaves_out(task):
                yield task
        self.check()

    def check(self) -> None:
        """Raise unless the repeated outputs are those that were sent."""
        if self.again != self.sent:
            error = StageError(
                self.stage,
                self.lineage.id,
                self.lineage.files,
                "when the task was retried after a failure, it gave other outputs than before, so rows would be lost "
                "or doubled. Does this stage, or one before it, depend on chance, on time, or on what it saw earlier?",
            )
            error.hopeless = True
            raise error


class TaskOrigin(NamedTuple):
    """The group that made a task, the item it was made of, and where it left the group."""

    group: int
    item: WorkItem
    place: OutputKey


@fast_dataclass
class Recovery:
    """Lost tasks: which items wait for them, and which items are run again."""

    waiting: dict[tuple[int, OutputKey], list[tuple[int, WorkItem, int]]] = field(default_factory=dict)
    """For each lost task, by group and output key: the group, item and part number that wait for it."""
    missing: dict[int, int] = field(default_factory=dict)
    """How many parts each item waits for, by the `id()` of the item."""
    repeats: dict[tuple[int, str, int], WorkItem] = field(default_factory=dict)
    """Items that are queued to run again. Until they start, more outputs can be requested of them."""

    def request(self, group: int, item: WorkItem, parts: Sequence[int]) -> Iterator[tuple[int, WorkItem]]:
        """Request the lost parts of an item. Yields the items to run again, each with its group."""
        item.losses += 1
        for part in parts:
            origin = item.origins[part] if item.origins else None
            if origin is None or item.losses > MAX_LOSSES:
                raise LostTaskError(_unrecoverable_message(item.lineage, item.losses if origin else 0))
            self.waiting.setdefault((origin.group, origin.place), []).append((group, item, part))
            source = origin.item
            key = (origin.group, source.lineage.id, source.start)
            if key not in self.repeats:
                self.repeats[key] = _repeated_item(source)
                yield origin.group, self.repeats[key]
            wanted = self.repeats[key].wanted
            assert wanted is not None
            wanted.add(origin.place)
        self.missing[id(item)] = len(parts)

    def started(self, group: int, item: WorkItem) -> None:
        """A repeated item has started: no more outputs can be requested of it."""
        self.repeats.pop((group, item.lineage.id, item.start), None)

    def deliver(self, group: int, repeated: WorkItem, output: CallOutput) -> Iterator[tuple[int, WorkItem]]:
        """Hand an output of a repeated call to the items that wait. Yields those now complete, with their group."""
        place = (output.lineage.id, output.position)
        assert repeated.wanted is not None
        repeated.wanted.discard(place)
        waiters = self.waiting.pop((group, place), [])
        for where, item, part in waiters:
            item.refs[part] = copy.copy(output.ref)
            self.missing[id(item)] -= 1
            if not self.missing[id(item)]:
                del self.missing[id(item)]
                yield where, item
        output.ref.discard()

    @staticmethod
    def check(item: WorkItem, stage: str) -> None:
        """Raise if a finished repeated call did not yield all requested outputs."""
        if item.wanted:
            error = StageError(
                stage,
                item.lineage.id,
                item.lineage.files,
                "its output was lost with a node, and when it was run again it gave other outputs. Does this stage, "
                "or one before it, depend on chance, on time, or on what it saw earlier?",
            )
            error.hopeless = True
            raise error


def _repeated_item(item: WorkItem) -> WorkItem:
    """A copy of an item, to be run again for some of its outputs."""
    return replace(
        item,
        refs=[copy.copy(ref) for ref in item.refs],
        origins=list(item.origins),
        history=replace(item.history, troubles=list(item.history.troubles)),
        runs_alone=True,
        sent_outputs=SentDigest(),
        shared_outputs=set(),
        wanted=set(),
        losses=0,
    )


def _unrecoverable_message(lineage: Lineage, losses: int) -> str:
    what = f"task {lineage.id}" + (f" from {lineage.files[0]}" if lineage.files else "")
    if losses:
        return (
            f"{what} was lost with its node and made again {losses - 1} times: nodes disappear faster than the work is "
            "done. Start the run again with its run_dir on nodes that last"
        )
    return f"{what} was lost with its node, and there is nothing to make it from: start the run again with its run_dir"


class WantedOutputs(Set[OutputKey]):
    """The outputs requested of a repeated call. A worker takes it as its `shed` set, and `is_wanted_here` as `share`.

    Tasks that are not ancestors of a requested output are skipped on the way.
    """

    def __init__(self, wanted: Set[OutputKey]) -> None:
        self.pending = set(wanted)
        self._ancestors = {ancestor for task_id, _ in wanted for ancestor in ancestor_ids(task_id)}
        self._asked: OutputKey | None = None

    def __contains__(self, place: Any) -> bool:
        """Whether to skip a task. The worker asks this right before `is_wanted_here`, which has no argument."""
        self._asked = place
        return place[0] not in self._ancestors

    def __iter__(self) -> Iterator[OutputKey]:
        return iter(self.pending)

    def __len__(self) -> int:
        return len(self.pending)

    def is_wanted_here(self) -> bool:
        """Whether the task last passed to `in` is requested at this position, not at the end of the group."""
        return self._asked in self.pending

    def take(self, task_id: str, position: int) -> bool:
        """Whether an output is requested. Each is taken once."""
        if (task_id, position) not in self.pending:
            return False
        self.pending.remove((task_id, position))
        return True


def ancestor_ids(task_id: str) -> Iterator[str]:
    """The id itself and the ids of all its ancestors."""
    parts = task_id.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def descends_from(task_id: str, ancestor: str) -> bool:
    return task_id == ancestor or task_id.startswith(f"{ancestor}.")
