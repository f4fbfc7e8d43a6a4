"""A cluster that does not exist: the real driver loop, books and policy, over workers in virtual time.

Only the workers, the nodes and the clock are not real: a worker is an entry in a list of events, and a call takes as
long as a random number says. Nodes are lost on the way with all that their workers do, some nodes are slow, and some
tasks take five times as long as others.

What is given up: streams and sharing within a call; what is lost with a node is only what its workers were doing.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gristmill import ProcessingStage, Resources, Task
from gristmill.core.executor import Job, Machine, SilentObserver
from gristmill.core.plan.planner import Group, Plan
from gristmill.core.records.quarantine import Quarantine
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.run import task_flow as flow_module
from gristmill.core.run.isolation import RowLocation
from gristmill.core.run.task_flow import WorkItem
from gristmill.core.task import Lineage
from gristmill.executors import driver, gpu_division, worker_pool
from gristmill.executors.driver import WORKER_LOST, Driver
from gristmill.executors.machine_resources import GpuSlot
from gristmill.executors.ray.cluster import ClusterGpuSlots, ClusterNode
from gristmill.executors.worker_pool import CallRequest, WorkerHandle, WorkerPool, max_workers

MB = 2**20
TRIP_S = 0.002
"""From the driver to a worker, and back."""

QUANTUM_S = 0.02
"""What happens within so many virtual seconds, the driver hears in one turn."""


@dataclass(frozen=True)
class Step:
    """A stage: what its workers need, and what a task takes and gives."""

    name: str
    resources: Resources
    seconds: float
    gives_bytes: int
    setup_s: float = 1.0


STEPS = (
    Step("decode", Resources(cpus=1), 6.0, 24 * MB),
    Step("embed", Resources(cpus=1, gpus=0.25), 16.0, 24 * MB, setup_s=20.0),
    Step("caption", Resources(cpus=1, gpus=1), 60.0, 16 * 2**10, setup_s=60.0),
    Step("write", Resources(cpus=1), 0.5, 100),
)


@dataclass(frozen=True)
class World:
    """What is simulated."""

    nodes: int = 1000
    cpus: int = 64
    gpus: int = 8
    seconds: float = 900.0
    """Of work, as far as the GPUs go."""
    losses: tuple[tuple[float, int], ...] = ((0.4, 5), (0.6, 20))
    """At which part of the time how many nodes disappear."""
    stragglers: float = 0.005
    slow_nodes: float = 0.01
    seed: int = 0
    changes_at: float = 1e9
    """At which part of the time stages become slower or faster, and by how much."""
    change: tuple[float, ...] = ()
    steps: tuple[Step, ...] = STEPS

    @property
    def tasks(self) -> int:
        each = sum(step.seconds * step.resources.gpus for step in self.steps)
        return int(self.nodes * self.gpus * self.seconds / each)


class Clock:
    """Stands in for the module `time` in the code that is simulated."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


@contextlib.contextmanager
def virtual_time() -> Iterator[Clock]:
    clock = Clock()
    modules: list[Any] = [driver, gpu_division, worker_pool, flow_module]
    try:
        for module in modules:
            module.time = clock
        yield clock
    finally:
        for module in modules:
            module.time = time


class Nothing:
    """The reference to a task that is not there."""

    def discard(self) -> None: ...


class VirtualStage(ProcessingStage[Task[Any], Task[Any]]):
    def process(self, task: Task[Any]) -> Task[Any]:
        return task


class VirtualWorker(WorkerHandle):
    most_calls = 2

    def __init__(self, driver: Simulation, group: int, key: int, slot: GpuSlot, node: str) -> None:
        super().__init__(group, False, key, slot)
        self.driver, self.node = driver, node
        self.free_at = driver.clock.now
        self.void: set[int] = set()

    def send_call(self, order: CallRequest) -> None:
        begins = max(self.driver.clock.now + TRIP_S, self.free_at)
        seconds = sum(self.driver.seconds(self, lineage) for lineage, _ in order.items)
        self.free_at = begins + seconds
        self.last = (begins, order)
        self.driver.at(self.free_at + TRIP_S, self, ("done", order, seconds))

    def recall(self) -> bool:
        begins, order = self.last
        if begins <= self.driver.clock.now:
            return False
        self.void.add(order.number)
        self.free_at = begins
        return True

    def acknowledge(self) -> None: ...

    def ask_to_share(self, count: int) -> None: ...

    def stop(self) -> None:
        if self.calls:
            self.kill()
        elif self.state != "leaving":
            self.state = "leaving"
            self.driver.at(self.driver.clock.now + TRIP_S, self, ("stopped", None))

    def kill(self) -> None:
        if self.state != "gone":
            self.driver.at(self.driver.clock.now, self, (WORKER_LOST,))

    def last_position(self) -> RowLocation | None:
        return None

    def current_stage(self) -> tuple[int, float]:
        return -1, 0.0


