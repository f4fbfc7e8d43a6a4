"""How the actors of an engine and the driver communicate.

A `GroupRunner` runs inside each actor of the engine: it passes the engine's rows to the guard process, returns rows for
the next group, and posts a receipt to the `EngineCoordinator`, an actor on the driver's node. Receipts hold what the
driver accounts for; payloads stay with the engine until they leave its last group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

import cloudpickle

from gristmill.core.errors import GristmillError, StageError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.quarantine import QuarantinedRecord
from gristmill.core.records.rejected_rows import REJECTED_POSITION
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.run.task_flow import CallOutput
from gristmill.core.stage import implements
from gristmill.core.task import Lineage, Task
from gristmill.executors.engines.guard_process import GroupAssignment, GuardDriver, GuardProcess, is_process_running
from gristmill.executors.engines.task_serialisation import deserialise_task, serialise_task
from gristmill.executors.local.task_transport import PackedTask
from gristmill.executors.local.worker_process import as_stage_error
from gristmill.executors.ray.console_forwarding import OutputMarker
from gristmill.executors.ray.control_actor import ActorMethod, ControlActor, ControlState, P, T, report_output_marks
from gristmill.executors.ray.worker_actor import StoredTask

_NODE_SETUP_POLL_SECONDS = 1.0
"""How often guards that wait for their node to be set up check that the one doing it is alive."""

_OWNER_SECONDS = 30.0
_MAX_UNREAD_RECEIPTS = 256
_STORE_CHUNK_BYTES = 8 * 2**20
_RETRY_SECONDS = 0.05
_RUN_OVER_MESSAGE = "the run is over"


@fast_dataclass(slots=True)
class CallReceipt:
    """What one call of an engine did: its inputs (delivery and id), its outputs, or the error that must end the run."""

    group: int
    inputs: list[tuple[int, str]] = field(default_factory=list)
    outputs: list[tuple[Lineage, Any, int, int]] = field(default_factory=list)
    stats: list[StageStats] = field(default_factory=list)
    quarantined: list[QuarantinedRecord] = field(default_factory=list)
    error: StageError | None = None


@fast_dataclass(slots=True)
class CoordinatorUpdate:
    """What is new for the driver: receipts, guards that were started, and nodes that need a `ResultOwner`."""

    receipts: list[CallReceipt] = field(default_factory=list)
    guard_processes: list[GuardProcess] = field(default_factory=list)
    wanted_owners: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.receipts or self.guard_processes or self.wanted_owners)


class EngineCoordinator(ControlActor):
    """The mailbox between the engine's actors and the driver. It is also the control actor of our own workers."""

    def __init__(self, state: ControlState | None = None) -> None:
        super().__init__(state)
        self.inputs: dict[int, Any] = {}
        self.update, self.guard_processes = CoordinatorUpdate(), list[GuardProcess]()
        self.nodes: dict[tuple[int, str], tuple[int, asyncio.Event]] = {}
        self.result_owners: dict[str, asyncio.Future[Any]] = {}
        self.closed = state is not None and state.closed
        self.posted = asyncio.Event()

    async def post(self, receipt: CallReceipt) -> bool:
        """Returns False if the run is over. Waits while the driver is slow to take receipts, which is back-pressure."""
        while len(self.update.receipts) > _MAX_UNREAD_RECEIPTS and not self.closed:
            await asyncio.sleep(0.05)
        self.update.receipts.append(receipt)
        self.posted.set()
        if receipt.error is not None:  # it ends the run, so no new work should begin
            await self.close()
        return not self.closed

    async def take_update(self, seconds: float) -> CoordinatorUpdate:
        """What is new for the driver. Waits up to `seconds` for something."""
        if not self.update and seconds:
            self.posted.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.posted.wait(), seconds)
        update, self.update = self.update, CoordinatorUpdate()
        return update

    async def hold_inputs(self, inputs: dict[int, Any]) -> None:
        """Store references to the large tasks that enter the engine."""
        self.inputs = inputs

    async def fetch_input(self, number: int) -> Any:
        return self.inputs[number]

    async def add_guard(self, guard_process: GuardProcess) -> bool:
        """A guard was started. Returns False if the run is over."""
        if not self.closed:
            self.guard_processes.append(guard_process)
            self.update.guard_processes.append(guard_process)
        return not self.closed

    async def close(self) -> list[GuardProcess]:
        """The run is over. Returns all guards that were started."""
        self.closed = True
        for _, waiting in self.nodes.values():
            waiting.set()
        return self.guard_processes

    async def first_on_node(self, group: int, node: str, pid: int, gone: int = 0) -> tuple[int, bool] | None:
        """The pid of the guard that sets up the node, and whether it is done; None if the run is over.

        Waits a moment unless the caller `pid` is that guard. If it has exited (`gone`), the caller takes over.
        """
        first, done = self.nodes.get((group, node), (gone, asyncio.Event()))
        if first == gone and not done.is_set():
            first, done = self.nodes[group, node] = pid, asyncio.Event()
        if first != pid:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), _NODE_SETUP_POLL_SECONDS)
        return None if self.closed else (first, done.is_set())

    async def node_is_set_up(self, group: int, node: str) -> None:
        self.nodes[group, node][1].set()

    async def result_owner(self, node: str) -> Any:
        """The actor that owns large results on a node: they must outlive the engine's actors and this one."""
        asks = node not in self.result_owners
        owner = self.result_owners.setdefault(node, asyncio.get_running_loop().create_future())
        while not owner.done():
            if asks and node not in self.update.wanted_owners:
                self.update.wanted_owners.append(node)
                self.posted.set()
            await asyncio.wait([owner], timeout=_OWNER_SECONDS)
            asks = True  # the update with the request was lost: ask again
        return owner.result()

    async def set_result_owner(self, node: str, owner: Any) -> None:
        if not self.result_owners[node].done():
            self.result_owners[node].set_result(owner)


