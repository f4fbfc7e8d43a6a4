"""The driver's side of worker actors, and the pool that starts them."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ResourceError
from gristmill.core.executor import Machine
from gristmill.core.plan.planner import Group
from gristmill.core.run.isolation import RowLocation
from gristmill.core.run.schedule import WINDOW
from gristmill.executors.local.task_transport import PackedTask
from gristmill.executors.machine_resources import GpuSlot
from gristmill.executors.ray.control_actor import ControlActor, SharedPart
from gristmill.executors.ray.input_tasks import InitialTaskRef
from gristmill.executors.ray.runtime_env import merge_runtime_envs
from gristmill.executors.ray.worker_actor import RayWorker, StoredTask, WorkerMessage
from gristmill.executors.worker_pool import CallRequest, WorkerHandle, WorkerPool, max_workers, pickle_group

if TYPE_CHECKING:
    from gristmill.executors.ray.actor_pool_executor import RayDriver

_ACTOR_CPUS = 0.001
_MAX_UNREAD_MESSAGES = 8
"""How many messages and payloads an actor may send before the driver reads them; then it waits."""

ReceivedMessage = tuple[tuple[Any, ...], list[SharedPart]]
"""A message for the driver, and the parts that were shared before it."""

_worker_keys = itertools.count()


@dataclass(slots=True)
class _PendingReply:
    """A request to an actor: the reference to its reply, or a generator of them, and the function that reads it."""

    ref: Any
    read: Callable[[_PendingReply], ReceivedMessage]
    large: Any = None
    number: int = -1
    withdrawn: bool = False
    """The call was withdrawn."""


class ActorHandle(WorkerHandle):
    """The driver's side of one actor."""

    most_calls = 2

    def __init__(
        self,
        group: int,
        gather_position: int | None,
        key: int,
        slot: GpuSlot,
        actor: Any,
        node: str,
        driver: RayDriver,
        env: Mapping[str, Any],
    ) -> None:
        super().__init__(group, gather_position, key, slot)
        self.actor, self.node, self.driver, self.env = actor, node, driver, env
        self.may_be_reused = False
        """Whether its actor may become another worker."""
        self.shares = self.ends = False
        """Whether it was asked to share tasks of its call, and whether that call has ended."""
        self.pending_share_request: Any = None
        """The reference to the reply of the control actor to a request to share."""
        self.parts: set[int] = set()
        """The shared parts of its current call that were received."""
        self.answers: deque[_PendingReply] = deque()
        """Pending replies, in the order in which the actor works."""

    @property
    def pending_ref(self) -> Any:
        """The reference, or generator of references, of its next message; None if there is none to wait for."""
        return self.answers[0].ref if self.answers and self.unacknowledged_bytes < WINDOW else None

    def read_messages(self) -> Iterator[tuple[Any, ...]]:
        """Its next message, which is ready, after the parts that were shared before it."""
        answer = self.answers[0]
        message, left = answer.read(answer)
        self.ends = message[0] != "out"
        for part in left:
            yield from self.take_shared_part(part)
        if answer.withdrawn:
            yield ("returned",)
        else:  # a call may come back although it was not withdrawn, if the control actor was killed: run it again
            yield ("again",) if message[0] == "returned" else message

    def take_shared_part(self, left: SharedPart) -> Iterator[tuple[Any, ...]]:
        """The message for a shared part of its current call, unless it was received before or the call was
        withdrawn."""
        part, message, large = left
        if part not in self.parts and not self.answers[0].withdrawn:
            self.parts.add(part)
            yield self.as_driver_message(message, *large or [None])

    def finish_message(self) -> None:
        """After its message was handled: if that was the last of a reply, go on to the next reply."""
        if self.ends:
            self.answers.popleft()
            self.parts.clear()

    def begin(self, needs_node_setup: bool) -> None:
        self.answers.append(_PendingReply(self.actor.begin.remote(needs_node_setup), self._read_ready))

    def begin_reused(self, needs_node_setup: bool, *settings: Any) -> None:
        """Begin with an idle actor."""
        self.driver.control.ask(ControlActor.expect_worker, self.key)
        self.answers.append(
            _PendingReply(self.actor.begin_reused.remote(needs_node_setup, self.key, *settings), self._read_ready)
        )

    def _read_ready(self, answer: _PendingReply) -> ReceivedMessage:
        import ray

        error, self.node = ray.get(answer.ref)
        return ("ready", error), []

    def send_call(self, request: CallRequest) -> None:
        for initial in (ref for _, refs in request.items for ref in refs if isinstance(ref, InitialTaskRef)):
            initial.put()
        if request.streams and not request.has_small_output:
            options = {"num_returns": "streaming", "_generator_backpressure_num_objects": _MAX_UNREAD_MESSAGES}
            answer = _PendingReply(self.actor.stream.options(**options).remote(request), self._read_stream)
        else:
            ref, large = self.actor.once.options(num_returns=2).remote(request)
            answer = _PendingReply(ref, self._read_single, large)
        answer.number = request.number
        self.answers.append(answer)

    def _read_single(self, answer: _PendingReply) -> ReceivedMessage:
        import ray

        return self.as_driver_message(ray.get(answer.ref), answer.large), []

    def _read_stream(self, answer: _PendingReply) -> ReceivedMessage:
        import ray

        message: WorkerMessage = ray.get(next(answer.ref))
        return self.as_driver_message(message, next(answer.ref)), message.shared_parts

    def recall(self) -> bool:
        import ray

        if ray.wait([self.answers[0].ref], timeout=0, fetch_local=False)[0]:
            return False  # it has finished the call before, and has begun this one
        answer = self.answers[-1]
        answer.withdrawn = self.driver.control.ask(ControlActor.withdraw_call, self.key, answer.number)
        return answer.withdrawn

    def as_driver_message(self, message: WorkerMessage, large: Any) -> tuple[Any, ...]:
        """Convert a message for the driver, with references for tasks in the object store."""
        self.shares = self.shares and message.kind == "out"
        if message.kind == "failed":
            return "failed", message.error, message.aside
        if message.kind == "missing":
            return "missing", message.missing
        if message.kind in ("again", "returned"):
            return (message.kind,)
        outputs = [
            (
                lineage,
                what if isinstance(what, PackedTask) else StoredTask([large], what, nbytes, self.node),
                nbytes,
                position,
            )
            for lineage, what, nbytes, position in message.outputs
        ]
        if message.kind == "out":
            return "out", outputs, message.stats
        return message.kind, outputs, message.stats, message.aside, message.memory

    def acknowledge(self) -> None:
        self.unacknowledged_bytes = 0

    def ask_to_share(self, count: int) -> None:
        self.share_asked = self.shares = True
        self.pending_share_request = self.driver.control_actor.request_share.remote(self.key, count)

    def check_share_request(self) -> None:
        """Allow a new request if the last one did not reach the control actor."""
        import ray

        if self.pending_share_request is not None and ray.wait([self.pending_share_request], timeout=0)[0]:
            pending, self.pending_share_request = self.pending_share_request, None
            try:
                ray.get(pending)
            except ray.exceptions.RayError:
                self.share_asked = False

    def stop(self) -> None:
        if self.state == "leaving":
            return
        self.state = "leaving"
        if self.calls:  # interrupt it, and ignore the rest of their messages
            self.driver.stop_all()
            self.answers.clear()
            self.unacknowledged_bytes, self.shares = 0, False
        self.answers.append(_PendingReply(self.actor.end.remote(), self._read_stopped))

    def _read_stopped(self, answer: _PendingReply) -> ReceivedMessage:
        import ray

        error = ray.get(answer.ref)
        self.may_be_reused = error is None and not self.unfit_for_reuse and not self.slot.devices
        return ("stopped", error), []

    def kill(self) -> None:
        import ray

        ray.kill(self.actor)

    def last_position(self) -> RowLocation | None:
        found = self.driver.control.position_of(self.key)
        return found[0] if found else None

    def current_stage(self) -> tuple[int, float]:
        found = self.driver.control.position_of(self.key)
        return (found[0].position, found[1]) if found else (-1, 0.0)


