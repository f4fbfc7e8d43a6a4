"""Runs whose first groups another engine schedules: the base of RayDataExecutor and XennaExecutor, and their driver.

The engine gets the groups before the first that gathers, and all tasks that enter them. It decides when and where each
task runs, and passes rows from group to group. The accounting stays here: every call of the engine posts a receipt
(`driver_channel.py`).

Tasks that went through one call together form a delivery. Nothing of a delivery counts until it is complete: every task
that went in, and everything made of it up to the engine's last group, has a receipt. So tasks count exactly once,
whatever the engine repeats or loses. When the engine has ended or failed, or the coordinator was killed, incomplete
deliveries are done again by our own actors, which also gather and commit.

A segment after an exchange with no more tasks than cores runs on our own actors too: starting the engine would take
longer, and it would have nothing to schedule.

What is given up: all tasks that enter are listed before the engine starts.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import Any

from gristmill.core.errors import ErrorBudgetError, GristmillError, ResourceError, StageError
from gristmill.core.executor import Job, Machine, TaskRef
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.plan.adapt_to_executor import merge_groups_to_fit
from gristmill.core.plan.planner import Group, Plan
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.run.lost_tasks import ancestor_ids
from gristmill.core.run.task_flow import CallOutput, WorkerCall
from gristmill.core.task import Lineage
from gristmill.executors.engines.driver_channel import CallReceipt, CoordinatorUpdate, EngineCoordinator, ResultOwner
from gristmill.executors.engines.guard_process import (
    GRACE_SECONDS,
    LINGER_SECONDS,
    GroupAssignment,
    GuardProcess,
    wait_for_all_guards,
)
from gristmill.executors.engines.task_serialisation import serialise_task
from gristmill.executors.local.task_transport import PackedTask
from gristmill.executors.ray.actor_pool_executor import RayActorPoolExecutor, RayDriver
from gristmill.executors.ray.cluster import cluster_nodes
from gristmill.executors.ray.control_actor import ControlState
from gristmill.executors.ray.worker_actor import StoredTask
from gristmill.executors.worker_pool import WorkerPool, pickle_group

_UPDATE_SECONDS = 1.0
_RETRY_SECONDS = 0.1


@fast_dataclass(frozen=True)
class EngineJob:
    """What an engine has to run: the assignment and needs of each group, and the tasks that enter the first one."""

    assignments: list[GroupAssignment]
    serialised_tasks: list[bytes]
    resources: list[Any]
    """Resources of each group."""
    num_workers: list[int | None]
    batch_sizes: list[int]
    environments: list[dict[str, Any]]
    cpus: float
    nodes: list[str] | None = None
    """The nodes that workers may run on; None for all."""


def groups_for_engine(plan: Plan) -> list[Group]:
    """The groups that an engine gets: those before the first that gathers, without a user's own source."""
    groups = itertools.takewhile(lambda group: not group.gather, plan.main_groups)
    return [group for group in groups if group.index or not plan.tasks_are_sources]