class VirtualPool(WorkerPool):
    def __init__(self, driver: Simulation, group: Group) -> None:
        super().__init__(group, driver.machine, driver.slots, driver.job)
        self.driver = driver

    def resize(self) -> None:
        self.limit = self.target = max_workers(self.group, self.driver.machine, self.slots)

    def start(self) -> None:
        slot = self.slots.take(self.group.resources)
        assert slot is not None
        key = next(self.driver.keys)
        nodes = self.driver.nodes
        node = self.driver.slots.gpu_nodes[slot.devices[0]] if slot.devices else nodes[key % len(nodes)].id
        worker = VirtualWorker(self.driver, self.index, key, slot, node)
        self.add_worker(worker)
        self.driver.at(self.driver.clock.now + self.driver.world.steps[self.index].setup_s, worker, ("ready", None))
        self.driver.decisions += 1


@dataclass
class Sample:
    """How things are at one moment."""

    at: float
    gpus: int
    used: float
    busy: list[int]
    waiting_bytes: list[int]


@dataclass
class Outcome:
    """What came of a simulation."""

    samples: list[Sample] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    """When each task was through all stages."""
    decisions: int = 0
    policy_cpu_s: float = 0.0
    cpu_s: float = 0.0
    seconds: float = 0.0
    lost_calls: int = 0
    most_bytes: list[int] = field(default_factory=list)

    @property
    def results(self) -> int:
        return len(self.ends)

    def utilisation(self, since: float, until: float) -> float:
        chosen = [sample for sample in self.samples if since <= sample.at <= until]
        return sum(sample.used for sample in chosen) / sum(sample.gpus for sample in chosen)


