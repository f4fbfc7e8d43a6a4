"""The policy of streaming executors, as pure functions over measured rates.

    room      may a pool start work, given the bytes that wait behind it?
    chunk     how many tasks make one call, so that a call is worth its round trip?
    choose    which pool gets the next free core?
    balance   how many workers should each pool have, so that all have equal throughput?

Calls are short (`chunk` aims at a fraction of a second), so cores flow to where the work is: `choose` serves
the pool nearest to the output first, `room` stops those that run ahead. Together they bound the bytes on
every edge, never wait for a core that another pool holds for ever, and need no worker per stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CALL_SECONDS = 0.1
"""The work that one call should hold: long against a round trip, short against a run."""

MAX_CHUNK = 512
EDGE_BYTES = 256 * 2**20
"""Bytes that may wait between two pools, unless a single task is larger."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """What the policy needs to know of one pool."""

    queued: int = 0
    queued_bytes: int = 0
    downstream_bytes: int = 0
    idle: int = 0
    busy: int = 0
    can_grow: bool = False
    cpus: float = 1.0


def room(downstream_bytes: int, budget: int = EDGE_BYTES) -> bool:
    """Whether a pool may start another call, given the bytes that already wait behind it."""
    return downstream_bytes < budget


def chunk(queued: int, workers: int, seconds_per_task: float | None, batch_size: int = 1) -> int:
    """How many tasks to send in one call.

    Enough of them to be worth the round trip, and never so many that another worker is left without.
    Before the first measurement a single batch is sent, which measures.
    """
    if seconds_per_task is None:
        return batch_size
    worth = CALL_SECONDS / max(seconds_per_task, 1e-7)
    fair = queued / (2 * max(workers, 1))
    wanted = min(worth, fair, MAX_CHUNK)
    return max(batch_size, int(wanted) // batch_size * batch_size)


def choose(pools: Sequence[PoolState], free_cpus: float, total_cpus: float, budget: int = EDGE_BYTES) -> int | None:
    """The pool that gets the next call: the last one that has work, a worker, a core and room behind it.

    A pool that asks for more cores than there are runs alone instead of never.
    """
    for index in reversed(range(len(pools))):
        pool = pools[index]
        ready = pool.queued > 0 and (pool.idle > 0 or pool.can_grow)
        if ready and room(pool.downstream_bytes, budget) and fits(pool.cpus, free_cpus, total_cpus):
            return index
    return None


def fits(cpus: float, free: float, total: float) -> bool:
    return min(cpus, total) <= free + 1e-9


def balance(
    demands: Sequence[float], capacity: float, costs: Sequence[float], fixed: Sequence[int | None]
) -> list[int]:
    """Workers per pool so that all pools have equal throughput.

    `demands` are the seconds of work that each pool has to do, `costs` what one worker takes of `capacity`.
    Every pool with demand gets at least one worker; `fixed` counts are kept as they are.
    """
    counts = [0 if demand <= 0 else 1 for demand in demands]
    counts = [wish if wish is not None else count for wish, count in zip(fixed, counts, strict=True)]
    spent = sum(count * cost for count, cost in zip(counts, costs, strict=True))
    while True:
        slowest = [
            (demands[index] / counts[index], -index)
            for index in range(len(counts))
            if fixed[index] is None and counts[index] and 0 < costs[index] <= capacity - spent + 1e-9
        ]
        bottleneck = max((d / c for d, c in zip(demands, counts, strict=True) if c), default=0.0)
        if not slowest or max(slowest)[0] < bottleneck - 1e-12:
            return counts
        index = -max(slowest)[1]
        counts[index] += 1
        spent += costs[index]
