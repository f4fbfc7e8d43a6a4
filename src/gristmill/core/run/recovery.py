"""Recovery: what was lost is made again from what it was made of.

A task that lies in a store that may vanish knows its origin: the item that it came from, and the group that made it.
When it is found to be lost, who needs it waits, and the item is run again for what is wanted of it; if the item is lost
too, the same happens to it. So a node that disappears costs what lay on it, and no more. This rests on stages being
deterministic: a task is known again by its id.

What else a repeated call gives (other outputs, counts, records set aside) has counted before, and is dropped.

A call of one item streams its outputs, and is run again if it fails. The new attempt leaves out what was sent
before. If a stage does not give the same answers again, rows would be lost and doubled without a trace, so `RetryCheck`
compares what is left out with what was sent.
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
    from gristmill.core.run.flow import CallOutput, WorkItem
    from gristmill.core.stage import ProcessingStage
    from gristmill.core.task import Lineage, Task

MAX_LOSSES = 5
"""So often a task may be lost; then more is wrong than a node that disappeared."""

OutputKey = tuple[str, int]
"""A task's id, and the stage of the group that it goes to next."""


@fast_dataclass(slots=True)
class SentDigest:
    """Which tasks have left an item, in order: how many, and a sum over their ids."""

    count: int = 0
    total: int = 0

    def add(self, task_id: str) -> None:
        self.count += 1
        self.total = zlib.crc32(task_id.encode("utf-8", "surrogatepass"), self.total)


class RetryCheck:
    """One attempt of an item of which `sent` has left already."""

    def __init__(self, sent: SentDigest, stages: Sequence[ProcessingStage[Any, Any]], lineage: Lineage) -> None:
        self.sent, self.stage, self.lineage = replace(sent), stages[-1].name, lineage
        self.again = SentDigest()

    @property
    def lags(self) -> bool:
        """Whether some of what was sent has not come again yet."""
        return self.again.count < self.sent.count

    def leaves_out(self, task: Task[Any]) -> bool:
        """Whether a task that comes out now has been sent before."""
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
        """At the end at the latest: what was sent must have come again."""
        if self.again != self.sent:
            error = StageError(
                self.stage,
                self.lineage.id,
                self.lineage.files,
                "after a failure, the same task was not turned into the same outputs as before, so rows would be lost "
                "or doubled. Does this stage, or one before it, depend on chance, on time, or on what it saw earlier?",
            )
            error.hopeless = True
            raise error


class TaskOrigin(NamedTuple):
    """The item that a task came from, the group that made it, and where it left the group."""

    group: int
    item: WorkItem
    place: OutputKey


@fast_dataclass
class Recovery:
    """The books of what is lost: who waits for it, and what is run again."""

    waiting: dict[tuple[int, OutputKey], list[tuple[int, WorkItem, int]]] = field(default_factory=dict)
    """By the group that makes it and its place: the group, the item and the number of the part that wait for it."""
    missing: dict[int, int] = field(default_factory=dict)
    """How many parts each item waits for, by the item's identity."""
    repeats: dict[tuple[int, str, int], WorkItem] = field(default_factory=dict)
    """Items that will be run again and have not started: more can be wanted of them."""

    def request(self, group: int, item: WorkItem, parts: Sequence[int]) -> Iterator[tuple[int, WorkItem]]:
        """Some parts of an item are lost. Yields what to run again for them, each with its group."""
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
        """From now on nothing more can be wanted of it."""
        self.repeats.pop((group, item.lineage.id, item.start), None)

    def deliver(self, group: int, repeated: WorkItem, output: CallOutput) -> Iterator[tuple[int, WorkItem]]:
        """A repeated call gave an output. Yields the items that are whole again, each with its group."""
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
        """A repeated call is done: all that was wanted of it must have come."""
        if item.wanted:
            error = StageError(
                stage,
                item.lineage.id,
                item.lineage.files,
                "what it gave was lost with a node, and when it was run again it gave something else. Does this stage, "
                "or one before it, depend on chance, on time, or on what it saw earlier?",
            )
            error.hopeless = True
            raise error


def _repeated_item(item: WorkItem) -> WorkItem:
    """The item, to be run again for something that is wanted of it."""
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
    """What is wanted of a repeated call, as a worker uses it: in place of what has left early, and to let it leave.

    Tasks that nothing wanted comes from are left out on the way.
    """

    def __init__(self, wanted: Set[OutputKey]) -> None:
        self.pending = set(wanted)
        self._ancestors = {ancestor for task_id, _ in wanted for ancestor in ancestor_ids(task_id)}
        self._asked: OutputKey | None = None

    def __contains__(self, place: Any) -> bool:
        """Whether a task is left out. It is asked of each before `shares`."""
        self._asked = place
        return place[0] not in self._ancestors

    def __iter__(self) -> Iterator[OutputKey]:
        return iter(self.pending)

    def __len__(self) -> int:
        return len(self.pending)

    def is_wanted_here(self) -> bool:
        """Whether the task that was just asked about is wanted here, and not at the end of the group."""
        return self._asked in self.pending

    def take(self, task_id: str, position: int) -> bool:
        """Whether a task that comes out is wanted. Each is taken once."""
        if (task_id, position) not in self.pending:
            return False
        self.pending.remove((task_id, position))
        return True


def ancestor_ids(task_id: str) -> Iterator[str]:
    """The id, and those that it may descend from."""
    parts = task_id.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def descends_from(task_id: str, ancestor: str) -> bool:
    return task_id == ancestor or task_id.startswith(f"{ancestor}.")
