"""What is kept on a Ray cluster from one segment of a run for the next: the control actor, and idle actors.

Starting an actor takes seconds of CPU: a process that imports Ray, pyarrow and the stages. So an actor that has torn
down its stages is kept, if it is fit for it (`worker_reuse.py`), and becomes a worker of another group in this segment
or the next. At the end of the run it is killed. A cache serves one driver at a time, because its actors know only its
control actor. An idle actor that has died is replaced.
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
"""An actor with more private memory is not kept."""

_MAX_CONCURRENCY = 100_000
_MAX_IDLE_PER_CPU = 2
"""How many idle actors a node may have per core. Most segments have two groups: one works, one commits."""

_MAX_MEMORY_FRACTION = 1 / 20
"""The share of a node's memory that all its idle actors together may have."""

_REUSE_CHECK_SECONDS = 2.0
"""How long to wait for idle actors to report whether they can be reused."""


@dataclass(frozen=True, eq=False)
class IdleActor:
    """An actor without a worker."""

    node: str
    env: Mapping[str, Any]
    actor: Any
    reuse_ref: Any
    """The reference to its reply whether it can be reused; never ready if it has died."""


class ActorCache:
    """A control actor, and idle actors that know it."""

    def __init__(self, control_actor_class: type, make_state: Callable[[], ControlState]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        place = {"num_cpus": 0, "max_concurrency": _MAX_CONCURRENCY, "scheduling_strategy": here}
        self.control = ControlActorSupervisor(control_actor_class, place, make_state)
        self.idle_actors: list[IdleActor] = []

    def keep_actor(self, worker: ActorHandle, nodes: Sequence[ClusterNode]) -> bool:
        """Keep the actor of a worker that has ended, instead of the oldest one if the node has too many. Returns
        whether."""
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
        """An idle actor of a node with this runtime environment; None if there is none."""
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
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # its cluster may be gone
            ray.kill(idle.actor)

    def kill_idle_actors(self) -> None:
        """Kill all idle actors."""
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
    """How many idle actors a node may have."""
    room = node.memory_gb * 2**30 * _MAX_MEMORY_FRACTION / MAX_REUSE_BYTES
    return int(min(room, max(1.0, node.cpus) * _MAX_IDLE_PER_CPU))


class ActorCaches:
    """The caches of one executor that are not in use, between the segments of its runs."""

    def __init__(self) -> None:
        self._idle: list[ActorCache] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorCaches, ()  # the copy of an executor in an engine's actor has none

    def take_cache(self, control_actor_class: type, make_state: Callable[[], ControlState]) -> ActorCache:
        """A cache that is not in use, of any run, or a new one."""
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
        except IndexError:  # another thread has just taken the last one
            return None

    def keep_cache(self, cache: ActorCache) -> None:
        cache.control.make_state = ControlState  # the bound method would keep the driver alive
        self._idle.append(cache)

    def close(self) -> None:
        import ray

        while (cache := self._next()) is not None:
            if ray.is_initialized():
                cache.close()