class ActorPool(WorkerPool):
    """Starts actors, or takes idle ones."""

    def __init__(self, driver: RayDriver, group: Group, final: bool) -> None:
        super().__init__(group, driver.machine, driver.slots, driver.job)
        self.driver, self.final = driver, final
        self.stored: Any = None
        self.nodes_set_up: set[str] = set()

    def resize(self, machine: Machine) -> None:
        """Adjust the number of workers to the current nodes."""
        self.limit = self.target = self.group.num_workers or max_workers(self.group, machine, self.slots)

    def next_slot(self) -> GpuSlot | None:
        excluded = self._excluded_nodes()
        if all(node.id in excluded for node in self.driver.nodes):
            return None
        if not (excluded and self.gpu):
            return self.slots.find(self.resources)
        return self.driver.slots.find_outside_nodes(self.resources, self.missing, excluded)

    def _excluded_nodes(self) -> set[str]:
        """Nodes that are being set up by a first worker, which others have to wait for.

        Meanwhile, workers without GPUs must not crowd on the other nodes: those with their share are excluded too.
        """
        excluded = (
            {worker.node for worker in self.in_states("starting")} - self.nodes_set_up
            if self.needs_node_setup
            else set()
        )
        if excluded and not self.gpu:
            nodes, have = self.driver.nodes, Counter(worker.node for worker in self.workers)
            each = self.limit / max(sum(node.cpus for node in nodes), 0.001)
            shares = {node.id: math.ceil(each * node.cpus - 1e-9) for node in nodes if node.cpus >= self.resources.cpus}
            excluded.update(node.id for node in nodes if have[node.id] >= shares.get(node.id, 0))
        return excluded

    def node_is_set_up(self, node: str) -> None:
        self.nodes_set_up.add(node)

    def start(self) -> None:
        if (slot := self.next_slot()) is None:
            return
        self.slots.reserve(slot)
        self.add_worker(self._start_worker_on(slot, self.driver.next_actor_node(slot, self._excluded_nodes())))

    def _start_worker_on(self, slot: GpuSlot, node: str) -> WorkerHandle:
        """Start a worker on a node, and let it set up."""
        import ray

        if self.stored is None:
            self.stored = ray.put(pickle_group(self.group, self.rejecter))  # sent to each node once, not to each actor
        key, env = next(_worker_keys), self.env()
        settings = (self.stored, self.budget, self.final, self.group.resources.cpus)
        anew = slot.devices or self.group.max_tasks_per_worker
        actor = None if anew else self.driver.actor_cache.take_actor(node, env)
        found = actor is not None
        if not found:
            control = (self.driver.control_actor, self.driver.control.name, self.driver.control.number)
            actor = ray.remote(RayWorker).options(**self._options(slot, node, env)).remote(control, key, *settings)
        worker = ActorHandle(self.index, self.group.gather_position, key, slot, actor, node, self.driver, env)
        on_node = self.needs_node_setup and node not in self.nodes_set_up
        worker.begin_reused(on_node, *settings) if found else worker.begin(on_node)
        return worker

    def _options(self, slot: GpuSlot, node: str, env: dict[str, Any]) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options: dict[str, Any] = {"num_cpus": _ACTOR_CPUS, "max_restarts": 0, "runtime_env": env or None}
        if slot.devices:  # Ray counts in ten-thousandths; rounding up could ask for more than there is
            options["num_gpus"] = len(slot.devices) if slot.share >= 1 else math.floor(slot.share * 1e4) / 1e4
        strategy = NodeAffinitySchedulingStrategy(node, soft=not (slot.devices or self.needs_node_setup))
        return {**options, "scheduling_strategy": strategy}

    def env(self) -> dict[str, Any]:
        stage = self.group.stages[0]
        env = merge_runtime_envs(self.driver.executor.config.get("runtime_env"), stage.runtime_env)
        try:
            return self.driver.environments.prepare(env)
        except Exception as error:
            raise ResourceError(f"the runtime_env of stage {stage.name!r} could not be set up: {error}") from error
