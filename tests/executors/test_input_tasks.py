"""Large tasks that enter a run on Ray, without a cluster (with one: `test_ray_input_tasks.py`)."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from gristmill import DocumentBatch, Task
from gristmill.core.plan.planner import Group, Plan
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.run.task_flow import CallOutput, Flow, WorkerCall
from gristmill.core.task import Lineage
from gristmill.executors.machine_resources import GpuSlot
from gristmill.executors.ray.actor_pool import ActorHandle
from gristmill.executors.ray.input_tasks import store_input_tasks
from gristmill.executors.ray.worker_actor import StoredTask
from tests.core.task_flow_stages import Ref, Step

ray = pytest.importorskip("ray")

LARGE = DocumentBatch([{"text": "x" * 100_000}])


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was put there; a reference is the place in it."""
    there: list[Any] = []
    monkeypatch.setattr(ray, "put", lambda value: _put(there, value))
    return there


def _put(there: list[Any], value: Any) -> int:
    there.append(value)
    return len(there) - 1


def flow_of(task: Task[Any], given: bool) -> Flow:
    plan = Plan("p", None, (Group(0, (Step(),)), Group(1, (Step(),))))
    flow = Flow(plan, store_input_tasks(iter([[task.named(Lineage("a", "a"))]]), given))
    flow.may_be_lost = lambda ref: isinstance(ref, Ref)
    flow.list_sources(10)
    return flow


def done(flow: Flow, call: WorkerCall) -> None:
    flow.add_output(call, CallOutput(call.items[0].lineage, Ref("made"), 1, 1))
    flow.finish_call(call, [StageStats()])
    call.discard()


def given_to(call: WorkerCall) -> None:
    """Send it to a worker, of which there is no more than this."""
    there = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda order: (None, None)))
    worker = ActorHandle(0, False, 0, GpuSlot(), SimpleNamespace(once=there, stream=there), "", None, {})  # type: ignore[arg-type]
    worker.call(call)


@pytest.mark.parametrize("given", [True, False])
def test_a_large_task_leaves_the_store_when_it_was_worked_on_and_comes_back_when_it_is_needed(
    store: list[Any], given: bool
) -> None:
    flow = flow_of(LARGE, given)
    for losses in range(3):
        call = flow.next_call(0, 1)
        (ref,) = call.items[0].refs
        if losses and not given:  # nobody has it any more
            assert ref.refs == []
            break
        assert len(store) == (losses or 1)  # it comes back when it is sent
        given_to(call)
        assert pickle.loads(pickle.dumps(ref)) == StoredTask([losses], 0, LARGE.nbytes)
        assert store[losses][0].to_rows() == LARGE.to_rows()
        done(flow, call)
        assert ref.refs == []
        flow.recover(flow.next_call(1, 1), [(0, 0)])


def test_a_small_task_is_not_put_into_the_store(store: list[Any]) -> None:
    flow = flow_of(Task(1), given=True)
    assert flow.next_call(0, 1).items[0].refs[0].load().data == 1
    assert store == []
