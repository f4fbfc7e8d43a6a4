"""The guard process: runs one group of a plan in a separate process, inside an actor of another engine.

Ray Data and Xenna know nothing of records: a stage that crashes, hangs or runs out of memory ends their actor, and with
it the run. So their actors run no stage themselves. Each has one worker process, driven by the same loop as on one
machine (`driver.py`), which isolates failing records and quarantines them before the engine notices anything.

The engine may kill its actor at any time. The worker process then tears down by itself (`zygote.py`), and the driver
waits for it at the end of the run, on every node, to report errors of the teardown.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path

import cloudpickle

from gristmill.core.errors import StageError, WorkerLostError
from gristmill.core.executor import Job, Machine, SilentObserver
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.plan.planner import Group, Plan
from gristmill.core.records.quarantine import ErrorBudget, Quarantine, QuarantinedRecord
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.resources import Resources
from gristmill.core.run.task_flow import CallOutput, Flow, WorkItem
from gristmill.executors.local.local_executor import LocalDriver
from gristmill.executors.local.process_pool import ProcessHandle, ProcessPool
from gristmill.executors.local.zygote import teardown_error_files
from gristmill.executors.machine_resources import GpuSlot, GpuSlots
from gristmill.executors.worker_pool import WorkerPool

LINGER_SECONDS = 60.0
"""How long a worker may take to tear down after the engine has killed its actor."""

GRACE_SECONDS = 5.0
"""The same after a failure or Ctrl-C."""

_PROC = Path("/proc")


@fast_dataclass(frozen=True)
class GroupAssignment:
    """What the actors of one group need to know."""

    group: int
    payload: bytes
    """The pickled stages, and the recorder of what they drop."""
    leaves_engine: bool
    """Whether this is the engine's last group."""
    leaves_pipeline: bool
    """Whether this is the last group of the pipeline."""
    isolates: bool
    budget: ErrorBudget
    gpu_memory_gb: float | None = None


@fast_dataclass
class _QuarantineBuffer:
    """Holds quarantined records until the receipt takes them to the driver. Stands in for `Run`."""

    records: list[QuarantinedRecord] = field(default_factory=list)
    counts: dict[str, list[StageStats]] = field(default_factory=dict)
    """The counts of each source."""
    url = ""
    earlier_errors = (0, 0)
    resumes = True

    def add_quarantined(self, records: Sequence[QuarantinedRecord]) -> None:
        self.records.extend(records)

    def add_counts(self, source: str, group: int, stats: Sequence[StageStats]) -> None:
        known = self.counts.setdefault(source, [StageStats() for _ in stats])
        for total, more in zip(known, stats, strict=True):
            total.add(more)

    def quarantined(self) -> Iterator[QuarantinedRecord]:
        return iter(self.records)


class _SingleCallFlow(Flow):
    """The accounting of one call of the engine. Outputs are handed on as they come."""

    def __init__(self, plan: Plan, items: Sequence[WorkItem], quarantine: Quarantine) -> None:
        super().__init__(plan, iter([items]), quarantine)
        self.out: list[CallOutput] = []

    def _route(self, group: int, output: CallOutput) -> None:
        self.out.append(output)

    def _close(self, source: str, group: int) -> None: ...

    def take_out(self) -> list[CallOutput]:
        out, self.out = self.out, []
        return out


class _AllGpuSlots(GpuSlots):
    """Gives all GPUs of this actor to its worker."""

    def find(self, resources: Resources) -> GpuSlot:
        return GpuSlot(tuple(range(len(self.memory))))


