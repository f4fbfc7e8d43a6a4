"""The driver of a run: the loop that executors with workers of their own share.

It feeds sources, gives work to idle workers, hears what they say, replaces those that end, divides GPUs, and stops
everything in the end. What to do next is decided in `core/schedule.py` and `core/flow.py`; how to start, call and hear
a worker is the executor's: processes of this machine (`local.py`), or actors of a Ray cluster (`ray_actors.py`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from gristmill.core.errors import StageError, TaskTimeoutError, WorkerLostError
from gristmill.core.executor import Job, Ref
from gristmill.core.flow import Call, Flow, Item, Output
from gristmill.core.isolate import Place
from gristmill.core.quarantine import SetAside
from gristmill.core.schedule import EDGE_BYTES, PoolState, balance, choose, chunk, room
from gristmill.core.task import Lineage
from gristmill.executors.machine import GpuSlots, Machine
from gristmill.executors.pool import WINDOW, Pool, WorkerHandle

LOST = "lost"

_TICK = 0.1
_GRACE = 3.0
"""Seconds that workers have to tear down after a failure or Ctrl-C."""

_TEARDOWN = 60.0
"""Seconds that workers have to tear down after all went well."""


class Driver(ABC):
    """The loop: feed, dispatch, listen, yield. An executor says how workers are started, called and heard."""

    pools: Sequence[Pool]

    def __init__(self, job: Job, machine: Machine) -> None:
        self.job, self.machine = job, machine
        self.slots = GpuSlots(machine.gpus)
        self.flow = Flow(job.plan, self.items(job.sources), job.quarantine)
        self.calls: dict[int, Call] = {}
        self.told = 0.0

    @abstractmethod
    def items(self, sources: Iterator[Sequence[Any]]) -> Iterator[list[Item]]:
        """The tasks that enter the plan, where workers can load them from."""

    @abstractmethod
    def keep(self, ref: Any) -> Ref:
        """A result, as it is given to the user."""

    @abstractmethod
    def listen(self, seconds: float) -> Iterator[tuple[WorkerHandle, tuple[Any, ...]]]:
        """What workers say within some time, and `(LOST,)` for those that have ended."""

    @abstractmethod
    def see_off(self, worker: WorkerHandle) -> str:
        """A worker has ended, or is about to: forget it, and return how it ended."""

    @abstractmethod
    def close(self, useless: bool) -> None:
        """The run is over, and all workers have ended. `useless`: nobody will look at the results."""

    def run(self) -> Iterator[tuple[Lineage, Ref | None]]:
        self.job.observer.started(self.job.plan)
        useless = True
        try:
            for _ in self.turns():
                while self.flow.results:
                    lineage, parcel = self.flow.results.popleft()
                    yield lineage, None if parcel is None else self.keep(parcel)
            self._stop(raises=True)
            useless = False
        except GeneratorExit:  # who stops early may still look at what came
            useless = False
            raise
        finally:
            try:
                self._stop(raises=False)
            finally:  # also when Ctrl-C comes a second time
                self.close(useless)
                self.job.observer.finished(self._progress())

    def turns(self) -> Iterator[None]:
        """One turn of the loop after another, until nothing is left to do."""
        while not self.flow.over:
            self.flow.feed(self._enough())
            self._dispatch()
            self._listen()
            self._watch()
            yield

    def _enough(self) -> int:
        """How many items should wait before the first group: enough for the next calls of all workers."""
        pace = self.flow.pools[0].seconds_per_task
        each = chunk(10**9, 1, pace, self.pools[0].group.batch_size)
        return 2 * each * self.pools[0].limit

    # -- giving out work -------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        self._balance_gpus()
        while (index := choose(self._states(), self._free_cpus(), self.machine.cpus)) is not None:
            pool = self.pools[index]
            idle = pool.idle
            if idle:
                self._send(pool, idle)
            else:
                pool.start()
        self._free_idle_gpus()
        self._ask_to_share()

    def _states(self) -> list[PoolState]:
        return [
            PoolState(
                queued=self.flow.ready(index) - pool.starting,
                downstream_bytes=self.flow.downstream_bytes(index),
                idle=len(pool.idle),
                can_grow=pool.can_grow(),
                cpus=pool.cpus,
            )
            for index, pool in enumerate(self.pools)
        ]

    def _free_cpus(self) -> float:
        return self.machine.cpus - sum(pool.cpus_in_use(self.machine.cpus) for pool in self.pools)

    def _send(self, pool: Pool, idle: Sequence[WorkerHandle]) -> None:
        state = self.flow.pools[pool.index]
        count = chunk(len(state.queue), pool.limit, state.seconds_per_task, pool.group.batch_size)
        call = self.flow.take(pool.index, count)
        worker = self.nearest(idle, call)
        self.calls[worker.key] = call
        worker.call(call)

    def nearest(self, idle: Sequence[WorkerHandle], call: Call) -> WorkerHandle:
        """The worker that has the shortest way to what the call needs."""
        return idle[0]

    def _balance_gpus(self) -> None:
        """Divide the GPUs among pools by measured rates; a pool that has too many lets one go when it is free."""
        pools = [pool for pool in self.pools if pool.group.resources.requires_gpu]
        if len(pools) < 2:
            return
        shares = [pool.group.resources.gpu_share(self.machine.gpus[0]) for pool in pools]
        loads = [self.flow.pools[pool.index].load() for pool in pools]
        fixed = [pool.group.num_workers for pool in pools]
        for pool, target in zip(pools, balance(loads, len(self.machine.gpus), shares, fixed), strict=True):
            pool.target = target
        if any(self._wants_gpu(pool) for pool in pools):
            for pool in pools:
                if len(pool.workers) > pool.target and pool.idle:
                    pool.idle[0].stop()

    def _free_idle_gpus(self) -> None:
        """A pool that has work and no worker gets the GPU of a worker that found nothing to do."""
        for pool in self.pools:
            leaving = any(worker.slot.devices for other in self.pools for worker in other.those("leaving"))
            if not pool.workers and not leaving and self._wants_gpu(pool):
                for holder in [worker for other in self.pools for worker in other.idle if worker.slot.devices][:1]:
                    holder.stop()

    def _wants_gpu(self, pool: Pool) -> bool:
        waits = self.flow.ready(pool.index) > 0 and len(pool.workers) < pool.target
        return waits and pool.group.resources.requires_gpu and not pool.can_grow()

    def _ask_to_share(self) -> None:
        """When cores are idle and one worker turns a task into many, it is asked to leave some to the others."""
        free = self._free_cpus()
        for pool, state in zip(self.pools, self.flow.pools, strict=True):
            if state.queue or len(pool.group.stages) < 2 or free < min(pool.cpus, self.machine.cpus):
                continue
            spare = min(int(free // max(pool.cpus, 0.01)), pool.limit - len(pool.busy))
            for worker in pool.busy:
                if spare > 0 and self.calls[worker.key].streams and not worker.share_asked:
                    worker.ask_to_share(2 * spare)

    # -- listening -------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self.flow.over:
            return
        for worker, message in self.listen(_TICK):
            if worker.state == "gone":
                continue
            if message[0] == LOST:
                self._lost(worker)
            elif not worker.timed_out:  # what a worker says after it was given up is not heard
                self._hear(worker, *message)
        self._acknowledge()

    def _hear(self, worker: WorkerHandle, kind: str, *rest: Any) -> None:
        pool = self.pools[worker.group]
        if kind == "ready":
            if rest[0] is not None:
                raise rest[0]
            worker.state, pool.on_node = "idle", False
        elif kind == "out":
            self._take_outputs(worker, rest[0], owed=True)
            self.calls[worker.key].so_far = rest[1]
        elif kind == "done":
            self._take_outputs(worker, rest[0], owed=False)
            call = self.calls.pop(worker.key)
            worker.state, pool.setup_failures = "idle", 0
            self.flow.finish(call, rest[1], rest[2])
            _discard(call)
        elif kind == "failed":
            call = self.calls.pop(worker.key)
            worker.state = "idle"
            self._failed(call, rest[0], aside=rest[1])
        else:  # stopped
            self.see_off(worker)
            if rest[0] is not None:
                raise rest[0]

    def _take_outputs(self, worker: WorkerHandle, outputs: list[tuple[Any, ...]], owed: bool) -> None:
        call = self.calls[worker.key]
        for lineage, parcel, nbytes, position in outputs:
            self.flow.output(call, Output(lineage, parcel, nbytes, position))
            if position < len(self.pools[worker.group].group.stages):
                worker.share_asked = False
            if owed:
                worker.owed += nbytes

    def _acknowledge(self) -> None:
        """Let workers go on that wait for room behind them."""
        for pool in self.pools:
            if room(self.flow.downstream_bytes(pool.index), EDGE_BYTES):
                for worker in pool.busy:
                    if worker.owed >= WINDOW // 4:
                        worker.acknowledge()

    def _failed(
        self, call: Call, error: StageError, place: Place | None = None, aside: Sequence[SetAside] = ()
    ) -> None:
        for output in call.outputs:
            output.ref.discard()
        self.flow.fail(call, error, place, aside)

    # -- workers that fail -------------------------------------------------------------------------------

    def _lost(self, worker: WorkerHandle) -> None:
        """A worker has ended unasked."""
        leaving = worker.state == "leaving"
        worker.kill()  # it may have closed its channel and live on
        how = self.see_off(worker)
        place = worker.place()
        position = place.position if place else 0
        if leaving:
            return
        pool = self.pools[worker.group]
        stage = pool.group.stages[position].name
        call = self.calls.pop(worker.key, None)
        if call is None:
            pool.setup_failures += 1
            if pool.setup_failures > pool.group.stages[position].max_retries:
                raise WorkerLostError(stage, "(none yet)", (), f"its worker {how} while it was set up, or idle")
            return
        lineage = call.items[0].lineage
        kind = TaskTimeoutError if worker.timed_out else WorkerLostError
        reason = worker.timed_out or f"its worker {how}"
        self._failed(call, kind(stage, lineage.id, lineage.files, reason, position=position), place)

    def _watch(self) -> None:
        """Kill workers that hang, stop pools that have nothing left to do, tell the observer."""
        for pool in self.pools:
            for worker in pool.busy if pool.timed else ():
                position, seconds = worker.doing()
                limit = pool.group.stages[position].timeout_s if position >= 0 else None
                if limit is not None and seconds > limit and not worker.timed_out:
                    worker.timed_out = f"it ran for more than {limit:g} s (timeout_s) and was stopped"
                    worker.kill()
            if pool.idle and self.flow.is_over(pool.index) and self.flow.pools[pool.index].running == 0:
                self.dismiss(pool)
        if time.monotonic() - self.told > 0.2:
            self.told = time.monotonic()
            self.job.observer.progressed(self._progress())

    def dismiss(self, pool: Pool) -> None:
        """A pool has nothing left to do."""
        for worker in pool.idle:
            worker.stop()

    def _progress(self) -> Any:
        pools = [(len(pool.workers), len(pool.busy)) for pool in self.pools]
        return self.flow.progress(pools, self.calls.values())

    def _stop(self, raises: bool) -> None:
        """Ask all workers to tear down and end; kill those that take too long."""
        for pool in self.pools:
            for worker in pool.workers:
                worker.stop()
        grace = _TEARDOWN if raises else _GRACE
        deadline = time.monotonic() + grace
        problem: StageError | None = None
        while any(pool.workers for pool in self.pools) and time.monotonic() < deadline:
            for worker, message in self.listen(_TICK):
                if worker.state != "gone":
                    problem = self._farewell(worker, *message) or problem
        for pool in self.pools:
            for worker in list(pool.workers):
                problem = problem or self._unfinished(worker, f"it took more than {grace:g} s and was stopped")
                worker.kill()
                self.see_off(worker)
        if raises and problem is not None:
            raise problem

    def _farewell(self, worker: WorkerHandle, kind: str, *rest: Any) -> StageError | None:
        """Hear a worker out, which may still send what nobody needs any more, until it has stopped."""
        if kind == LOST:
            worker.kill()
            return self._unfinished(worker, f"its worker {self.see_off(worker)}")
        if kind != "stopped":
            return None
        self.see_off(worker)
        problem: StageError | None = rest[0]
        return problem

    def _unfinished(self, worker: WorkerHandle, why: str) -> StageError:
        return WorkerLostError(self.pools[worker.group].group.name, "(none left)", (), f"in teardown, {why}")


def _discard(call: Call) -> None:
    for item in call.items:
        for ref in item.refs:
            ref.discard()
