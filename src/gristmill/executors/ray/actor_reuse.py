"""What stays of a segment on a Ray cluster for the next one of its run: the board, and actors with nothing to do.

To start an actor takes seconds of a core: a process that imports Ray, pyarrow and the stages. So one that has torn down
its stages rests, if it may (`worker_reuse.py`), and becomes a worker of another group in this segment or the next. When the run
is over, it is killed. A crew serves one driver at a time: workers know its board, and no other. Whoever died while it
rested is replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ResourceError
from gristmill.executors.ray.control_actor import ControlActorSupervisor, ControlState

if TYPE_CHECKING:
    from gristmill.executors.ray.actor_pool import ActorHandle
    from gristmill.executors.ray.cluster import ClusterNode

MAX_REUSE_BYTES = 300 * 2**20
"""An actor that has more memory for itself does not rest."""

_MAX_CONCURRENCY = 100_000
_MAX_IDLE_PER_CPU = 2
"""How many actors may rest on a node. A segment has two groups, as a rule: one that works and one that commits."""

_MAX_MEMORY_FRACTION = 1 / 20
"""How much of a node's memory those that rest may have, all of them."""

_REUSE_CHECK_SECONDS = 2.0
"""How long actors may take to forget what they were, when one is wanted."""


@dataclass(frozen=True, eq=False)
class IdleActor:
    """An actor that rests."""

    node: str
    env: Mapping[str, Any]
    actor: Any
    reuse_ref: Any
    """A reference: whether it can become another worker. It may also be that it is never told."""


class ActorCache:
    """A board, and actors that rest."""

    def __init__(self, control_actor_class: type, make_state: Callable[[], ControlState]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        place = {"num_cpus": 0, "max_concurrency": _MAX_CONCURRENCY, "scheduling_strategy": here}
        self.control = ControlActorSupervisor(control_actor_class, place, make_state)
        self.idle_actors: list[IdleActor] = []

    def keep_actor(self, worker: ActorHandle, nodes: Sequence[ClusterNode]) -> bool:
        """Let the actor of a worker rest that has ended. Whether it does; if the node has many, another one goes."""
        node = next((node for node in nodes if node.id == worker.node), None)
        limit = 0 if node is None else max_idle_actors(node)
        if not worker.may_be_reused or not limit:
            return False
        on_node = [idle for idle in self.idle_actors if idle.node == worker.node]
        if len(on_node) >= limit:
            self._dismiss(on_node[0])
        self.idle_actors.append(
            IdleActor(worker.node, worker.env, worker.actor, worker.actor.prepare_for_reuse.remote(MAX_REUSE_BYTES))
        )
        return True

    def take_actor(self, node: str, env: Mapping[str, Any]) -> Any:
        """An actor that rests on a node, in this environment; None if there is none."""
        import ray

        on_node = {idle.reuse_ref: idle for idle in self.idle_actors[::-1] if (idle.node, idle.env) == (node, env)}
        while on_node and (ready := ray.wait(list(on_node), timeout=_REUSE_CHECK_SECONDS)[0]):
            idle = on_node.pop(ready[0])
            if _can_be_reused(idle):
                self.idle_actors.remove(idle)
                return idle.actor
            self._dismiss(idle)
        return None

    def _dismiss(self, idle: IdleActor) -> None:
        import ray

        self.idle_actors.remove(idle)
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it may be of a cluster that is gone
            ray.kill(idle.actor)

    def kill_idle_actors(self) -> None:
        """Nobody needs those that rest."""
        for idle in list(self.idle_actors):
            self._dismiss(idle)

    def close(self) -> None:
        self.kill_idle_actors()
        self.control.close()


def _can_be_reused(idle: IdleActor) -> bool:
    import ray

    with contextlib.suppress(ray.exceptions.RayError):  # it has died
        return bool(ray.get(idle.reuse_ref))
    return False


def max_idle_actors(node: ClusterNode) -> int:
    """How many actors may rest on a node."""
    room = node.memory_gb * 2**30 * _MAX_MEMORY_FRACTION / MAX_REUSE_BYTES
    return int(min(room, max(1.0, node.cpus) * _MAX_IDLE_PER_CPU))


class ActorCaches:
    """The crews of one executor that rest between the segments of their runs."""

    def __init__(self) -> None:
        self._idle: list[ActorCache] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorCaches, ()  # a copy of an executor, in an engine's actor, has none

    def take_cache(self, control_actor_class: type, make_state: Callable[[], ControlState]) -> ActorCache:
        """One that rests, if there is one: of any run, because it has nothing of it any more."""
        cache = self._next()
        if cache is None:
            return ActorCache(control_actor_class, make_state)
        try:
            cache.control.begin_segment(make_state)
        except BaseException as error:
            cache.close()
            if isinstance(error, ResourceError):
                return ActorCache(control_actor_class, make_state)
            raise
        return cache

    def _next(self) -> ActorCache | None:
        try:
            return self._idle.pop()
        except IndexError:  # another run may have taken it just now
            return None

    def keep_cache(self, cache: ActorCache) -> None:
        cache.control.make_state = ControlState  # or it would hold all of its driver
        self._idle.append(cache)

    def close(self) -> None:
        import ray

        while (cache := self._next()) is not None:
            if ray.is_initialized():
                cache.close()