class Simulation(Driver):
    """The driver of a run on a cluster that does not exist."""

    slots: ClusterGpuSlots
    pools: Sequence[VirtualPool]

    def __init__(self, world: World, clock: Clock) -> None:
        self.world, self.clock, self.random = world, clock, random.Random(world.seed)
        self.events: list[tuple[float, int, VirtualWorker, tuple[Any, ...]]] = []
        self.keys, self.order = itertools.count(), itertools.count()
        self.nodes = [ClusterNode(f"{number}", world.cpus, world.gpus) for number in range(world.nodes)]
        self.slow = {node.id for node in self.nodes if self.random.random() < world.slow_nodes}
        groups = tuple(
            Group(index, (VirtualStage().with_(name=step.name, resources=step.resources),))
            for index, step in enumerate(world.steps)
        )
        job = Job(Plan("simulated", None, groups), self._sources(), SilentObserver(), Quarantine())
        super().__init__(job, self._machine())
        self.slots = ClusterGpuSlots(self.nodes, 80.0)
        self.pools = [VirtualPool(self, group) for group in groups]
        self.outcome = Outcome(most_bytes=[0] * len(groups))
        self.decisions = 0
        self.began = self.sampled = clock.now
        self.losses = [(self.began + part * world.seconds, count) for part, count in world.losses]

    def _machine(self) -> Machine:
        gpus = (80.0,) * sum(int(node.gpus) for node in self.nodes)
        return Machine(sum(node.cpus for node in self.nodes), None, gpus, len(self.nodes))

    def _sources(self) -> Iterator[list[Any]]:
        for number in range(self.world.tasks):
            name = f"{number}"
            yield [WorkItem(Lineage(name, name, (), number), [Nothing()], 1000)]

    def input_items(self, sources: Iterator[Sequence[Any]]) -> Iterator[list[WorkItem]]:
        return (list(items) for items in sources)

    def as_result(self, ref: Any) -> Any:
        return ref

    def seconds(self, worker: VirtualWorker, lineage: Lineage) -> float:
        """How long a task takes here: whatever the schedule, the same tasks straggle."""
        draw = random.Random(f"{self.world.seed} {worker.group} {lineage.id}")
        mean = self.world.steps[worker.group].seconds * (2.0 if worker.node in self.slow else 1.0)
        if self.clock.now - self.began > self.world.changes_at * self.world.seconds:
            mean *= self.world.change[worker.group]
        straggles = 5.0 if draw.random() < self.world.stragglers else 1.0
        return mean * straggles * draw.uniform(0.7, 1.3)

    # -- events ------------------------------------------------------------------------------------------

    def at(self, moment: float, worker: VirtualWorker, what: tuple[Any, ...]) -> None:
        heapq.heappush(self.events, (moment, next(self.order), worker, what))

    def listen(self, seconds: float) -> Iterator[tuple[WorkerHandle, tuple[Any, ...]]]:
        first = self.events[0][0] if self.events else self.clock.now + seconds
        until = min(max(first, self.clock.now) + QUANTUM_S, self.clock.now + seconds)
        while self.events and self.events[0][0] <= until:
            moment, _, worker, what = heapq.heappop(self.events)
            self.clock.now = max(self.clock.now, moment)
            if worker.state == "gone" or (what[0] == "done" and what[1].number in worker.void):
                continue
            yield worker, self._message(worker, what)
        self.clock.now = max(self.clock.now, until)
        if self.clock.now - self.began > 20 * self.world.seconds:
            raise RuntimeError("the run stands still: something that it waits for was dropped")
        self._sample()
        while self.losses and self.losses[0][0] <= self.clock.now:
            self._lose(self.losses.pop(0)[1])

    def _message(self, worker: VirtualWorker, what: tuple[Any, ...]) -> tuple[Any, ...]:
        if what[0] != "done":
            return what
        _, order, seconds = what
        size = self.world.steps[worker.group].gives_bytes
        outputs = [(lineage, Nothing(), size, 1) for lineage, _ in order.items]
        stats = [StageStats(len(order.items), len(outputs), seconds=seconds)]
        return "done", outputs, stats, []

    def _lose(self, count: int) -> None:
        """Some nodes disappear, and all that their workers did."""
        gone = {node.id for node in self.random.sample(self.nodes, count)}
        self.nodes = [node for node in self.nodes if node.id not in gone]
        self.slots.update(self.nodes)
        self.machine = self._machine()
        for pool_ in self.pools:
            pool_.resize()
            for worker in [worker for worker in pool_.workers if worker.node in gone]:
                self.outcome.lost_calls += len(worker.calls)
                worker.node_gone = True
                self._handle_lost_worker(worker)

    def remove_worker(self, worker: WorkerHandle) -> str:
        self.pools[worker.group].remove(worker)
        return "ended"

    def close(self, useless: bool) -> None: ...

    # -- what is measured --------------------------------------------------------------------------------

    def _send(self, pool: WorkerPool, workers: Sequence[WorkerHandle], ahead: bool = False) -> None:
        self.decisions += 1
        super()._send(pool, workers, ahead)

    def _dispatch(self) -> None:
        began = time.process_time()
        super()._dispatch()
        self.outcome.policy_cpu_s += time.process_time() - began
        for index in range(1, len(self.pools)):
            waiting = self.flow.downstream_bytes(index - 1)
            self.outcome.most_bytes[index] = max(self.outcome.most_bytes[index], waiting)

    def _sample(self) -> None:
        if self.clock.now - self.sampled < 1.0:
            return
        self.sampled = self.clock.now
        busy = [pool.count("busy", "full") for pool in self.pools]
        used = sum(count * pool.group.resources.gpus for count, pool in zip(busy, self.pools, strict=True))
        waiting = [self.flow.downstream_bytes(index - 1) if index else 0 for index in range(len(self.pools))]
        at = self.clock.now - self.began
        self.outcome.samples.append(Sample(at, len(self.machine.gpus), used, busy, waiting))


def simulate(world: World) -> Outcome:
    began = time.process_time()
    with virtual_time() as clock:
        driver = Simulation(world, clock)
        ends = [clock.now - driver.began for _, ref in driver.run() if ref is not None]
    return replace(
        driver.outcome,
        ends=ends,
        decisions=driver.decisions,
        seconds=clock.now - driver.began,
        cpu_s=time.process_time() - began,
    )


def drained(world: World, outcome: Outcome) -> float:
    """When nothing waited before the first GPU stage any more: from then on there is not enough work for all."""
    first = next(index for index, step in enumerate(world.steps) if step.resources.gpus)
    return max(sample.at for sample in outcome.samples if sample.waiting_bytes[first] > 0)
