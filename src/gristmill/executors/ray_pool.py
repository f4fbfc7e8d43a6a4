"""Workers that are actors of a Ray cluster, and the pool that starts them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ResourceError, StageError
from gristmill.core.isolate import Place
from gristmill.core.plan import Group
from gristmill.executors.machine import Machine, Slot
from gristmill.executors.pool import Order, Pool, WorkerHandle, most_workers, pickled
from gristmill.executors.ray_env import merged
from gristmill.executors.ray_worker import Message, RayWorker, Stored
from gristmill.executors.transport import Parcel

if TYPE_CHECKING:
    from gristmill.executors.ray_actors import RayDriver

_ACTOR_CPUS = 0.001
_AHEAD = 8
"""How many messages and payloads an actor may be ahead of the driver; then it waits."""

_keys = itertools.count()


class Actor(WorkerHandle):
    """The driver's side of one actor."""

    def __init__(
        self,
        group: int,
        gather: bool,
        key: int,
        slot: Slot,
        actor: Any,
        node: str,
        driver: RayDriver,
    ) -> None:
        super().__init__(group, gather, key, slot)
        self.actor, self.node, self.driver = actor, node, driver
        self.shares = self.left_some = False
        """Whether it was asked to leave some of a call to others, and whether it did."""
        self.waits_for: Any = None
        """A reference, or a generator of references, for what it says next."""
        self.hears: Callable[[], Iterator[tuple[Any, ...]]] = lambda: iter(())
        self.tail: Any = None

    def begin(self, on_node: bool) -> None:
        self.waits_for = self.actor.begin.remote(on_node)
        self.hears = self._hear_begin

    def _hear_begin(self) -> Iterator[tuple[Any, ...]]:
        import ray

        error, self.node = ray.get(self.waits_for)
        self.waits_for = None
        yield "ready", error

    def order(self, order: Order) -> None:
        if order.streams:
            options = {"num_returns": "streaming", "_generator_backpressure_num_objects": _AHEAD}
            self.waits_for = self.actor.stream.options(**options).remote(order)
            self.hears = self._hear_stream
        else:
            self.waits_for, self.tail = self.actor.once.options(num_returns=2).remote(order)
            self.hears = self._hear_once

    def _hear_once(self) -> Iterator[tuple[Any, ...]]:
        import ray

        message: Message = ray.get(self.waits_for)
        self.waits_for = None
        yield self.said(message, self.tail)

    def _hear_stream(self) -> Iterator[tuple[Any, ...]]:
        import ray

        message: Message = ray.get(next(self.waits_for))
        large = next(self.waits_for)
        if message.kind != "out":
            self.waits_for = None
        yield self.said(message, large)

    def said(self, message: Message, large: Any) -> tuple[Any, ...]:
        """A message as the driver takes it, with references in place of what lies in the object store."""
        self.left_some = message.left
        self.shares = self.shares and message.kind == "out"
        if message.kind == "failed":
            return "failed", message.error, message.aside
        if message.kind == "missing":
            return "missing", message.missing
        outputs = [
            (lineage, what if isinstance(what, Parcel) else Stored([large], what, nbytes, self.node), nbytes, position)
            for lineage, what, nbytes, position in message.outputs
        ]
        return message.kind, outputs, message.stats, message.aside

    def acknowledge(self) -> None:
        self.owed = 0

    def ask_to_share(self, count: int) -> None:
        self.share_asked = self.shares = True
        self.driver.board.ask.remote(self.key, count)

    def stop(self) -> None:
        if self.state == "busy":
            self.kill()
            return
        self.state = "leaving"
        if self.waits_for is None:
            self.waits_for = self.actor.end.remote()
            self.hears = self._hear_end

    def _hear_end(self) -> Iterator[tuple[Any, ...]]:
        import ray

        problem: StageError | None = ray.get(self.waits_for)
        self.waits_for = None
        yield "stopped", problem

    def kill(self) -> None:
        import ray

        ray.kill(self.actor)

    def place(self) -> Place | None:
        found = self.driver.notes().get(self.key)
        return found[0] if found else None

    def doing(self) -> tuple[int, float]:
        found = self.driver.notes().get(self.key)
        return (found[0].position, found[1]) if found else (-1, 0.0)


class ActorPool(Pool):
    """Starts actors."""

    def __init__(self, driver: RayDriver, group: Group, final: bool) -> None:
        super().__init__(group, driver.machine, driver.slots, driver.job)
        self.driver, self.final = driver, final
        self.stored: Any = None

    def resize(self, machine: Machine) -> None:
        """The cluster has other nodes now."""
        self.limit = self.target = self.group.num_workers or most_workers(self.group, machine, self.slots)

    def can_grow(self) -> bool:
        return bool(self.driver.nodes) and super().can_grow()

    def start(self) -> None:
        import ray

        if self.stored is None:
            self.stored = ray.put(pickled(self.group, self.rejecter))  # sent once per node, not once per actor
        slot = self.slots.take(self.group.resources)
        assert slot is not None
        key, node = next(_keys), self.driver.home(slot)
        made = ray.remote(RayWorker).options(**self._options(slot, node))
        actor = made.remote(self.stored, key, self.budget, self.final, self.driver.board, self.group.resources.cpus)
        worker = Actor(self.index, self.group.gather, key, slot, actor, node, self.driver)
        worker.begin(self.on_node)
        self.workers.append(worker)

    def _options(self, slot: Slot, node: str) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options: dict[str, Any] = {"num_cpus": _ACTOR_CPUS, "max_restarts": 0, "runtime_env": self._env() or None}
        if slot.devices:  # Ray counts in ten-thousandths, and must not be asked for more than there is
            options["num_gpus"] = len(slot.devices) if slot.share >= 1 else math.floor(slot.share * 1e4) / 1e4
        strategy = NodeAffinitySchedulingStrategy(node, soft=not slot.devices)
        return {**options, "scheduling_strategy": strategy}

    def _env(self) -> dict[str, Any]:
        stage = self.group.stages[0]
        env = merged(self.driver.executor.config.get("runtime_env"), stage.runtime_env)
        try:
            return self.driver.environments.of(env)
        except Exception as error:
            raise ResourceError(f"the runtime_env of stage {stage.name!r} could not be set up: {error}") from error
