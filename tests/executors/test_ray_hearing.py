"""What the driver of a cluster makes of what it hears of its workers. No cluster is needed for that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gristmill.executors.drive import LOST
from gristmill.executors.ray_actors import RayDriver
from gristmill.executors.ray_cluster import Node

ray = pytest.importorskip("ray")


class Mute:
    """A worker of which nothing comes but an error."""

    def __init__(self, error: Exception) -> None:
        self.error, self.key, self.node, self.timed_out, self.node_gone = error, 0, "n0", "", False

    def hears(self) -> Any:
        raise self.error


def driver() -> Any:
    """As much of one as is asked, on a node that answers."""
    made: Any = RayDriver.__new__(RayDriver)
    made.nodes, made._silent, made._counted = [Answering("n0", 1, 0)], set(), 1.0
    made.crew = SimpleNamespace(boards=SimpleNamespace(read=lambda: None, strangers=set()))
    return made


class Answering(Node):
    def answers(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (ray.exceptions.ActorUnschedulableError("The node specified via NodeAffinitySchedulingStrategy is dead"), True),
        (ray.exceptions.ActorDiedError(), False),
    ],
)
def test_an_actor_that_ray_cannot_place_has_lost_its_node(error: Exception, gone: bool) -> None:
    """It is no crash of the stage, and the node is looked at anew."""
    made, worker = driver(), Mute(error)
    assert list(made._hear_one(worker)) == [(worker, (LOST,))]
    assert worker.node_gone == gone
    assert (made._silent, made._counted) == (({"n0"}, 0.0) if gone else (set(), 1.0))
