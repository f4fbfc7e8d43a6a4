"""RayActorPoolExecutor: streams a plan over actors of a Ray cluster.

The same loop as on one machine (`drive.py`): one pool of actors per group, work given to the pool nearest to the
output, bounded bytes between pools, records at fault isolated. Payloads stay in the object store; the driver passes
references, and prefers workers on the node that holds what they need.

Calls get cores, not actors: an actor reserves next to no CPU of Ray, and as many calls run at once on a node as it has
cores. So a plan with more pools than cores runs, and so do two pipelines on one cluster. GPUs are reserved.

What is given up: a node that disappears takes the tasks in its store with it, and the run stops; started again with
its `run_dir`, it goes on.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gristmill.core.errors import PlanError, ResourceError, StageError, did_you_mean, require
from gristmill.core.executor import Job, Ref
from gristmill.core.flow import Call, Item
from gristmill.core.isolate import Place
from gristmill.core.plan import Group, Plan
from gristmill.core.task import Lineage
from gristmill.executors.drive import LOST, Driver
from gristmill.executors.machine import GpuSlots, Machine, Slot
from gristmill.executors.pool import Order, Pool, WorkerHandle, pickled
from gristmill.executors.ray_cluster import cluster, connect
from gristmill.executors.ray_worker import Board, Message, RayWorker, Stored
from gristmill.executors.transport import Parcel, pack

OPTIONS = ("gpu_memory_gb", "runtime_env", "ray_init")
"""What `config` may hold."""

_ACTOR_CPUS = 0.001
_AHEAD = 8
"""How many messages and payloads an actor may be ahead of the driver; then it waits."""

_BOARD_SECONDS = 0.2
_keys = itertools.count()


class RayActorPoolExecutor:
    """Runs a pipeline on a Ray cluster: one that is there (`RAY_ADDRESS`, a `RayClient`), or one on this machine.

    `config`: `gpu_memory_gb` (of each GPU, for stages that ask for a share by memory), `runtime_env` for all stages,
    `ray_init` (arguments of `ray.init`, when no cluster is joined). `ignore_head_node` keeps workers off the head.
    """

    options: tuple[str, ...] = OPTIONS

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        ignore_head_node: bool = False,
        show_progress: bool = True,
        progress_interval: float = 10.0,
        fuse: bool = True,
    ) -> None:
        self.config, self.ignore_head_node, self.fuse = dict(config or {}), ignore_head_node, fuse
        self.show_progress, self.progress_interval = show_progress, progress_interval
        for key in self.config:
            if key not in self.options:
                raise PlanError(
                    f"{type(self).__name__} has no setting {key!r}.{did_you_mean(key, self.options)} "
                    f"There are: {', '.join(self.options)}"
                )

    def machine(self) -> Machine:
        """The cluster as one machine."""
        require("ray", "ray", type(self).__name__)
        connect(self.config.get("ray_init"))
        nodes = cluster(self.ignore_head_node)
        gpus = int(sum(node.gpus for node in nodes))
        return Machine(sum(node.cpus for node in nodes), None, (self.config.get("gpu_memory_gb"),) * gpus)

    def check(self, plan: Plan) -> None:
        machine = self.machine()
        nodes = cluster(self.ignore_head_node)
        for stage in plan.stages:
            wish = stage.resources
            if wish.requires_gpu and not GpuSlots(machine.gpus).fits(wish):
                raise ResourceError(
                    f"stage {stage.name!r} wants {wish}, and the cluster has {len(machine.gpus)} GPUs on {len(nodes)} "
                    "nodes: add nodes that have what it wants, or run it on the CPU with "
                    ".with_(resources=Resources(cpus=1))"
                )
            most = max((node.cpus for node in nodes), default=0)
            if wish.cpus > most:
                raise ResourceError(
                    f"stage {stage.name!r} wants {wish.cpus:g} CPUs in one place, and the largest of {len(nodes)} "
                    f"nodes has {most:g}: lower cpus, or add larger nodes"
                )

    def execute(self, job: Job) -> Iterator[tuple[Lineage, Ref | None]]:
        return RayDriver(job, self.machine(), self).run()


class Actor(WorkerHandle):
    """The driver's side of one actor."""

    def __init__(
        self, group: int, gather: bool, key: int, slot: Slot, actor: Any, notes: Callable[[], Mapping[int, Any]]
    ) -> None:
        super().__init__(group, gather, key, slot)
        self.actor, self.node = actor, ""
        self.notes = notes
        self.waits_for: Any = None
        """A reference, or a generator of references, for what it says next."""
        self.hears: Callable[[], Iterator[tuple[Any, ...]]] = lambda: iter(())
        self.tail: Any = None

    def begin(self, on_node: bool) -> None:
        self.waits_for = self.actor.begin.remote(on_node)
        self.hears = self._hear_begin

    def _hear_begin(self) -> Iterator[tuple[Any, ...]]:
        import ray

        error, self.node = ray.get(self.waits_for)
        self.waits_for = None
        yield "ready", error

    def order(self, order: Order) -> None:
        if order.streams:
            options = {"num_returns": "streaming", "_generator_backpressure_num_objects": _AHEAD}
            self.waits_for = self.actor.stream.options(**options).remote(order)
            self.hears = self._hear_stream
        else:
            self.waits_for, self.tail = self.actor.once.options(num_returns=2).remote(order)
            self.hears = self._hear_once

    def _hear_once(self) -> Iterator[tuple[Any, ...]]:
        import ray

        message: Message = ray.get(self.waits_for)
        self.waits_for = None
        yield self._said(message, self.tail)

    def _hear_stream(self) -> Iterator[tuple[Any, ...]]:
        import ray

        message: Message = ray.get(next(self.waits_for))
        large = next(self.waits_for)
        if message.kind != "out":
            self.waits_for = None
        yield self._said(message, large)

    def _said(self, message: Message, large: Any) -> tuple[Any, ...]:
        """A message as the driver takes it, with references in place of what lies in the object store."""
        if message.kind == "failed":
            return "failed", message.error, message.aside
        outputs = [
            (lineage, what if isinstance(what, Parcel) else Stored([large], what, nbytes, self.node), nbytes, position)
            for lineage, what, nbytes, position in message.outputs
        ]
        return message.kind, outputs, message.stats, message.aside

    def acknowledge(self) -> None:
        self.owed = 0

    def ask_to_share(self, count: int) -> None: ...

    def stop(self) -> None:
        if self.state == "busy":
            self.kill()
            return
        self.state = "leaving"
        if self.waits_for is None:
            self.waits_for = self.actor.end.remote()
            self.hears = self._hear_end

    def _hear_end(self) -> Iterator[tuple[Any, ...]]:
        import ray

        problem: StageError | None = ray.get(self.waits_for)
        self.waits_for = None
        yield "stopped", problem

    def kill(self) -> None:
        import ray

        ray.kill(self.actor)

    def place(self) -> Place | None:
        found = self.notes().get(self.key)
        return found[0] if found else None

    def doing(self) -> tuple[int, float]:
        found = self.notes().get(self.key)
        return (found[0].position, found[1]) if found else (-1, 0.0)


