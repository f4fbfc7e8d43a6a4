"""LocalExecutor: streams a plan over worker processes of this machine. The default of `Pipeline.run`.

One pool of processes per group. Cores are given to calls, not to pools: a pool may have as many workers as
there are cores, but only as many calls run at once as there are cores, and the pool nearest to the output goes
first (`core/schedule.py`). So thirty groups run on two cores, and the cores are always where the work is.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gristmill.core.errors import ResourceError, StageError, TaskTimeoutError, WorkerLostError
from gristmill.core.executor import Job, Ref
from gristmill.core.flow import Call, Flow, Item, Output
from gristmill.core.isolate import Place
from gristmill.core.plan import Plan
from gristmill.core.quarantine import SetAside
from gristmill.core.schedule import EDGE_BYTES, PoolState, balance, choose, chunk, room
from gristmill.core.task import Lineage
from gristmill.executors.inline import run_inline
from gristmill.executors.machine import GpuSlots, Machine
from gristmill.executors.pool import Pool, WorkerHandle
from gristmill.executors.process import WINDOW
from gristmill.executors.transport import Folder, Kept, in_memory, pack
from gristmill.executors.zygote import Zygote

_TICK = 0.1
_GRACE = 3.0
"""Seconds that workers have to tear down after a failure or Ctrl-C."""

_TEARDOWN = 60.0
"""Seconds that workers have to tear down after all went well."""


class LocalExecutor:
    """Runs a pipeline on this machine.

    `num_workers`: how many calls run at once; one per core by default, 0 runs everything in this process.
    `gpus`: how many GPUs there are, or their memory in GB each; found by default.
    `fuse`: False gives every stage its own pool.
    """

    def __init__(
        self, num_workers: int | None = None, gpus: int | list[float] | None = None, fuse: bool = True
    ) -> None:
        if num_workers is not None and (not isinstance(num_workers, int) or num_workers < 0):
            raise ValueError(f"LocalExecutor(num_workers={num_workers!r}): must be a whole number, 0 or more, or None")
        self.num_workers, self.gpus, self.fuse = num_workers, gpus, fuse

    def machine(self) -> Machine:
        return Machine.here(self.num_workers, self.gpus)

    def check(self, plan: Plan) -> None:
        check_fit(plan, self.machine())

    def execute(self, job: Job) -> Iterator[tuple[Lineage, Ref | None]]:
        if self.num_workers == 0:
            return run_inline(job)
        return _Driver(job, self.machine()).run()


def check_fit(plan: Plan, machine: Machine) -> None:
    """Refuse what could never run on this machine, and say what to do."""
    for stage in plan.stages:
        wish = stage.resources
        if wish.requires_gpu and not GpuSlots(machine.gpus).fits(wish):
            have = f"{len(machine.gpus)} GPUs" if machine.gpus else "no GPU"
            raise ResourceError(
                f"stage {stage.name!r} wants {wish}, and this machine has {have}. Run it on the CPU with "
                ".with_(resources=Resources(cpus=1)), or on a cluster that has what it wants"
            )
        if machine.memory_gb and wish.memory_gb > machine.memory_gb:
            raise ResourceError(
                f"stage {stage.name!r} wants {wish.memory_gb:g} GB of memory, and this machine has "
                f"{machine.memory_gb:.0f} GB: lower memory_gb, or use a larger machine"
            )
        if unknown := set(stage.runtime_env or ()) - {"env_vars"}:
            raise ResourceError(
                f"stage {stage.name!r} has runtime_env {', '.join(sorted(unknown))}, and LocalExecutor only sets "
                "env_vars: install the packages here and drop the runtime_env, or use a Ray executor"
            )


class _Driver:
    """The loop: feed, dispatch, listen, yield."""

    def __init__(self, job: Job, machine: Machine) -> None:
        self.job, self.machine = job, machine
        self.disk = Folder(job.scratch)
        self.memory = in_memory(self.disk)
        folders = [self.memory.path, self.disk.path]
        self.zygote = Zygote(folders)
        self.slots = GpuSlots(machine.gpus)
        self.flow = Flow(job.plan, self._items(job.sources), job.quarantine)
        last = len(job.plan.way) - 1
        self.pools = [
            Pool(group, machine, self.zygote, self.slots, folders, group.index == last, job)
            for group in job.plan.groups
        ]
        self.selector = selectors.DefaultSelector()
        self.calls: dict[int, Call] = {}
        self.told = 0.0

    def _items(self, sources: Iterator[Sequence[Any]]) -> Iterator[list[Item]]:
        for tasks in sources:
            parcels = [(task.lineage, pack(task, [self.memory.path, self.disk.path])) for task in tasks]
            yield [Item(lineage, [parcel], parcel.nbytes) for lineage, parcel in parcels]

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
                    yield lineage, None if parcel is None else Kept(parcel, self.disk)
            self._stop(raises=True)
            useless = False
        except GeneratorExit:  # who stops early may still look at what came
            useless = False
            raise
        finally:
            try:
                self._stop(raises=False)
            finally:  # also when Ctrl-C comes a second time
                self.zygote.close()
                self.selector.close()
                self.memory.remove()
                if useless:
                    self.disk.remove()
                del self.disk  # from here on the results hold it
                self.job.observer.finished(self._progress())

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
                self._send(pool, idle[0])
            else:
                self._register(pool.start())
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

    def _register(self, worker: WorkerHandle) -> None:
        self.selector.register(worker.channel, selectors.EVENT_READ, worker)
        if worker.death is not None:
            self.selector.register(worker.death, selectors.EVENT_READ, worker)

    def _send(self, pool: Pool, worker: WorkerHandle) -> None:
        state = self.flow.pools[pool.index]
        count = chunk(len(state.queue), pool.limit, state.seconds_per_task, pool.group.batch_size)
        call = self.flow.take(pool.index, count)
        self.calls[worker.pid] = call
        with contextlib.suppress(OSError):  # it has died; the end of its channel tells
            worker.call(call)

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
                if spare > 0 and self.calls[worker.pid].streams and not worker.share_asked:
                    worker.ask_to_share(2 * spare)

    # -- listening -------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self.flow.over:
            return
        for key, _ in self.selector.select(_TICK):
            worker: WorkerHandle = key.data
            try:
                while worker.state != "gone" and worker.channel.poll(0):
                    message = worker.channel.recv()
                    if not worker.timed_out:  # what a worker says after it was given up is not heard
                        self._hear(worker, *message)
            except (EOFError, OSError):
                self._lost(worker)
            if worker.state != "gone" and key.fd == worker.death:  # a child of its own may keep its channel open
                self._lost(worker)
        self._acknowledge()

    def _hear(self, worker: WorkerHandle, kind: str, *rest: Any) -> None:
        pool = self.pools[worker.group]
        if kind == "ready":
            if rest[0] is not None:
                raise rest[0]
            worker.state, pool.on_node = "idle", False
        elif kind == "out":
            self._take_outputs(worker, rest[0], owed=True)
            self.calls[worker.pid].so_far = rest[1]
        elif kind == "done":
            self._take_outputs(worker, rest[0], owed=False)
            call = self.calls.pop(worker.pid)
            worker.state, pool.setup_failures = "idle", 0
            self.flow.finish(call, rest[1], rest[2])
            _discard(call)
        elif kind == "failed":
            call = self.calls.pop(worker.pid)
            worker.state = "idle"
            self._failed(call, rest[0], aside=rest[1])
        else:  # stopped
            self._forget(worker)
            if rest[0] is not None:
                raise rest[0]

    def _take_outputs(self, worker: WorkerHandle, outputs: list[tuple[Any, ...]], owed: bool) -> None:
        call = self.calls[worker.pid]
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
        how = _how_it_ended(self._forget(worker))
        place = worker.page.place()
        position = place.position if place else 0
        if leaving:
            return
        pool = self.pools[worker.group]
        stage = pool.group.stages[position].name
        call = self.calls.pop(worker.pid, None)
        if call is None:
            pool.setup_failures += 1
            if pool.setup_failures > pool.group.stages[position].max_retries:
                raise WorkerLostError(stage, "(none yet)", (), f"its worker {how} while it was set up, or idle")
            return
        lineage = call.items[0].lineage
        kind = TaskTimeoutError if worker.timed_out else WorkerLostError
        reason = worker.timed_out or f"its worker {how}"
        self._failed(call, kind(stage, lineage.id, lineage.files, reason, position=position), place)

    def _forget(self, worker: WorkerHandle) -> int:
        """A worker has ended, or is about to: see it off and return how it ended."""
        self.selector.unregister(worker.channel)
        if worker.death is not None:
            self.selector.unregister(worker.death)
        self.pools[worker.group].remove(worker)
        return self.zygote.wait(worker.pid)

    def _watch(self) -> None:
        """Kill workers that hang, stop pools that have nothing left to do, tell the observer."""
        for pool in self.pools:
            for worker in pool.busy if pool.timed else ():
                position, seconds = worker.page.read()
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
            for key, _ in self.selector.select(_TICK):
                if key.data.state != "gone":
                    problem = self._farewell(key.data, key.fd == key.data.death) or problem
        for pool in self.pools:
            for worker in list(pool.workers):
                problem = problem or self._unfinished(worker, f"it took more than {grace:g} s and was stopped")
                worker.kill()
                self._forget(worker)
        if raises and problem is not None:
            raise problem

    def _farewell(self, worker: WorkerHandle, dead: bool) -> StageError | None:
        """Hear a worker out, which may still send what nobody needs any more, until it has stopped."""
        try:
            kind, *rest = worker.channel.recv() if not dead or worker.channel.poll(0) else ("silent",)
        except (EOFError, OSError):
            kind, rest = "silent", []
        if kind == "silent":
            worker.kill()
            return self._unfinished(worker, f"its worker {_how_it_ended(self._forget(worker))}")
        if kind != "stopped":
            return None
        self._forget(worker)
        problem: StageError | None = rest[0]
        return problem

    def _unfinished(self, worker: WorkerHandle, why: str) -> StageError:
        return WorkerLostError(self.pools[worker.group].group.name, "(none left)", (), f"in teardown, {why}")


def _discard(call: Call) -> None:
    for item in call.items:
        for ref in item.refs:
            ref.discard()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        hint = ": was the machine out of memory?" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"
    return f"was killed by signal {-code}"