class ResultOwner:
    """Owns large results on one node. Started by the driver, it lives as long as one of its results is referenced."""

    @classmethod
    def start_on(cls, node: str) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node, soft=True)
        return ray.remote(cls).options(num_cpus=0, scheduling_strategy=place).remote()

    def keep(self, tasks: list[Task[Any]]) -> list[Any]:
        import ray

        return [ray.put(tasks)]


class GroupRunner:
    """Runs a group inside one actor of an engine."""

    def __init__(self, assignment: GroupAssignment, coordinator: Any) -> None:
        import ray

        self.assignment, self.coordinator = assignment, coordinator
        self.node: str = ray.get_runtime_context().get_node_id()
        self.guard: GuardDriver | None = None
        self.result_owner: Any = None
        self.is_over = False
        self.output_marker = OutputMarker()

    def run(self, rows: Iterable[Any]) -> Iterator[bytes]:
        """Pass rows through the group, and yield the rows for the next group.

        If the guard or the coordinator fails, no receipt is posted, and the driver has the tasks run again elsewhere.
        """
        import ray

        rows = list(rows)
        if self.is_over or not rows:
            return
        receipt = CallReceipt(self.assignment.group)
        try:
            self._open()
            yield from self._run(rows, receipt)
        except StageError as error:
            receipt.error, self.is_over = error, True
        except (GristmillError, OSError, ray.exceptions.RayError):
            self._end()
            return
        if self.guard is not None:
            receipt.quarantined = self.guard.take_quarantined()
            self._post(receipt)
        if self.is_over:
            self._end()

    def _open(self) -> None:
        """Start the guard, at the first call."""
        if self.guard is not None:
            return
        try:
            stages, _ = cloudpickle.loads(self.assignment.payload)
        except Exception as error:
            raise as_stage_error(error) from error
        self.guard = GuardDriver(self.assignment, self.node, _visible_gpu_count(stages))
        guard_process = GuardProcess(self.node, self.guard.zygote.pid, tuple(self.guard.folders))
        if not self._ask(EngineCoordinator.add_guard, guard_process):
            raise GristmillError(_RUN_OVER_MESSAGE)
        on_node = any(implements(stage, "setup_on_node") for stage in stages) and self._must_set_up_node(
            guard_process.pid
        )
        self.guard.begin(on_node)
        if on_node:
            self._ask(EngineCoordinator.node_is_set_up, self.assignment.group, self.node)

    def _must_set_up_node(self, pid: int) -> bool:
        """Whether this guard has to set up the node. Waits for another guard that does it, as long as that is alive."""
        gone = 0
        while (
            answer := self._ask(EngineCoordinator.first_on_node, self.assignment.group, self.node, pid, gone)
        ) is not None:
            first, done = answer
            if done or first == pid:
                return not done
            gone = 0 if is_process_running(first) else first
        raise GristmillError(_RUN_OVER_MESSAGE)

    def _end(self) -> None:
        self.is_over = True
        guard, self.guard = self.guard, None
        if guard is not None:
            guard.end()

    def _run(self, rows: Iterable[Any], receipt: CallReceipt) -> Iterator[bytes]:
        assert self.guard is not None
        items = [deserialise_task(row, self.guard.folders, self._fetch) for row in rows]
        receipt.inputs = [(delivery, item.lineage.id) for delivery, item in items]
        for outputs in self.guard.run_call([item for _, item in items]):
            yield from self._emit_outputs(items[0][0], outputs, receipt)
        receipt.stats = self.guard.stats

    def _emit_outputs(self, delivery: int, outputs: list[CallOutput], receipt: CallReceipt) -> Iterator[bytes]:
        """Yield rows for the next group. What leaves the engine goes into the receipt."""
        leaving = [
            output for output in outputs if self.assignment.leaves_engine or output.position == REJECTED_POSITION
        ]
        for output, ref in zip(leaving, self._store_results([output.ref for output in leaving]), strict=True):
            receipt.outputs.append((output.lineage, ref, output.nbytes, output.position))
        for output in outputs:
            if not (self.assignment.leaves_engine or output.position == REJECTED_POSITION):
                receipt.outputs.append((output.lineage, None, output.nbytes, output.position))
                yield serialise_task(delivery, output.lineage, output.ref)
            output.ref.discard()

    def _store_results(self, packed_tasks: list[PackedTask]) -> list[Any]:
        """Replace large results by references that outlive this actor."""
        import ray

        large = [packed for packed in packed_tasks if packed.path is not None]
        if not large:
            return packed_tasks
        if self.result_owner is None:
            self.result_owner = self._ask(EngineCoordinator.result_owner, self.node)
        kept: dict[int, StoredTask] = {}
        while large:
            part, size = [], 0
            while large and size < _STORE_CHUNK_BYTES:
                part.append(large.pop())
                size += part[-1].nbytes
            refs = ray.get(self.result_owner.keep.remote([packed.load() for packed in part]))
            # the handle travels with the reference: an owner ends when its last handle is gone
            kept |= {
                id(packed): StoredTask([*refs, self.result_owner], index, packed.nbytes, self.node)
                for index, packed in enumerate(part)
            }
        return [kept.get(id(packed), packed) for packed in packed_tasks]

    def _fetch(self, number: int) -> Any:
        return self._ask(EngineCoordinator.fetch_input, number)

    def _post(self, receipt: CallReceipt) -> None:
        import ray

        try:
            report_output_marks(self.coordinator, self.output_marker)
            self.is_over = not self._ask(EngineCoordinator.post, receipt) or self.is_over
        except ray.exceptions.RayError:
            self.is_over = True

    def _ask(self, method: ActorMethod[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the coordinator."""
        import ray

        while True:
            try:
                answer: T = ray.get(getattr(self.coordinator, method.__name__).remote(*args, **kwargs))
            except ray.exceptions.ActorUnavailableError:  # it may come back; if not, the next attempt fails otherwise
                time.sleep(_RETRY_SECONDS)
            else:
                return answer


def _visible_gpu_count(stages: list[Any]) -> int:
    """How many GPUs the engine has assigned to this actor."""
    if not any(stage.resources.requires_gpu for stage in stages):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return len([device for device in visible.split(",") if device.strip()])
