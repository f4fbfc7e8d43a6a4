"""How the GPUs of a run are divided among its pools.

A pool keeps its GPUs between calls, since its workers may be expensive to set up. Pools get workers when the run
begins, before work arrives, and a different number of them when `core/run/schedule.py` finds that a change pays off.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gristmill.core.run.schedule import (
    ERROR_FACTOR,
    MIN_GAIN,
    MIN_SURE_GAIN,
    CallTotals,
    PoolLoad,
    all_workers_measured,
    balance_workers,
    fits_on_cores,
    fits_on_gpus,
    is_worth_resizing,
    tasks_left,
    work_left,
)

if TYPE_CHECKING:
    from gristmill.executors.driver import Driver
    from gristmill.executors.worker_pool import WorkerHandle, WorkerPool

_REBALANCE_SECONDS = 0.5
"""How often the division is reconsidered."""


class GpuDivision:
    """Decides how many workers with GPUs each pool has."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.rebalanced_at = 0.0
        self.tallies: list[CallTotals] = []
        """What each pool had done when the GPUs were last divided."""
        self.corrected = False
        """Whether the last change only corrected rates that were not well known before."""

    def rebalance(self, free: float) -> float:
        """Start and retire workers. Takes and returns the number of free cores."""
        pools = [pool for pool in self.driver.pools if pool.gpu]
        if not pools:
            return free
        if time.monotonic() - self.rebalanced_at > _REBALANCE_SECONDS:
            self.rebalanced_at = time.monotonic()
            self._divide(pools)
            free = self._start(pools, free)
        return free

    def _divide(self, pools: list[WorkerPool]) -> None:
        """Divide by the work that each pool has left. Pools with too many workers retire some if another pool needs
        them."""
        flow, gpus = self.driver.flow, self.driver.machine.gpus
        loads = [state.load() for state in flow.pools]
        tasks = tasks_left(loads, more=not flow.listing_done)
        for pool in pools:
            pool.expected = tasks[pool.index] if self.driver.may_begin(pool) else 0.0
        if len(pools) < 2 or not gpus:
            return
        late = [state.pace.recent for state in flow.pools]
        if better := self._better(loads, tasks, pools, _required_gain(MIN_GAIN, late, pools)):
            self._set_targets(better, pools, corrects=False)
        elif since := self._reliable_rates(pools):
            known = [replace(load, seconds_per_task=tally.seconds) for load, tally in zip(loads, since, strict=True)]
            if better := self._better(known, tasks, pools, _required_gain(MIN_SURE_GAIN, since, pools)):
                self._set_targets(better, pools, corrects=True)
        if any(self._lacks_workers(pool) for pool in pools):
            for pool in pools:
                for worker in _retirement_order(pool)[: max(0, pool.staying_workers - pool.target)]:
                    pool.retire(worker)

    def _better(
        self, loads: Sequence[PoolLoad], tasks: Sequence[float], pools: list[WorkerPool], gain: float
    ) -> list[int]:
        """How many workers each pool should have; empty if a change does not pay off."""
        gpus = self.driver.machine.gpus
        shares = [pool.group.resources.gpu_share(gpus[0]) for pool in pools]
        work = work_left(loads, tasks, [pool.gpu for pool in self.driver.pools])
        left = [work[pool.index] if pool.expected else 0.0 for pool in pools]
        targets = balance_workers(left, len(gpus), shares, [pool.group.num_workers for pool in pools])
        now, setup = [pool.target for pool in pools], [pool.setup_seconds for pool in pools]
        changes = not fits_on_gpus(now, shares, len(gpus)) or is_worth_resizing(left, now, targets, setup, gain)
        return targets if changes else []

    def _set_targets(self, targets: list[int], pools: list[WorkerPool], corrects: bool) -> None:
        self.corrected, self.tallies = corrects, self._tallies()
        for pool, target in zip(pools, targets, strict=True):
            pool.target = target
            pool.cancel_retirement(target)

    def _reliable_rates(self, pools: list[WorkerPool]) -> list[CallTotals]:
        """Rates since the last division, once all workers were measured. Only once, because rates always vary."""
        now = self._tallies()
        since = [
            tally.since(before) for tally, before in zip(now, self.tallies or [CallTotals()] * len(now), strict=True)
        ]
        measured = all_workers_measured([since[pool.index] for pool in pools], [len(pool.workers) for pool in pools])
        return since if measured and not self.corrected else []

    def _tallies(self) -> list[CallTotals]:
        return [state.pace.total for state in self.driver.flow.pools]

    def _start(self, pools: list[WorkerPool], free: float) -> float:
        """Start wanted workers, even before there is work for them, because setup takes time."""
        total = self.driver.machine.cpus
        for pool in sorted(pools, key=lambda pool: not self._waits_for_first_worker(pool)):
            wanted = min(pool.target, math.ceil(pool.expected))
            while len(pool.workers) < wanted and fits_on_cores(pool.cpus, free, total) and pool.can_grow():
                pool.start()
                free -= min(pool.cpus, total)
        return free

    def release_idle_gpu(self) -> None:
        """Stop an idle worker if another pool has work, no worker and no free GPU."""
        pools = [pool for pool in self.driver.pools if pool.gpu]
        for pool in pools:
            if not self._waits_for_first_worker(pool) or pool.can_grow():
                continue
            if not any(other.count("leaving") for other in pools):
                for holder in [worker for other in pools for worker in other.candidates("idle")][:1]:
                    holder.stop()

    def _waits_for_first_worker(self, pool: WorkerPool) -> bool:
        return not pool.workers and self.driver.flow.ready(pool.index) > 0

    def _lacks_workers(self, pool: WorkerPool) -> bool:
        wanted = min(pool.target, math.ceil(pool.expected))
        return len(pool.workers) < wanted and not pool.can_grow()


def _required_gain(gain: float, tallies: Sequence[CallTotals], pools: list[WorkerPool]) -> float:
    """The least gain for a change, given the error of the rates. A pool that alone has work left gets all GPUs
    anyway."""
    errors = [tallies[pool.index].error for pool in pools if pool.expected]
    return max(gain, ERROR_FACTOR * math.hypot(*errors)) if len(errors) > 1 else gain


def _retirement_order(pool: WorkerPool) -> list[WorkerHandle]:
    """Workers in the order of retirement: GPU by GPU, so that whole GPUs become free, the least busy first."""
    stays = [worker for worker in pool.in_states("idle", "busy", "full") if not worker.retiring]
    calls: Counter[tuple[int, ...]] = Counter()
    for worker in stays:
        calls[worker.slot.devices] += len(worker.calls)
    return sorted(stays, key=lambda worker: (calls[worker.slot.devices], worker.slot.devices, len(worker.calls)))
