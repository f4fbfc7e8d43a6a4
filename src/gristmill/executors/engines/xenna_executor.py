"""XennaExecutor: Cosmos-Xenna schedules the pipeline.

Each group of fused stages before the first that gathers is one stage of Xenna; tasks are bytes (`task_serialisation.py`). How many
workers a stage has, and when that changes, is Xenna's to decide. The books, the isolation of records at fault and
everything from the first gather on are ours (`engine_executor.py`, `guard.py`).

Xenna offers whole cores only, and wants a worker of every stage at once. So that small machines can run it too, it is
told of smaller needs than there are, in proportion.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from gristmill.core.errors import PlanError, ResourceError, require
from gristmill.core.executor import Machine
from gristmill.core.plan.planner import Plan
from gristmill.executors.engines.engine_executor import EngineExecutor, EngineJob, tasks_per_call
from gristmill.executors.executor_settings import UNSUPPORTED_SETTINGS

XENNA_DEFAULTS: dict[str, Any] = {
    "execution_mode": "streaming",
    "logging_interval": 60,
    "ignore_failures": False,
    "cpu_allocation_percentage": 0.95,
    "autoscale_interval_s": 180,
}


class XennaExecutor(EngineExecutor):
    """Runs a pipeline on Cosmos-Xenna.

    `config`: `execution_mode` ("streaming", or "batch": one stage after the other), `logging_interval`,
    `ignore_failures`, `cpu_allocation_percentage`, `autoscale_interval_s`; and those of `RayActorPoolExecutor`.
    """

    engine_name = "Xenna"
    config_keys = tuple(dict.fromkeys((*XENNA_DEFAULTS, *EngineExecutor.config_keys)))
    unsupported_settings: ClassVar[Mapping[str, str]] = {
        "max_workers_per_stage": UNSUPPORTED_SETTINGS["max_workers_per_stage"],
        "reserved_cpus": "Use cpu_allocation_percentage, the share of the cores that Xenna may use",
        "reserved_gpus": "Use RayActorPoolExecutor, which has it",
    }

    def __init__(
        self, config: Mapping[str, Any] | None = None, ignore_head_node: bool = False, fuse: bool = True
    ) -> None:
        super().__init__(config, fuse=fuse)
        if ignore_head_node:
            raise PlanError("Xenna cannot keep off the head node: use RayActorPoolExecutor(ignore_head_node=True)")

    @property
    def needs_all_groups(self) -> bool:  # type: ignore[override]
        return bool(self.setting("execution_mode") == "streaming")

    def setting(self, key: str) -> Any:
        return self.config.get(key, XENNA_DEFAULTS[key])

    def machine(self) -> Machine:
        require("tqdm", "xenna", "XennaExecutor")  # which Xenna needs and does not ask for
        require("cosmos_xenna", "xenna", "XennaExecutor")
        return super().machine()

    def check(self, plan: Plan) -> None:
        super().check(plan)
        if self._cpus_offered(self.machine().cpus) < 1:
            raise ResourceError(
                f"Xenna rounds {self.setting('cpu_allocation_percentage'):g} of {self.machine().cpus:g} CPUs down to "
                "none: raise cpu_allocation_percentage, or use RayActorPoolExecutor"
            )

    def available_cpus(self) -> float:
        return self._cpus_intended(super().available_cpus())

    def _cpus_intended(self, cpus: float) -> int:
        """The cores that it was to have. It rounds that down to what it offers, which is half of two cores."""
        return max(1, round(cpus * float(self.setting("cpu_allocation_percentage"))))

    def _cpus_offered(self, cpus: float) -> int:
        return int(cpus * self.setting("cpu_allocation_percentage") + 1e-9)

    def run_engine(self, engine_job: EngineJob, coordinator: Any) -> None:
        _silence_monitoring()
        import cosmos_xenna.pipelines.v1 as xenna
        from cosmos_xenna.utils.verbosity import VerbosityLevel

        from gristmill.executors.engines.xenna_stage import GroupStage

        silent = VerbosityLevel.NONE
        batch = self.setting("execution_mode") == "batch"
        streaming = xenna.StreamingSpecificSpec(
            autoscale_interval_s=self.setting("autoscale_interval_s"), executor_verbosity_level=silent
        )
        config = xenna.PipelineConfig(
            execution_mode=xenna.ExecutionMode.BATCH if batch else xenna.ExecutionMode.STREAMING,
            logging_interval_s=self.setting("logging_interval"),
            ignore_failures=self.setting("ignore_failures"),
            cpu_allocation_percentage=self.setting("cpu_allocation_percentage"),
            actor_pool_verbosity_level=silent,
            monitoring_verbosity_level=silent,
            mode_specific=None if batch else streaming,
        )
        scale = self._scale(engine_job, batch)
        stages = [
            xenna.StageSpec(GroupStage(engine_job, index, scale, coordinator), num_workers=count)
            for index, count in enumerate(_worker_counts(engine_job))
        ]
        xenna.run_pipeline(xenna.PipelineSpec(input_data=engine_job.serialised_tasks, stages=stages, config=config))

    def _scale(self, engine_job: EngineJob, batch: bool) -> float:
        """So much of what a worker needs is told to Xenna: as many fit then as the cores that it was to have allow."""
        offered = self._cpus_offered(engine_job.cpus)
        needs = [
            need.cpus * (count or 1) for need, count in zip(engine_job.resources, engine_job.num_workers, strict=True)
        ]
        most: float = max(needs) if batch else sum(needs)
        return min(1.0, offered / self._cpus_intended(engine_job.cpus), 0.98 * offered / max(most, 1e-9))


def _worker_counts(engine_job: EngineJob) -> list[int | None]:
    """How many workers each group has; None: as Xenna likes, which fills the cores with them at once. Where all that
    goes in is one call, more than one of the first group would start for nothing."""
    first, *others = engine_job.num_workers
    one = len(engine_job.serialised_tasks) <= tasks_per_call(engine_job)
    return [1 if one and first is None else first, *others]


def _silence_monitoring() -> None:
    """Xenna asks Ray's dashboard for all actors to print tables of them. Nobody reads those, and it ends the run when
    there is no dashboard, or a second cluster on the machine."""
    import ray.util.state

    os.environ.setdefault("PYTHON_LOG", "error")
    os.environ.pop("XENNA_RAY_METRICS_PORT", None)  # with it, Xenna sleeps for ten seconds at the end
    ray.util.state.list_actors = lambda *_, **__: []
    from cosmos_xenna.pipelines.private import monitoring

    monitoring.RayResourceMonitor = _NoMonitor


class _NoMonitor:
    """In place of the actor on each node that Xenna counts processes with for those tables. It takes a core, and its
    process never ends."""

    def update(self) -> dict[str, Any]:
        return {}

    def stop(self) -> None:
        """Called since version 0.5."""
