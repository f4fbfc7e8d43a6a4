"""Pools: the workers of one group, whatever a worker is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import cloudpickle

from gristmill.core.errors import StageError
from gristmill.core.executor import Job
from gristmill.core.flow import Call
from gristmill.core.isolate import History, Place
from gristmill.core.plan import Group
from gristmill.core.quarantine import Budget
from gristmill.core.rejects import Rejecter
from gristmill.core.repeat import Trail
from gristmill.core.stage import implements
from gristmill.core.task import Lineage
from gristmill.executors.machine import GpuSlots, Machine, Slot

WINDOW = 64 * 2**20
"""Bytes of output that a worker may have sent and the driver not acknowledged."""

State = Literal["starting", "idle", "busy", "leaving", "gone"]


@dataclass(slots=True)
class Order:
    """One call: tasks, the stage to start at, what is known of earlier attempts, and what was sent in them."""

    items: list[tuple[Lineage, list[Any]]]
    start: int
    gather: bool
    streams: bool
    history: History
    budget: Budget
    sent: Trail
    shed: set[tuple[str, int]]


class WorkerHandle(ABC):
    """The driver's side of one worker."""

    def __init__(self, group: int, gather: bool, key: int, slot: Slot) -> None:
        self.group, self.gather, self.key, self.slot = group, gather, key, slot
        self.state: State = "starting"
        self.owed = 0
        self.share_asked = False
        self.timed_out = ""

    def call(self, call: Call) -> None:
        item = call.items[0]
        self.state, self.owed, self.share_asked = "busy", 0, False
        items = [(entry.lineage, entry.refs) for entry in call.items]
        gather = self.gather and not call.start  # what was shed by a stage further on has been gathered before
        self.order(Order(items, call.start, gather, call.streams, item.history, call.budget, item.sent, item.shed))

    @abstractmethod
    def order(self, order: Order) -> None:
        """Give it work. If it has ended, that is noticed elsewhere."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Let it go on sending."""

    @abstractmethod
    def ask_to_share(self, count: int) -> None:
        """Ask it to leave some of the tasks that it makes to others."""

    @abstractmethod
    def stop(self) -> None:
        """Ask it to tear down and end."""

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def place(self) -> Place | None:
        """Where it was when it ended, as far as that is known."""

    @abstractmethod
    def doing(self) -> tuple[int, float]:
        """The position of the stage that it is in (below zero: none), and for how many seconds."""


class Pool(ABC):
    """Workers of one group: how many there may be, and what each is doing."""

    def __init__(self, group: Group, machine: Machine, slots: GpuSlots, job: Job) -> None:
        self.group, self.index = group, group.index
        self.slots = slots
        self.budget = job.quarantine.budget if job.quarantine.isolates else None
        self.rejecter = job.plan.rejecter(group)
        # a fixed number of workers is the user's own word on how much runs at once
        self.cpus = 0.0 if group.num_workers else group.resources.cpus
        self.limit = group.num_workers or _most_workers(group, machine, slots)
        self.target = self.limit
        self.timed = any(stage.timeout_s is not None for stage in group.stages)
        self.on_node = any(implements(stage, "setup_on_node") for stage in group.stages)
        self.payload: bytes | None = None
        self.workers: list[WorkerHandle] = []
        self.setup_failures = 0

    def those(self, state: State) -> list[WorkerHandle]:
        return [worker for worker in self.workers if worker.state == state]

    @property
    def idle(self) -> list[WorkerHandle]:
        return self.those("idle")

    @property
    def busy(self) -> list[WorkerHandle]:
        return self.those("busy")

    @property
    def starting(self) -> int:
        return len(self.those("starting"))

    def can_grow(self) -> bool:
        if len(self.workers) >= min(self.limit, max(self.target, 1)) or (self.on_node and self.starting):
            return False
        slot = self.slots.take(self.group.resources)
        if slot is None:
            return False
        self.slots.give_back(slot)
        return True

    def cpus_in_use(self, total: float) -> float:
        """Cores that calls and set-ups use; a worker that waits for room behind it uses none."""
        active = self.starting + sum(1 for worker in self.busy if worker.owed < WINDOW // 2)
        return active * min(self.cpus, total)

    @abstractmethod
    def start(self) -> None:
        """Start one worker more."""

    def remove(self, worker: WorkerHandle) -> None:
        worker.state = "gone"
        self.workers.remove(worker)
        self.slots.give_back(worker.slot)


def _most_workers(group: Group, machine: Machine, slots: GpuSlots) -> int:
    wish = group.resources
    most = max(1, int(machine.cpus / wish.cpus + 1e-9)) if wish.cpus else int(machine.cpus)
    if wish.requires_gpu:
        most = slots.fits(wish)
    if wish.memory_gb and machine.memory_gb:
        most = min(most, int(machine.memory_gb / wish.memory_gb))
    return max(1, most)


def pickled(group: Group, rejecter: Rejecter | None = None) -> bytes:
    """The stages of a group, and what writes down what they drop, ready to be sent to its workers."""
    for stage in group.stages:
        try:
            cloudpickle.dumps(stage)
        except Exception as error:
            raise StageError(
                stage.name,
                "(none yet)",
                (),
                f"it cannot be sent to a worker: {error}. Create what cannot be pickled (locks, clients, models) "
                "in setup(), not in the constructor",
            ) from error
    payload: bytes = cloudpickle.dumps((list(group.stages), rejecter))
    return payload
