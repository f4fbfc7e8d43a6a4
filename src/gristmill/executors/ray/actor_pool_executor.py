"""RayActorPoolExecutor: streams a plan over actors of a Ray cluster.

The same loop as on one machine (`driver.py`): one pool of actors per group, work goes to the pool nearest to the
output, bytes between pools are bounded, failing records are isolated. Payloads stay in the object store; the driver
passes references, and prefers workers on the node that holds the data.

Cores are assigned to calls, not to actors: an actor reserves almost no CPU of Ray, and as many calls run on a node at
the same time as it has cores. So a plan with more pools than cores runs, and so do two pipelines on one cluster. GPUs
are reserved.

Nodes may come and go. Pools grow onto new ones. When a node is lost, the calls of its workers are repeated elsewhere,
and data from its object store is made again from its inputs (`core/run/lost_tasks.py`).

What is given up: results on a node that is lost before they are read; runs do not survive the loss of the driver's
node.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from gristmill.core.errors import PlanError, ResourceError, require
from gristmill.core.executor import MODES, Executor, Job, Machine, TaskRef, is_batch_mode
from gristmill.core.plan.planner import Plan
from gristmill.core.run.task_flow import WorkerCall, WorkItem
from gristmill.core.task import Lineage
from gristmill.executors.driver import WORKER_LOST, Driver
from gristmill.executors.machine_resources import GpuSlot
from gristmill.executors.ray.actor_pool import ActorHandle, ActorPool
from gristmill.executors.ray.actor_reuse import ActorCaches
from gristmill.executors.ray.cluster import (
    ClusterGpuSlots,
    ClusterNode,
    cluster_nodes,
    connect_to_cluster,
    missing_resources,
    ray_message_filter,
    request_autoscaler_cpus,
    without_reserved,
)
from gristmill.executors.ray.console_forwarding import output_forwarder
from gristmill.executors.ray.control_actor import ControlActor, ControlActorSupervisor, ControlState, SharedPart
from gristmill.executors.ray.input_tasks import store_input_tasks
from gristmill.executors.ray.locality import move_local_items_first, nearest_worker
from gristmill.executors.ray.runtime_env import RuntimeEnvironments
from gristmill.executors.ray.worker_actor import StoredTask
from gristmill.executors.setting_checks import (
    FLAG,
    POSITIVE,
    UNSUPPORTED_SETTINGS,
    check_config,
    check_runtime_env,
    check_setting,
)
from gristmill.executors.worker_pool import WorkerHandle

RAY_OPTIONS = (
    *("execution_mode", "gpu_memory_gb", "runtime_env", "ray_init", "request_cpus", "reserved_cpus", "reserved_gpus"),
    *("resource_wait_timeout_s", "resource_wait_interval_s"),
)
"""The keys of `config`."""

_RESOURCE_WAIT_SECONDS = 0.2
_SHARED_POLL_SECONDS = 0.05
"""How often the control actor is read while workers share tasks."""

_NODE_POLL_SECONDS = 2.0
"""How often the nodes of the cluster are listed."""

_NODE_WAIT_SECONDS = 60.0
"""How long a run waits for new nodes when those that it needs are gone."""


class RayActorPoolExecutor(Executor):
    """Runs a pipeline on a Ray cluster: a running one (`RAY_ADDRESS`, a `RayClient`), or one started on this machine.

    Keys of `config`: `gpu_memory_gb` (of each GPU, for stages that ask for a share by memory); `runtime_env` for all
    stages; `ray_init` (arguments of `ray.init`, if no cluster is joined); `request_cpus` (how many CPUs to request from
    the autoscaler during the run); `reserved_cpus` and `reserved_gpus` (of the cluster, which stay free);
    `resource_wait_timeout_s` (how long to wait for nodes with the resources of a stage before the run is refused) and
    `resource_wait_interval_s`; `execution_mode`, which is also a parameter: "streaming", or "batch", where each group
    starts when those before it have finished and has the cluster for itself; tasks wait in the object store, and on
    disk when that is full. `ignore_head_node` keeps workers off the head. `show_progress` and `progress_interval`
    (seconds, without a terminal) control what is shown.
    """

    config_keys: tuple[str, ...] = RAY_OPTIONS
    unsupported_settings: ClassVar[Mapping[str, str]] = UNSUPPORTED_SETTINGS
    always_streams = False

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        ignore_head_node: bool = False,
        show_progress: bool = True,
        progress_interval: float = 10.0,
        fuse: bool = True,
        execution_mode: str | None = None,
    ) -> None:
        name = type(self).__name__
        for flag, value in (("ignore_head_node", ignore_head_node), ("show_progress", show_progress), ("fuse", fuse)):
            check_setting(name, flag, value, FLAG)
        check_setting(name, "progress_interval", progress_interval, POSITIVE)
        self.config = check_config(name, {} if config is None else config, self.config_keys, self.unsupported_settings)
        self.ignore_head_node, self.fuse = ignore_head_node, fuse
        self.show_progress, self.progress_interval = show_progress, progress_interval
        self.execution_mode = execution_mode or self.config.get("execution_mode", MODES[0])
        self.batch = is_batch_mode(name, self.execution_mode)
        if self.batch and self.always_streams:
            raise PlanError(f"{name} has no batch mode. Leave execution_mode out, or use RayActorPoolExecutor")
        self.actor_caches = ActorCaches()

    def machine(self) -> Machine:
        """The resources of all nodes together. Connects to the cluster."""
        require("ray", "ray", type(self).__name__)
        connect_to_cluster(self.config.get("ray_init"))
        return self.as_machine(self.nodes())

    def nodes(self) -> list[ClusterNode]:
        available = cluster_nodes(self.ignore_head_node)
        return without_reserved(available, self.config.get("reserved_cpus", 0.0), self.config.get("reserved_gpus", 0.0))

    def as_machine(self, nodes: Sequence[ClusterNode]) -> Machine:
        gpus = (self.config.get("gpu_memory_gb"),) * int(sum(node.gpus for node in nodes))
        memory_gb = sum(node.memory_gb for node in nodes) or None
        return Machine(sum(node.cpus for node in nodes), memory_gb, gpus, len(nodes))

    def check(self, plan: Plan) -> None:
        for stage in plan.stages:
            check_runtime_env(f"stage {stage.name!r}", stage.runtime_env or {})
        self.machine()
        deadline = time.monotonic() + self.config.get("resource_wait_timeout_s", 0.0)
        while missing := self._missing_resources(plan):
            if time.monotonic() >= deadline:
                raise ResourceError(missing)
            time.sleep(self.config.get("resource_wait_interval_s", _RESOURCE_WAIT_SECONDS))

    def _missing_resources(self, plan: Plan) -> str:
        """What the cluster lacks for the plan, and what to do; empty if it lacks nothing."""
        nodes = self.nodes()
        if not nodes:
            return (
                "the cluster has no node for workers: its only node is the head, and ignore_head_node=True. Add "
                "nodes, or set ignore_head_node=False"
            )
        reserved = self.config.get("reserved_cpus", 0.0)
        if reserved and not sum(node.cpus for node in nodes):
            return f"reserved_cpus={reserved:g} leaves no core for the pipeline: lower it, or add nodes"
        slots = ClusterGpuSlots(nodes, self.config.get("gpu_memory_gb"))
        for stage in plan.stages:
            if missing := missing_resources(stage.resources, nodes, slots):
                return f"stage {stage.name!r} needs {missing}{', or reserve less' if reserved else ''}"
        return ""

    def execute(self, job: Job) -> Iterator[tuple[Lineage, TaskRef | None]]:
        return RayDriver(replace(job, batch=self.batch), self.machine(), self).run()

    def end_run(self) -> None:
        self.actor_caches.close()

    def show_engine_logs(self) -> None:
        logging = {"logging_level": "INFO", "log_to_driver": True}
        self.config = {**self.config, "ray_init": {**logging, **self.config.get("ray_init", {})}}
        for name in ("RAY_BACKEND_LOG_LEVEL", "PYTHON_LOG"):
            os.environ.setdefault(name, "info")


class RayDriver(Driver):
    """Drives workers that are Ray actors."""

    control_actor_class: type = ControlActor
    slots: ClusterGpuSlots
    pools: Sequence[ActorPool]

    def __init__(self, job: Job, machine: Machine, executor: RayActorPoolExecutor) -> None:
        self.executor = executor
        super().__init__(job, machine)
        self.flow.may_be_lost = lambda ref: isinstance(ref, StoredTask)
        self.nodes, self.environments = executor.nodes(), RuntimeEnvironments()
        self.slots = ClusterGpuSlots(self.nodes, executor.config.get("gpu_memory_gb"))
        self._unreachable_nodes: set[str] = set()
        self._nodes_checked_at = self._resources_complete_at = time.monotonic()
        request_autoscaler_cpus(executor.config.get("request_cpus"))
        self._stopping = False
        self._pending_shared_parts: list[tuple[int, int, SharedPart]] = []
        last = len(job.plan.main_groups) - 1
        self.pools = [ActorPool(self, group, group.index == last) for group in job.plan.groups]
        self.actor_cache = executor.actor_caches.take_cache(self.control_actor_class, self._control_state)

    def run(self) -> Iterator[tuple[Lineage, TaskRef | None]]:
        running_drivers.add(self)
        ray_message_filter.begin()
        if output_forwarder.is_installed:
            self.control_actor.enable_output.remote()
        try:
            yield from super().run()
        finally:
            ray_message_filter.end()
            running_drivers.discard(self)

    def _stop(self, raises: bool) -> None:
        import ray

        if isinstance(interrupted := sys.exc_info()[1], KeyboardInterrupt):
            # its frames hold references to unread outputs, which would keep actors waiting
            traceback.clear_frames(interrupted.__traceback__)
        if ray.is_initialized():  # otherwise the cluster is gone, with all workers
            super()._stop(raises)
            output_forwarder.wait_for_output(self.control_actor)

    def input_items(self, sources: Iterator[Sequence[Any]]) -> Iterator[list[WorkItem]]:
        return store_input_tasks(sources, is_initial=self.job.plan.source is None)

    def as_result(self, ref: TaskRef) -> TaskRef:
        return ref

    # -- where things are --------------------------------------------------------------------------------

    def next_actor_node(self, slot: GpuSlot, closed: Container[str] = ()) -> str:
        """The node for the next actor: that of its GPUs, or the open node with the most cores per actor."""
        if slot.devices:
            return self.slots.gpu_nodes[slot.devices[0]]
        taken = Counter(worker.node for worker in self._actors())
        nodes = [node for node in self.nodes if node.id not in closed]
        return min(nodes, key=lambda node: (taken[node.id] + 1) / max(node.cpus, 0.001)).id

    def _dispatch(self) -> None:
        self._free = {node.id: node.cpus for node in self.nodes}
        for worker in self._actors():
            if worker.calls and worker.node in self._free:
                self._free[worker.node] -= self.pools[worker.group].group.resources.cpus
        super()._dispatch()

    def assign(
        self, group: int, workers: Sequence[WorkerHandle], most: int, ahead: bool
    ) -> tuple[WorkerHandle, WorkerCall]:
        if len(self.nodes) > 1:
            free = {worker.node for worker in workers if ahead or self._free.get(worker.node, 0.0) > 0}
            together = move_local_items_first(self.flow.pools[group].queue, free, most)
            most = max(together, min(most, self.pools[group].group.batch_size))
        call = self.flow.next_call(group, most, waits=ahead)
        best = nearest_worker(workers, call, self._free)
        if not ahead and best.node in self._free:
            self._free[best.node] -= self.pools[group].group.resources.cpus
        return best, call

    def _actors(self) -> Iterator[ActorHandle]:
        return (worker for pool in self.pools for worker in pool.workers if isinstance(worker, ActorHandle))

    def _watch(self) -> None:
        super()._watch()
        if time.monotonic() - self._nodes_checked_at > _NODE_POLL_SECONDS:
            self._nodes_checked_at = time.monotonic()
            self._count_nodes()

    def _count_nodes(self) -> None:
        """Adjust to nodes that have come or gone."""
        nodes = [
            node for node in self.executor.nodes() if node.id not in self._unreachable_nodes or node.is_reachable()
        ]
        if {node.id for node in nodes} != {node.id for node in self.nodes}:
            self.nodes = nodes
            self.slots.update(nodes)
            available = self.executor.as_machine(nodes)
            self.machine = replace(
                available, cpus=available.cpus or self.machine.cpus, gpus=available.gpus or self.machine.gpus
            )
            for pool in self.pools:
                pool.resize(self.machine)
        known = {node.id for node in nodes}
        for worker in list(self._actors()):
            if worker.state == "idle" and worker.node not in known:
                worker.node_gone = True
                self._handle_lost_worker(worker)
        self._check_nodes()

    def _check_nodes(self) -> None:
        """Fail if no node has the resources for the remaining work, and none has joined in time."""
        for group in self.job.plan.groups:
            missing = (
                "" if self.flow.is_over(group.index) else missing_resources(group.resources, self.nodes, self.slots)
            )
            if missing and time.monotonic() - self._resources_complete_at > _NODE_WAIT_SECONDS:
                raise ResourceError(
                    f"nodes were lost and not replaced within {_NODE_WAIT_SECONDS:g} s: stage {group.name!r} needs "
                    f"{missing}. Run again with the same run_dir to continue"
                )
            if missing:
                return
        self._resources_complete_at = time.monotonic()

    def _is_node_lost(self, worker: ActorHandle, unschedulable: bool = False) -> bool:
        """Whether a worker died because its node did. Ray itself is sure only many seconds later."""
        node = next((node for node in self.nodes if node.id == worker.node), None)
        if not unschedulable and node is not None and node.is_reachable():
            return False
        self._unreachable_nodes.add(worker.node)
        self._nodes_checked_at = 0.0
        return True

    # -- listening -----------------------------------------------------------------------------------------

    @property
    def control(self) -> ControlActorSupervisor:
        return self.actor_cache.control

    @property
    def control_actor(self) -> Any:
        return self.control.actor

    def _control_state(self) -> ControlState:
        """The state for a successor of the control actor. Requests to share must be sent again."""
        actors = list(self._actors())
        for worker in actors:
            worker.share_asked = False
        withdrawn = {worker.key: answer.number for worker in actors for answer in worker.answers if answer.withdrawn}
        return ControlState(
            {}, withdrawn, {worker.key for worker in actors}, self._stopping, output_forwarder.is_installed
        )

    def listen(self, seconds: float) -> Iterator[tuple[WorkerHandle, tuple[Any, ...]]]:
        self.control.check_liveness()
        waiting = {worker.pending_ref: worker for worker in self._actors() if worker.pending_ref is not None}
        if any(worker.shares for worker in waiting.values()):
            yield from self._read_shared_parts()
            seconds = _SHARED_POLL_SECONDS
        for one in self.ready(list(waiting), seconds):
            yield from self._read_worker(waiting[one])

    def _read_shared_parts(self) -> Iterator[tuple[WorkerHandle, tuple[Any, ...]]]:
        """Parts of the current calls that workers have shared. Parts of a worker's next call are kept until it
        begins."""
        workers = {worker.key: worker for worker in self._actors() if worker.answers}
        for worker in workers.values():
            worker.check_share_request()
        entries, self._pending_shared_parts = (
            [*self._pending_shared_parts, *self.control.ask(ControlActor.take_shared_parts)],
            [],
        )
        for entry in entries:
            key, number, part = entry
            if (one := workers.get(key)) is not None and one.answers[0].number == number:
                for message in one.take_shared_part(part):
                    yield one, message
            elif one is not None and number > one.answers[0].number:
                self._pending_shared_parts.append(entry)

    def _read_worker(self, worker: ActorHandle) -> Iterator[tuple[WorkerHandle, tuple[Any, ...]]]:
        import ray

        try:
            messages = list(worker.read_messages())
        except ray.exceptions.RuntimeEnvSetupError as error:
            stage = self.pools[worker.group].group.name
            raise ResourceError(f"the runtime_env of stage {stage!r} could not be set up: {error}") from error
        except ray.exceptions.RayTaskError:
            self.control.refresh_positions()  # raises if the control actor is lost for good, which may be the cause
            raise
        except ray.exceptions.RayError as error:
            self.control.refresh_positions()
            # it died while idle, or for the same reason as the control actor
            unknown = worker.key in self.control.unregistered_workers
            unschedulable = isinstance(
                error, ray.exceptions.ActorUnschedulableError
            )  # its node was gone before it started
            worker.node_gone = (not worker.timed_out and self._is_node_lost(worker, unschedulable)) or unknown
            yield worker, (WORKER_LOST,)
            return
        worker.finish_message()
        for message in messages:
            yield worker, message

    def ready(self, refs: list[Any], seconds: float) -> list[Any]:
        """The references that are ready within some time."""
        import ray

        if not refs:
            time.sleep(seconds)
            return []
        ready, _ = ray.wait(refs, num_returns=1, timeout=seconds, fetch_local=False)
        if ready:
            more, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
            ready = more or ready
        return ready

    def remove_worker(self, worker: WorkerHandle) -> str:
        assert isinstance(worker, ActorHandle)
        self.pools[worker.group].remove(worker)
        if not self.can_reuse_actors or not self.actor_cache.keep_actor(worker, self.nodes):
            worker.kill()
        return "ended: it was killed, crashed or ran out of memory"

    def stop_all(self) -> None:
        """Interrupt all workers."""
        if not self._stopping:
            self._stopping = True
            with contextlib.suppress(ResourceError):  # the run is being stopped anyway
                self.control.ask(ControlActor.stop_run)

    @property
    def can_reuse_actors(self) -> bool:
        """Whether there may be use for an idle actor."""
        more = self.job.plan.next_segment is not None or not self.flow.over
        return more and not self._stopping

    @property
    def can_continue(self) -> bool:
        """Whether the idle actors can be kept for a next segment."""
        return self.job.plan.next_segment is not None and self.flow.over and not self._stopping

    def close(self, discard_results: bool) -> None:
        import ray

        if ray.is_initialized():
            if self.can_continue and not discard_results:
                self.executor.actor_caches.keep_cache(self.actor_cache)
            else:
                self.actor_cache.close()
            request_autoscaler_cpus(0 if "request_cpus" in self.executor.config else None)
        self.environments.close()


running_drivers: weakref.WeakSet[RayDriver] = weakref.WeakSet()


def stop_running_drivers() -> None:
    """Let workers of unfinished streams tear down before the cluster stops."""
    for driver in list(running_drivers):
        driver._stop(raises=False)
