"""The guard: runs one group of a plan in a process of its own, inside an actor of another engine.

Engines such as Ray Data and Xenna know nothing of records: a stage that crashes, hangs or takes all memory ends their
actor, and with it the run. So their actors run no stage. Each keeps one worker process, with the same loop, books and
isolation as on one machine (`driver.py`), and what is at fault is found and set aside before the engine hears of it.

The engine may kill its actor whenever it likes. The worker process then tears down by itself (`zygote.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

import cloudpickle

from gristmill.core.executor import Job, Machine, SilentObserver
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.plan.planner import Group, Plan
from gristmill.core.records.quarantine import ErrorBudget, Quarantine, QuarantinedRecord
from gristmill.core.resources import Resources
from gristmill.core.run.flow import CallOutput, Flow, WorkItem
from gristmill.core.run.stage_stats import StageStats
from gristmill.executors.local.local_executor import LocalDriver
from gristmill.executors.local.process_pool import ProcessHandle, ProcessPool
from gristmill.executors.local.zygote import teardown_error_files
from gristmill.executors.machine import GpuSlot, GpuSlots
from gristmill.executors.worker_pool import WorkerPool

LINGER_SECONDS = 60.0
"""Seconds that a worker has to tear down after the engine has killed its actor."""

GRACE_SECONDS = 5.0
"""Seconds that it has after a failure or Ctrl-C."""


@fast_dataclass(frozen=True)
class GroupAssignment:
    """What the actors of one group need to know."""

    group: int
    payload: bytes
    """The stages, and what writes down what they drop."""
    leaves_engine: bool
    """Whether what comes out leaves the engine."""
    leaves_pipeline: bool
    """Whether what comes out leaves the pipeline."""
    isolates: bool
    budget: ErrorBudget
    gpu_memory_gb: float | None = None


@fast_dataclass
class _QuarantineBuffer:
    """Holds what was set aside until the driver writes it down."""

    records: list[QuarantinedRecord] = field(default_factory=list)
    url = ""
    earlier_errors = (0, 0)

    def add_quarantined(self, records: Sequence[QuarantinedRecord]) -> None:
        self.records.extend(records)

    def add_rows_read(self, source: str, rows: int) -> None: ...

    def quarantined(self) -> Iterator[QuarantinedRecord]:
        return iter(self.records)


class _SingleCallFlow(Flow):
    """The books of one call of the engine: what comes out is handed on as it comes."""

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
    """Whatever the engine has given to this actor is the worker's."""

    def find(self, wish: Resources) -> GpuSlot:
        return GpuSlot(tuple(range(len(self.memory))))


class GuardDriver(LocalDriver):
    """One worker process, kept from call to call."""

    grace = GRACE_SECONDS

    def __init__(self, assignment: GroupAssignment, node: str, gpus: int) -> None:
        stages, rejecter = cloudpickle.loads(assignment.payload)
        group = Group(0, tuple(stages))
        budget = (
            assignment.budget if assignment.budget.most is not None else ErrorBudget()
        )  # a share is one of all rows of the run
        self.quarantine_buffer = _QuarantineBuffer()
        self.quarantine = Quarantine(assignment.isolates, budget, self.quarantine_buffer)
        self.plan = Plan("guard", None, (group,))
        job = Job(self.plan, iter(()), SilentObserver(), self.quarantine)
        super().__init__(job, Machine(1.0, None, (assignment.gpu_memory_gb,) * gpus), LINGER_SECONDS)
        for folder in (self.memory, self.disk):  # when this actor exits, its worker has last words to leave there
            folder.remove.atexit = False
        pool = self.pools[0]
        assert isinstance(pool, ProcessPool)
        pool.payload, pool.limit, pool.target, pool.cpus = assignment.payload, 1, 1, 0.0
        pool.rejecter, pool.final, pool.folders = rejecter, assignment.leaves_pipeline, self.folders
        pool.node, pool.slots = node, _AllGpuSlots(self.machine.gpus)
        self.stats: list[StageStats] = []

    def begin(self, needs_node_setup: bool) -> None:
        """Start the worker, which may have to set up the node, and wait for it. Raises when it cannot be set up."""
        pool = self.pools[0]
        pool.needs_node_setup = needs_node_setup
        while not pool.idle:
            if not pool.workers:
                pool.start()
            self._listen()

    def run_call(self, items: Sequence[WorkItem]) -> Iterator[list[CallOutput]]:
        """What comes out, as it comes. Raises what must end the run."""
        self.quarantine_buffer.records.clear()
        flow = self.flow = _SingleCallFlow(self.plan, items, self.quarantine)
        for _ in self.loop_turns():
            if out := flow.take_out():
                yield out
        self.stats = flow.stats[0]

    def take_quarantined(self) -> list[QuarantinedRecord]:
        aside, self.quarantine_buffer.records = self.quarantine_buffer.records, []
        return aside

    def stop_idle_workers(self, pool: WorkerPool) -> None:
        """There will be more calls."""

    def end(self) -> None:
        """Tear down and end. `see_off` tells what goes wrong in a teardown: it finds the worker's last words."""
        try:
            self._stop(raises=False)
        except Exception:
            self.close(useless=True)
            raise
        except BaseException:
            self._leave_worker_behind()
            raise
        self.close(useless=True)

    def close(self, useless: bool) -> None:
        if teardown_error_files(self.disk.path):
            self.disk.remove.detach()
        super().close(useless)

    def _leave_worker_behind(self) -> None:
        """Ray ends this actor. The worker goes on tearing down, unless the zygote is closed."""
        for folder in (self.memory, self.disk):
            folder.remove.detach()
        for worker in self.pools[0].workers:
            assert isinstance(worker, ProcessHandle)
            worker.close()
