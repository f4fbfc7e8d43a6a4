"""The policy of streaming executors, as pure functions over measured rates.

    room           may a pool start work, given what waits behind it?
    coming_bytes   how much will its running calls add to that?
    chunk          how many tasks make one call, so that a call is worth its round trip?
    choose         which pool gets the next free core?
    choose_ahead   which pool may send a call to a worker that is still busy with another?
    tasks_left     how many tasks has each pool before it, by what is queued there and before it?
    work_left      how many seconds of work is that, by how fast it went of late?
    balance        how many workers should each pool have, so that all have equal throughput?
    all_heard      has each worker had a say in what is known of rates?
    worth_moving   does a better division gain more than setting workers up anew costs?

Calls are short (`tasks_per_call` aims at a fraction of a second), so cores move to where the work is: `choose_pool`
serves GPUs first, then the pool nearest to the output; `has_output_room` stops those that run ahead. Together they
bound the bytes on every edge, never wait for a core that another pool holds for ever, and need no worker per stage.

GPUs are held by workers, which may be dear to set up. Queues say where work is, speed says how much it is, and a pool
moves straight to the size that follows, when that is worth it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise

from gristmill.core.fast_dataclass import fast_dataclass

CALL_SECONDS = 0.1
"""The work that one call should hold: long against a round trip, short against a run."""

LEAST_SECONDS = 0.01
"""Less work than this is not divided between workers: the round trips would take longer than the work."""

START_SECONDS = 0.05
"""The work that is worth one more process."""

GPU_CALL_SECONDS = 0.5
"""The same for workers that hold a GPU: nobody else waits for it, and no moment of it should be lost between calls."""

MAX_CHUNK = 512
GIVES_BYTES = 8 * 2**20
"""What a call of several tasks may be expected to give: it lies in one place, and is fetched as one."""

EDGE_BYTES = 256 * 2**20
"""Bytes that may wait between two pools, unless a single task is larger."""

WINDOW = 64 * 2**20
"""Bytes of output that a worker may have sent and the driver not acknowledged."""

UNKNOWN_BYTES = 32 * 2**20
"""What a call is thought to give as long as none of its pool has given anything."""

UNKNOWN_SECONDS = 20.0
"""For so long: a pool whose tasks take longer gets all workers that it may have, and is measured later."""

UNBOUNDED = float("inf")
"""The budget of an edge when each pool waits for all before it to end."""

EDGE_TASKS = 100_000
"""Tasks that may wait between two pools: however small, the driver keeps a note of each."""

BACKLOG_SECONDS = 5.0
"""A pool behind which this much work waits needs no more workers."""

HALF_LIFE = 3.0
"""After this many seconds a measurement counts half."""

MIN_GAIN = 0.1
"""A division of GPUs must end the work that is known sooner by this part of the time to be worth a change."""

MIN_SURE_GAIN = 0.02
"""The same when all workers have had a say since the last change: the first calls that end are the short ones."""

ERROR_FACTOR = 1.0
"""And by so many standard errors of the rates, or tasks that vary much would send workers back and forth."""

FEW_CALLS = 10
"""So many calls make a rate, where they are rare."""

RECALL_SECONDS = 1.0
"""A call that waits behind another one that has run for so long is called back when a worker is idle."""


@fast_dataclass(frozen=True, slots=True)
class CallTotals:
    """Calls that have ended, their tasks, and the seconds that those took."""

    calls: float = 0
    tasks: float = 0
    spent: float = 0.0
    tasks_2: float = 0.0
    tasks_spent: float = 0.0
    spent_2: float = 0.0
    """Sums over calls of tasks by tasks, tasks by seconds, and seconds by seconds."""

    def with_call(self, tasks: int, seconds: float, fade: float = 1.0) -> CallTotals:
        """With one call more, what was before counting less."""
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
        """The standard error of `seconds`, as a part of it, by how much calls differ in it."""
        if not self.tasks or not self.spent:
            return 0.0
        rate = self.spent / self.tasks
        differences = self.spent_2 - 2 * rate * self.tasks_spent + rate * rate * self.tasks_2
        return math.sqrt(max(0.0, differences)) / self.spent


@fast_dataclass(slots=True)
class TaskRate:
    """Seconds that a task takes a worker, of late: a change of rate is seen within seconds."""

    recent: CallTotals = field(default_factory=CallTotals)
    at: float = 0.0
    total: CallTotals = field(default_factory=CallTotals)
    """Of the whole run."""

    def add(self, tasks: int, seconds: float, now: float) -> None:
        # where calls are rare, the last few count
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
    """What the policy needs to know of one pool."""

    queued: int = 0
    queued_bytes: int = 0
    downstream_bytes: float = 0
    """What waits behind it, and what its running calls will add to that."""
    downstream_tasks: int = 0
    idle: int = 0
    busy: int = 0
    can_grow: bool = False
    cpus: float = 1.0
    gpu: bool = False
    takers: int = 0
    """Busy workers that may have another call sent after them."""


def has_output_room(downstream_bytes: float, budget: float = EDGE_BYTES, downstream_tasks: int = 0) -> bool:
    """Whether a pool may start another call, given what already waits behind it."""
    return downstream_bytes < budget and (downstream_tasks < EDGE_TASKS or budget == UNBOUNDED)


def expected_output_bytes(load: PoolLoad, after: PoolLoad, takers: int, seconds: float) -> float:
    """Bytes that the running calls of a pool will add to what waits behind it.

    That is what its tasks have given so far, or no more than a worker may send before there is room again, less what
    the `takers` of the next pool work off until then. Of a pool that has given nothing yet, much is expected for some
    seconds after it began.
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

    Enough of them to be worth the round trip, and never so many that another worker is left without.
    Before the first measurement a single batch is sent, which measures.
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
    """The pool that gets the next call: the last one that has work, a worker, a core and room behind it.

    Pools with GPUs come before the others, and some of the free cores may be `held` for them, so that no GPU waits for
    a core. A pool that asks for more cores than there are runs alone instead of never.
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
    """The pool that sends a call to a busy worker: one with more work than its idle workers take."""
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
    """Whether so much waits before a pool that those that feed it need no more workers."""
    return seconds_per_task is not None and queued * seconds_per_task > BACKLOG_SECONDS * max(workers, 1)


# -- dividing GPUs ---------------------------------------------------------------------------------------------


@fast_dataclass(frozen=True, slots=True)
class PoolLoad:
    """What is known of the work of one pool."""

    seconds_per_task: float | None = None
    waiting: int = 0
    """Tasks that are queued or run."""
    arrived: int = 0
    done: int = 0
    queued: int = 0
    arrived_bytes: int = 0


def tasks_left(loads: Sequence[PoolLoad], more: bool) -> list[float]:
    """Tasks that each pool has before it: what waits there, and what comes from the pools before.

    As long as there is `more` input than was seen, as much again is expected. A pool that has done nothing yet is
    thought to give as many tasks as it gets.
    """
    left, coming = [], float(max(loads[0].arrived, 1)) if more else 0.0
    for load, gives in zip(loads, _outputs_per_task(loads), strict=True):
        left.append(load.waiting + coming)
        coming = left[-1] * gives
    return left


def _outputs_per_task(loads: Sequence[PoolLoad]) -> list[float]:
    """How many tasks for the next pool come of one task of each."""
    given = [after.arrived / max(load.done, 1) for load, after in pairwise(loads)]
    return [number if load.done or number else 1.0 for load, number in zip(loads, given, strict=False)] + [0.0]


def work_left(loads: Sequence[PoolLoad], tasks: Sequence[float], gpu: Sequence[bool]) -> list[float]:
    """Seconds of work that count when GPUs are divided, for so many tasks before each pool.

    Tasks that still have to pass an earlier pool with GPUs count, so that both go at the same rate. A stock that has
    passed it counts the less the more is still to come: a pool that hurries to work it off will stand idle afterwards.
    A pool that has done nothing yet is thought to be as slow as the others.
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

    `demands` are the seconds of work that each pool has to do, `costs` what one worker takes of a GPU, `capacity` the
    number of GPUs. Every pool with demand gets at least one worker; `fixed` counts are kept as they are. Workers that
    would only wait for another pool are not wanted.
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
    """Whether so many workers find room on so many GPUs, the largest first, each where it fits most closely."""
    rooms = {1.0: int(gpus)}
    """How many GPUs have how much of them free."""
    for cost, count in sorted(zip(costs, counts, strict=True), reverse=True):
        left = count
        if cost >= 1:
            rooms[1.0] -= count * int(cost)
            left = min(0, rooms[1.0])
        for free in sorted(rooms) if cost < 1 else ():
            left = _place_on_gpus(rooms, free, cost, left)
        if left:
            return False
    return True


def _place_on_gpus(rooms: dict[float, int], free: float, cost: float, count: int) -> int:
    """Put workers on the GPUs that have just so much free; how many are left over."""
    each = int(free / cost + 1e-9)
    held = min(count, rooms[free] * each)
    if not held:
        return count
    for gpus, workers in ((held // each, each), (1, held % each)):
        if workers:
            after = round(free - workers * cost, 9)
            rooms[free] -= gpus
            rooms[after] = rooms.get(after, 0) + gpus
    return count - held


def all_workers_measured(tallies: Sequence[CallTotals], workers: Sequence[int]) -> bool:
    """Whether each worker of each pool has ended a call, so that rates are not only those of the short ones."""
    return all(tally.calls >= max(count, FEW_CALLS) for tally, count in zip(tallies, workers, strict=True))


def is_worth_resizing(
    work: Sequence[float],
    now: Sequence[int],
    then: Sequence[int],
    setup_seconds: Sequence[float],
    gain: float = MIN_GAIN,
) -> bool:
    """Whether the work ends sooner with other numbers of workers. While new ones are set up, the others go on."""
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
