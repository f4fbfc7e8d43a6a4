"""LocalExecutor: streams a plan over worker processes of this machine. The default of `Pipeline.run`.

One pool of processes per group. Cores are assigned to calls, not to pools: a pool may have as many workers as there are
cores, but only as many calls run at the same time as there are cores, and the pool nearest to the output goes first
(`core/run/schedule.py`). So thirty groups can run on two cores, and the cores are always where the work is.
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
from gristmill.core.plan.adapt_to_executor import fuse_commits
from gristmill.core.plan.planner import Plan
from gristmill.core.run.task_flow import WorkItem
from gristmill.core.task import Lineage
from gristmill.executors.driver import WORKER_LOST, Driver
from gristmill.executors.local.inline_pool import run_inline
from gristmill.executors.local.process_pool import ProcessHandle, ProcessPool
from gristmill.executors.local.task_transport import (
    PackedTask,
    StoredResult,
    TemporaryFolder,
    pack_task,
    shared_memory_folder,
)
from gristmill.executors.local.worker_process import CHANNEL_CLOSED, thread_count
from gristmill.executors.local.zygote import Zygote
from gristmill.executors.machine_resources import GpuSlots, this_machine
from gristmill.executors.setting_checks import COUNT, FLAG, GPUS, check_setting
from gristmill.executors.worker_pool import WorkerHandle


class LocalExecutor(Executor):
    """Runs a pipeline on this machine.

    `num_workers`: how many calls run at the same time; one per core by default, 0 runs everything in this process.
    `gpus`: how many GPUs there are, or the memory of each in GB; detected by default.
    `fuse`: False gives every stage its own pool. `execution_mode`: "streaming", or "batch", where each pool starts
    when those before it have finished; tasks wait in shared memory, and on disk when that is full.
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
    """Refuse a plan that can never run on this machine."""
    for stage in plan.stages:
        resources = stage.resources
        if resources.requires_gpu and not GpuSlots(machine.gpus).fits(resources):
            have = f"{len(machine.gpus)} GPUs" if machine.gpus else "no GPU"
            raise ResourceError(
                f"stage {stage.name!r} needs {resources}, but this machine has {have}. Run it on the CPU with "
                ".with_(resources=Resources(cpus=1)), or on a cluster that has the resources"
            )
        if machine.memory_gb and resources.memory_gb > machine.memory_gb:
            raise ResourceError(
                f"stage {stage.name!r} needs {resources.memory_gb:g} GB of memory, but this machine has "
                f"{machine.memory_gb:.0f} GB: lower memory_gb, or use a larger machine"
            )
        if unknown := set(stage.runtime_env or ()) - {"env_vars"}:
            raise ResourceError(
                f"stage {stage.name!r} has runtime_env {', '.join(sorted(unknown))}, but LocalExecutor only supports "
                "env_vars. Install the packages here and drop the runtime_env, or use a Ray executor"
            )


class LocalDriver(Driver):
    """Drives worker processes, which a zygote forks, through pipes."""

    def __init__(
        self, job: Job, machine: Machine, linger: float = 0.0, idle_zygotes: list[Zygote] | None = None
    ) -> None:
        """`idle_zygotes` keeps the zygote between the segments of a run, because it is slow to start."""
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
            packed_tasks = [(task.lineage, pack_task(task, self.folders)) for task in tasks]
            yield [WorkItem(lineage, [packed], packed.nbytes) for lineage, packed in packed_tasks]

    def as_result(self, ref: PackedTask) -> TaskRef:
        return StoredResult(ref, self.disk)

    def _register(self, worker: ProcessHandle) -> None:
        self.selector.register(worker.channel, selectors.EVENT_READ, worker)
        if worker.death is not None:
            self.selector.register(worker.death, selectors.EVENT_READ, worker)

    def listen(self, seconds: float) -> Iterator[tuple[ProcessHandle, tuple[Any, ...]]]:
        for key, _ in self.selector.select(seconds):
            worker: ProcessHandle = key.data
            readable = key.fd != worker.death
            try:
                while worker.state != "gone" and (readable or worker.channel.poll(0)):
                    readable = False
                    kind, *rest = worker.channel.recv()
                    worker.kept_for_reuse = kind == "stopped" and rest.pop() and not worker.unfit_for_reuse
                    yield worker, (kind, *rest)
            except (EOFError, OSError):
                worker.note_closed_channel()
                yield worker, (WORKER_LOST,)
            if worker.state != "gone" and key.fd == worker.death:  # a child process may keep its channel open
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
            limit = int(self.machine.cpus) + 1  # one for each core, and one that gathers
            self.zygote.keep_idle(worker.key, worker.channel, threads, limit)
            return "is idle"
        code = self.zygote.wait(worker.key)
        return _describe_exit(CHANNEL_CLOSED if worker.closed_channel else code)

    def close(self, discard_results: bool) -> None:
        if self.idle_zygotes is not None and self.job.plan.next_segment and not discard_results:
            self.idle_zygotes.append(self.zygote)
        else:
            self.zygote.close()
        self.selector.close()
        self.memory.remove()
        if discard_results:
            self.disk.remove()
        del self.disk  # from here on only results keep the folder alive


def _describe_exit(code: int) -> str:
    if code == CHANNEL_CLOSED:
        return "was stopped, because the stage closed file descriptors that it had not opened"
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        hint = ": was the machine out of memory?" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"
    return f"was killed by signal {-code}"
