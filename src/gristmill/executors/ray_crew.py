"""What stays of a segment on a Ray cluster for the next one of its run: the board, and actors with nothing to do.

To start an actor takes seconds of a core: a process that imports Ray, pyarrow and the stages. So one that has torn down
its stages rests, and becomes a worker of another group in this segment or the next. When the run is over, it is killed.
A crew serves one driver at a time: workers know its board, and no other. Whoever died while it rested is replaced.

Actors that hold GPUs or much memory do not rest, nor those of a stage that bounds how many tasks a process may see.

What is given up: a process that is new for every group. What a stage leaves in globals, later stages may find there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ResourceError
from gristmill.executors.ray_board import BoardKeeper, Past

if TYPE_CHECKING:
    from gristmill.executors.ray_cluster import Node
    from gristmill.executors.ray_pool import Actor

_MANY = 100_000
_PER_CPU = 2
"""How many actors may rest on a node. A segment has two groups, as a rule: one that works and one that commits."""


class Crew:
    """A board, and actors that rest."""

    def __init__(self, board_class: type, past: Callable[[], Past]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        place = {"num_cpus": 0, "max_concurrency": _MANY, "scheduling_strategy": here}
        self.boards = BoardKeeper(board_class, place, past)
        self.spares: list[tuple[str, Mapping[str, Any], Any]] = []
        """Node, environment and handle of each."""

    def keep(self, worker: Actor, nodes: Sequence[Node]) -> bool:
        """Let the actor of a worker rest that has ended. Whether it does; if the node has many, another one goes."""
        node = next((node for node in nodes if node.id == worker.node), None)
        if node is None or not worker.may_rest:
            return False
        there = [spare for spare in self.spares if spare[0] == node.id]
        if len(there) >= max(_PER_CPU, _PER_CPU * node.cpus):
            self._dismiss(there[0])
        self.spares.append((node.id, worker.env, worker.actor))
        return True

    def take(self, node: str, env: Mapping[str, Any]) -> Any:
        """An actor that rests on a node, in this environment; None if there is none."""
        spare = next((spare for spare in reversed(self.spares) if spare[:2] == (node, env)), None)
        if spare is not None:
            self.spares.remove(spare)
        return spare and spare[2]

    def _dismiss(self, spare: tuple[str, Mapping[str, Any], Any]) -> None:
        import ray

        self.spares.remove(spare)
        ray.kill(spare[2])

    def dismiss(self) -> None:
        """Nobody needs those that rest."""
        for spare in list(self.spares):
            self._dismiss(spare)

    def close(self) -> None:
        self.dismiss()
        self.boards.close()


class Crews:
    """The crews of one executor that rest between the segments of their runs."""

    def __init__(self) -> None:
        self._resting: list[Crew] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Crews, ()  # a copy of an executor, in an engine's actor, has none

    def take(self, board_class: type, past: Callable[[], Past]) -> Crew:
        """One that rests, if there is one: of any run, because it has nothing of it any more."""
        try:
            crew = self._resting.pop()
        except IndexError:
            return Crew(board_class, past)
        try:
            crew.boards.go_on(past)
        except ResourceError:  # a desk, and it was killed
            crew.close()
            return Crew(board_class, past)
        return crew

    def rest(self, crew: Crew) -> None:
        crew.boards.past = Past  # or it would hold all of its driver
        self._resting.append(crew)

    def close(self) -> None:
        import ray

        while self._resting:
            crew = self._resting.pop()
            if ray.is_initialized():
                crew.close()
