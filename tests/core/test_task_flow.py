"""Flow, call by call: what goes together, what fails, what is lost and made again, and what is counted."""

from __future__ import annotations

import pytest

from gristmill.core.errors import LostTaskError, StageError, WorkerLostError
from gristmill.core.plan.planner import Group, Plan
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.run.lost_tasks import MAX_LOSSES
from gristmill.core.run.task_flow import MOST_MOVES, CallOutput, Flow, WorkerCall, WorkItem
from gristmill.core.task import Lineage
from tests.core.task_flow_stages import RETRIES, Ref, Step


def flow_of(*items: WorkItem, stages: int = 1, batch_size: int = 1) -> Flow:
    group = Group(0, tuple(Step().with_(batch_size=batch_size) for _ in range(stages)))
    flow = Flow(Plan("p", None, (group,)), iter([list(items)]))
    flow.list_sources(100)
    return flow


def item(name: str, nbytes: int = 1, start: int = 0) -> WorkItem:
    return WorkItem(Lineage(name, name, (f"{name}.jsonl",)), [name], nbytes, start)


def names(call: WorkerCall) -> list[str]:
    return [entry.lineage.id for entry in call.items]


def test_after_a_failure_each_item_goes_alone() -> None:
    flow = flow_of(item("a"), item("b"), item("c"))
    call = flow.next_call(0, 3)
    assert names(call) == ["a", "b", "c"]
    flow.retry_call(call, StageError("Step", "a", (), "?"))
    assert [names(flow.next_call(0, 3)) for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_a_call_that_nobody_has_run_waits_again_before_all_others_and_is_not_to_blame() -> None:
    flow = flow_of(*(item(name, nbytes=10) for name in "abcd"))
    running, waiting = flow.next_call(0, 1), flow.next_call(0, 2, waits=True)
    assert flow.pools[0].waiting_bytes == 20
    flow.put_back(waiting)
    assert flow.pools[0].waiting_bytes == 0
    flow.retry_call(running, StageError("Step", "a", (), "?"))
    again = [flow.next_call(0, 4), flow.next_call(0, 4)]
    assert [names(call) for call in again] == [["a"], ["b", "c", "d"]]
    assert [call.alone for call in again] == [True, False]
    assert flow.pools[0].running == 2


def test_the_error_is_raised_when_the_retries_are_used_up() -> None:
    flow = flow_of(item("a"))
    error = StageError("Step", "a", ("a.jsonl",), "bad byte")
    for _ in range(RETRIES):
        flow.retry_call(flow.next_call(0, 1), error)
    with pytest.raises(StageError, match=r"stage 'Step' failed on task a from a\.jsonl: bad byte"):
        flow.retry_call(flow.next_call(0, 1), error)


def test_the_stage_at_fault_says_how_often() -> None:
    group = Group(0, (Step(), Step().with_(max_retries=0)))
    flow = Flow(Plan("p", None, (group,)), iter([[item("a")]]))
    flow.list_sources(1)
    with pytest.raises(StageError):
        flow.retry_call(flow.next_call(0, 1), StageError("second", "a", (), "?", position=1))


def test_what_a_failed_call_of_several_gave_does_not_count() -> None:
    flow = flow_of(item("a"), item("b"))
    call = flow.next_call(0, 2)
    flow.add_output(call, CallOutput(call.items[0].lineage, "ref", 1, 1))
    flow.retry_call(call, StageError("Step", "a", (), "?"))
    assert not flow.results


def two_groups(*items: WorkItem) -> tuple[Flow, WorkerCall]:
    """A flow of which the first group has turned an item into two, and a call with both of them."""
    plan = Plan("p", None, (Group(0, (Step(),)), Group(1, (Step(),))))
    flow = Flow(plan, iter([list(items)]))
    flow.may_be_lost = lambda ref: True
    flow.list_sources(10)
    finish(flow, flow.next_call(0, 1), "a.0", "a.1")
    return flow, flow.next_call(1, 2)


def finish(flow: Flow, call: WorkerCall, *outputs: str) -> None:
    for name in outputs:
        flow.add_output(call, CallOutput(Lineage(name, "a"), Ref(name), 1, 1))
    flow.finish_call(call, [StageStats(tasks_in=1)])


def test_what_is_lost_is_made_again_once_for_all_who_wait_for_it() -> None:
    flow, call = two_groups(item("a"))
    assert names(call) == ["a.0", "a.1"]
    flow.recover(call, [(1, 0), (0, 0)])
    assert not flow.pools[1].queue
    again = flow.next_call(0, 10)
    assert again.items[0].wanted == {("a.0", 1), ("a.1", 1)}
    assert not flow.pools[0].queue
    finish(flow, again, "a.0", "a.1")
    assert sorted(names(flow.next_call(1, 2))) == ["a.0", "a.1"]
    assert flow.stats[0][0].tasks_in == 1  # and not 2
    assert flow.progress().sources_done == 0


def test_a_stage_that_gives_something_else_the_second_time_is_named() -> None:
    flow, call = two_groups(item("a"))
    flow.recover(call, [(0, 0)])
    with pytest.raises(StageError, match=r"'Step' failed on task a from a\.jsonl: .* depend on chance"):
        finish(flow, flow.next_call(0, 1), "a.1")


def test_what_is_lost_again_and_again_ends_the_run() -> None:
    flow, call = two_groups(item("a"))
    for _ in range(MAX_LOSSES):
        flow.recover(call, [(0, 0)])
        finish(flow, flow.next_call(0, 1), "a.0")
        call = flow.next_call(1, 1)
    with pytest.raises(LostTaskError, match=r"task a\.0 was lost with its node and made again 5 times"):
        flow.recover(call, [(0, 0)])
    flow = flow_of(item("b"))
    with pytest.raises(LostTaskError, match=r"task b from b\.jsonl .* nothing to make it from"):
        flow.recover(flow.next_call(0, 1), [(0, 0)])


def test_a_node_that_disappears_is_not_the_fault_of_what_was_on_it() -> None:
    flow = flow_of(item("a"), item("b"))
    for _ in range(MOST_MOVES):
        call = flow.next_call(0, 2)
        assert names(call) == ["a", "b"]
        flow.requeue_moved(call)
    assert call.items[0].history.attempts == 0
    with pytest.raises(WorkerLostError, match="11 nodes were lost"):
        flow.requeue_moved(flow.next_call(0, 2))


def test_calls_are_bounded_by_bytes_and_start_at_one_stage() -> None:
    large = 20 * 2**20
    flow = flow_of(item("a", large), item("b", large), item("c", large), stages=2)
    assert names(flow.next_call(0, 10)) == ["a"]
    flow = flow_of(item("a", large), item("b", large), item("c", large), batch_size=2)
    assert names(flow.next_call(0, 10)) == ["a", "b"]  # a batch is never cut for its size
    flow = flow_of(item("a"), item("b", start=1), item("c", start=1), stages=2)
    assert [names(flow.next_call(0, 10)) for _ in range(2)] == [["a"], ["b", "c"]]


def test_a_batch_waits_until_it_is_full_or_nothing_more_comes() -> None:
    group = Group(0, (Step().with_(batch_size=4),))
    flow = Flow(Plan("p", None, (group,)), iter([[item("a"), item("b")], [item("c")]]))
    flow.list_sources(1)
    assert flow.ready(0) == 0
    flow.list_sources(100)
    assert flow.listing_done
    assert flow.ready(0) == 3


def test_progress_adds_up() -> None:
    flow = flow_of(item("a"), item("b"))
    first, second = flow.next_call(0, 1), flow.next_call(0, 1)
    flow.finish_call(first, [StageStats(tasks_in=1, rows_in=5, counts={"bad": 1})])
    second.partial_stats = [StageStats(tasks_in=1, rows_in=2, counts={"bad": 2})]
    [(name, stats)] = flow.progress(calls=[second]).stages
    assert (name, stats.rows_in, stats.counts) == ("Step", 7, {"bad": 3})
    [(_, settled)] = flow.progress().stages
    assert (settled.rows_in, settled.counts) == (5, {"bad": 1})  # looking changes nothing
