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
from gristmill.core.schedule import (
    EDGE_BYTES,
    PoolState,
    balance,
    choose,
    choose_ahead,
    chunk,
    crowded,
    room,
    work_left,
    worth_moving,
)
from gristmill.core.task import Lineage
from gristmill.executors.machine import GpuSlots, Machine
from gristmill.executors.pool import WINDOW, Pool, WorkerHandle

LOST = "lost"

_TICK = 0.1
_DIVIDE_SECONDS = 0.5
"""How often the division of GPUs is thought over."""

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
        self.told = self.divided = 0.0

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
            while not self.flow.over:
                self.flow.feed(self._enough())
                self._dispatch()
                self._listen()
                self._watch()
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

    def _enough(self) -> int:
        """How many items should wait before the first group: enough for the next calls of all workers."""
        pace = self.flow.pools[0].seconds_per_task
        each = chunk(10**9, 1, pace, self.pools[0].group.batch_size)
        return 2 * each * self.pools[0].limit

    # -- giving out work -------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        self._divide_gpus()
        states = [self._state(pool) for pool in self.pools]
        free = self._free_cpus()
        while (index := choose(states, free, self.machine.cpus, held=self._held_cpus(free))) is not None:
            pool = self.pools[index]
            if states[index].idle:
                self._send(pool, pool.idle)
            else:
                pool.start()
            free -= min(pool.cpus, self.machine.cpus)
            self._look_again(states, index)
        while (index := choose_ahead(states)) is not None:
            self._send(self.pools[index], self.pools[index].those("busy"), ahead=True)
            self._look_again(states, index)
        self._free_idle_gpus()
        self._ask_to_share(free)

    def _state(self, pool: Pool) -> PoolState:
        queued = self.flow.ready(pool.index)
        return PoolState(
            queued=queued - pool.count("starting"),
            downstream_bytes=self.flow.downstream_bytes(pool.index),
            downstream_tasks=self.flow.downstream_tasks(pool.index),
            idle=pool.count("idle"),
            can_grow=queued > 0 and pool.can_grow() and not self._crowded(pool),
            cpus=pool.cpus,
            gpu=pool.gpu,
            takers=pool.count("busy"),
        )

    def _look_again(self, states: list[PoolState], index: int) -> None:
        """What has changed since a pool got something to do: its own state, and the room behind the one before it."""
        for one in range(max(0, index - 1), index + 1):
            states[one] = self._state(self.pools[one])

    def _crowded(self, pool: Pool) -> bool:
        """Whether so much work waits behind a pool that it needs no more workers than it has."""
        if not pool.workers or pool.index + 1 >= len(self.job.plan.way):
            return False
        after = self.flow.pools[pool.index + 1]
        return crowded(len(after.queue), after.seconds_per_task, len(self.pools[pool.index + 1].workers))

    def _free_cpus(self) -> float:
        """Cores for more calls."""
        return self.machine.cpus - sum(pool.cpus_in_use(self.machine.cpus) for pool in self.pools)

    def _held_cpus(self, free: float) -> float:
        """Cores that are kept for workers that hold a GPU, as long as each of the other pools could still run."""
        idle = sum(pool.count("idle") * pool.cpus for pool in self.pools if pool.gpu)
        need = max((min(pool.cpus, self.machine.cpus) for pool in self.pools if not pool.gpu), default=0.0)
        return min(idle, max(0.0, free - max(need, 1.0)))

    def _send(self, pool: Pool, workers: Sequence[WorkerHandle], ahead: bool = False) -> None:
        state = self.flow.pools[pool.index]
        count = chunk(len(state.queue), pool.limit, state.seconds_per_task, pool.group.batch_size)
        call = self.flow.take(pool.index, count, waits=ahead)
        self.nearest(workers, call).call(call)

    def nearest(self, idle: Sequence[WorkerHandle], call: Call) -> WorkerHandle:
        """The worker that has the shortest way to what the call needs."""
        return idle[0]

    def _divide_gpus(self) -> None:
        """Divide the GPUs among pools by the work they have; a pool that has too many workers lets some go."""
        pools = [pool for pool in self.pools if pool.gpu]
        if len(pools) < 2 or time.monotonic() - self.divided < _DIVIDE_SECONDS:
            return
        self.divided = time.monotonic()
        shares = [pool.group.resources.gpu_share(self.machine.gpus[0]) for pool in pools]
        loads = [state.load() for state in self.flow.pools[: len(self.job.plan.way)]]
        work = work_left(loads, more=not self.flow.listing_done)
        left = [work[pool.index] for pool in pools]
        fixed = [pool.group.num_workers for pool in pools]
        targets = balance(left, len(self.machine.gpus), shares, fixed)
        if worth_moving(left, [pool.target for pool in pools], targets, [pool.setup_seconds for pool in pools]):
            for pool, target in zip(pools, targets, strict=True):
                pool.target = target
        if any(self._wants_gpu(pool) for pool in pools):
            for pool in pools:
                staff = sorted(pool.those("idle", "busy", "full"), key=lambda worker: len(worker.calls))
                stays = [worker for worker in staff if not worker.retiring]
                for worker in stays[: max(0, len(stays) - pool.target)]:
                    pool.retire(worker)

    def _free_idle_gpus(self) -> None:
        """A pool that has work and no worker gets the GPU of a worker that found nothing to do."""
        for pool in self.pools:
            if pool.workers or not self._wants_gpu(pool):
                continue
            if not any(worker.slot.devices for other in self.pools for worker in other.those("leaving")):
                for holder in [worker for other in self.pools for worker in other.idle if worker.slot.devices][:1]:
                    holder.stop()

    def _wants_gpu(self, pool: Pool) -> bool:
        if not pool.gpu:
            return False
        waits = self.flow.ready(pool.index) > 0 and len(pool.workers) < pool.target
        return waits and not pool.can_grow()

    def _ask_to_share(self, free: float) -> None:
        """When cores are idle and one worker turns a task into many, it is asked to leave some to the others."""
        for pool, state in zip(self.pools, self.flow.pools, strict=True):
            if state.queue or len(pool.group.stages) < 2 or free < min(pool.cpus, self.machine.cpus):
                continue
            spare = min(int(free // max(pool.cpus, 0.01)), pool.limit - len(pool.busy))
            for worker in pool.busy:
                if spare > 0 and worker.calls[0].streams and not worker.share_asked:
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
            worker.is_set_up, pool.on_node = True, False
            pool.setup_seconds = time.monotonic() - worker.began
            if worker.state == "starting":
                worker.settle()
                self._let_go(worker)
        elif kind == "out":
            self._take_outputs(worker, rest[0], owed=True)
            worker.calls[0].so_far = rest[1]
        elif kind == "done":
            self._take_outputs(worker, rest[0], owed=False)
            pool.setup_failures = 0
            call = self._next(worker)
            self.flow.finish(call, rest[1], rest[2])
            _discard(call)
        elif kind == "failed":
            self._failed(self._next(worker), rest[0], aside=rest[1])
        else:  # stopped
            self.see_off(worker)
            if rest[0] is not None:
                raise rest[0]

    def _next(self, worker: WorkerHandle) -> Call:
        """A worker is through with a call, and goes on with the next one, or with none."""
        call = worker.finish()
        if worker.calls:
            self.flow.begin(worker.calls[0])
        self._let_go(worker)
        return call

    def _let_go(self, worker: WorkerHandle) -> None:
        if worker.retiring and worker.state == "idle":
            worker.stop()

    def _take_outputs(self, worker: WorkerHandle, outputs: list[tuple[Any, ...]], owed: bool) -> None:
        call = worker.calls[0]
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
        while len(worker.calls) > 1:  # what it had not begun is not to blame
            self.flow.put_back(worker.calls.pop())
        if not worker.calls:
            pool.setup_failures += 1
            if pool.setup_failures > pool.group.stages[position].max_retries:
                raise WorkerLostError(stage, "(none yet)", (), f"its worker {how} while it was set up, or idle")
            return
        call = worker.calls.popleft()
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
                for worker in pool.idle:
                    worker.stop()
        if time.monotonic() - self.told > 0.2:
            self.told = time.monotonic()
            self.job.observer.progressed(self._progress())

    def _progress(self) -> Any:
        pools = [(len(pool.workers), len(pool.busy)) for pool in self.pools]
        return self.flow.progress(pools, (worker.calls[0] for pool in self.pools for worker in pool.busy))

    def _stop(self, raises: bool) -> None:
        """Ask all workers to tear down and end; kill those that take too long."""
        for worker in self._everyone():
            worker.stop()
        grace = _TEARDOWN if raises else _GRACE
        deadline = time.monotonic() + grace
        problem: StageError | None = None
        while (left := self._everyone()) and time.monotonic() < deadline:
            if not any(worker.is_set_up for worker in left):  # they load what nobody needs any more
                deadline = min(deadline, time.monotonic() + _GRACE)
            for worker, message in self.listen(_TICK):
                if worker.state != "gone":
                    problem = self._farewell(worker, *message) or problem
        for worker in self._everyone():
            if worker.is_set_up:
                problem = problem or self._unfinished(worker, f"it took more than {grace:g} s and was stopped")
            worker.kill()
            self.see_off(worker)
        if raises and problem is not None:
            raise problem

    def _everyone(self) -> list[WorkerHandle]:
        return [worker for pool in self.pools for worker in pool.workers]

    def _farewell(self, worker: WorkerHandle, kind: str, *rest: Any) -> StageError | None:
        """Hear a worker out, which may still send what nobody needs any more, until it has stopped."""
        if kind == LOST:
            worker.kill()
            return self._unfinished(worker, f"its worker {self.see_off(worker)}")
        worker.is_set_up = worker.is_set_up or kind == "ready"
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
