"""How the GPUs are divided among the pools of a run.

A pool keeps its GPUs between calls, since its workers may be dear to set up. Pools are given workers as the run begins,
before work arrives, and a different number of them when `core/schedule.py` finds that it is worth it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gristmill.core.schedule import (
    DOUBT,
    GAIN,
    SURE_GAIN,
    Load,
    Tally,
    all_heard,
    balance,
    fits,
    packs,
    tasks_left,
    work_left,
    worth_moving,
)

if TYPE_CHECKING:
    from gristmill.executors.drive import Driver
    from gristmill.executors.pool import Pool, WorkerHandle

_EVERY = 0.5
"""Seconds after which the division is thought over."""


class Division:
    """Who has how many workers with GPUs."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.thought = 0.0
        self.tallies: list[Tally] = []
        """What each pool of the plan had done when GPUs were divided."""
        self.corrected = False
        """Whether that was only to make up for rates that were not well known before."""

    def act(self, free: float) -> float:
        """Start and retire workers. Takes and returns the number of free cores."""
        pools = [pool for pool in self.driver.pools if pool.gpu]
        if not pools:
            return free
        if time.monotonic() - self.thought > _EVERY:
            self.thought = time.monotonic()
            self._divide(pools)
            free = self._start(pools, free)
        return free

    def _divide(self, pools: list[Pool]) -> None:
        """By the work that each pool has left; who has too many workers lets some go, if another wants them."""
        flow, gpus = self.driver.flow, self.driver.machine.gpus
        loads = [state.load() for state in flow.pools]
        tasks = tasks_left(loads, more=not flow.listing_done)
        for pool in pools:
            pool.expected = tasks[pool.index] if self.driver.may_begin(pool) else 0.0
        if len(pools) < 2 or not gpus:
            return
        late = [state.pace.late for state in flow.pools]
        if better := self._better(loads, tasks, pools, _worth(GAIN, late, pools)):
            self._aim_at(better, pools, corrects=False)
        elif since := self._well_known(pools):
            known = [replace(load, seconds_per_task=tally.seconds) for load, tally in zip(loads, since, strict=True)]
            if better := self._better(known, tasks, pools, _worth(SURE_GAIN, since, pools)):
                self._aim_at(better, pools, corrects=True)
        if any(self._lacks(pool) for pool in pools):
            for pool in pools:
                for worker in _by_gpu(pool)[: max(0, pool.staff - pool.target)]:
                    pool.retire(worker)

    def _better(self, loads: Sequence[Load], tasks: Sequence[float], pools: list[Pool], gain: float) -> list[int]:
        """How many workers each pool should have, if that is worth a change."""
        gpus = self.driver.machine.gpus
        shares = [pool.group.resources.gpu_share(gpus[0]) for pool in pools]
        work = work_left(loads, tasks, [pool.gpu for pool in self.driver.pools])
        left = [work[pool.index] if pool.expected else 0.0 for pool in pools]
        targets = balance(left, len(gpus), shares, [pool.group.num_workers for pool in pools])
        now, setup = [pool.target for pool in pools], [pool.setup_seconds for pool in pools]
        changes = not packs(now, shares, len(gpus)) or worth_moving(left, now, targets, setup, gain)
        return targets if changes else []

    def _aim_at(self, targets: list[int], pools: list[Pool], corrects: bool) -> None:
        self.corrected, self.tallies = corrects, self._tallies()
        for pool, target in zip(pools, targets, strict=True):
            pool.target = target
            pool.take_back(target)

    def _well_known(self, pools: list[Pool]) -> list[Tally]:
        """What was done since GPUs were divided, if all workers had a say. Once is enough: rates always vary."""
        now = self._tallies()
        since = [tally.since(before) for tally, before in zip(now, self.tallies or [Tally()] * len(now), strict=True)]
        heard = all_heard([since[pool.index] for pool in pools], [len(pool.workers) for pool in pools])
        return since if heard and not self.corrected else []

    def _tallies(self) -> list[Tally]:
        return [state.pace.total for state in self.driver.flow.pools]

    def _start(self, pools: list[Pool], free: float) -> float:
        """As many workers as are wanted, whether or not there is work for them yet: it takes them time to set up."""
        total = self.driver.machine.cpus
        for pool in sorted(pools, key=lambda pool: not self._starves(pool)):
            wanted = min(pool.target, math.ceil(pool.expected))
            while len(pool.workers) < wanted and fits(pool.cpus, free, total) and pool.can_grow():
                pool.start()
                free -= min(pool.cpus, total)
        return free

    def free_idle(self) -> None:
        """A pool that has work and no worker gets the GPU of a worker that found nothing to do."""
        pools = [pool for pool in self.driver.pools if pool.gpu]
        for pool in pools:
            if not self._starves(pool) or pool.can_grow():
                continue
            if not any(other.count("leaving") for other in pools):
                for holder in [worker for other in pools for worker in other.some("idle")][:1]:
                    holder.stop()

    def _starves(self, pool: Pool) -> bool:
        return not pool.workers and self.driver.flow.ready(pool.index) > 0

    def _lacks(self, pool: Pool) -> bool:
        wanted = min(pool.target, math.ceil(pool.expected))
        return len(pool.workers) < wanted and not pool.can_grow()


def _worth(gain: float, tallies: Sequence[Tally], pools: list[Pool]) -> float:
    """What a change must gain at least, since rates are not known better. Who alone has work left gets all anyway."""
    errors = [tallies[pool.index].error for pool in pools if pool.expected]
    return max(gain, DOUBT * math.hypot(*errors)) if len(errors) > 1 else gain


def _by_gpu(pool: Pool) -> list[WorkerHandle]:
    """Workers in the order in which they are let go: GPU by GPU, so that whole ones become free, the idlest first."""
    stays = [worker for worker in pool.those("idle", "busy", "full") if not worker.retiring]
    calls: Counter[tuple[int, ...]] = Counter()
    for worker in stays:
        calls[worker.slot.devices] += len(worker.calls)
    return sorted(stays, key=lambda worker: (calls[worker.slot.devices], worker.slot.devices, len(worker.calls)))
