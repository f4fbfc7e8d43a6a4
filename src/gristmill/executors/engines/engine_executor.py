"""The driver of a run whose first groups another engine schedules: Ray Data, Xenna.

The engine gets the groups before the first that gathers, and all tasks that enter them. It decides when and where each
is run, and passes rows from group to group. The books stay here: every call of the engine posts a receipt (`coordinator.py`).

Tasks that went through one call together are a convoy. Nothing of a convoy counts until all of it has arrived: each
task that went in, and each that came out of it, up to the end of the engine's groups. Then it counts as a whole. So it
does not matter what an engine does with the rest. When it has ended, failed, or lost something on the way, or the desk
was killed, whatever has not arrived whole is done again by actors of our own, which also gather and commit.

A segment after an exchange that has no more tasks than there are cores is done by our actors, too: to start the engine
takes longer, and it would have nothing to schedule.

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
from dataclasses import replace
from typing import Any

from gristmill.core.errors import ErrorBudgetError, GristmillError, ResourceError, StageError
from gristmill.core.executor import Job, Machine, TaskRef
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.plan.placement import merge_groups_to_fit
from gristmill.core.plan.planner import Group, Plan
from gristmill.core.run.flow import CallOutput, WorkerCall
from gristmill.core.run.recovery import ancestor_ids
from gristmill.core.run.stage_stats import StageStats
from gristmill.core.task import Lineage
from gristmill.executors.engines.coordinator import CallReceipt, CoordinatorUpdate, EngineCoordinator, ResultOwner
from gristmill.executors.engines.delivery_tracking import Delivery
from gristmill.executors.engines.guard import GRACE_SECONDS, LINGER_SECONDS, GroupAssignment
from gristmill.executors.engines.guard_processes import GuardProcess, wait_for_all_guards
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
    """What an engine is to play: one duty per group, with what each worker needs, and the rows that go in."""

    assignments: list[GroupAssignment]
    serialised_tasks: list[bytes]
    resources: list[Any]
    """Resources of each group."""
    num_workers: list[int | None]
    batch_sizes: list[int]
    environments: list[dict[str, Any]]
    cpus: float
    nodes: list[str] | None = None
    """Where workers may run; None: anywhere."""


def groups_for_engine(plan: Plan) -> list[Group]:
    """The groups that an engine gets: those before the first that gathers, without a user's own source."""
    chain = itertools.takewhile(lambda group: not group.gather, plan.main_groups)
    return [group for group in chain if group.index or not plan.tasks_are_sources]


