"""Workers that are actors of a Ray cluster, and the pool that starts them."""

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
from gristmill.executors.machine import GpuSlot
from gristmill.executors.ray.control_actor import ControlActor, SharedPart
from gristmill.executors.ray.input_tasks import InitialTaskRef
from gristmill.executors.ray.runtime_env import merge_runtime_envs
from gristmill.executors.ray.worker_actor import RayWorker, StoredTask, WorkerMessage
from gristmill.executors.worker_pool import CallRequest, WorkerHandle, WorkerPool, max_workers, pickle_group

if TYPE_CHECKING:
    from gristmill.executors.ray.actor_pool_executor import RayDriver

_ACTOR_CPUS = 0.001
_MAX_UNREAD_MESSAGES = 8
"""How many messages and payloads an actor may be ahead of the driver; then it waits."""

ReceivedMessage = tuple[tuple[Any, ...], list[SharedPart]]
"""A message as the driver takes it, and what was left to others before it."""

_worker_keys = itertools.count()


@dataclass(slots=True)
class _PendingReply:
    """What an actor was asked: a reference to the answer, or a generator of them, and who understands it."""

    ref: Any
    read: Callable[[_PendingReply], ReceivedMessage]
    large: Any = None
    number: int = -1
    withdrawn: bool = False
    """Nobody wants it any more."""


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
        """Whether its actor may be another worker after it."""
        self.shares = self.ends = False
        """Whether it was asked to leave some of a call to others, and whether that call has ended."""
        self.pending_share_request: Any = None
        """A reference: that it was asked to share is known at the board."""
        self.parts: set[int] = set()
        """Which parts of the call that it is heard on were left to others."""
        self.answers: deque[_PendingReply] = deque()
        """What it was asked, in the order in which it does it."""

    @property
    def pending_ref(self) -> Any:
        """A reference, or a generator of references, for what it says next; None if it has nothing to say."""
        return self.answers[0].ref if self.answers and self.unacknowledged_bytes < WINDOW else None

    def read_messages(self) -> Iterator[tuple[Any, ...]]:
        """What it says, which is there to be heard: what it has left to others comes first."""
        answer = self.answers[0]
        message, left = answer.read(answer)
        self.ends = message[0] != "out"
        for part in left:
            yield from self.take_shared_part(part)
        if answer.withdrawn:
            yield ("returned",)
        else:  # a call that was returned unasked, since the board was killed after it was asked, has to be done
            yield ("again",) if message[0] == "returned" else message

    def take_shared_part(self, left: SharedPart) -> Iterator[tuple[Any, ...]]:
        """Some of the call that it is heard on, unless that was heard before. Who took the call over does all of it."""
        part, message, large = left
        if part not in self.parts and not self.answers[0].withdrawn:
            self.parts.add(part)
            yield self.as_driver_message(message, *large or [None])

    def finish_message(self) -> None:
        """What it said is noted: if it was the end of something, what it says next is of what comes after."""
        if self.ends:
            self.answers.popleft()
            self.parts.clear()

    def begin(self, needs_node_setup: bool) -> None:
        self.answers.append(_PendingReply(self.actor.begin.remote(needs_node_setup), self._read_ready))

    def begin_reused(self, needs_node_setup: bool, *settings: Any) -> None:
        """Begin with an actor that has rested."""
        self.driver.control.ask(ControlActor.expect_worker, self.key)
        self.answers.append(
            _PendingReply(self.actor.begin_reused.remote(needs_node_setup, self.key, *settings), self._read_ready)
        )

    def _read_ready(self, answer: _PendingReply) -> ReceivedMessage:
        import ray

        error, self.node = ray.get(answer.ref)
        return ("ready", error), []

    def order(self, request: CallRequest) -> None:
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
            return False  # it is through with the one before, and the driver has been away
        answer = self.answers[-1]
        answer.withdrawn = self.driver.control.ask(ControlActor.withdraw_call, self.key, answer.number)
        return answer.withdrawn

    def as_driver_message(self, message: WorkerMessage, large: Any) -> tuple[Any, ...]:
        """A message as the driver takes it, with references in place of what lies in the object store."""
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
        """It has to be asked again if that did not come to the board."""
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
        if self.calls:  # it is interrupted, and what it says of them is not heard
            self.driver.stop_all()
            self.answers.clear()
            self.unacknowledged_bytes, self.shares = 0, False
        self.answers.append(_PendingReply(self.actor.end.remote(), self._read_stopped))

    def _read_stopped(self, answer: _PendingReply) -> ReceivedMessage:
        import ray

        problem = ray.get(answer.ref)
        self.may_be_reused = problem is None and not self.unfit_for_reuse and not self.slot.devices
        return ("stopped", problem), []

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
    """Starts actors."""

    def __init__(self, driver: RayDriver, group: Group, final: bool) -> None:
        super().__init__(group, driver.machine, driver.slots, driver.job)
        self.driver, self.final = driver, final
        self.stored: Any = None
        self.nodes_set_up: set[str] = set()

    def resize(self, machine: Machine) -> None:
        """The cluster has other nodes now."""
        self.limit = self.target = self.group.num_workers or max_workers(self.group, machine, self.slots)

    def next_slot(self) -> GpuSlot | None:
        closed = self._excluded_nodes()
        if all(node.id in closed for node in self.driver.nodes):
            return None
        if not (closed and self.gpu):
            return self.slots.find(self.resources)
        return self.driver.slots.find_outside_nodes(self.resources, self.missing, closed)

    def _excluded_nodes(self) -> set[str]:
        """Nodes that workers set up just now, which others have to wait for.

        Meanwhile workers without GPUs do not crowd on the other nodes: those are closed when they have their share.
        """
        closed = (
            {worker.node for worker in self.in_states("starting")} - self.nodes_set_up
            if self.needs_node_setup
            else set()
        )
        if closed and not self.gpu:
            nodes, have = self.driver.nodes, Counter(worker.node for worker in self.workers)
            each = self.limit / max(sum(node.cpus for node in nodes), 0.001)
            shares = {node.id: math.ceil(each * node.cpus - 1e-9) for node in nodes if node.cpus >= self.resources.cpus}
            closed.update(node.id for node in nodes if have[node.id] >= shares.get(node.id, 0))
        return closed

    def node_is_set_up(self, node: str) -> None:
        self.nodes_set_up.add(node)

    def start(self) -> None:
        if (slot := self.next_slot()) is None:
            return
        self.slots.reserve(slot)
        self.add_worker(self._start_worker_on(slot, self.driver.next_actor_node(slot, self._excluded_nodes())))

    def _start_worker_on(self, slot: GpuSlot, node: str) -> WorkerHandle:
        """A worker on a node, which begins."""
        import ray

        if self.stored is None:
            self.stored = ray.put(pickle_group(self.group, self.rejecter))  # sent once per node, not once per actor
        key, env = next(_worker_keys), self.env()
        settings = (self.stored, self.budget, self.final, self.group.resources.cpus)
        anew = slot.devices or self.group.max_tasks_per_worker
        actor = None if anew else self.driver.actor_cache.take_actor(node, env)
        found = actor is not None
        if not found:
            board = (self.driver.control_actor, self.driver.control.name, self.driver.control.number)
            actor = ray.remote(RayWorker).options(**self._options(slot, node, env)).remote(board, key, *settings)
        worker = ActorHandle(self.index, self.group.gather_position, key, slot, actor, node, self.driver, env)
        on_node = self.needs_node_setup and node not in self.nodes_set_up
        worker.begin_reused(on_node, *settings) if found else worker.begin(on_node)
        return worker

    def _options(self, slot: GpuSlot, node: str, env: dict[str, Any]) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options: dict[str, Any] = {"num_cpus": _ACTOR_CPUS, "max_restarts": 0, "runtime_env": env or None}
        if slot.devices:  # Ray counts in ten-thousandths, and must not be asked for more than there is
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