def tasks_per_call(engine_job: EngineJob, group: int = 0) -> int:
    """How many tasks make one call: enough calls for all workers, but not one for every tiny task."""
    most = max(64, int(16 * engine_job.cpus))
    batch = engine_job.batch_sizes[group]
    each = -(-len(engine_job.serialised_tasks) // most)
    return -(-each // batch) * batch


class EngineActor:
    """Runs an engine in a separate process. Killing it ends everything that the engine has started."""

    def run_engine(self, executor: EngineExecutor, engine_job: EngineJob, coordinator: Any) -> None:
        executor.run_engine(engine_job, coordinator)


class EngineExecutor(RayActorPoolExecutor):
    """An executor that hands scheduling to another engine."""

    engine_name = ""
    config_keys = tuple(key for key in RayActorPoolExecutor.config_keys if not key.startswith("reserved_"))
    needs_all_groups = True
    """Whether the engine needs a worker of every group at the same time."""

    def worker_nodes(self) -> list[str] | None:
        """The nodes that workers may run on; None for all."""
        return [node.id for node in cluster_nodes(True)] if self.ignore_head_node else None

    def available_cpus(self) -> float:
        """The cores that workers may use, including those requested from the autoscaler."""
        return max(self.machine().cpus, self.config.get("request_cpus") or 0.0)

    def arrange(self, plan: Plan) -> Plan:
        """Merge groups until there are enough cores for one worker of each."""
        most = max((node.memory_gb for node in self.nodes()), default=0.0) or math.inf
        return (
            merge_groups_to_fit(plan, groups_for_engine(plan), self.available_cpus(), most)
            if self.needs_all_groups and self.fuse
            else plan
        )

    def check(self, plan: Plan) -> None:
        super().check(plan)
        wanted = sum(group.resources.gpu_share(self.config.get("gpu_memory_gb")) for group in groups_for_engine(plan))
        available = len(self.machine().gpus)
        if wanted > available + 1e-9 and self.needs_all_groups:
            raise ResourceError(
                f"{self.engine_name} needs a worker of every group at the same time, which takes {wanted:g} GPUs; the "
                f"cluster has {available}. Lower gpus, or use RayActorPoolExecutor, whose groups take turns"
            )

    @abstractmethod
    def run_engine(self, engine_job: EngineJob, coordinator: Any) -> None:
        """Run the engine. Called in an actor, on a copy of the executor."""

    def execute(self, job: Job) -> Iterator[tuple[Lineage, TaskRef | None]]:
        return EngineDriver(job, self.machine(), self).run()


DeliveryKey = tuple[int, int, str]
"""A task that enters a group: the group, the number of the delivery in its row, its id."""


@fast_dataclass
class Delivery:
    """Tasks that went through calls together, and the receipts for them so far."""

    inputs: list[int]
    expected: set[DeliveryKey]
    unexpected: set[DeliveryKey] = field(default_factory=set)
    """Received before the receipt that announces them."""
    received: set[DeliveryKey] = field(default_factory=set)
    receipts: list[CallReceipt] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not self.expected and not self.unexpected

    def merge(self, other: Delivery) -> None:
        self.inputs += other.inputs
        self.expected |= other.expected
        self.unexpected |= other.unexpected
        self.received |= other.received
        self.receipts += other.receipts

    def add_receipt(self, receipt: CallReceipt, next_group: int | None) -> None:
        """Add a receipt. Its outputs enter `next_group`, unless they leave the engine (None)."""
        entered = {(receipt.group, *item) for item in receipt.inputs}
        if entered <= self.received:  # the engine has repeated a call
            return
        if entered & self.received:  # it has repeated a part of a call: this delivery can never be complete
            self.unexpected.add((-1, -1, ""))
        self.receipts.append(receipt)
        self.received |= entered
        self.unexpected |= entered - self.expected
        self.expected -= entered
        if next_group is not None:
            delivery = receipt.inputs[0][0]
            handed_on = {(next_group, delivery, out[0].id) for out in receipt.outputs if out[1] is None}
            self.expected |= handed_on - self.received
            self.unexpected -= handed_on


class EngineDriver(RayDriver):
    """Feeds an engine, accounts for what it does, and runs the remaining work on actors."""

    executor: EngineExecutor
    control_actor_class = EngineCoordinator
    engine_started = False

    def __init__(self, job: Job, machine: Machine, executor: EngineExecutor) -> None:
        super().__init__(job, machine, executor)
        self.name = executor.engine_name
        groups = [group.index for group in groups_for_engine(job.plan)]
        self.engine_groups = range(groups[0], groups[-1] + 1) if groups else range(0)
        self.state = "listing" if self.engine_groups else "over"
        self.submitted_calls: dict[int, WorkerCall] = {}
        self.deliveries: dict[int, Delivery] = {}
        self.receipts_received = 0
        self.teardown_error: StageError | None = None
        """An error of the teardown of the engine's workers."""
        self.guard_processes: list[GuardProcess] = []
        self.result_owners: list[Any] = []
        self.coordinator: Any = None
        """The coordinator that the engine knows. Our own actors may have a successor by now."""
        self.engine_actor: Any = None
        self.engine_run: Any = None
        self.pending_update: Any = None

    # -- giving work to the engine -------------------------------------------------------------------------

    def _wanted_queue_length(self) -> int:
        return 10**9 if self.state == "listing" else super()._wanted_queue_length()

    def may_begin(self, pool: WorkerPool) -> bool:
        """Our own actors run the engine's groups only after it has ended."""
        return super().may_begin(pool) and (self.state == "over" or pool.index not in self.engine_groups)

    def _dispatch(self) -> None:
        if self.state == "listing":
            self._submit_inputs()
        super()._dispatch()

    def _submit_inputs(self) -> None:
        first = self.engine_groups.start
        while self.flow.pools[first].queue:
            call = self.flow.next_call(first, 1)
            number = len(self.submitted_calls)
            self.submitted_calls[number] = call
            self.deliveries[number] = Delivery([number], {(first, number, call.items[0].lineage.id)})
        if self.flow.is_over(first - 1) if first else self.flow.listing_done:
            self._start() if self._engine_pays_off else self._return_work_to_actors()

    @property
    def _engine_pays_off(self) -> bool:
        """Whether to start the engine. It takes seconds, and after an exchange there are often no more tasks than
        cores, so that there is nothing to schedule."""
        few = bool(self.job.plan.number) and len(self.submitted_calls) <= self.machine.cpus
        return bool(self.submitted_calls) and not few

    def _start(self) -> None:
        items = {number: call.items[0] for number, call in self.submitted_calls.items()}
        large = {number: item.refs[0] for number, item in items.items() if not isinstance(item.refs[0], PackedTask)}
        rows = [serialise_task(number, item.lineage, item.refs[0]) for number, item in items.items()]
        # this may start a successor, so it comes before the engine is told which coordinator to use
        self.control.ask(EngineCoordinator.hold_inputs, large)
        self.coordinator = self.control_actor
        self.state = "running"
        self.engine_started = True
        self.actor_cache.kill_idle_actors()
        self._start_engine_actor(rows)

    def _start_engine_actor(self, rows: list[bytes]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        self.engine_actor = ray.remote(EngineActor).options(num_cpus=0, scheduling_strategy=here).remote()
        self.engine_run = self.engine_actor.run_engine.remote(self.executor, self._engine_job(rows), self.coordinator)
        self.pending_update = self.coordinator.take_update.remote(_UPDATE_SECONDS)

    def _engine_job(self, rows: list[bytes]) -> EngineJob:
        plan, quarantine = self.job.plan, self.job.quarantine
        groups = [plan.groups[index] for index in self.engine_groups]
        return EngineJob(
            assignments=[
                GroupAssignment(
                    group.index,
                    pickle_group(group, plan.side_output_recorder(group)),
                    leaves_engine=group.index == self.engine_groups.stop - 1,
                    leaves_pipeline=group.index == len(plan.main_groups) - 1,
                    isolates=quarantine.enabled,
                    budget=quarantine.budget,
                    gpu_memory_gb=self.executor.config.get("gpu_memory_gb"),
                )
                for group in groups
            ],
            serialised_tasks=rows,
            resources=[group.resources for group in groups],
            num_workers=[group.num_workers for group in groups],
            batch_sizes=[group.batch_size for group in groups],
            environments=[self.pools[group.index].env() for group in groups],
            cpus=self.machine.cpus,
            nodes=self.executor.worker_nodes(),
        )

    # -- listening ---------------------------------------------------------------------------------------

    def ready(self, refs: list[Any], seconds: float) -> list[Any]:
        if self.state != "running":
            return super().ready(refs, seconds)
        ready = super().ready([*refs, self.pending_update, self.engine_run], seconds)
        if self.pending_update in ready:
            self._take_update(_UPDATE_SECONDS)
        elif self.engine_run in ready:
            self._handle_engine_end()
        return [ref for ref in ready if ref in refs]

    def _take_update(self, seconds: float) -> bool:
        """Handle what was posted, and ask for more. Returns whether there was anything."""
        import ray

        update = CoordinatorUpdate()
        try:
            update = ray.get(self.pending_update)
        except ray.exceptions.ActorUnavailableError:  # it may come back; if not, the next attempt fails otherwise
            time.sleep(_RETRY_SECONDS)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError:
            self._end_engine(GRACE_SECONDS)
            self.teardown_error = None
            self._warn_and_take_over("Ray has killed the coordinator, which had its receipts")
            return False
        self.pending_update = self.coordinator.take_update.remote(seconds)
        self.guard_processes += update.guard_processes
        for node in update.wanted_owners:
            self.result_owners.append(ResultOwner.start_on(node))
            self.coordinator.set_result_owner.remote(node, self.result_owners[-1])
        for receipt in update.receipts:
            self._handle_receipt(receipt)
        return bool(update)

    def _handle_receipt(self, receipt: CallReceipt) -> None:
        self.receipts_received += 1
        if isinstance(receipt.error, ErrorBudgetError):
            raise self.job.quarantine.overspent(receipt.quarantined, self.flow.rows_read)
        if receipt.error is not None:
            raise receipt.error
        deliveries = {id(ready): ready for number, _ in receipt.inputs if (ready := self.deliveries.get(number))}
        if not deliveries:  # the delivery was complete before
            return
        delivery, *others = sorted(deliveries.values(), key=lambda delivery: -len(delivery.inputs))
        for other in others:
            delivery.merge(other)
            self.deliveries |= dict.fromkeys(other.inputs, delivery)
        after = receipt.group + 1
        delivery.add_receipt(receipt, after if after in self.engine_groups else None)
        if delivery.is_complete:
            self._record_delivery(delivery)

    def _record_delivery(self, delivery: Delivery) -> None:
        """A delivery is complete: account for it, group by group."""
        calls = {
            (self.engine_groups.start, self._id(number)): self.submitted_calls.pop(number) for number in delivery.inputs
        }
        inputs = list(calls.values())
        queues = {group: self.flow.pools[group].queue for group in self.engine_groups}
        held = {
            group: len(queue) for group, queue in queues.items()
        }  # lost outputs to be made again after the engine has ended
        for group, queue in queues.items():
            queue.rotate(-held[group])
            while len(queue) > held[group]:
                call = self.flow.next_call(group, 1)
                calls[group, call.items[0].lineage.id] = call
            for receipt in (receipt for receipt in delivery.receipts if receipt.group == group):
                self._record_receipt(receipt, [calls[group, name] for _, name in receipt.inputs])
        for number in delivery.inputs:
            del self.deliveries[number]
        for call in inputs:
            call.discard()

    def _id(self, number: int) -> str:
        return self.submitted_calls[number].items[0].lineage.id

    def _record_receipt(self, receipt: CallReceipt, calls: Sequence[WorkerCall]) -> None:
        by_id = {call.items[0].lineage.id: call for call in calls}
        for lineage, ref, nbytes, position in receipt.outputs:
            parent = next((by_id[name] for name in ancestor_ids(lineage.id) if name in by_id), calls[0])
            # outputs inside the engine cannot be fetched from it: if one is needed again, it is made again
            self.flow.add_output(parent, CallOutput(lineage, ref or StoredTask([], 0, nbytes), nbytes, position))
        self.flow.finish_call(calls[0], receipt.stats, receipt.quarantined)
        nothing = [StageStats() for _ in receipt.stats]
        for call in calls[1:]:
            self.flow.finish_call(call, nothing)

    # -- the end of the engine -----------------------------------------------------------------------------

    def _handle_engine_end(self) -> None:
        """The engine has ended. Actors do what it has not done."""
        import ray

        error: Exception | None = None
        try:
            ray.get(self.engine_run)
        except Exception as raised:  # noqa: BLE001  whatever an engine raises
            error = raised
        # its workers must have stopped before the same tasks run again below
        self._end_engine(LINGER_SECONDS if error is None else GRACE_SECONDS)
        self.teardown_error = self.teardown_error if error is None else None
        self._take_update(0)  # this answer may be older than the last receipt, so ask again below
        while self.state == "running" and self._take_update(0):
            pass
        if self.state != "running":
            return
        why = f"Its error:\n{type(error).__name__}: {error}" if error else "It reported no error"
        killed = isinstance(error, ray.exceptions.RayActorError)  # nothing that the pipeline asks for
        if error and not killed and not self.receipts_received:
            raise GristmillError(
                f"{self.name} cannot run this pipeline here. {why}\n\nTry RayActorPoolExecutor"
            ) from error
        self._warn_and_take_over(why)

    def _warn_and_take_over(self, why: str) -> None:
        """Actors do what the engine has not done."""
        if self.submitted_calls:
            warnings.warn(
                f"{self.name} left {len(self.submitted_calls):,} tasks undone; Gristmill runs them on its own actors. "
                f"{why}",
                RuntimeWarning,
                stacklevel=2,
            )
        self._return_work_to_actors()

    def _return_work_to_actors(self) -> None:
        """From here on, actors run everything."""
        self.state = "over"
        for call in self.submitted_calls.values():
            self.flow.put_back(call)
        self.submitted_calls.clear()
        self.deliveries.clear()

    def _stop(self, raises: bool) -> None:
        if self.state == "running":
            self.state = "over"
        try:
            super()._stop(raises)
        finally:
            self._end_engine(LINGER_SECONDS if raises else GRACE_SECONDS)
        if raises and self.teardown_error is not None:
            raise self.teardown_error

    def _end_engine(self, grace: float) -> None:
        """Kill the engine, and wait until its workers have torn down."""
        import ray

        engine_actor, self.engine_actor = self.engine_actor, None
        if engine_actor is None or not ray.is_initialized():
            return
        with contextlib.suppress(ray.exceptions.RayError):
            self.guard_processes = ray.get(self.coordinator.close.remote())
        ray.kill(engine_actor)
        self.teardown_error = wait_for_all_guards(self.guard_processes, grace)

    @property
    def can_reuse_actors(self) -> bool:
        return (
            super().can_reuse_actors and not self.engine_started
        )  # idle actors reserve a bit of a core, which the engine would miss

    @property
    def can_continue(self) -> bool:
        return super().can_continue and not self.engine_started  # a coordinator serves one engine

    def _control_state(self) -> ControlState:
        return replace(super()._control_state(), closed=self.engine_started)