class GuardDriver(LocalDriver):
    """Drives one worker process, which is kept from call to call."""

    grace = GRACE_SECONDS

    def __init__(self, assignment: GroupAssignment, node: str, gpus: int) -> None:
        stages, rejecter = cloudpickle.loads(assignment.payload)
        group = Group(0, tuple(stages))
        # a budget that is a fraction is one of all rows of the run, which only the driver knows
        budget = assignment.budget if assignment.budget.most is not None else ErrorBudget()
        self.quarantine_buffer = _QuarantineBuffer()
        self.quarantine = Quarantine(assignment.isolates, budget, self.quarantine_buffer)
        self.plan = Plan("guard", None, (group,))
        job = Job(self.plan, iter(()), SilentObserver(), self.quarantine)
        super().__init__(job, Machine(1.0, None, (assignment.gpu_memory_gb,) * gpus), LINGER_SECONDS)
        for folder in (
            self.memory,
            self.disk,
        ):  # when this actor exits, its worker may still write a teardown error there
            folder.remove.atexit = False
        pool = self.pools[0]
        assert isinstance(pool, ProcessPool)
        pool.payload, pool.limit, pool.target, pool.cpus = assignment.payload, 1, 1, 0.0
        pool.rejecter, pool.final, pool.folders = rejecter, assignment.leaves_pipeline, self.folders
        pool.node, pool.slots = node, _AllGpuSlots(self.machine.gpus)
        self.stats: list[StageStats] = []

    def begin(self, needs_node_setup: bool) -> None:
        """Start the worker and wait until it is set up. Raises if setup fails."""
        pool = self.pools[0]
        pool.needs_node_setup = needs_node_setup
        while not pool.idle:
            if not pool.workers:
                pool.start()
            self._listen()

    def run_call(self, items: Sequence[WorkItem]) -> Iterator[list[CallOutput]]:
        """Yield outputs as they come. Raises an error that must end the run."""
        self.quarantine_buffer.records.clear()
        self.quarantine_buffer.counts.clear()
        flow = self.flow = _SingleCallFlow(self.plan, items, self.quarantine)
        for _ in self.loop_turns():
            if out := flow.take_out():
                yield out
        self.stats, counts = flow.stats[0], self.quarantine_buffer.counts
        for position, stat in enumerate(self.stats if len(counts) > 1 else ()):
            stat.by_source = {source: stats[position] for source, stats in counts.items()}

    def take_quarantined(self) -> list[QuarantinedRecord]:
        records, self.quarantine_buffer.records = self.quarantine_buffer.records, []
        return records

    def stop_idle_workers(self, pool: WorkerPool) -> None:
        """Do nothing: there will be more calls."""

    def end(self) -> None:
        """Tear down and end. Errors of the teardown are left in a file, which `wait_for_local_guards` reads."""
        try:
            self._stop(raises=False)
        except Exception:
            self.close(discard_results=True)
            raise
        except BaseException:
            self._leave_worker_behind()
            raise
        self.close(discard_results=True)

    def close(self, discard_results: bool) -> None:
        if teardown_error_files(self.disk.path):
            self.disk.remove.detach()
        super().close(discard_results)

    def _leave_worker_behind(self) -> None:
        """Ray ends this actor. The worker goes on tearing down as long as the zygote is not closed."""
        for folder in (self.memory, self.disk):
            folder.remove.detach()
        for worker in self.pools[0].workers:
            assert isinstance(worker, ProcessHandle)
            worker.close()


# -- waiting until guards have exited -------------------------------------------------------------------


@fast_dataclass(frozen=True, slots=True)
class GuardProcess:
    """A guard on a node: the process that exits last, and its temporary folders."""

    node: str
    pid: int
    folders: tuple[str, ...]


def wait_for_all_guards(guard_processes: Sequence[GuardProcess], grace: float) -> StageError | None:
    """Wait for guards on all nodes. Returns an error of their teardown, if there is one."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    waiting = []
    for node in sorted({guard.node for guard in guard_processes} - {here}):
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        remote = ray.remote(wait_for_local_guards).options(num_cpus=0, scheduling_strategy=place, max_retries=0)
        waiting.append(remote.remote([guard for guard in guard_processes if guard.node == node], grace))
    problem = wait_for_local_guards([guard for guard in guard_processes if guard.node == here], grace)
    for ref in waiting:
        with contextlib.suppress(ray.exceptions.RayError):  # the node is gone, with its guards
            problem = ray.get(ref) or problem
    return problem


def wait_for_local_guards(guard_processes: Sequence[GuardProcess], grace: float) -> StageError | None:
    """Wait until the guards of this node have exited, and remove their folders."""
    deadline = time.monotonic() + grace
    problem: StageError | None = None
    for guard in guard_processes:
        while is_process_running(guard.pid):
            if time.monotonic() > deadline:
                reason = f"teardown took more than {grace:g} s and was stopped"
                if _has_workers(guard.pid):  # otherwise it was still starting, and had nothing to tear down
                    problem = WorkerLostError("(worker)", "(none left)", (), reason)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(guard.pid, signal.SIGKILL)
            time.sleep(0.01)
        for folder in guard.folders:
            for path in teardown_error_files(folder):
                problem = pickle.loads(path.read_bytes())
            shutil.rmtree(folder, ignore_errors=True)
    return problem


def _has_workers(pid: int) -> bool:
    try:
        return bool((_PROC / f"{pid}/task/{pid}/children").read_text().split())
    except OSError:
        return True


def is_process_running(pid: int) -> bool:
    """Whether a process runs. A zombie counts as exited where /proc shows it."""
    try:
        if not _PROC.exists():
            os.kill(pid, 0)
            return True
        return (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except PermissionError:  # it runs as another user
        return True
    except (OSError, IndexError):
        return False
