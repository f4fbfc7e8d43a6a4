"""XennaExecutor: Cosmos-Xenna schedules the pipeline.

Each group of fused stages before the first that gathers is one stage of Xenna; tasks are bytes
(`task_serialisation.py`). Xenna decides how many workers a stage has. Accounting, isolation of failing records, and
everything from the first gather on are ours (`engine_executor.py`, `guard_process.py`).

Xenna uses whole cores only, and needs a worker of every stage at the same time. So that small machines can run it too,
it is told smaller needs than the real ones, in proportion.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from gristmill.core.errors import PlanError, ResourceError, require
from gristmill.core.executor import Machine
from gristmill.core.plan.planner import Plan
from gristmill.executors.engines.engine_executor import EngineExecutor, EngineJob, tasks_per_call
from gristmill.executors.setting_checks import UNSUPPORTED_SETTINGS

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
        "reserved_cpus": "Use cpu_allocation_percentage, the fraction of the cores that Xenna may use",
        "reserved_gpus": "Use RayActorPoolExecutor, which supports it",
    }

    def __init__(
        self, config: Mapping[str, Any] | None = None, ignore_head_node: bool = False, fuse: bool = True
    ) -> None:
        super().__init__(config, fuse=fuse)
        if ignore_head_node:
            raise PlanError("Xenna cannot avoid the head node: use RayActorPoolExecutor(ignore_head_node=True)")

    @property
    def needs_all_groups(self) -> bool:  # type: ignore[override]
        return bool(self.setting("execution_mode") == "streaming")

    def setting(self, key: str) -> Any:
        return self.config.get(key, XENNA_DEFAULTS[key])

    def machine(self) -> Machine:
        require("tqdm", "xenna", "XennaExecutor")  # Xenna imports it without declaring it
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
        """The cores that Xenna should have. It rounds down what it uses, which on two cores would be half of them."""
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
        """The factor for the needs that Xenna is told, so that as many workers fit as the intended cores allow."""
        offered = self._cpus_offered(engine_job.cpus)
        needs = [
            need.cpus * (count or 1) for need, count in zip(engine_job.resources, engine_job.num_workers, strict=True)
        ]
        most: float = max(needs) if batch else sum(needs)
        return min(1.0, offered / self._cpus_intended(engine_job.cpus), 0.98 * offered / max(most, 1e-9))


def _worker_counts(engine_job: EngineJob) -> list[int | None]:
    """The number of workers of each group; None lets Xenna decide, which starts as many as fit. If all inputs make one
    call, more than one worker of the first group would be useless."""
    first, *others = engine_job.num_workers
    one = len(engine_job.serialised_tasks) <= tasks_per_call(engine_job)
    return [1 if one and first is None else first, *others]


def _silence_monitoring() -> None:
    """Turn off Xenna's tables of all actors. It asks Ray's dashboard for them, which fails the run if there is no
    dashboard, or a second cluster on the machine."""
    import ray.util.state

    os.environ.setdefault("PYTHON_LOG", "error")
    os.environ.pop("XENNA_RAY_METRICS_PORT", None)  # if set, Xenna sleeps for ten seconds at the end
    ray.util.state.list_actors = lambda *_, **__: []
    from cosmos_xenna.pipelines.private import monitoring

    monitoring.RayResourceMonitor = _NoMonitor


class _NoMonitor:
    """Replaces the actor that Xenna starts on each node for those tables, which takes a core and never exits."""

    def update(self) -> dict[str, Any]:
        return {}

    def stop(self) -> None:
        """Called since version 0.5."""
