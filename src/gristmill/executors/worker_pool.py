"""Workers as the driver sees them: the pool of one group, the handle of one worker, and the request for one call."""

from __future__ import annotations

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import cloudpickle

from gristmill.core.errors import StageError
from gristmill.core.executor import Job, Machine
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.plan.planner import Group
from gristmill.core.records.quarantine import ErrorBudget
from gristmill.core.records.rejected_rows import RejectedRowRecorder
from gristmill.core.run.isolation import FailureHistory, RowLocation
from gristmill.core.run.lost_tasks import SentDigest
from gristmill.core.run.schedule import START_SECONDS, WINDOW, expected_output_bytes
from gristmill.core.run.task_flow import Flow, WorkerCall
from gristmill.core.run.time_limits import time_limit
from gristmill.core.stage import implements
from gristmill.core.task import Lineage
from gristmill.executors.machine_resources import GpuSlot, GpuSlots

_MAX_CANDIDATES = 64

WorkerState = Literal["starting", "idle", "busy", "full", "leaving", "gone"]
"""A busy worker may be sent another call; a full one may not."""


@fast_dataclass(slots=True)
class CallRequest:
    """One call as it is sent to a worker: the tasks, the stage to start at, and what earlier attempts did."""

    items: list[tuple[Lineage, list[Any]]]
    start: int
    gather: bool
    streams: bool
    history: FailureHistory
    budget: ErrorBudget
    sent: SentDigest
    sent_early: set[tuple[str, int]]
    wanted: set[tuple[str, int]] | None = None
    """The outputs that were lost and are made again; None for all outputs."""
    number: int = 0
    waits: bool = False
    """Whether it is queued behind another call, and may be withdrawn."""
    complete_sources: frozenset[str] = frozenset()
    """Sources that are complete in this call, so that the worker can gather them itself."""
    has_small_output: bool = False
    """Whether the output is expected to be small enough to be sent at the end, in one message."""


class WorkerHandle(ABC):
    """The driver's side of one worker."""

    most_calls: ClassVar[int] = 1
    """How many calls it may have: the running one, and others queued behind it to hide the latency."""

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
        """Whether it died because its node did."""

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
        """Bytes of output that the driver has not acknowledged."""
        return self._owed

    @unacknowledged_bytes.setter
    def unacknowledged_bytes(self, owed: int) -> None:
        self._owed = owed
        if owed >= WINDOW // 4:
            self.workers_to_acknowledge[self.key] = self
        else:
            self.workers_to_acknowledge.pop(self.key, None)

    def call(self, call: WorkerCall, has_small_output: bool = False) -> None:
        if not self.calls:
            self.unacknowledged_bytes, self.share_asked = 0, False
        self.calls.append(call)
        if self.tasks_left is not None:
            self.tasks_left -= len(call.items)
            self.retiring = self.retiring or self.tasks_left <= 0
        self.update_state()
        item = call.items[0]
        items = [(entry.lineage, entry.refs) for entry in call.items]
        gather = call.start == self.gather_position  # tasks that were shared after that stage have been gathered before
        request = CallRequest(
            items, call.start, gather, call.streams, item.history, call.budget, item.sent_outputs, item.shared_outputs
        )
        request.wanted, request.waits, request.has_small_output = (
            item.wanted,
            call.waits,
            has_small_output and call.streams,
        )
        request.complete_sources = frozenset(entry.lineage.source for entry in call.items if entry.holds_whole_source)
        request.number = self.ordered = self.ordered + 1
        self.send_call(request)

    def finish(self) -> WorkerCall:
        """Remove the call that it has finished."""
        call = self.calls.popleft()
        self.unacknowledged_bytes, self.share_asked = 0, False
        self.update_state()
        return call

    def update_state(self) -> None:
        """Update the state from its calls. An item that may be at fault runs with nothing queued before or behind
        it."""
        more = len(self.calls) < self.most_calls and not self.retiring
        self.state = "idle" if not self.calls else "busy" if more and not self.calls[-1].alone else "full"

    def leaks(self, memory: int, limit: float) -> bool:
        """Whether it exceeds its memory limit. What its first call needed does not count, as a new worker needs it
        too."""
        self.first_call_memory = self.first_call_memory or memory
        return memory > max(limit, 1.2 * self.first_call_memory) and limit > 0

    @property
    def unfit_for_reuse(self) -> bool:
        """Whether its process must not become another worker: it leaks memory, may leak, or timed out."""
        return bool(self.timed_out) or self.tasks_left is not None or (self.retiring and not self.retires_for_others)

    def recall(self) -> bool:
        """Withdraw the last call. Returns False if it has begun."""
        return False

    @abstractmethod
    def send_call(self, request: CallRequest) -> None:
        """Send a call. If the worker has died, `listen` reports it."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Tell it that its outputs were received, so that it may send more."""

    @abstractmethod
    def ask_to_share(self, count: int) -> None:
        """Ask it to hand some of the tasks that it makes to other workers."""

    @abstractmethod
    def stop(self) -> None:
        """Ask it to tear down and end."""

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def last_position(self) -> RowLocation | None:
        """The rows that it was at when it died, if known."""

    @abstractmethod
    def current_stage(self) -> tuple[int, float]:
        """The position of the stage that it is in (negative for none), and for how many seconds."""

    def rows_noted(self) -> tuple[int, float] | None:
        """How many rows the call may pass until it notes its progress again, and for how many seconds it has not."""
        return None


