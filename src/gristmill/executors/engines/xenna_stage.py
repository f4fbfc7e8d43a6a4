"""A group of fused stages as a stage of Xenna. A separate module, because it imports Xenna."""

from __future__ import annotations

import os
import threading
from typing import Any

import cosmos_xenna.pipelines.v1 as xenna
from ray.runtime_env import RuntimeEnv

from gristmill.executors.engines.driver_channel import GroupRunner
from gristmill.executors.engines.engine_executor import EngineJob, tasks_per_call


class GroupStage(xenna.Stage):  # type: ignore[misc]
    """Runs one group."""

    def __init__(self, engine_job: EngineJob, index: int, scale: float, coordinator: Any) -> None:
        self.assignment, self.coordinator = engine_job.assignments[index], coordinator
        self.batch_size = tasks_per_call(engine_job, index)
        self.environment = engine_job.environments[index]
        need = engine_job.resources[index]
        self.cpus = need.cpus * scale
        self.gpus = need.gpu_share(self.assignment.gpu_memory_gb) if need.requires_gpu else 0.0

    def __deepcopy__(self, memo: Any) -> GroupStage:
        return self  # Xenna copies stages, and an actor handle cannot be copied

    @property
    def stage_batch_size(self) -> int:
        return self.batch_size

    @property
    def required_resources(self) -> Any:
        return xenna.Resources(cpus=self.cpus, gpus=self.gpus)

    @property
    def env_info(self) -> Any:
        wanted = self.environment
        if self.gpus:  # Xenna assigns GPUs; Ray must not
            variables = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", **wanted.get("env_vars", {})}
            wanted = {**wanted, "env_vars": variables}
        return _XennaRuntimeEnv(wanted) if wanted else None

    def setup(self, worker_metadata: Any = None) -> None:
        threading.Thread(target=_exit_with_actor, daemon=True).start()
        self.group_runner = GroupRunner(self.assignment, self.coordinator)

    def process_data(self, in_data: list[bytes]) -> list[bytes]:
        return list(self.group_runner.run(in_data))


def _exit_with_actor() -> None:
    """Exit when the actor ends: Xenna's threads would keep its process, which Ray has forgotten."""
    threading.main_thread().join()
    os._exit(0)


class _XennaRuntimeEnv:
    """Any Ray runtime environment; Xenna itself only supports conda."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        self.conda = None
        self.extra_env_vars: dict[str, str] = dict(wanted.get("env_vars", {}))

    def to_ray_runtime_env(self) -> RuntimeEnv:
        return RuntimeEnv(**{**self.wanted, "env_vars": self.extra_env_vars})

    def format(self) -> str:
        return ", ".join(self.wanted)
