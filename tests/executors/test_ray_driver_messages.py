"""What the driver of a cluster makes of what it hears of its workers. No cluster is needed for that."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gristmill.executors.driver import WORKER_LOST
from gristmill.executors.engines.driver_channel import CallReceipt, CoordinatorUpdate
from gristmill.executors.engines.engine_executor import EngineDriver
from gristmill.executors.machine_resources import GpuSlot
from gristmill.executors.ray.actor_pool import ActorHandle
from gristmill.executors.ray.actor_pool_executor import RayDriver
from gristmill.executors.ray.cluster import ClusterNode

ray = pytest.importorskip("ray")


class Mute:
    """A worker of which nothing comes but an error."""

    def __init__(self, error: Exception) -> None:
        self.error, self.key, self.node, self.timed_out, self.node_gone = error, 0, "n0", "", False

    def read_messages(self) -> Any:
        raise self.error


def driver() -> Any:
    """As much of one as is asked, on a node that answers."""
    made: Any = RayDriver.__new__(RayDriver)
    made.nodes, made._unreachable_nodes, made._nodes_checked_at = [Answering("n0", 1, 0)], set(), 1.0
    made.actor_cache = SimpleNamespace(
        control=SimpleNamespace(refresh_positions=lambda: None, unregistered_workers=set())
    )
    return made


class Answering(ClusterNode):
    def is_reachable(self) -> bool:
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
    assert list(made._read_worker(worker)) == [(worker, (WORKER_LOST,))]
    assert worker.node_gone == gone
    assert (made._unreachable_nodes, made._nodes_checked_at) == (({"n0"}, 0.0) if gone else (set(), 1.0))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference is a function, whose answer is there when it is asked for."""
    monkeypatch.setattr(ray, "wait", lambda refs, **_: (refs, []))
    monkeypatch.setattr(ray, "get", lambda ref: ref())


def fails() -> None:
    raise ray.exceptions.ActorDiedError


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize(("answer", "still_asked"), [(lambda: None, True), (fails, False)])
def test_who_was_asked_at_a_board_that_died_is_asked_again(answer: Callable[[], None], still_asked: bool) -> None:
    """That is looked at with the board, where what is shared is left."""
    made = driver()
    board = SimpleNamespace(request_share=SimpleNamespace(remote=lambda key, count: answer))
    worker: Any = ActorHandle(0, False, 0, GpuSlot(), None, "n0", SimpleNamespace(control_actor=board), {})  # type: ignore[arg-type]
    worker.answers.append(SimpleNamespace(number=1, withdrawn=False))
    made._actors, made._pending_shared_parts, made.control.ask = lambda: iter([worker]), [], lambda method: []
    worker.ask_to_share(2)
    assert worker.share_asked
    assert list(made._read_shared_parts()) == []
    assert (worker.share_asked, worker.pending_share_request) == (still_asked, None)


class Ends(EngineDriver):
    """An engine that has ended. What its actors have posted last comes after an answer that was asked for before."""

    def __init__(self, *news: CoordinatorUpdate) -> None:
        waiting = [*news]
        self.state, self.teardown_error, self.receipts_received, self.guard_processes, self.result_owners = (
            "running",
            None,
            0,
            [],
            [],
        )
        self.engine_run, self.pending_update = lambda: None, CoordinatorUpdate
        answer = SimpleNamespace(remote=lambda seconds: lambda: waiting.pop(0) if waiting else CoordinatorUpdate())
        self.coordinator, self.took = SimpleNamespace(take_update=answer), list[CallReceipt]()

    def _end_engine(self, grace: float) -> None: ...

    def _handle_receipt(self, receipt: CallReceipt) -> None:
        assert self.state == "running"
        self.took.append(receipt)

    def _warn_and_take_over(self, why: str) -> None:
        self.state = "over"


@pytest.mark.usefixtures("answers")
def test_what_was_posted_last_is_taken_before_others_do_what_is_left() -> None:
    first, second = CallReceipt(0, [(0, "0")]), CallReceipt(0, [(1, "1")])
    made = Ends(CoordinatorUpdate([first]), CoordinatorUpdate([second]))
    made._handle_engine_end()
    assert made.took == [first, second]
    assert made.state == "over"