def tasks_per_call(score: EngineJob, group: int = 0) -> int:
    """How many of the tasks that go in make one call: calls enough for all workers, and not one per tiny task."""
    most = max(64, int(16 * score.cpus))
    batch = score.batch_sizes[group]
    each = -(-len(score.serialised_tasks) // most)
    return -(-each // batch) * batch


class EngineActor:
    """Runs an engine in a process of its own. When it is killed, all that the engine has started ends."""

    def run_engine(self, executor: EngineExecutor, score: EngineJob, desk: Any) -> None:
        executor.run_engine(score, desk)


class EngineExecutor(RayActorPoolExecutor):
    """An executor that hands scheduling to another engine."""

    engine_name = ""
    config_keys = tuple(key for key in RayActorPoolExecutor.config_keys if not key.startswith("reserved_"))
    needs_all_groups = True
    """Whether the engine wants a worker of every group at once."""

    def worker_nodes(self) -> list[str] | None:
        """The nodes that workers may run on; None: all."""
        return [node.id for node in cluster_nodes(True)] if self.ignore_head_node else None

    def available_cpus(self) -> float:
        """How many cores its workers may have, with those that the autoscaler will be asked for."""
        return max(self.machine().cpus, self.config.get("request_cpus") or 0.0)

    def arrange(self, plan: Plan) -> Plan:
        """The plan, in fewer groups where there are not cores enough for a worker of every group."""
        most = max((node.memory_gb for node in self.nodes()), default=0.0) or math.inf
        return (
            merge_groups_to_fit(plan, groups_for_engine(plan), self.available_cpus(), most)
            if self.needs_all_groups and self.fuse
            else plan
        )

    def check(self, plan: Plan) -> None:
        super().check(plan)
        wanted = sum(group.resources.gpu_share(self.config.get("gpu_memory_gb")) for group in groups_for_engine(plan))
        there = len(self.machine().gpus)
        if wanted > there + 1e-9 and self.needs_all_groups:
            raise ResourceError(
                f"{self.engine_name} wants a worker of every group at once, which takes {wanted:g} GPUs, and the "
                f"cluster has {there}: lower gpus, or use RayActorPoolExecutor, which takes turns"
            )

    @abstractmethod
    def run_engine(self, score: EngineJob, desk: Any) -> None:
        """Run the engine. This happens in an actor, on a copy of the executor."""

    def execute(self, job: Job) -> Iterator[tuple[Lineage, TaskRef | None]]:
        return EngineDriver(job, self.machine(), self).run()


class EngineDriver(RayDriver):
    """Feeds an engine, keeps the books, and does with actors what the engine does not do."""

    executor: EngineExecutor
    control_actor_class = EngineCoordinator
    engine_started = False
    """Whether the engine was started."""

    def __init__(self, job: Job, machine: Machine, executor: EngineExecutor) -> None:
        super().__init__(job, machine, executor)
        self.name = executor.engine_name
        chain = [group.index for group in groups_for_engine(job.plan)]
        self.engine_groups = range(chain[0], chain[-1] + 1) if chain else range(0)
        self.state = "listing" if self.engine_groups else "over"
        self.submitted_calls: dict[int, WorkerCall] = {}
        self.deliveries: dict[int, Delivery] = {}
        self.receipts_received = 0
        self.teardown_error: StageError | None = None
        """What went wrong when the engine's workers tore down."""
        self.guard_processes: list[GuardProcess] = []
        self.result_owners: list[Any] = []
        self.coordinator: Any = None
        """The one that the engine knows: another board may have taken its place for others."""
        self.engine_actor: Any = None
        self.engine_run: Any = None
        self.pending_update: Any = None

    # -- giving work to the engine -------------------------------------------------------------------------

    def _wanted_queue_length(self) -> int:
        return 10**9 if self.state == "listing" else super()._wanted_queue_length()

    def may_begin(self, pool: WorkerPool) -> bool:
        """Our own actors do the engine's groups only when it has ended."""
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
        """Whether the engine is started, which takes longer than many a segment. After an exchange, tasks that have a
        core each leave it nothing to schedule."""
        few = bool(self.job.plan.number) and len(self.submitted_calls) <= self.machine.cpus
        return bool(self.submitted_calls) and not few

    def _start(self) -> None:
        items = {number: call.items[0] for number, call in self.submitted_calls.items()}
        large = {number: item.refs[0] for number, item in items.items() if not isinstance(item.refs[0], PackedTask)}
        rows = [serialise_task(number, item.lineage, item.refs[0]) for number, item in items.items()]
        self.control.ask(
            EngineCoordinator.hold_inputs, large
        )  # another board may have to: the engine must know the one that does
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
        found = super().ready([*refs, self.pending_update, self.engine_run], seconds)
        if self.pending_update in found:
            self._take_update(_UPDATE_SECONDS)
        elif self.engine_run in found:
            self._handle_engine_end()
        return [ref for ref in found if ref in refs]

    def _take_update(self, seconds: float) -> bool:
        """Receive what was posted, and ask for more. Whether there was any; without the desk, there is no more."""
        import ray

        news = CoordinatorUpdate()
        try:
            news = ray.get(self.pending_update)
        except ray.exceptions.ActorUnavailableError:  # which it may be again; if not, that is known next time
            time.sleep(_RETRY_SECONDS)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError:
            self._end_engine(GRACE_SECONDS)
            self.teardown_error = None
            self._warn_and_take_over("Ray has killed the actor that had its receipts")
            return False
        self.pending_update = self.coordinator.take_update.remote(seconds)
        self.guard_processes += news.guard_processes
        for node in news.wanted_owners:
            self.result_owners.append(ResultOwner.start_on(node))
            self.coordinator.set_result_owner.remote(node, self.result_owners[-1])
        for receipt in news.receipts:
            self._handle_receipt(receipt)
        return bool(news)

    def _handle_receipt(self, receipt: CallReceipt) -> None:
        self.receipts_received += 1
        if isinstance(receipt.error, ErrorBudgetError):
            raise self.job.quarantine.overspent(receipt.quarantined, self.flow.rows_read)
        if receipt.error is not None:
            raise receipt.error
        convoys = {id(found): found for number, _ in receipt.inputs if (found := self.deliveries.get(number))}
        if not convoys:  # it has arrived whole before
            return
        joined, *others = sorted(convoys.values(), key=lambda convoy: -len(convoy.inputs))
        for other in others:
            joined.merge(other)
            self.deliveries |= dict.fromkeys(other.inputs, joined)
        after = receipt.group + 1
        joined.add_receipt(receipt, after if after in self.engine_groups else None)
        if joined.is_complete:
            self._record_delivery(joined)

    def _record_delivery(self, convoy: Delivery) -> None:
        """All of a convoy is there: enter it into the books, group by group."""
        calls = {
            (self.engine_groups.start, self._id(number)): self.submitted_calls.pop(number) for number in convoy.inputs
        }
        inputs = list(calls.values())
        queues = {group: self.flow.pools[group].queue for group in self.engine_groups}
        held = {group: len(queue) for group, queue in queues.items()}  # to be run again, when the engine has ended
        for group, queue in queues.items():
            queue.rotate(-held[group])
            while len(queue) > held[group]:
                call = self.flow.next_call(group, 1)
                calls[group, call.items[0].lineage.id] = call
            for receipt in (receipt for receipt in convoy.receipts if receipt.group == group):
                self._record_receipt(receipt, [calls[group, name] for _, name in receipt.inputs])
        for number in convoy.inputs:
            del self.deliveries[number]
        for call in inputs:
            call.discard()

    def _id(self, number: int) -> str:
        return self.submitted_calls[number].items[0].lineage.id

    def _record_receipt(self, receipt: CallReceipt, calls: Sequence[WorkerCall]) -> None:
        by_id = {call.items[0].lineage.id: call for call in calls}
        for lineage, ref, nbytes, position in receipt.outputs:
            parent = next((by_id[name] for name in ancestor_ids(lineage.id) if name in by_id), calls[0])
            # what stays with the engine cannot be had from it: should it be needed once more, it is made again
            self.flow.add_output(parent, CallOutput(lineage, ref or StoredTask([], 0, nbytes), nbytes, position))
        self.flow.finish_call(calls[0], receipt.stats, receipt.quarantined)
        nothing = [StageStats() for _ in receipt.stats]
        for call in calls[1:]:
            self.flow.finish_call(call, nothing)

    # -- the end of the engine -----------------------------------------------------------------------------

    def _handle_engine_end(self) -> None:
        """The engine has ended. What it has not done is done by actors."""
        import ray

        error: Exception | None = None
        try:
            ray.get(self.engine_run)
        except Exception as raised:  # noqa: BLE001  whatever an engine raises
            error = raised
        self._end_engine(
            LINGER_SECONDS if error is None else GRACE_SECONDS
        )  # or it might still work on what is done again below
        self.teardown_error = self.teardown_error if error is None else None
        self._take_update(0)  # asked for before it ended: the answer may be older than the last receipt
        while self.state == "running" and self._take_update(0):
            pass
        if self.state != "running":
            return
        why = f"It said:\n{type(error).__name__}: {error}" if error else "It ended without a word"
        if error and not self.receipts_received:
            raise GristmillError(
                f"{self.name} cannot run this pipeline here. {why}\n\nRayActorPoolExecutor may"
            ) from error
        self._warn_and_take_over(why)

    def _warn_and_take_over(self, why: str) -> None:
        """What the engine has not done is done by actors."""
        if self.submitted_calls:
            warnings.warn(
                f"{self.name} has not done {len(self.submitted_calls):,} of the tasks that it was given; they are done by "
                f"actors of Gristmill. {why}",
                RuntimeWarning,
                stacklevel=2,
            )
        self._return_work_to_actors()

    def _return_work_to_actors(self) -> None:
        """From here on, actors do what is left."""
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

        conductor, self.engine_actor = self.engine_actor, None
        if conductor is None or not ray.is_initialized():
            return
        with contextlib.suppress(ray.exceptions.RayError):
            self.guard_processes = ray.get(self.coordinator.close.remote())
        ray.kill(conductor)
        self.teardown_error = wait_for_all_guards(self.guard_processes, grace)

    @property
    def can_reuse_actors(self) -> bool:
        return super().can_reuse_actors and not self.engine_started  # the engine counts cores, and each has some of one

    @property
    def can_continue(self) -> bool:
        return super().can_continue and not self.engine_started  # a desk serves one engine

    def _control_state(self) -> ControlState:
        return replace(super()._control_state(), closed=self.engine_started)