WorkersByState = dict[WorkerState, dict[int, WorkerHandle]]
"""Workers by state, updated on every change: with thousands of workers, scanning all would be slow."""


def empty_workers_by_state() -> WorkersByState:
    return {state: {} for state in get_args(WorkerState)}


class WorkerPool(ABC):
    """The workers of one group: how many there may be, and their states."""

    has_default_limits = False
    """Whether the driver always knows where a worker is, so that stages have a time limit without `timeout_s`."""

    def __init__(self, group: Group, machine: Machine, slots: GpuSlots, job: Job) -> None:
        self.group, self.index = group, group.index
        self.slots = slots
        self.budget = job.quarantine.budget if job.quarantine.enabled else None
        self.rejecter = job.plan.side_output_recorder(group)
        self.memory = 1e9 * group.resources.memory_gb
        self.resources = group.resources
        self.gpu = self.resources.requires_gpu
        # with a fixed number of workers, the user has decided how much runs at the same time
        self.cpus = 0.0 if group.num_workers else group.resources.cpus
        self.limit = group.num_workers or max_workers(group, machine, slots)
        self.target = self.limit
        limits = [time_limit(stage, 0) if self.has_default_limits else stage.timeout_s for stage in group.stages]
        self.shortest_limit = min((limit for limit in limits if limit is not None), default=math.inf)
        self.timed = self.shortest_limit < math.inf
        self.needs_node_setup = any(implements(stage, "setup_on_node") for stage in group.stages)
        self.payload: bytes | None = None
        self.workers: list[WorkerHandle] = []
        self.workers_by_state = empty_workers_by_state()
        self.workers_to_acknowledge: dict[int, WorkerHandle] = {}
        """Workers that wait for an acknowledgement, or will soon."""
        self.setup_failures = 0
        self.has_small_output, self.may_have_small_output = False, True
        """Whether calls of one task had small outputs so far, and whether none had a large one."""
        self.expected = 0.0
        """An estimate of how many tasks are left for this pool."""
        self.setup_seconds = 0.0
        """How long the last setup took."""

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
        """The first workers in a state, longest in it first; enough of them to choose from."""
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
        """How many workers are not about to end."""
        return sum(not worker.retiring and worker.state != "leaving" for worker in self.workers)

    def retire(self, worker: WorkerHandle) -> None:
        """Let a worker end after its current calls, to make room for another pool."""
        worker.retiring = worker.retires_for_others = True
        if worker.state == "idle":
            worker.stop()
        elif worker.calls:
            worker.update_state()

    def cancel_retirement(self, wanted: int) -> None:
        """Keep workers that were to make room for other pools, up to the wanted number."""
        for worker in [worker for worker in self.busy if worker.retires_for_others][
            : max(0, wanted - self.staying_workers)
        ]:
            worker.retires_for_others = False
            worker.retiring = worker.tasks_left is not None and worker.tasks_left <= 0
            worker.update_state()

    @property
    def missing(self) -> int:
        """How many more workers it may have."""
        return min(self.limit, max(self.target, 1)) - len(self.workers)

    def can_grow(self) -> bool:
        return self.missing > 0 and self.next_slot() is not None

    def next_slot(self) -> GpuSlot | None:
        """The GPUs for the next worker; None if none are free, or another worker is still setting up the node."""
        return None if self.needs_node_setup and self.count("starting") else self.slots.find(self.resources)

    def node_is_set_up(self, node: str) -> None:
        self.needs_node_setup = False

    def keeps_up(self, flow: Flow) -> bool:
        """Whether a gathering pool will empty its queue before one more worker could start.

        Gathering is usually fast, so without measurements the first worker is assumed to keep up, unless its call is
        slow.
        """
        if not self.group.gather or not self.staying_workers or self.group.num_workers:
            return False
        waiting = flow.pools[self.index]
        long_ago = time.perf_counter() - START_SECONDS
        slow = any(worker.calls[0].began < long_ago for worker in self.busy)
        return not slow and len(waiting.queue) * (waiting.pace.seconds or 0.0) < START_SECONDS * self.staying_workers

    def cpus_in_use(self, total: float) -> float:
        """The cores in use by calls and setups. A worker that waits for an acknowledgement uses none."""
        paused = sum(worker.unacknowledged_bytes >= WINDOW // 2 for worker in self.workers_to_acknowledge.values())
        active = self.count("starting", "busy", "full") - paused
        return active * min(self.cpus, total)

    def coming_bytes(self, flow: Flow, behind: Sequence[WorkerPool]) -> float:
        """How many bytes its running calls will add to the queue behind it. Gathered tasks do not queue there."""
        if not behind or behind[0].group.gather or not flow.pools[self.index].running:
            return 0.0
        state, after = flow.pools[self.index], flow.pools[self.index + 1]
        takers = behind[0].count("busy", "full") + (0 if after.queue else behind[0].count("idle"))
        return expected_output_bytes(state.load(), after.load(), takers, time.perf_counter() - state.began)

    @abstractmethod
    def start(self) -> None:
        """Start one more worker, if there is a slot for it."""

    def remove(self, worker: WorkerHandle) -> None:
        worker.state = "gone"
        del self.workers_by_state["gone"][worker.key]
        self.workers_to_acknowledge.pop(worker.key, None)
        self.workers.remove(worker)
        self.slots.release(worker.slot)


def max_workers(group: Group, machine: Machine, slots: GpuSlots) -> int:
    """How many workers of a group fit on the machine."""
    resources = group.resources
    limit = max(1, int(machine.cpus / resources.cpus + 1e-9)) if resources.cpus else int(machine.cpus)
    if resources.requires_gpu:
        limit = slots.fits(resources)
    if resources.memory_gb and machine.memory_gb:
        limit = min(limit, int(machine.memory_gb / resources.memory_gb))
    return max(1, limit)


def pickle_group(group: Group, rejecter: RejectedRowRecorder | None = None) -> bytes:
    """Pickle the stages of a group and the recorder of dropped rows, for its workers."""
    try:
        payload: bytes = cloudpickle.dumps((list(group.stages), rejecter))
    except Exception:
        _find_unpicklable(group)
        raise
    return payload


def _find_unpicklable(group: Group) -> None:
    """Raise an error that names the stage that cannot be pickled, if there is one."""
    for stage in group.stages:
        try:
            cloudpickle.dumps(stage)
        except Exception as error:
            raise StageError(
                stage.name,
                "(none yet)",
                (),
                f"cannot be sent to a worker: {error}. Create what cannot be pickled (locks, clients, models) in "
                "setup(), not in the constructor",
            ) from error
