"""The driver's books without a cluster: what workers and engines say is taken whole, once, whatever happens to them."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.virtual_cluster import Simulation, VirtualWorker, World, virtual_time
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import ProcessingStage, Task
from gristmill.core.errors import LostTaskError, StageError
from gristmill.core.plan.planner import Group, Plan
from gristmill.core.records.quarantine import Quarantine, QuarantinedRecord
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.run.task_flow import CallOutput, Flow, WorkerCall, WorkItem
from gristmill.core.task import Lineage
from gristmill.executors.driver import WORKER_LOST
from gristmill.executors.engines.driver_channel import CallReceipt, EngineCoordinator
from gristmill.executors.engines.engine_executor import EngineDriver
from gristmill.executors.local.task_transport import pack_task
from gristmill.executors.machine_resources import GpuSlot
from gristmill.executors.ray.actor_pool import ActorHandle
from gristmill.executors.ray.actor_reuse import max_idle_actors
from gristmill.executors.ray.cluster import ClusterNode
from gristmill.executors.ray.locality import move_local_items_first, nearest_worker, node_of
from gristmill.executors.ray.worker_actor import StoredTask, WorkerMessage


def aside(task: str) -> QuarantinedRecord:
    return QuarantinedRecord("s", "raised", "ValueError: no", task, task)


def actor(key: int = 1, node: str = "n1") -> ActorHandle:
    return ActorHandle(0, False, key, GpuSlot((), 0.0), None, node, SimpleNamespace(), {})


# -- what an actor says ----------------------------------------------------------------------------------------


def test_what_lies_in_a_store_says_on_which_node() -> None:
    outputs = [(Lineage("a", "a"), 0, 5_000_000, 1), (Lineage("b", "b"), pack_task(Task(1), None), 10, 1)]
    kind, (large, small), *_ = actor(node="far").as_driver_message(WorkerMessage("done", outputs), "reference")
    assert kind == "done"
    assert large[1] == StoredTask(["reference"], 0, 5_000_000, "far")
    assert small[1].load().data == 1


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            WorkerMessage("done", stats=[StageStats(2)], aside=[aside("a")], memory=7),
            ("done", [], [StageStats(2)], [aside("a")], 7),
        ),
        (WorkerMessage("out", stats=[StageStats(1)]), ("out", [], [StageStats(1)])),
        (WorkerMessage("missing", missing=[(0, 1)]), ("missing", [(0, 1)])),
        (WorkerMessage("again"), ("again",)),
        (WorkerMessage("returned"), ("returned",)),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_message_is_passed_on_whole(message: WorkerMessage, said: tuple[Any, ...]) -> None:
    assert actor().as_driver_message(message, None) == said


def test_a_failure_comes_with_what_was_set_aside_before_it() -> None:
    error = StageError("s", "a", (), "no")
    assert actor().as_driver_message(WorkerMessage("failed", error=error, aside=[aside("a")]), None) == (
        "failed",
        error,
        [aside("a")],
    )


def waiting(*nodes: str) -> deque[WorkItem]:
    items = enumerate(nodes)
    return deque(WorkItem(Lineage(f"{n}", f"{n}"), [StoredTask(["reference"], 0, 9, node)]) for n, node in items)


def names(queue: deque[WorkItem]) -> str:
    return "".join(item.lineage.id for item in queue)


@pytest.mark.parametrize(
    ("free", "most", "after", "together"),
    [
        ({"near"}, 5, "13024", 2),
        ({"near"}, 1, "10234", 1),
        ({"near", "far"}, 5, "02413", 3),
        ({"near", "far"}, 2, "02134", 2),
        ({"elsewhere"}, 5, "02413", 3),
    ],
)
def test_what_lies_together_where_somebody_is_free_goes_first(
    free: set[str], most: int, after: str, together: int
) -> None:
    queue = waiting("far", "near", "far", "near", "far")
    assert move_local_items_first(queue, free, most) == together
    assert names(queue) == after


@pytest.mark.parametrize("most", [1, 2, 7, 20, 64, 256])
def test_everything_is_done_where_it_lies_and_in_large_calls_when_all_nodes_are_equally_fast(most: int) -> None:
    nodes = ["a", "b", "c", "d"]
    queue = waiting(*nodes * 250)
    calls = 0
    while queue:
        free = nodes[calls % 4]
        together = move_local_items_first(queue, {free}, most)
        assert {node_of(queue.popleft()) for _ in range(together)} == {free}
        calls += 1
    assert calls <= max(4, 4 * 1000 / most)  # at most a quarter of what is looked at lies on one node


def test_what_is_passed_over_goes_after_some_turns_wherever_others_are_free() -> None:
    queue = waiting("far", *["near", "there"] * 200)
    for turn in range(400):
        move_local_items_first(queue, {"near" if turn % 2 else "there"}, 1)
        if queue.popleft().lineage.id == "0":
            break
    assert turn == 16


@pytest.mark.parametrize("other", [{"runs_alone": True}, {"start": 1}, {"refs": [pack_task(Task(1), None)]}])
def test_nothing_is_taken_out_of_its_turn_before_what_is_of_another_kind(other: dict[str, Any]) -> None:
    queue = waiting("far", "far", "near", "near")
    for name, value in other.items():
        setattr(queue[0], name, value)
    assert move_local_items_first(queue, {"near"}, 4) == 1
    assert names(queue) == "0123"


def test_small_ones_go_together_wherever_they_come_from() -> None:
    queue = deque(WorkItem(Lineage(f"{n}", f"{n}"), [pack_task(Task(n), None)]) for n in range(100))
    queue += waiting("far", "near")
    assert move_local_items_first(queue, {"near"}, 500) == 100
    assert move_local_items_first(queue, {"near"}, 50) == 50


@pytest.mark.parametrize(
    ("cpus", "memory_gb", "most"),
    [(2, 24, 4), (64, 64, 10), (0.5, 24, 2), (8, 4, 0), (1_000, 10_000, 1_706)],
)
def test_those_that_rest_have_a_small_part_of_a_node(cpus: float, memory_gb: float, most: int) -> None:
    assert max_idle_actors(ClusterNode("n", cpus, 0, memory_gb)) == most


def test_a_call_goes_to_the_node_that_holds_what_it_needs_if_a_core_is_free_there() -> None:
    call = WorkerCall(0, [WorkItem(Lineage("a", "a"), [StoredTask(["reference"], 0, 9, "near")])], 0.0)
    near, far = actor(1, "near"), actor(2, "far")
    assert nearest_worker([far, near], call, {"near": 1.0, "far": 4.0}) is near
    assert nearest_worker([far, near], call, {"near": 0.0, "far": 4.0}) is far
    call.waits = True
    assert nearest_worker([far, near], call, {"near": 0.0, "far": 4.0}) is near  # who is busy has a core


# -- workers that die ------------------------------------------------------------------------------------------

SMALL = World(nodes=1, cpus=4, gpus=2, seconds=200, losses=(), stragglers=0.0, slow_nodes=0.0)


class Mortal(Simulation):
    """One worker that has a call waiting behind the one that it runs dies."""

    died: list[str]

    def listen(self, seconds: float) -> Any:
        yield from super().listen(seconds)
        if not hasattr(self, "died") and (full := self.pools[1].in_states("full")):
            worker = full[0]
            assert isinstance(worker, VirtualWorker)
            self.died = [call.items[0].lineage.id for call in worker.calls]
            yield worker, (WORKER_LOST,)


def test_what_waits_behind_the_call_that_a_worker_dies_of_is_done_by_others_and_not_to_blame() -> None:
    with virtual_time() as clock:
        driver = Mortal(SMALL, clock)
        taken: list[tuple[str, bool]] = []
        take = driver.flow.next_call
        driver.flow.next_call = lambda *args, **more: noted(take(*args, **more), taken)  # type: ignore[method-assign]
        ends = [lineage.id for lineage, ref in driver.run() if ref is not None]
    assert sorted(ends, key=int) == [str(number) for number in range(SMALL.tasks)]
    began, waited = driver.died
    again = {task: alone for task, alone in taken if task in (began, waited)}
    assert again == {began: True, waited: False}


def noted(call: WorkerCall, taken: list[tuple[str, bool]]) -> WorkerCall:
    if call.group == 1:
        taken.append((call.items[0].lineage.id, call.alone))
    return call


def test_a_worker_that_was_to_leave_is_kept_when_it_is_wanted_again() -> None:
    with virtual_time() as clock:
        driver = Simulation(SMALL, clock)
        pool = driver.pools[1]
        pool.start()
        (worker,) = pool.workers
        worker.calls = deque([WorkerCall(1, [WorkItem(Lineage("a", "a"), [])], 0.0)])
        worker.update_state()
        pool.retire(worker)
        assert (worker.retiring, worker.state, pool.staying_workers) == (True, "full", 0)
        pool.cancel_retirement(1)
        assert (worker.retiring, worker.state, pool.staying_workers) == (False, "busy", 1)
        worker.tasks_left = 0
        pool.retire(worker)
        pool.cancel_retirement(1)
        assert worker.retiring  # it has done all that one worker may


# -- what an engine's actors post ------------------------------------------------------------------------------


class Step(ProcessingStage[Task[Any], Task[Any]]):
    def process(self, task: Task[Any]) -> Task[Any]:
        return task


class Books(EngineDriver):
    """The part of the driver that takes receipts."""

    def __init__(self, tasks: int, after: int = 0) -> None:
        groups = tuple(Group(index, (Step().with_(name=f"s{index}"),)) for index in range(2 + after))
        items = [[WorkItem(Lineage(f"{n}", f"{n}", (), n), [pack_task(Task(n), None)], 10)] for n in range(tasks)]
        quarantine = Quarantine()
        self.job = SimpleNamespace(quarantine=quarantine, plan=SimpleNamespace(number=0))  # type: ignore[assignment]
        self.flow = Flow(Plan("p", None, groups), iter(items), quarantine)
        self.flow.may_be_lost = lambda ref: isinstance(ref, StoredTask)
        self.engine_groups, self.state = range(2), "listing"
        self.submitted_calls, self.deliveries, self.receipts_received = {}, {}, 0
        self.flow.list_sources(10**9)
        self._submit_inputs()

    def _start(self) -> None:
        self.state = "running"


class Starts(Books):
    """The part that starts an engine. The first board is gone when it is to hold what is large."""

    _start = EngineDriver._start

    def __init__(self) -> None:
        self.did: list[Any] = []
        control = SimpleNamespace(actor="first", ask=self._ask)
        self.actor_cache = SimpleNamespace(control=control, kill_idle_actors=lambda: None)  # type: ignore[assignment]
        super().__init__(2)

    def _submit_inputs(self) -> None:
        self.flow.pools[0].queue[1].refs = [StoredTask(["reference"], 0, 100_000)]
        super()._submit_inputs()

    def _ask(self, method: Any, large: Any) -> None:
        self.did.append((method.__name__, large, self.state))
        self.control.actor = "second"

    def _start_engine_actor(self, rows: list[bytes]) -> None:
        self.did.append(("play", len(rows), self.coordinator))


def test_an_engine_begins_when_the_desk_that_it_knows_holds_what_is_large() -> None:
    driver = Starts()
    assert driver.did == [("hold_inputs", {1: StoredTask(["reference"], 0, 100_000)}, "listing"), ("play", 2, "second")]
    assert driver.state == "running"


def receipts(draw: random.Random, tasks: int) -> tuple[list[CallReceipt], list[str], list[str]]:
    """Calls of an engine: some tasks fall away in the first group, some are set aside, and some become two."""
    posted: list[CallReceipt] = []
    between: list[tuple[int, Lineage]] = []
    lost: list[str] = []
    numbers = list(range(tasks))
    while numbers:
        part, numbers = numbers[: (size := draw.randint(1, 3))], numbers[size:]
        first = CallReceipt(0, [(number, f"{number}") for number in part])
        given = []
        for number in part:
            name = Lineage(f"{number}", f"{number}", (), number)
            fate = draw.choice(["one", "two", "none", "aside"])
            given += {"one": [name], "two": [name.child(0), name.child(1)]}.get(fate, [])
            if fate == "aside":
                first.quarantined.append(aside(name.id))
                lost.append(name.id)
        first.outputs = [(name, None, 10, 1) for name in given]
        first.stats = [StageStats(len(part), len(given), rows_in=len(part), rows_out=len(given))]
        posted.append(first)
        between += [(part[0], name) for name in given]
    draw.shuffle(between)
    results = [name.id for _, name in between]
    while between:  # calls of the second group take what comes, of whatever call of the first
        some, between = between[: (size := draw.randint(1, 2))], between[size:]
        last = CallReceipt(1, [(convoy, name.id) for convoy, name in some])
        last.outputs = [(name, pack_task(Task(name.id), None), 10, 1) for _, name in some]
        last.stats = [StageStats(len(some), len(some), rows_in=len(some), rows_out=len(some))]
        posted.append(last)
    return posted, results, lost


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_receipts_count_once_in_any_order_and_whole(draw: random.Random, tasks: int) -> None:
    driver = Books(tasks)
    posted, results, lost = receipts(draw, tasks)
    posted += [replace(receipt) for receipt in posted if draw.random() < 0.2]  # engines repeat calls
    draw.shuffle(posted)
    for receipt in posted:
        driver._handle_receipt(receipt)
    assert driver.receipts_received == len(posted)
    assert driver.flow.over
    assert not driver.submitted_calls
    assert sorted(lineage.id for lineage, ref in driver.flow.results if ref is not None) == sorted(results)
    assert driver.flow.stats[0][0].rows_in == tasks
    assert driver.flow.stats[1][0].rows_in == len(results)
    assert driver.job.quarantine.failed == len(lost)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 8))
def test_what_an_engine_has_not_done_whole_is_left_to_others(draw: random.Random, tasks: int) -> None:
    driver = Books(tasks)
    posted, results, _ = receipts(draw, tasks)
    missing = draw.choice(posted)
    convoy = {int(name.partition(".")[0]) for _, name in missing.inputs}
    for receipt in posted:
        if receipt is not missing:
            driver._handle_receipt(receipt)
    assert convoy <= set(driver.submitted_calls)
    driver._return_work_to_actors()
    waiting = [item.lineage.id for item in driver.flow.pools[0].queue]
    assert {f"{number}" for number in convoy} <= set(waiting)
    came = [lineage.id for lineage, ref in driver.flow.results if ref is not None]
    assert sorted(came) == sorted(name for name in results if name.partition(".")[0] not in waiting)


def through_both(driver: Books, *numbers: int) -> None:
    """One call of each group for these tasks; what leaves the second lies in a store."""
    names = [Lineage(f"{number}", f"{number}", (), number) for number in numbers]
    for group, ref in ((0, None), (1, StoredTask(["reference"], 0, 10, "node"))):
        given = [(name, ref, 10, 1) for name in names]
        items = [(numbers[0] if group else number, f"{number}") for number in numbers]
        driver._handle_receipt(CallReceipt(group, items, given, [StageStats(len(names), len(names))]))


def test_what_an_engine_has_made_and_is_lost_is_made_again_through_all_its_groups() -> None:
    driver = Books(4, after=1)
    through_both(driver, 0, 1)
    loads = driver.flow.next_call(2, 2)
    driver.flow.recover(loads, [(1, 0)])
    through_both(driver, 2, 3)  # the engine goes on meanwhile, and does not take what is to be made again for its own
    assert driver.flow.next_call(2, 1).items[0].lineage.id == "0"
    again = driver.flow.next_call(1, 1)
    assert (again.items[0].lineage.id, again.items[0].wanted) == ("1", {("1", 1)})
    with pytest.raises(LostTaskError):
        again.items[0].refs[0].load()
    driver.flow.recover(again, [(0, 0)])
    first = driver.flow.next_call(0, 1)
    assert (first.items[0].lineage.id, first.items[0].refs[0].load().data) == ("1", 1)
    call = first
    for group in (1, 2):
        made = pack_task(Task(f"for {group}"), None)
        driver.flow.add_output(call, CallOutput(call.items[0].lineage, made, 10, 1))
        driver.flow.finish_call(call, [StageStats()])
        call = driver.flow.next_call(group, 1)
        assert (call.items[0].lineage.id, call.items[0].refs[0].load().data) == ("1", f"for {group}")


def test_a_keeper_is_asked_for_once_and_again_when_nobody_heard_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.executors.engines.driver_channel._OWNER_SECONDS", 0.3)

    async def ask() -> list[Any]:
        desk = EngineCoordinator()
        wanted, waiting = [], []
        for _ in range(2):
            waiting.append(asyncio.create_task(desk.result_owner("n")))
            wanted.append((await desk.take_update(0.1)).wanted_owners)
        waiting.pop(0).cancel()
        wanted.append((await desk.take_update(5)).wanted_owners)
        for keeper in ("first", "second"):
            await desk.set_result_owner("n", keeper)
        return [*wanted, await asyncio.gather(*waiting)]

    assert asyncio.run(ask()) == [["n"], [], ["n"], ["first"]]
