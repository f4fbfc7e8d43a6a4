"""Which nodes the workers of a pool go to, while some of them are being set up. Nothing is started: time is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import Resources
from gristmill.core.executor import Job, Machine, SilentObserver
from gristmill.core.plan.planner import Group, Plan
from gristmill.core.records.quarantine import Quarantine
from gristmill.core.run.isolation import RowLocation
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import Task
from gristmill.executors.machine_resources import GpuSlot
from gristmill.executors.ray.actor_pool import ActorPool
from gristmill.executors.ray.actor_pool_executor import RayDriver
from gristmill.executors.ray.cluster import ClusterGpuSlots, ClusterNode
from gristmill.executors.worker_pool import CallRequest, WorkerHandle


class Fetches(ProcessingStage[Task[Any], Task[Any]]):
    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None: ...

    def process(self, task: Task[Any]) -> Task[Any]:
        return task


class Still(WorkerHandle):
    """A worker that does nothing."""

    def __init__(self, group: int, key: int, slot: GpuSlot, node: str, sets_up: bool) -> None:
        super().__init__(group, False, key, slot)
        self.node, self.sets_up, self.until = node, sets_up, 0

    def send_call(self, request: CallRequest) -> None: ...
    def acknowledge(self) -> None: ...
    def ask_to_share(self, count: int) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...

    def last_position(self) -> RowLocation | None:
        return None

    def current_stage(self) -> tuple[int, float]:
        return -1, 0.0


class StillPool(ActorPool):
    """What the real one decides, and no actors."""

    def _start_worker_on(self, slot: GpuSlot, node: str) -> WorkerHandle:
        sets_up = node not in self.nodes_set_up
        others = [worker for worker in self.in_states("starting") if worker.node == node]
        assert not (sets_up and others), f"{node} is set up twice at once"
        worker = Still(self.index, len(self.driver.hired), slot, node, sets_up)
        self.driver.hired.append(worker)
        return worker


class StillDriver:
    """What a pool asks its driver for. Where workers go without GPUs is the real one's decision."""

    next_actor_node = RayDriver.next_actor_node

    def __init__(self, nodes: Sequence[ClusterNode], *wishes: Resources) -> None:
        self.nodes, self.slots, self.hired = list(nodes), ClusterGpuSlots(nodes), list[Still]()
        gpus = (None,) * int(sum(node.gpus for node in nodes))
        self.machine = Machine(sum(node.cpus for node in nodes), None, gpus, len(nodes))
        groups = tuple(Group(number, (Fetches().with_(resources=wish),)) for number, wish in enumerate(wishes))
        self.job = Job(Plan("p", None, groups), iter(()), SilentObserver(), Quarantine())
        self.pools = [StillPool(self, group, False) for group in groups]  # type: ignore[arg-type]

    def _actors(self) -> Iterator[WorkerHandle]:
        return (worker for pool in self.pools for worker in pool.workers)


def grow(driver: StillDriver, seconds: Callable[[str], int], until: int) -> dict[int, int]:
    """Let all pools grow for some time, each node taking its own to be set up. How many workers are ready when."""
    ready = {}
    for now in range(until):
        for worker in driver._actors():
            if worker.state == "starting" and worker.until <= now:  # type: ignore[attr-defined]
                worker.update_state()
                driver.pools[worker.group].node_is_set_up(worker.node)
        for pool in driver.pools:
            while pool.can_grow():
                pool.start()
                new = driver.hired[-1]
                new.until = now + (seconds(new.node) if new.sets_up else 1)
        ready[now] = sum(worker.state == "idle" for worker in driver._actors())
    return ready


def cluster(*cpus: float, gpus: int = 0) -> list[ClusterNode]:
    return [ClusterNode(f"n{number}", count, gpus, 16.0) for number, count in enumerate(cpus)]


@pytest.mark.parametrize(
    ("nodes", "gpus", "share"), [(2, 2, 1), (4, 4, 1), (4, 1, 0.5), (8, 4, 0.5), (3, 2, 0.3), (4, 4, 2), (3, 0, 0)]
)
def test_all_nodes_are_set_up_at_once_and_each_once(nodes: int, gpus: int, share: float) -> None:
    driver = StillDriver(cluster(*[8.0] * nodes, gpus=gpus), Resources(cpus=1, gpus=share))
    most = driver.pools[0].limit
    ready = grow(driver, lambda node: 10, 13)
    set_up = Counter(worker.node for worker in driver.hired if worker.sets_up)
    assert set_up == dict.fromkeys([node.id for node in driver.nodes], 1)
    assert (ready[9], ready[10], ready[12]) == (0, nodes, most)


