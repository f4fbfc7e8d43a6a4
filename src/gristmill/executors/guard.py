"""The guard: runs one group of a plan in a process of its own, inside an actor of another engine.

Engines such as Ray Data and Xenna know nothing of records: a stage that crashes, hangs or takes all memory ends their
actor, and with it the run. So their actors run no stage. Each keeps one worker process, with the same loop, books and
isolation as on one machine (`drive.py`), and what is at fault is found and set aside before the engine hears of it.

The engine may kill its actor whenever it likes. The worker process then tears down by itself (`zygote.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

import cloudpickle

from gristmill.core.executor import Job, Silent
from gristmill.core.flow import Flow, Item, Output
from gristmill.core.plan import Group, Plan
from gristmill.core.quarantine import Budget, Quarantine, SetAside
from gristmill.core.record import record
from gristmill.core.resources import Resources
from gristmill.core.stats import StageStats
from gristmill.executors.local import LocalDriver
from gristmill.executors.machine import GpuSlots, Machine, Slot
from gristmill.executors.pool import Pool
from gristmill.executors.process_pool import Process, ProcessPool
from gristmill.executors.zygote import last_words

LINGER = 60.0
"""Seconds that a worker has to tear down after the engine has killed its actor."""

GRACE = 5.0
"""Seconds that it has after a failure or Ctrl-C."""


@record(frozen=True)
class Duty:
    """What the actors of one group need to know."""

    group: int
    payload: bytes
    """The stages, and what writes down what they drop."""
    last: bool
    """Whether what comes out leaves the engine."""
    final: bool
    """Whether what comes out leaves the pipeline."""
    isolates: bool
    budget: Budget
    gpu_memory_gb: float | None = None


@record
class _Keeper:
    """Holds what was set aside until the driver writes it down."""

    records: list[SetAside] = field(default_factory=list)
    place = ""
    spent = (0, 0)

    def keep(self, records: Sequence[SetAside]) -> None:
        self.records.extend(records)

    def saw(self, source: str, rows: int) -> None: ...

    def quarantined(self) -> Iterator[SetAside]:
        return iter(self.records)


class _OneCall(Flow):
    """The books of one call of the engine: what comes out is handed on as it comes."""

    def __init__(self, plan: Plan, items: Sequence[Item], quarantine: Quarantine) -> None:
        super().__init__(plan, iter([items]), quarantine)
        self.out: list[Output] = []

    def _route(self, group: int, output: Output) -> None:
        self.out.append(output)

    def _close(self, source: str, group: int) -> None: ...

    def take_out(self) -> list[Output]:
        out, self.out = self.out, []
        return out


class _AllGpus(GpuSlots):
    """Whatever the engine has given to this actor is the worker's."""

    def find(self, wish: Resources) -> Slot:
        return Slot(tuple(range(len(self.memory))))


class Guard(LocalDriver):
    """One worker process, kept from call to call."""

    grace = GRACE

    def __init__(self, duty: Duty, node: str, gpus: int) -> None:
        stages, rejecter = cloudpickle.loads(duty.payload)
        group = Group(0, tuple(stages))
        budget = duty.budget if duty.budget.most is not None else Budget()  # a share is one of all rows of the run
        self.keeper = _Keeper()
        self.quarantine = Quarantine(duty.isolates, budget, self.keeper)
        self.plan = Plan("guard", None, (group,))
        job = Job(self.plan, iter(()), Silent(), self.quarantine)
        super().__init__(job, Machine(1.0, None, (duty.gpu_memory_gb,) * gpus), LINGER)
        for folder in (self.memory, self.disk):  # when this actor exits, its worker has last words to leave there
            folder.remove.atexit = False
        pool = self.pools[0]
        assert isinstance(pool, ProcessPool)
        pool.payload, pool.limit, pool.target, pool.cpus = duty.payload, 1, 1, 0.0
        pool.rejecter, pool.final, pool.folders = rejecter, duty.final, self.folders
        pool.node, pool.slots = node, _AllGpus(self.machine.gpus)
        self.stats: list[StageStats] = []

    def begin(self, on_node: bool) -> None:
        """Start the worker, which may have to set up the node, and wait for it. Raises when it cannot be set up."""
        pool = self.pools[0]
        pool.on_node = on_node
        while not pool.idle:
            if not pool.workers:
                pool.start()
            self._listen()

    def pass_through(self, items: Sequence[Item]) -> Iterator[list[Output]]:
        """What comes out, as it comes. Raises what must end the run."""
        self.keeper.records.clear()
        flow = self.flow = _OneCall(self.plan, items, self.quarantine)
        for _ in self.turns():
            if out := flow.take_out():
                yield out
        self.stats = flow.stats[0]

    def take_aside(self) -> list[SetAside]:
        aside, self.keeper.records = self.keeper.records, []
        return aside

    def dismiss(self, pool: Pool) -> None:
        """There will be more calls."""

    def end(self) -> None:
        """Tear down and end. `see_off` tells what goes wrong in a teardown: it finds the worker's last words."""
        try:
            self._stop(raises=False)
        except Exception:
            self.close(useless=True)
            raise
        except BaseException:
            self._abandon()
            raise
        self.close(useless=True)

    def close(self, useless: bool) -> None:
        if last_words(self.disk.path):
            self.disk.remove.detach()
        super().close(useless)

    def _abandon(self) -> None:
        """Ray ends this actor. The worker goes on tearing down, unless the zygote is closed."""
        for folder in (self.memory, self.disk):
            folder.remove.detach()
        for worker in self.pools[0].workers:
            assert isinstance(worker, Process)
            worker.close()
