"""LocalExecutor: streams a plan over worker processes of this machine. The default of `Pipeline.run`.

One pool of processes per group. Cores are given to calls, not to pools: a pool may have as many workers as
there are cores, but only as many calls run at once as there are cores, and the pool nearest to the output goes
first (`core/run/schedule.py`). So thirty groups run on two cores, and the cores are always where the work is.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gristmill.core.errors import ResourceError
from gristmill.core.executor import MODES, Executor, Job, Machine, TaskRef, is_batch_mode
from gristmill.core.plan.placement import fuse_commits
from gristmill.core.plan.planner import Plan
from gristmill.core.run.flow import WorkItem
from gristmill.core.task import Lineage
from gristmill.executors.driver import WORKER_LOST, Driver
from gristmill.executors.executor_settings import COUNT, FLAG, GPUS, check_setting
from gristmill.executors.local.inline import run_inline
from gristmill.executors.local.process_pool import ProcessHandle, ProcessPool
from gristmill.executors.local.task_transport import (
    PackedTask,
    StoredResult,
    TemporaryFolder,
    pack_task,
    shared_memory_folder,
)
from gristmill.executors.local.worker_process import thread_count
from gristmill.executors.local.zygote import Zygote
from gristmill.executors.machine import GpuSlots, this_machine
from gristmill.executors.worker_pool import WorkerHandle


class LocalExecutor(Executor):
    """Runs a pipeline on this machine.

    `num_workers`: how many calls run at once; one per core by default, 0 runs everything in this process.
    `gpus`: how many GPUs there are, or their memory in GB each; found by default.
    `fuse`: False gives every stage its own pool. `execution_mode`: "streaming", or "batch", where each pool begins
    when those before it have ended; what waits lies in shared memory, and on disk when that is full.
    """

    def __init__(
        self,
        num_workers: int | None = None,
        gpus: int | list[float] | None = None,
        fuse: bool = True,
        execution_mode: str = MODES[0],
    ) -> None:
        if num_workers is not None and not COUNT[0](num_workers):
            raise ValueError(f"LocalExecutor(num_workers={num_workers!r}): must be a whole number, 0 or more, or None")
        if gpus is not None:
            check_setting("LocalExecutor", "gpus", gpus, GPUS)
        check_setting("LocalExecutor", "fuse", fuse, FLAG)
        self.num_workers, self.gpus, self.fuse = num_workers, gpus, fuse
        self.execution_mode, self.batch = execution_mode, is_batch_mode("LocalExecutor", execution_mode)
        self.runs_inline = num_workers == 0
        self._idle_zygotes: list[Zygote] = []

    def machine(self) -> Machine:
        return this_machine(self.num_workers, self.gpus)

    def check(self, plan: Plan) -> None:
        check_machine_resources(plan, self.machine())

    def arrange(self, plan: Plan) -> Plan:
        return fuse_commits(plan) if self.fuse and not (self.batch or self.runs_inline) else plan

    def execute(self, job: Job) -> Iterator[tuple[Lineage, TaskRef | None]]:
        if self.runs_inline:
            return run_inline(job)
        return LocalDriver(replace(job, batch=self.batch), self.machine(), idle_zygotes=self._idle_zygotes).run()

    def end_run(self) -> None:
        while self._idle_zygotes:
            self._idle_zygotes.pop().close()


def check_machine_resources(plan: Plan, machine: Machine) -> None:
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


class LocalDriver(Driver):
    """Workers are processes, forked by a zygote, heard through pipes."""

    def __init__(
        self, job: Job, machine: Machine, linger: float = 0.0, idle_zygotes: list[Zygote] | None = None
    ) -> None:
        """`idle_zygotes` is for the process that forks workers, between the segments of a run: it takes long to start."""
        self.disk = TemporaryFolder(job.scratch)
        self.memory = shared_memory_folder(self.disk)
        self.folders = [self.memory.path, self.disk.path]
        self.idle_zygotes = idle_zygotes
        if idle_zygotes:
            self.zygote = idle_zygotes.pop()
            self.zygote.set_folders(self.folders)
        else:
            self.zygote = Zygote(self.folders, linger)
        self.selector = selectors.DefaultSelector()
        super().__init__(job, machine)
        last = len(job.plan.main_groups) - 1
        self.pools = [
            ProcessPool(group, machine, self.slots, job, self.zygote, self.folders, group.index == last, self._register)
            for group in job.plan.groups
        ]

    def input_items(self, sources: Iterator[Sequence[Any]]) -> Iterator[list[WorkItem]]:
        for tasks in sources:
            parcels = [(task.lineage, pack_task(task, self.folders)) for task in tasks]
            yield [WorkItem(lineage, [parcel], parcel.nbytes) for lineage, parcel in parcels]

    def as_result(self, ref: PackedTask) -> TaskRef:
        return StoredResult(ref, self.disk)

    def _register(self, worker: ProcessHandle) -> None:
        self.selector.register(worker.channel, selectors.EVENT_READ, worker)
        if worker.death is not None:
            self.selector.register(worker.death, selectors.EVENT_READ, worker)

    def listen(self, seconds: float) -> Iterator[tuple[ProcessHandle, tuple[Any, ...]]]:
        for key, _ in self.selector.select(seconds):
            worker: ProcessHandle = key.data
            heard = key.fd != worker.death  # something is there to be read
            try:
                while worker.state != "gone" and (heard or worker.channel.poll(0)):
                    heard = False
                    kind, *rest = worker.channel.recv()
                    worker.kept_for_reuse = kind == "stopped" and rest.pop() and not worker.unfit_for_reuse
                    yield worker, (kind, *rest)
            except (EOFError, OSError):
                yield worker, (WORKER_LOST,)
            if worker.state != "gone" and key.fd == worker.death:  # a child of its own may keep its channel open
                yield worker, (WORKER_LOST,)

    def remove_worker(self, worker: WorkerHandle) -> str:
        assert isinstance(worker, ProcessHandle)
        self.selector.unregister(worker.channel)
        if worker.death is not None:
            self.selector.unregister(worker.death)
        self.pools[worker.group].remove(worker)
        worker.close()
        if worker.kept_for_reuse:
            threads = thread_count(self.job.plan.groups[worker.group].resources.cpus)
            most = int(self.machine.cpus) + 1  # of a segment, one for each core, and one that gathers beside them
            self.zygote.keep_idle(worker.key, worker.channel, threads, most)
            return "rests"
        return _describe_exit(self.zygote.wait(worker.key))

    def close(self, useless: bool) -> None:
        if self.idle_zygotes is not None and self.job.plan.next_segment and not useless:
            self.idle_zygotes.append(self.zygote)
        else:
            self.zygote.close()
        self.selector.close()
        self.memory.remove()
        if useless:
            self.disk.remove()
        del self.disk  # from here on the results hold it


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        hint = ": was the machine out of memory?" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"
    return f"was killed by signal {-code}"
