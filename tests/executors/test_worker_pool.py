"""When a pool that gathers gets one more worker, and who is given work that may do few tasks more."""

import time
from collections import deque
from types import SimpleNamespace

import pytest
from benchmarks.virtual_cluster import Simulation, World, virtual_time

from gristmill.core.run.schedule import START_SECONDS, TaskRate
from gristmill.executors.worker_pool import WorkerPool


@pytest.mark.parametrize(
    ("gather", "staff", "starting", "seconds", "waiting", "given", "since", "keeps_up"),
    [
        (True, 0, 0, None, 1, None, 0, False),  # somebody has to begin
        (True, 1, 1, None, 9, None, 0, True),
        (True, 1, 0, None, 9, None, 0, True),  # the first is at it, and nobody knows for how long
        (True, 1, 0, None, 1, None, 2 * START_SECONDS, False),
        (True, 1, 0, START_SECONDS / 10, 9, None, 0, True),
        (True, 1, 0, START_SECONDS / 10, 9, None, 2 * START_SECONDS, False),  # it takes longer than it used to
        (True, 1, 0, START_SECONDS / 10, 9, 3, 0, False),  # so many workers were asked for
        (True, 1, 0, START_SECONDS / 10, 11, None, 0, False),
        (True, 2, 0, START_SECONDS / 10, 11, None, 0, True),
        (False, 1, 1, None, 1, None, 0, False),
    ],
)
def test_one_worker_gathers_as_long_as_it_copes(gather, staff, starting, seconds, waiting, given, since, keeps_up):
    pace = TaskRate()
    if seconds is not None:
        pace.add(1, seconds, 0.0)
    flow = SimpleNamespace(pools=[SimpleNamespace(pace=pace, queue=deque(range(waiting)))])
    group = SimpleNamespace(gather=gather, num_workers=given)
    busy = [SimpleNamespace(calls=[SimpleNamespace(began=time.perf_counter() - since)])]
    pool = SimpleNamespace(group=group, staying_workers=staff, index=0, count=lambda _: starting, busy=busy)
    assert WorkerPool.keeps_up(pool, flow) is keeps_up


@pytest.mark.parametrize(("left", "chosen_from"), [(None, 2), (2, 1)])
def test_who_may_do_few_tasks_more_is_the_only_one_to_choose_from(left, chosen_from):
    """What lies near another worker must not go first, nor more tasks than it may do."""
    chosen = []

    class Chooses(Simulation):
        def assign(self, group, workers, most, ahead):
            chosen.append((list(workers), most > 2))
            return super().assign(group, workers, most, ahead)

    with virtual_time() as clock:
        driver = Chooses(World(nodes=2, cpus=1, gpus=1, seconds=900), clock)
        pool = driver.pools[0]
        pool.start()
        pool.start()
        pool.workers[0].tasks_left = left
        driver.flow.list_sources(8)
        driver.flow.pools[0].pace.add(1, 0.001, 0.0)
        driver._send(pool, list(pool.workers))
    assert chosen == [(pool.workers[:chosen_from], left is None)]
