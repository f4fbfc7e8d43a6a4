"""Items, calls, outputs and queues: what `flow.py` keeps books of."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.quarantine import ErrorBudget
from gristmill.core.run.isolation import FailureHistory
from gristmill.core.run.recovery import OutputKey, TaskOrigin
from gristmill.core.run.retry_check import SentDigest
from gristmill.core.run.schedule import PoolLoad, TaskRate
from gristmill.core.run.stage_stats import StageStats
from gristmill.core.task import Lineage


@fast_dataclass(slots=True)
class WorkItem:
    """A task, or the gathered tasks of a source, that waits before a stage of a group."""

    lineage: Lineage
    refs: list[Any]
    nbytes: int = 0
    start: int = 0
    history: FailureHistory = field(default_factory=FailureHistory)
    runs_alone: bool = False
    sent_outputs: SentDigest = field(default_factory=SentDigest)
    shared_outputs: set[OutputKey] = field(default_factory=set)
    origins: list[TaskOrigin | None] = field(default_factory=list)
    """How each of the references is made again, for those that may be lost."""
    wanted: set[OutputKey] | None = None
    """What an item is run again for; None for one that is run for all that it gives."""
    losses: int = 0
    moves: int = 0
    passed: int = 0
    """How many calls of what came later have gone before it."""
    holds_whole_source: bool = False
    """Whether it is all that there is of its source, so that its call can gather that."""


@fast_dataclass(slots=True)
class CallOutput:
    """A task that a call gave: where it comes from, where it lies, and the stage it goes to next."""

    lineage: Lineage
    ref: Any
    nbytes: int
    position: int
    origin: TaskOrigin | None = None


@fast_dataclass(slots=True)
class WorkerCall:
    """Items that one worker works on."""

    group: int
    items: list[WorkItem]
    began: float
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    """What is left of it."""
    outputs: list[CallOutput] = field(default_factory=list)
    partial_stats: list[StageStats] = field(default_factory=list)
    """Counts of a call that is still running, to be shown; they count when it is done."""
    waits: bool = False
    """It is at its worker, behind another call."""

    @property
    def start(self) -> int:
        return self.items[0].start

    @property
    def streams(self) -> bool:
        return len(self.items) == 1

    @property
    def alone(self) -> bool:
        """Whether its item may be at fault for an earlier failure."""
        return self.items[0].runs_alone

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for item in self.items)

    @property
    def is_recovery(self) -> bool:
        """Whether it is run again for something that was lost; then nothing else of it counts."""
        return self.items[0].wanted is not None

    def discard(self) -> None:
        """Nobody needs what it worked on any more."""
        for item in self.items:
            for ref in item.refs:
                ref.discard()


def item_from_outputs(lineage: Lineage, parts: Sequence[CallOutput], start: int = 0) -> WorkItem:
    """What waits before a stage, made of what came out of another."""
    origins = [part.origin for part in parts] if any(part.origin for part in parts) else []
    return WorkItem(lineage, [part.ref for part in parts], sum(part.nbytes for part in parts), start, origins=origins)


@fast_dataclass(slots=True)
class GroupQueue:
    """What waits before a group, and what has passed it."""

    queue: deque[WorkItem] = field(default_factory=deque)
    queued_bytes: int = 0
    waiting_bytes: int = 0
    """Of calls that are at a worker, behind another one."""
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
