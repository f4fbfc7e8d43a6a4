"""The policy, as properties over all states that a run may be in."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.core.run.schedule import (
    CALL_SECONDS,
    EDGE_BYTES,
    EDGE_TASKS,
    FEW_CALLS,
    LEAST_SECONDS,
    MAX_CHUNK,
    MIN_SURE_GAIN,
    UNBOUNDED,
    UNKNOWN_BYTES,
    UNKNOWN_SECONDS,
    WINDOW,
    CallTotals,
    PoolLoad,
    PoolState,
    TaskRate,
    all_workers_measured,
    balance_workers,
    choose_pool,
    choose_prefetch_pool,
    expected_output_bytes,
    fits_on_cores,
    fits_on_gpus,
    has_output_room,
    is_worth_resizing,
    pool_priority,
    tasks_left,
    tasks_per_call,
    work_left,
)

PACE = st.none() | st.floats(0, 100)


@given(st.integers(0, 10**6), st.integers(0, 512), PACE, st.integers(1, 600))
@example(0, 0, 0.0, 1)
def test_a_chunk_is_one_or_more_whole_batches(queued: int, workers: int, pace: float | None, batch: int) -> None:
    size = tasks_per_call(queued, workers, pace, batch)
    assert size >= batch
    assert size % batch == 0
    assert size <= max(MAX_CHUNK, batch)


@given(st.integers(0, 10**6), st.integers(1, 64), st.floats(1e-6, 100), st.integers(1, 64))
def test_a_chunk_is_short_and_leaves_work_for_the_others(queued: int, workers: int, pace: float, batch: int) -> None:
    size = tasks_per_call(queued, workers, pace, batch)
    if size > batch:
        assert size * pace <= CALL_SECONDS * (1 + 1e-9)
        assert size * workers * 2 <= queued or size * pace <= LEAST_SECONDS * (1 + 1e-9)


def test_what_is_done_in_a_moment_is_not_divided() -> None:
    assert tasks_per_call(40, 2, 1e-4) == 100
    assert tasks_per_call(400, 2, 1e-4) == 100
    assert tasks_per_call(400, 2, 1e-3) == 100
    assert tasks_per_call(40, 2, 1e-2) == 10


def test_the_first_call_measures() -> None:
    assert tasks_per_call(10**6, 2, None) == 1
    assert tasks_per_call(10**6, 2, None, 32) == 32
    assert tasks_per_call(10**6, 2, 0.0) == MAX_CHUNK


POOL = st.builds(
    PoolState,
    queued=st.integers(-2, 5),
    downstream_bytes=st.sampled_from([0, EDGE_BYTES - 1, EDGE_BYTES, 2 * EDGE_BYTES]),
    idle=st.integers(0, 2),
    can_grow=st.booleans(),
    cpus=st.sampled_from([0.0, 0.5, 1.0, 2.0, 8.0]),
    gpu=st.booleans(),
    takers=st.integers(0, 2),
)


def can_run(pool: PoolState, free: float, total: float) -> bool:
    staffed = pool.idle > 0 or pool.can_grow
    return (
        pool.queued > 0 and staffed and has_output_room(pool.downstream_bytes) and fits_on_cores(pool.cpus, free, total)
    )


@given(st.lists(POOL, max_size=6), st.floats(0, 4), st.sampled_from([1.0, 2.0, 4.0]))
def test_the_choice_can_run_and_is_the_last_that_can(pools: list[PoolState], free: float, total: float) -> None:
    free = min(free, total)
    able = [index for index in pool_priority(pools) if can_run(pools[index], free, total)]
    assert choose_pool(pools, free, total) == (able[0] if able else None)


def test_gpus_are_served_first_and_then_the_pool_nearest_to_the_output() -> None:
    pools = [PoolState(gpu=True), PoolState(), PoolState(gpu=True), PoolState()]
    assert pool_priority(pools) == [2, 0, 3, 1]


def test_cores_that_are_held_for_gpus_are_for_gpus_only() -> None:
    light, model = PoolState(queued=1, idle=1), PoolState(queued=1, idle=1, gpu=True)
    assert choose_pool([light], 1, 4, held=1) is None
    assert choose_pool([model, light], 1, 4, held=1) == 0


@given(st.lists(POOL, max_size=6))
def test_a_busy_worker_gets_another_call_only_when_idle_ones_have_enough(pools: list[PoolState]) -> None:
    index = choose_prefetch_pool(pools)
    if index is not None:
        assert pools[index].takers > 0
        assert pools[index].queued > pools[index].idle
        assert has_output_room(pools[index].downstream_bytes)


def test_an_edge_is_bounded_by_bytes_and_by_tasks_unless_all_may_wait_there() -> None:
    assert has_output_room(EDGE_BYTES - 1)
    assert not has_output_room(EDGE_BYTES)
    assert not has_output_room(0, downstream_tasks=EDGE_TASKS)
    assert has_output_room(10 * EDGE_BYTES, UNBOUNDED, 10 * EDGE_TASKS)


@st.composite
def pipelines(draw: st.DrawFn) -> list[PoolState]:
    """Pools that wait for nothing but each other: what waits behind one is what is queued at the next."""
    count = draw(st.integers(1, 8))
    bytes_queued = [draw(st.sampled_from([0, 1, EDGE_BYTES, 3 * EDGE_BYTES])) for _ in range(count)]
    return [
        PoolState(
            queued=1 if bytes_queued[index] else 0,
            queued_bytes=bytes_queued[index],
            downstream_bytes=bytes_queued[index + 1] if index + 1 < count else 0,
            can_grow=True,
            cpus=draw(st.sampled_from([0.5, 1.0, 4.0, 64.0])),
        )
        for index in range(count)
    ]


@given(pipelines(), st.sampled_from([1.0, 2.0, 16.0]))
def test_an_idle_machine_never_stands_still_while_work_waits(pools: list[PoolState], total: float) -> None:
    assert (choose_pool(pools, total, total) is not None) == any(pool.queued for pool in pools)


def test_a_pool_that_wants_more_than_there_is_runs_alone() -> None:
    assert fits_on_cores(64, free=2, total=2)
    assert not fits_on_cores(64, free=1, total=2)


@st.composite
def divisions(draw: st.DrawFn) -> tuple[list[float], list[float], list[int | None]]:
    count = draw(st.integers(1, 5))
    demand = st.just(0.0) | st.floats(0.01, 100)
    demands = [draw(demand) for _ in range(count)]
    costs = [draw(st.sampled_from([0.25, 0.5, 1.0, 2.0])) for _ in range(count)]
    fixed = [draw(st.none() | st.integers(1, 3)) for _ in range(count)]
    return demands, costs, fixed


def spent(counts: list[int], costs: list[float]) -> float:
    return sum(count * cost for count, cost in zip(counts, costs, strict=True))


def throughput(counts: list[int], demands: list[float]) -> float:
    return min((count / demand for count, demand in zip(counts, demands, strict=True) if demand), default=0.0)


@given(divisions(), st.integers(0, 16))
def test_workers_are_divided_within_bounds(
    division: tuple[list[float], list[float], list[int | None]], capacity: int
) -> None:
    demands, costs, fixed = division
    counts = balance_workers(demands, capacity, costs, fixed)
    least = [wish if wish is not None else int(demand > 0) for demand, wish in zip(demands, fixed, strict=True)]
    assert all(count >= minimum for count, minimum in zip(counts, least, strict=True))
    assert [count for count, wish in zip(counts, fixed, strict=True) if wish is not None] == [
        wish for wish in fixed if wish is not None
    ]
    assert all(not count for count, demand, wish in zip(counts, demands, fixed, strict=True) if not demand and not wish)
    assert spent(counts, costs) <= max(capacity, spent(least, costs)) + 1e-9


@given(divisions(), st.integers(0, 12), st.integers(1, 6))
def test_more_room_never_means_less_throughput(
    division: tuple[list[float], list[float], list[int | None]], capacity: int, more: int
) -> None:
    demands, costs, fixed = division
    small = throughput(balance_workers(demands, capacity, costs, fixed), demands)
    large = throughput(balance_workers(demands, capacity + more, costs, fixed), demands)
    assert large >= small - 1e-12


def test_pools_get_workers_in_proportion_to_their_work() -> None:
    assert balance_workers([1.0, 3.0], 8, [1.0, 1.0], [None, None]) == [2, 6]
    assert balance_workers([1.0, 3.0], 2, [0.25, 0.25], [None, None]) == [2, 6]
    assert balance_workers([6.0, 5.0], 4, [1.0, 1.0], [1, None]) == [1, 1]  # more would wait for the fixed one


def test_workers_must_find_room_on_single_gpus() -> None:
    assert fits_on_gpus([4], [0.6], 4)
    assert not fits_on_gpus([5], [0.6], 4)  # 3.0 of 4.0, and yet no GPU has room for a second one
    assert fits_on_gpus([3, 2], [0.6, 0.4], 4)
    assert fits_on_gpus([2, 1], [1.0, 2.0], 4)
    assert not fits_on_gpus([3, 1], [1.0, 2.0], 4)
    assert balance_workers([1.0, 1.0], 4, [0.6, 0.6], [None, None]) == [2, 2]


def test_thousands_of_gpus_are_divided_exactly() -> None:
    assert balance_workers([1.0, 3.0], 8000, [1.0, 1.0], [None, None]) == [2000, 6000]
    assert balance_workers([2.0, 1.0], 8000, [0.25, 0.5], [None, None]) == [16000, 8000]


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0.01, 1))
def test_a_change_of_rate_is_seen(before: float, after: float, every: float) -> None:
    pace = TaskRate()
    for step in range(2000):
        pace.add(1, before, step * every)
    assert pace.seconds is not None
    assert abs(pace.seconds - before) < 1e-6
    calls = int(max(30 / every, 200))
    for step in range(calls):
        pace.add(1, after, (2000 + step) * every)
    assert abs(pace.seconds - after) <= 0.01 * abs(before - after) + 1e-6


def test_the_work_of_a_pool_is_what_waits_and_what_will_come() -> None:
    reads = PoolLoad(seconds_per_task=0.1, waiting=10, arrived=30, done=20)
    embeds = PoolLoad(seconds_per_task=1.0, waiting=5, arrived=40, done=35)
    writes = PoolLoad(seconds_per_task=None, waiting=0, arrived=35)
    assert tasks_left([reads, embeds], more=False) == [10, 25]  # each that is read becomes two
    assert tasks_left([reads, embeds], more=True) == [40, 85]
    assert tasks_left([reads, embeds, writes], more=False) == [10, 25, 25]
    assert work_left([reads, embeds], [40, 85], [False, True]) == [4.0, 85.0]
    assert work_left([reads, embeds, writes], [10, 25, 25], [False] * 3)[2] == pytest.approx(0.55 * 25)
    assert tasks_left([PoolLoad(), PoolLoad()], more=True) == [1, 1]
    assert work_left([PoolLoad(), PoolLoad()], [1, 1], [True, True]) == [1.0, 1.0]  # nothing is known, so all are equal


def test_a_stock_is_not_worked_off_in_a_hurry() -> None:
    first = PoolLoad(seconds_per_task=1.0, waiting=100, arrived=200, done=100)
    second = PoolLoad(seconds_per_task=1.0, waiting=100, arrived=100, done=0)
    assert work_left([first, second], [100, 200], [True, True]) == [100.0, 150.0]
    assert work_left([first, second], [0, 100], [True, True]) == [0.0, 100.0]  # when nothing comes, all of it counts
    assert work_left([first, second], [100, 200], [False, True]) == [100.0, 200.0]


def test_workers_that_were_dear_to_set_up_are_not_thrown_away_for_little() -> None:
    work = [100.0, 300.0]
    assert is_worth_resizing(work, [2, 2], [1, 3], [1.0, 1.0])
    assert not is_worth_resizing(work, [2, 2], [1, 3], [120.0, 120.0])
    assert is_worth_resizing([10_000.0, 30_000.0], [2, 2], [1, 3], [120.0, 120.0])  # a long run pays for it
    assert not is_worth_resizing([100.0, 105.0], [2, 2], [1, 3], [0.0, 0.0])
    assert is_worth_resizing([100.0, 1.0], [4, 0], [3, 1], [60.0, 60.0])  # who has none gets one at any price
    assert not is_worth_resizing([100.0, 0.0], [2, 2], [2, 0], [0.0, 0.0])


def test_a_small_gain_counts_when_it_is_asked_for() -> None:
    work = [100.0, 3000.0]
    assert not is_worth_resizing(work, [4, 30], [3, 32], [0.0, 0.0])
    assert is_worth_resizing(work, [4, 30], [3, 32], [0.0, 0.0], MIN_SURE_GAIN)
    assert not is_worth_resizing(
        work, [4, 30], [3, 32], [0.0, 90.0], MIN_SURE_GAIN
    )  # setting them up takes what is gained


def test_rates_are_well_known_when_every_worker_had_a_say() -> None:
    pace, before = TaskRate(), TaskRate().total
    for step in range(FEW_CALLS):
        pace.add(2, 3.0, float(step))
    assert pace.total.since(before).seconds == pytest.approx(1.5)
    assert all_workers_measured([pace.total], [FEW_CALLS])
    assert not all_workers_measured([pace.total], [FEW_CALLS + 1])
    assert not all_workers_measured([pace.total, pace.total.since(pace.total)], [1, 1])


MB = 2**20


@pytest.mark.parametrize(
    ("pool", "after", "takers", "seconds", "coming"),
    [
        (PoolLoad(), PoolLoad(), 0, 0, 0),  # nothing runs
        (PoolLoad(None, 12, 12, 0, 8), PoolLoad(), 0, 0, 4 * UNKNOWN_BYTES),  # and nothing is known
        (PoolLoad(None, 12, 12, 0, 8), PoolLoad(), 0, UNKNOWN_SECONDS, 0),  # nor will be soon
        (
            PoolLoad(2.0, 12, 16, 4, 8),
            PoolLoad(None, 4, 4, 0, 4, 80 * MB),
            0,
            9,
            4 * 20 * MB,
        ),  # each gives what others gave
        (PoolLoad(2.0, 12, 16, 4, 8), PoolLoad(), 0, 9, 0),  # which may be nothing
        (
            PoolLoad(2.0, 12, 16, 4, 8),
            PoolLoad(4.0, 4, 4, 2, 4, 80 * MB),
            3,
            9,
            (4 - 1.5) * 20 * MB,
        ),  # three work 1.5 of it off
        (PoolLoad(2.0, 12, 16, 4, 8), PoolLoad(1.0, 4, 4, 2, 4, 80 * MB), 9, 9, 0),  # and nine all of it
        (
            PoolLoad(2.0, 3, 4, 1, 0),
            PoolLoad(None, 99, 100, 1, 99, 1000 * MB),
            0,
            9,
            3 * WINDOW,
        ),  # it waits before it gives more
        (
            PoolLoad(2.0, 3, 4, 1, 0),
            PoolLoad(None, 1, 1, 0, 1, 100 * MB),
            0,
            9,
            3 * 100 * MB,
        ),  # unless that comes as one
        (
            PoolLoad(None, 2, 2, 0, 0),
            PoolLoad(None, 8, 8, 0, 8, 80 * MB),
            0,
            9,
            2 * 40 * MB,
        ),  # none is done, and some has come
    ],
)
def test_what_running_calls_will_give_is_known_of_those_before(
    pool: PoolLoad, after: PoolLoad, takers: int, seconds: float, coming: float
) -> None:
    assert expected_output_bytes(pool, after, takers, seconds) == pytest.approx(coming)


def test_rates_of_tasks_that_vary_are_known_less_well() -> None:
    def known(*calls: tuple[int, float]) -> float:
        tally = CallTotals(1, 7, 3.0, 49, 21, 9)
        return reduce(lambda so_far, call: so_far.with_call(*call), calls, tally).since(tally).error

    assert known() == known((1, 2.0)) == 0.0
    assert known((1, 2.0), (3, 6.0), (5, 10.0)) == pytest.approx(0.0, abs=1e-6)
    assert known((1, 1.0), (1, 3.0)) == pytest.approx(0.5 / 2**0.5)
    assert known(*[(1, 1.0), (1, 3.0)] * 100) == pytest.approx(0.5 / 200**0.5)
