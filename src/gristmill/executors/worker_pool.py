"""Pools: the workers of one group, whatever a worker is."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import cloudpickle

from gristmill.core.errors import StageError
from gristmill.core.executor import Job
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.plan.planner import Group
from gristmill.core.records.quarantine import ErrorBudget
from gristmill.core.records.rejected_rows import RejectedRowRecorder
from gristmill.core.run.flow import Flow, WorkerCall
from gristmill.core.run.isolation import FailureHistory, RowLocation
from gristmill.core.run.recovery import SentDigest
from gristmill.core.run.schedule import START_SECONDS, WINDOW, expected_output_bytes
from gristmill.core.stage import implements
from gristmill.core.task import Lineage
from gristmill.executors.machine import GpuSlot, GpuSlots, Machine

_MAX_CANDIDATES = 64

WorkerState = Literal["starting", "idle", "busy", "full", "leaving", "gone"]
"""A worker that is busy may be sent another call, one that is full may not."""


@fast_dataclass(slots=True)
class CallRequest:
    """One call: tasks, the stage to start at, what is known of earlier attempts, and what was sent in them."""

    items: list[tuple[Lineage, list[Any]]]
    start: int
    gather: bool
    streams: bool
    history: FailureHistory
    budget: ErrorBudget
    sent: SentDigest
    sent_early: set[tuple[str, int]]
    wanted: set[tuple[str, int]] | None = None
    """What of all that it gives is wanted; None for everything."""
    number: int = 0
    waits: bool = False
    """It is sent ahead, behind another one, and may be taken back."""
    complete_sources: frozenset[str] = frozenset()
    """Sources of which it has all, so that it can gather them."""
    has_small_output: bool = False
    """It is expected to give so little that all of it can be held until it is done."""


class WorkerHandle(ABC):
    """The driver's side of one worker."""

    most_calls: ClassVar[int] = 1
    """How many calls it may have: one that it runs, and others that wait behind it, so that it need not wait."""

    def __init__(self, group: int, gather_position: int | None, key: int, slot: GpuSlot) -> None:
        self.group, self.gather_position, self.key, self.slot = group, gather_position, key, slot
        self.calls: deque[WorkerCall] = deque()
        self.workers_by_state: WorkersByState = empty_workers_by_state()
        self._state: WorkerState = "starting"
        self.began = time.monotonic()
        self.is_set_up = self.retiring = self.retires_for_others = False
        self.node = ""
        self.first_call_memory = 0
        self.tasks_left: int | None = None
        self.ordered = 0
        self.workers_to_acknowledge: dict[int, WorkerHandle] = {}
        self._owed = 0
        self.share_asked = False
        self.timed_out = ""
        self.node_gone = False
        """Whether it ended because its node did."""

    @property
    def state(self) -> WorkerState:
        return self._state

    @state.setter
    def state(self, state: WorkerState) -> None:
        self.workers_by_state[self._state].pop(self.key, None)
        self.workers_by_state[state][self.key] = self
        self._state = state

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes that it has sent and that were not acknowledged."""
        return self._owed

    @unacknowledged_bytes.setter
    def unacknowledged_bytes(self, owed: int) -> None:
        self._owed = owed
        if owed >= WINDOW // 4:
            self.workers_to_acknowledge[self.key] = self
        else:
            self.workers_to_acknowledge.pop(self.key, None)

    def call(self, call: WorkerCall, short: bool = False) -> None:
        if not self.calls:
            self.unacknowledged_bytes, self.share_asked = 0, False
        self.calls.append(call)
        if self.tasks_left is not None:
            self.tasks_left -= len(call.items)
            self.retiring = self.retiring or self.tasks_left <= 0
        self.update_state()
        item = call.items[0]
        items = [(entry.lineage, entry.refs) for entry in call.items]
        gather = call.start == self.gather_position  # what was shed by a stage further on has been gathered before
        order = CallRequest(
            items, call.start, gather, call.streams, item.history, call.budget, item.sent_outputs, item.shared_outputs
        )
        order.wanted, order.waits, order.has_small_output = item.wanted, call.waits, short and call.streams
        order.complete_sources = frozenset(entry.lineage.source for entry in call.items if entry.holds_whole_source)
        order.number = self.ordered = self.ordered + 1
        self.order(order)

    def finish(self) -> WorkerCall:
        """The call that it ran is over."""
        call = self.calls.popleft()
        self.unacknowledged_bytes, self.share_asked = 0, False
        self.update_state()
        return call

    def update_state(self) -> None:
        """What it can be given now. Nothing waits behind an item that may be at fault, nor the other way round."""
        more = len(self.calls) < self.most_calls and not self.retiring
        self.state = "idle" if not self.calls else "busy" if more and not self.calls[-1].alone else "full"

    def leaks(self, memory: int, limit: float) -> bool:
        """Whether it has outgrown its limit. What it needs from its first task on, it would need again."""
        self.first_call_memory = self.first_call_memory or memory
        return memory > max(limit, 1.2 * self.first_call_memory) and limit > 0

    @property
    def unfit_for_reuse(self) -> bool:
        """Whether its process must not go on as another worker: it leaks, or may, or was given up."""
        return bool(self.timed_out) or self.tasks_left is not None or (self.retiring and not self.retires_for_others)

    def recall(self) -> bool:
        """Take the last call back; False if it has begun."""
        return False

    @abstractmethod
    def order(self, order: CallRequest) -> None:
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
    def last_position(self) -> RowLocation | None:
        """Where it was when it ended, as far as that is known."""

    @abstractmethod
    def current_stage(self) -> tuple[int, float]:
        """The position of the stage that it is in (below zero: none), and for how many seconds."""


WorkersByState = dict[WorkerState, dict[int, WorkerHandle]]
"""Workers by what they do, kept as they change: with thousands of them nobody wants to look through all."""


def empty_workers_by_state() -> WorkersByState:
    return {state: {} for state in get_args(WorkerState)}


class WorkerPool(ABC):
    """Workers of one group: how many there may be, and what each is doing."""

    def __init__(self, group: Group, machine: Machine, slots: GpuSlots, job: Job) -> None:
        self.group, self.index = group, group.index
        self.slots = slots
        self.budget = job.quarantine.budget if job.quarantine.enabled else None
        self.rejecter = job.plan.side_output_recorder(group)
        self.memory = 1e9 * group.resources.memory_gb
        self.resources = group.resources
        self.gpu = self.resources.requires_gpu
        # a fixed number of workers is the user's own word on how much runs at once
        self.cpus = 0.0 if group.num_workers else group.resources.cpus
        self.limit = group.num_workers or max_workers(group, machine, slots)
        self.target = self.limit
        self.timed = any(stage.timeout_s is not None for stage in group.stages)
        self.needs_node_setup = any(implements(stage, "setup_on_node") for stage in group.stages)
        self.payload: bytes | None = None
        self.workers: list[WorkerHandle] = []
        self.workers_by_state = empty_workers_by_state()
        self.workers_to_acknowledge: dict[int, WorkerHandle] = {}
        """Those that wait for room behind them, or will soon."""
        self.setup_failures = 0
        self.has_small_output, self.may_have_small_output = False, True
        """Whether single tasks have given little so far, and whether none has given much."""
        self.expected = 0.0
        """How many tasks it has before it, as far as can be told."""
        self.setup_seconds = 0.0
        """How long the last set-up took."""

    def add_worker(self, worker: WorkerHandle) -> None:
        self.workers.append(worker)
        worker.workers_by_state, worker.workers_to_acknowledge, worker.tasks_left = (
            self.workers_by_state,
            self.workers_to_acknowledge,
            self.group.max_tasks_per_worker,
        )
        worker.state = worker.state

    def in_states(self, *states: WorkerState) -> list[WorkerHandle]:
        return [worker for state in states for worker in self.workers_by_state[state].values()]

    def candidates(self, state: WorkerState) -> list[WorkerHandle]:
        """As many of them as it makes sense to choose from; those that have been so for long come first."""
        return list(itertools.islice(self.workers_by_state[state].values(), _MAX_CANDIDATES))

    @property
    def idle(self) -> list[WorkerHandle]:
        return self.in_states("idle")

    @property
    def busy(self) -> list[WorkerHandle]:
        return self.in_states("busy", "full")

    def count(self, *states: WorkerState) -> int:
        return sum([len(self.workers_by_state[state]) for state in states])

    @property
    def staying_workers(self) -> int:
        """Workers that are here to stay."""
        return sum(not worker.retiring and worker.state != "leaving" for worker in self.workers)

    def retire(self, worker: WorkerHandle) -> None:
        """Let a worker end when it is done with what it has."""
        worker.retiring = worker.retires_for_others = True
        if worker.state == "idle":
            worker.stop()
        elif worker.calls:
            worker.update_state()

    def cancel_retirement(self, wanted: int) -> None:
        """Keep workers that were to end for the sake of others, as far as so many are wanted after all."""
        for worker in [worker for worker in self.busy if worker.retires_for_others][
            : max(0, wanted - self.staying_workers)
        ]:
            worker.retires_for_others = False
            worker.retiring = worker.tasks_left is not None and worker.tasks_left <= 0
            worker.update_state()

    @property
    def missing(self) -> int:
        """How many workers more it may have."""
        return min(self.limit, max(self.target, 1)) - len(self.workers)

    def can_grow(self) -> bool:
        return self.missing > 0 and self.next_slot() is not None

    def next_slot(self) -> GpuSlot | None:
        """What the next worker will hold; None if that is not free, or its node is being set up by another worker."""
        return None if self.needs_node_setup and self.count("starting") else self.slots.find(self.resources)

    def node_is_set_up(self, node: str) -> None:
        self.needs_node_setup = False

    def keeps_up(self, flow: Flow) -> bool:
        """Whether it gathers, and is through with what waits before one more worker would have started. As a rule that
        is quick, so as long as nothing is known of it, the first worker is waited for, unless its call is slow."""
        if not self.group.gather or not self.staying_workers or self.group.num_workers:
            return False
        waiting = flow.pools[self.index]
        long_ago = time.perf_counter() - START_SECONDS
        slow = any(worker.calls[0].began < long_ago for worker in self.busy)
        return not slow and len(waiting.queue) * (waiting.pace.seconds or 0.0) < START_SECONDS * self.staying_workers

    def cpus_in_use(self, total: float) -> float:
        """Cores that calls and set-ups use; a worker that waits for room behind it uses none."""
        paused = sum(worker.unacknowledged_bytes >= WINDOW // 2 for worker in self.workers_to_acknowledge.values())
        active = self.count("starting", "busy", "full") - paused
        return active * min(self.cpus, total)

    def coming_bytes(self, flow: Flow, behind: Sequence[WorkerPool]) -> float:
        """What its running calls will add to what waits behind it. What is gathered does not wait there."""
        if not behind or behind[0].group.gather or not flow.pools[self.index].running:
            return 0.0
        state, after = flow.pools[self.index], flow.pools[self.index + 1]
        takers = behind[0].count("busy", "full") + (0 if after.queue else behind[0].count("idle"))
        return expected_output_bytes(state.load(), after.load(), takers, time.perf_counter() - state.began)

    @abstractmethod
    def start(self) -> None:
        """Start one worker more, if there is a slot for it now."""

    def remove(self, worker: WorkerHandle) -> None:
        worker.state = "gone"
        del self.workers_by_state["gone"][worker.key]
        self.workers_to_acknowledge.pop(worker.key, None)
        self.workers.remove(worker)
        self.slots.release(worker.slot)


def max_workers(group: Group, machine: Machine, slots: GpuSlots) -> int:
    """How many workers of a group there can be at once."""
    wish = group.resources
    most = max(1, int(machine.cpus / wish.cpus + 1e-9)) if wish.cpus else int(machine.cpus)
    if wish.requires_gpu:
        most = slots.fits(wish)
    if wish.memory_gb and machine.memory_gb:
        most = min(most, int(machine.memory_gb / wish.memory_gb))
    return max(1, most)


def pickle_group(group: Group, rejecter: RejectedRowRecorder | None = None) -> bytes:
    """The stages of a group, and what writes down what they drop, ready to be sent to its workers."""
    try:
        payload: bytes = cloudpickle.dumps((list(group.stages), rejecter))
    except Exception:
        _find_unpicklable(group)
        raise
    return payload


def _find_unpicklable(group: Group) -> None:
    """Raise an error that names the stage that cannot be sent, if one by itself cannot."""
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