class ActorPool(Pool):
    """Starts actors."""

    def __init__(self, driver: RayDriver, group: Group, final: bool) -> None:
        super().__init__(group, driver.machine, driver.slots, driver.job)
        self.driver, self.final = driver, final
        self.stored: Any = None

    def start(self) -> None:
        import ray

        if self.stored is None:
            self.stored = ray.put(pickled(self.group, self.rejecter))  # sent once per node, not once per actor
        slot = self.slots.take(self.group.resources)
        assert slot is not None
        key = next(_keys)
        made = ray.remote(RayWorker).options(**self._options(slot))
        actor = made.remote(self.stored, key, self.budget, self.final, self.driver.board, self.group.resources.cpus)
        worker = Actor(self.index, self.group.gather, key, slot, actor, self.driver.notes)
        worker.begin(self.on_node)
        self.workers.append(worker)

    def _options(self, slot: Slot) -> dict[str, Any]:
        env = {**(self.driver.executor.config.get("runtime_env") or {}), **(self.group.stages[0].runtime_env or {})}
        options: dict[str, Any] = {"num_cpus": _ACTOR_CPUS, "max_restarts": 0, "runtime_env": env or None}
        if slot.devices:
            return {**options, "num_gpus": len(slot.devices) if slot.share >= 1 else slot.share}
        return {**options, "scheduling_strategy": self.driver.emptiest_node()}


