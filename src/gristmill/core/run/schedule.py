"""The scheduling policy of streaming executors, as pure functions over measured rates.

    has_output_room         may a pool start a call, given the bytes that wait behind it?
    expected_output_bytes   how many bytes will its running calls add?
    tasks_per_call          how many tasks make a call worth its round trip?
    choose_pool             which pool gets the next free core?
    choose_prefetch_pool    which pool may send a call to a worker that is still busy?
    tasks_left              how many tasks are queued for each pool, there and upstream?
    work_left               how many seconds of work are they, at the recent rate?
    balance_workers         how many workers should each pool have for equal throughput?
    all_workers_measured    do the rates include every worker?
    is_worth_resizing       does a better division gain more than setting up workers costs?

Calls are short (a fraction of a second), so cores move to where the work is: `choose_pool` serves GPUs first, then the
pool nearest to the output, and `has_output_room` stops pools that run ahead. Together they bound the bytes on every
edge, cannot deadlock on a core that another pool holds, and need no worker per stage.

GPUs stay with their workers, which can be expensive to set up. A pool is resized in one step to the number of workers
that queues and rates call for, if that is worth the setup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise

from gristmill.core.fast_dataclass import fast_dataclass

CALL_SECONDS = 0.1
"""The target duration of a call: long compared with a round trip, short compared with a run."""

LEAST_SECONDS = 0.01
"""Less work than this is not divided between workers, as the round trips would take longer."""

START_SECONDS = 0.05
"""The least work that is worth starting another process."""

GPU_CALL_SECONDS = 0.5
"""The target duration of a call on a GPU: longer, since no other pool waits for the GPU and gaps are costly."""

MAX_CHUNK = 512
GIVES_BYTES = 8 * 2**20
"""The most output expected of a call with several tasks, since it is stored and fetched as one object."""

EDGE_BYTES = 256 * 2**20
"""Bytes that may wait between two pools, unless a single task is larger."""

WINDOW = 64 * 2**20
"""Bytes of output that a worker may have sent without acknowledgement by the driver."""

UNKNOWN_BYTES = 32 * 2**20
"""The output assumed for a call before its pool has yielded anything."""

UNKNOWN_SECONDS = 20.0
"""How long UNKNOWN_BYTES is assumed. A pool with slower tasks then gets all its workers, and is measured later."""

UNBOUNDED = float("inf")
"""The budget of an edge when each pool waits for all before it to end."""

EDGE_TASKS = 100_000
"""Tasks that may wait between two pools: even tiny ones take memory in the driver."""

BACKLOG_SECONDS = 5.0
"""A pool behind which this much work waits needs no more workers."""

HALF_LIFE = 3.0
"""Seconds after which a measurement counts half."""

MIN_GAIN = 0.1
"""The fraction of the remaining time that a new division of GPUs must save."""

MIN_SURE_GAIN = 0.02
"""The same once all workers have been measured; before that, rates are biased, as short calls end first."""

ERROR_FACTOR = 1.0
"""It must also save this many standard errors of the rates, or varying tasks would move workers back and forth."""

FEW_CALLS = 10
"""How many recent calls make a rate where calls are rare."""

RECALL_SECONDS = 1.0
"""A call that waits behind one that has run for this long is recalled when a worker is idle."""


@fast_dataclass(frozen=True, slots=True)
class CallTotals:
    """Sums over finished calls: their number, tasks and seconds."""

    calls: float = 0
    tasks: float = 0
    spent: float = 0.0
    tasks_2: float = 0.0
    tasks_spent: float = 0.0
    spent_2: float = 0.0
    """Sums over calls of tasks by tasks, tasks by seconds, and seconds by seconds."""

    def with_call(self, tasks: int, seconds: float, fade: float = 1.0) -> CallTotals:
        """The totals with one more call, earlier ones weighted by `fade`."""
        return CallTotals(
            self.calls * fade + 1,
            self.tasks * fade + tasks,
            self.spent * fade + seconds,
            self.tasks_2 * fade * fade + tasks * tasks,
            self.tasks_spent * fade * fade + tasks * seconds,
            self.spent_2 * fade * fade + seconds * seconds,
        )

    def since(self, before: CallTotals) -> CallTotals:
        return CallTotals(
            self.calls - before.calls,
            self.tasks - before.tasks,
            self.spent - before.spent,
            self.tasks_2 - before.tasks_2,
            self.tasks_spent - before.tasks_spent,
            self.spent_2 - before.spent_2,
        )

    @property
    def seconds(self) -> float | None:
        return self.spent / self.tasks if self.tasks else None

    @property
    def error(self) -> float:
        """The relative standard error of `seconds`, from the variation between calls."""
        if not self.tasks or not self.spent:
            return 0.0
        rate = self.spent / self.tasks
        differences = self.spent_2 - 2 * rate * self.tasks_spent + rate * rate * self.tasks_2
        return math.sqrt(max(0.0, differences)) / self.spent


@fast_dataclass(slots=True)
class TaskRate:
    """The recent seconds per task of a worker; a change of rate shows within seconds."""

    recent: CallTotals = field(default_factory=CallTotals)
    at: float = 0.0
    total: CallTotals = field(default_factory=CallTotals)
    """Of the whole run."""

    def add(self, tasks: int, seconds: float, now: float) -> None:
        # Where calls are rare, the last few count even if they are old.
        fade = max(0.5 ** ((now - self.at) / HALF_LIFE), 1 - 1 / FEW_CALLS)
        self.recent, self.total, self.at = (
            self.recent.with_call(tasks, seconds, fade),
            self.total.with_call(tasks, seconds),
            now,
        )

    @property
    def seconds(self) -> float | None:
        return self.recent.seconds


@fast_dataclass(frozen=True, slots=True)
class PoolState:
    """The state of one pool, as the policy needs it."""

    queued: int = 0
    queued_bytes: int = 0
    downstream_bytes: float = 0
    """Bytes that wait behind it, including those that its running calls will add."""
    downstream_tasks: int = 0
    idle: int = 0
    busy: int = 0
    can_grow: bool = False
    cpus: float = 1.0
    gpu: bool = False
    takers: int = 0
    """Busy workers that can be sent another call in advance."""


def has_output_room(downstream_bytes: float, budget: float = EDGE_BYTES, downstream_tasks: int = 0) -> bool:
    """Whether a pool may start another call, given the output that waits behind it."""
    return downstream_bytes < budget and (downstream_tasks < EDGE_TASKS or budget == UNBOUNDED)


def expected_output_bytes(load: PoolLoad, after: PoolLoad, takers: int, seconds: float) -> float:
    """Bytes that the running calls of a pool will add to what waits behind it.

    Estimated from the output per task so far, capped by what a worker may send unacknowledged, minus what the `takers`
    of the next pool process in the meantime. A pool without output so far is assumed to yield much for some seconds.
    """
    running = load.waiting - load.queued
    if running <= 0:
        return 0.0
    if not load.done and not after.arrived:
        return running * UNKNOWN_BYTES if seconds < UNKNOWN_SECONDS else 0.0
    size = after.arrived_bytes / max(after.arrived, 1)
    gives = after.arrived_bytes / (load.done or running)
    each = min(gives, max(size, WINDOW))
    if not each or not load.seconds_per_task or not after.seconds_per_task:
        return running * each
    until = load.seconds_per_task * each / gives
    return max(0.0, running * each - takers * size * until / after.seconds_per_task)


def tasks_per_call(
    queued: int,
    workers: int,
    seconds_per_task: float | None,
    batch_size: int = 1,
    gpu: bool = False,
    gives_bytes: float = 0.0,
) -> int:
    """How many tasks to send in one call.

    Enough to be worth the round trip, but not so many that another worker has none. Before the first measurement, a
    single batch.
    """
    if seconds_per_task is None:
        return batch_size
    pace = max(seconds_per_task, 1e-7)
    worth = (GPU_CALL_SECONDS if gpu else CALL_SECONDS) / pace
    fair = max(queued / (2 * max(workers, 1)), LEAST_SECONDS / pace)
    wanted = min(worth, fair, MAX_CHUNK, GIVES_BYTES / max(gives_bytes, 1.0))
    return max(batch_size, int(wanted) // batch_size * batch_size)


def choose_pool(
    pools: Sequence[PoolState], free_cpus: float, total_cpus: float, budget: float = EDGE_BYTES, held: float = 0.0
) -> int | None:
    """The pool that gets the next call: the last one with work, a worker, a core and room for its output.

    Pools with GPUs come first, and some free cores may be `held` for them, so that no GPU waits for a core. A pool that
    asks for more cores than exist runs alone instead of never.
    """
    for index in pool_priority(pools):
        pool = pools[index]
        ready = pool.queued > 0 and (pool.idle > 0 or pool.can_grow)
        if (
            ready
            and _has_room(pool, budget)
            and fits_on_cores(pool.cpus, free_cpus - (0.0 if pool.gpu else held), total_cpus)
        ):
            return index
    return None


def choose_prefetch_pool(pools: Sequence[PoolState], budget: float = EDGE_BYTES) -> int | None:
    """The pool that sends a call to a busy worker, having more work than idle workers."""
    for index in pool_priority(pools):
        pool = pools[index]
        if pool.takers > 0 and pool.queued > pool.idle and _has_room(pool, budget):
            return index
    return None


def pool_priority(pools: Sequence[PoolState]) -> list[int]:
    """GPUs first; of each kind, the pool nearest to the output."""
    return sorted(range(len(pools)), key=lambda index: (not pools[index].gpu, -index))


def _has_room(pool: PoolState, budget: float) -> bool:
    return has_output_room(pool.downstream_bytes, budget, pool.downstream_tasks)


def fits_on_cores(cpus: float, free: float, total: float) -> bool:
    return min(cpus, total) <= free + 1e-9


def is_backlogged(queued: int, seconds_per_task: float | None, workers: int) -> bool:
    """Whether a pool has so much queued that the pools feeding it need no more workers."""
    return seconds_per_task is not None and queued * seconds_per_task > BACKLOG_SECONDS * max(workers, 1)


# -- dividing GPUs ---------------------------------------------------------------------------------------------


@fast_dataclass(frozen=True, slots=True)
class PoolLoad:
    """The measured work of one pool."""

    seconds_per_task: float | None = None
    waiting: int = 0
    """Tasks that are queued or running."""
    arrived: int = 0
    done: int = 0
    queued: int = 0
    arrived_bytes: int = 0


def tasks_left(loads: Sequence[PoolLoad], more: bool) -> list[float]:
    """Tasks that each pool still has to do: those waiting there, and those to come from upstream.

    While there is `more` input to list, as much again is expected. A pool that has finished nothing is assumed to yield
    one task per task.
    """
    left, coming = [], float(max(loads[0].arrived, 1)) if more else 0.0
    for load, gives in zip(loads, _outputs_per_task(loads), strict=True):
        left.append(load.waiting + coming)
        coming = left[-1] * gives
    return left


def _outputs_per_task(loads: Sequence[PoolLoad]) -> list[float]:
    """How many tasks for the next pool each pool yields per task."""
    given = [after.arrived / max(load.done, 1) for load, after in pairwise(loads)]
    return [number if load.done or number else 1.0 for load, number in zip(loads, given, strict=False)] + [0.0]


def work_left(loads: Sequence[PoolLoad], tasks: Sequence[float], gpu: Sequence[bool]) -> list[float]:
    """Seconds of work per pool to weigh when dividing GPUs, given the `tasks` that each still has to do.

    Tasks that still have to pass an earlier GPU pool count fully, so that both pools run at the same rate. A stock that
    has passed it counts less the more is still to come: a pool sized to clear it would be idle afterwards. A pool
    without measurements is assumed to have the average rate.
    """
    known = [load.seconds_per_task for load in loads if load.seconds_per_task is not None]
    guess = sum(known) / len(known) if known else 1.0
    work, fresh = [], None
    for load, count, gives, on_gpu in zip(loads, tasks, _outputs_per_task(loads), gpu, strict=True):
        stock = count - fresh if fresh is not None else count
        counts = count if fresh is None or not count else fresh + stock * stock / count
        work.append(counts * (guess if load.seconds_per_task is None else load.seconds_per_task))
        passes = count if on_gpu else fresh
        fresh = passes * gives if passes is not None else None
    return work


def balance_workers(
    demands: Sequence[float], capacity: float, costs: Sequence[float], fixed: Sequence[int | None]
) -> list[int]:
    """Workers per pool so that all pools have equal throughput.

    `demands` are the seconds of work of each pool, `costs` the GPUs per worker, `capacity` the number of GPUs. Every
    pool with demand gets at least one worker, `fixed` counts are kept, and no pool gets workers that would only wait.
    """
    least = [wish if wish is not None else int(demand > 0) for demand, wish in zip(demands, fixed, strict=True)]

    def sized(throughput: float) -> list[int]:
        return [
            count if wish is not None else max(count, math.ceil(throughput * demand - 1e-9))
            for count, wish, demand in zip(least, fixed, demands, strict=True)
        ]

    pools = list(zip(demands, least, fixed, costs, strict=True))
    capped = [count / demand for demand, count, wish, _ in pools if wish is not None and demand > 0]
    need = sum(demand * cost for demand, _, wish, cost in pools if wish is None)
    low, high = 0.0, min([capacity / need, *capped]) if need else 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fits_on_gpus(sized(middle), costs, capacity) else (low, middle)
    return sized(low)


def fits_on_gpus(counts: Sequence[int], costs: Sequence[float], gpus: float) -> bool:
    """Whether the workers fit on the GPUs, by best fit with the largest workers first."""
    free_gpus = {1.0: int(gpus)}
    """The number of GPUs by their free fraction."""
    for cost, count in sorted(zip(costs, counts, strict=True), reverse=True):
        left = count
        if cost >= 1:
            free_gpus[1.0] -= count * int(cost)
            left = min(0, free_gpus[1.0])
        for free in sorted(free_gpus) if cost < 1 else ():
            left = _place_on_gpus(free_gpus, free, cost, left)
        if left:
            return False
    return True


def _place_on_gpus(free_gpus: dict[float, int], free: float, cost: float, count: int) -> int:
    """Place workers on the GPUs with the free fraction `free`; returns the number left over."""
    each = int(free / cost + 1e-9)
    held = min(count, free_gpus[free] * each)
    if not held:
        return count
    for gpus, workers in ((held // each, each), (1, held % each)):
        if workers:
            after = round(free - workers * cost, 9)
            free_gpus[free] -= gpus
            free_gpus[after] = free_gpus.get(after, 0) + gpus
    return count - held


def all_workers_measured(tallies: Sequence[CallTotals], workers: Sequence[int]) -> bool:
    """Whether each worker of each pool has finished a call, so that rates are not biased towards short calls."""
    return all(tally.calls >= max(count, FEW_CALLS) for tally, count in zip(tallies, workers, strict=True))


def is_worth_resizing(
    work: Sequence[float],
    now: Sequence[int],
    then: Sequence[int],
    setup_seconds: Sequence[float],
    gain: float = MIN_GAIN,
) -> bool:
    """Whether the work ends sooner with other numbers of workers, setup included; the others work meanwhile."""
    pools = list(zip(work, now, then, setup_seconds, strict=True))
    if not any(after > before for _, before, after, _ in pools):
        return False
    if any(load > 0 and not before and after for load, before, after, _ in pools):
        return True
    as_it_is = max((load / before for load, before, _, _ in pools if before), default=0.0)
    moved = max(
        (load / after + setup * (1 - min(before, after) / after) for load, before, after, setup in pools if after),
        default=0.0,
    )
    return moved < (1 - gain) * as_it_is