@pytest.mark.parametrize(
    ("cpus", "gpus", "share", "slow"),
    [
        ((8, 8, 8, 8), 0, 0, "n0"),
        ((8, 8, 8, 8), 0, 0, "n1"),
        ((64, 8), 0, 0, "n0"),
        ((64, 2, 2), 0, 0, "n0"),
        ((8, 8, 8), 2, 0.5, "n0"),
        ((8, 8, 8), 2, 1, "n1"),
        ((8, 8, 8), 4, 2, "n2"),
    ],
)
def test_nobody_waits_for_a_node_that_takes_long(cpus: Sequence[float], gpus: int, share: float, slow: str) -> None:
    driver = StillDriver(cluster(*cpus, gpus=gpus), Resources(cpus=1, gpus=share))
    pool = driver.pools[0]
    ready = grow(driver, lambda node: 100 if node == slow else 2, 110)
    there = Counter(worker.node for worker in pool.workers)
    assert ready[10] == pool.limit - there[slow]
    assert ready[102] == pool.limit
    if not gpus:
        assert there == {node.id: node.cpus for node in driver.nodes}  # and not crowded on those that were ready first
    assert Counter(worker.node for worker in driver.hired if worker.sets_up)[slow] == 1


def test_nodes_without_enough_cores_are_no_way_out() -> None:
    driver = StillDriver(cluster(16, 0, 2), Resources(cpus=4))
    grow(driver, lambda node: 10, 20)
    assert {worker.node for worker in driver.hired} == {"n0"}


@pytest.mark.parametrize(("shares", "gpus"), [((0.5, 1), 1), ((1, 4), 4), ((2, 4), 4)])
def test_shares_do_not_spread_over_gpus_that_others_need(shares: tuple[float, float], gpus: int) -> None:
    """While one node is set up, workers that have all their room there wait for it."""
    driver = StillDriver(cluster(8, 8, gpus=gpus), *(Resources(cpus=1, gpus=share) for share in shares))
    small, large = driver.pools
    small.target, large.target = int(gpus / shares[0]), 1
    grow(driver, lambda node: 10, 12)
    assert (len(small.workers), len(large.workers)) == (small.target, 1)
    assert len({worker.node for worker in small.workers}) == 1


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.lists(st.sampled_from([0.25, 0.3, 0.5, 1, 2]), max_size=6),
    st.sampled_from([0.2, 0.25, 0.4, 0.5, 1, 2, 3]),
    st.integers(0, 8),
    st.sets(st.sampled_from(["n0", "n1", "n2", "n3"])),
    st.booleans(),
)
def test_the_slots_ahead_are_those_that_will_be_taken(
    gpus: list[int], held: list[float], share: float, count: int, closed: set[str], one_goes: bool
) -> None:
    nodes = [ClusterNode(f"n{number}", 8.0, each) for number, each in enumerate(gpus)]
    slots, wish = ClusterGpuSlots(nodes), Resources(gpus=share)
    for other in held:
        slots.take(Resources(gpus=other))
    if one_goes:
        slots.update(nodes[1:])
    found = slots.find_outside_nodes(wish, count, closed)
    assert slots.find_outside_nodes(wish, 1, ()) == slots.find(wish)
    taken = [slot for _ in range(count) if (slot := slots.take(wish))]
    assert found == next((slot for slot in taken if slots.gpu_nodes[slot.devices[0]] not in closed), None)


def test_what_another_pool_has_taken_since_is_not_taken_twice() -> None:
    """Others may have started between `can_grow` and `start`, which asks again, and does nothing without a place."""
    driver = StillDriver(cluster(2, 2), Resources(cpus=1), Resources(cpus=1))
    first, second = driver.pools
    second.start()
    assert second.can_grow()
    first.start()
    second.start()
    assert [worker.node for worker in second.workers] == ["n0", "n1"]
    assert not second.can_grow()
    second.start()
    assert len(second.workers) == 2

    driver = StillDriver(cluster(2, gpus=1), Resources(gpus=1), Resources(gpus=1))
    first, second = driver.pools
    assert first.can_grow()
    assert second.can_grow()
    first.start()
    second.start()
    assert (len(first.workers), len(second.workers)) == (1, 0)


def test_whether_there_is_room_is_asked_without_a_trace() -> None:
    driver = StillDriver(cluster(8, 8, gpus=2), Resources(gpus=1))
    assert all(driver.pools[0].can_grow() for _ in range(3))
    assert driver.slots.find(Resources(gpus=1)) == GpuSlot((0,), 1.0)
    assert not StillDriver([], Resources(cpus=1)).pools[0].can_grow()