class RayDriver(Driver):
    """Workers are actors."""

    board_class: type = Board

    def __init__(self, job: Job, machine: Machine, executor: RayActorPoolExecutor) -> None:
        import ray

        self.executor = executor
        super().__init__(job, machine)
        self.board: Any = ray.remote(self.board_class).options(num_cpus=0).remote()
        self._notes: Mapping[int, Any] = {}
        self._noted = 0.0
        last = len(job.plan.way) - 1
        self.pools = [ActorPool(self, group, group.index == last) for group in job.plan.groups]

    def items(self, sources: Iterator[Sequence[Any]]) -> Iterator[list[Item]]:
        import ray

        for tasks in sources:
            items = []
            for task in tasks:
                small = task.nbytes <= 2**16
                ref: Any = pack(task, None) if small else Stored([ray.put([task])], 0, task.nbytes)
                items.append(Item(task.lineage, [ref], ref.nbytes))
            yield items

    def keep(self, ref: Any) -> Ref:
        return _KeptParcel(ref) if isinstance(ref, Parcel) else ref

    def emptiest_node(self) -> Any:
        """Where the next actor goes: the node with the most cores per actor."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = cluster(self.executor.ignore_head_node)
        taken = Counter(worker.node for pool in self.pools for worker in pool.workers if isinstance(worker, Actor))
        best = min(nodes, key=lambda node: (taken[node.id] + 1) / max(node.cpus, 0.001))
        return NodeAffinitySchedulingStrategy(best.id, soft=True)

    def nearest(self, idle: Sequence[WorkerHandle], call: Call) -> WorkerHandle:
        node = getattr(call.items[0].refs[0], "node", "")
        return next((worker for worker in idle if isinstance(worker, Actor) and worker.node == node), idle[0])

    def notes(self) -> Mapping[int, Any]:
        """What is on the board; it is read a few times a second."""
        import ray

        if time.monotonic() - self._noted > _BOARD_SECONDS:
            self._notes = ray.get(self.board.read.remote())
            self._noted = time.monotonic()
        return self._notes

    def listen(self, seconds: float) -> Iterator[tuple[WorkerHandle, tuple[Any, ...]]]:
        import ray

        waiting = {
            worker.waits_for: worker
            for pool in self.pools
            for worker in pool.workers
            if isinstance(worker, Actor) and worker.waits_for is not None and worker.owed < 64 * 2**20
        }
        for one in self.ready(list(waiting), seconds):
            worker = waiting[one]
            try:
                messages = list(worker.hears())
            except ray.exceptions.RayActorError:
                self._noted = 0.0
                yield worker, (LOST,)
                continue
            for message in messages:
                yield worker, message

    def ready(self, refs: list[Any], seconds: float) -> list[Any]:
        """Those of the references that are there within some time."""
        import ray

        if not refs:
            time.sleep(seconds)
            return []
        ready, _ = ray.wait(refs, num_returns=1, timeout=seconds, fetch_local=False)
        if ready:
            more, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
            ready = more or ready
        return ready

    def see_off(self, worker: WorkerHandle) -> str:
        self.pools[worker.group].remove(worker)
        worker.kill()
        return "ended: it was killed, crashed or ran out of memory"

    def close(self, useless: bool) -> None:
        import ray

        ray.kill(self.board)


class _KeptParcel:
    """A small result, held by the driver."""

    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel

    def load(self) -> Any:
        return self.parcel.load()

    def release(self) -> None: ...
