"""RayDataExecutor: Ray Data schedules the pipeline, through its public API.

Each group of fused stages before the first that gathers is one `map_batches` over a pool of actors; blocks hold tasks
as bytes (`task_serialisation.py`). Ray Data decides on scheduling, back-pressure and pool sizes. Accounting, isolation
of failing records, and everything from the first gather on are ours (`engine_executor.py`, `guard_process.py`).

What is given up: a clean cluster. Ray Data leaves detached actors behind, one set that all its users share.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from gristmill.core.errors import require
from gristmill.core.executor import Machine
from gristmill.executors.engines.driver_channel import GroupRunner
from gristmill.executors.engines.engine_executor import EngineExecutor, EngineJob, tasks_per_call
from gristmill.executors.engines.guard_process import GroupAssignment
from gristmill.executors.setting_checks import UNSUPPORTED_SETTINGS

TASK_COLUMN = "task"
BLOCK_BYTES = 16 * 2**20
"""The outputs of one call are split into blocks of this size, so that several workers can share them."""

_MAX_RETRIES = 2


class RayDataExecutor(EngineExecutor):
    """Runs a pipeline on Ray Data.

    Takes the arguments of `RayActorPoolExecutor`, except `reserved_cpus`, `reserved_gpus` and execution_mode="batch".
    """

    engine_name = "Ray Data"
    unsupported_settings: ClassVar[Mapping[str, str]] = {
        **UNSUPPORTED_SETTINGS,
        "reserved_cpus": "Use RayActorPoolExecutor, which supports it",
        "reserved_gpus": "Use RayActorPoolExecutor, which supports it",
    }
    always_streams = True

    def machine(self) -> Machine:
        require("pandas", "ray", "RayDataExecutor")
        return super().machine()

    def run_engine(self, engine_job: EngineJob, coordinator: Any) -> None:
        import ray

        _configure_data_context(ray.data.DataContext.get_current())
        dataset: Any = ray.data.from_arrow(_input_blocks(engine_job))
        wanted = sum(
            need.cpus * (count or 1) for need, count in zip(engine_job.resources, engine_job.num_workers, strict=True)
        )
        scale = min(1.0, 0.95 * engine_job.cpus / max(wanted, 1e-9))
        for index, assignment in enumerate(engine_job.assignments):
            dataset = dataset.map_batches(
                GroupOperator,
                fn_constructor_args=(assignment, coordinator),
                batch_format="pyarrow",
                max_restarts=_MAX_RETRIES,
                max_task_retries=_MAX_RETRIES,
                **_map_batches_options(engine_job, index, scale),
            )
        for _ in dataset.iter_internal_ref_bundles():
            pass


class GroupOperator:
    """The callable of `map_batches`: runs one group."""

    def __init__(self, assignment: GroupAssignment, coordinator: Any) -> None:
        self.group_runner = GroupRunner(assignment, coordinator)

    def __call__(self, block: Any) -> Iterator[Any]:
        rows: list[bytes] = []
        size = 0
        for row in self.group_runner.run(scalar.as_buffer() for scalar in block.column(TASK_COLUMN)):
            rows.append(row)
            size += len(row)
            if size > BLOCK_BYTES:
                yield _task_table(rows)
                rows, size = [], 0
        yield _task_table(rows)


def _task_table(rows: list[bytes]) -> Any:
    import pyarrow as pa

    return pa.table({TASK_COLUMN: pa.array(rows, pa.large_binary())})


def _input_blocks(engine_job: EngineJob) -> list[Any]:
    each = tasks_per_call(engine_job)
    return [
        _task_table(engine_job.serialised_tasks[start : start + each])
        for start in range(0, len(engine_job.serialised_tasks), each)
    ]


def _configure_data_context(context: Any) -> None:
    """Turn off output, and limit retries."""
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.enable_auto_log_stats = False
    context.target_max_block_size = BLOCK_BYTES
    context.max_errored_blocks = -1
    context.execution_options.preserve_order = False


def _map_batches_options(engine_job: EngineJob, index: int, scale: float) -> dict[str, Any]:
    """Resources and number of actors of a group. If not all groups fit, each asks for less, so that all run."""
    need = engine_job.resources[index]
    cpus = need.cpus * scale
    fixed = engine_job.num_workers[index]
    fitting = max(1, int(engine_job.cpus / need.cpus + 1e-9) if need.cpus else int(engine_job.cpus))
    most = fixed or (fitting if scale == 1 else 1)  # if not all groups fit, there is no core for a second actor
    options: dict[str, Any] = {"num_cpus": cpus, "concurrency": (fixed or 1, most)}
    if engine_job.batch_sizes[index] > 1 or need.requires_gpu:  # otherwise a call gets one block
        options["batch_size"] = tasks_per_call(engine_job, index)
    if need.requires_gpu:
        options["num_gpus"] = need.gpu_share(engine_job.assignments[index].gpu_memory_gb)
    if need.memory_gb:
        options["memory"] = need.memory_gb * 1e9
    if engine_job.environments[index]:
        options["runtime_env"] = engine_job.environments[index]
    if engine_job.nodes is not None:
        options["ray_remote_args_fn"] = _RandomNodeStrategy(engine_job.nodes)
    return options


class _RandomNodeStrategy:
    """Places each actor on a random node of a list."""

    def __init__(self, nodes: list[str]) -> None:
        self.nodes = nodes

    def __call__(self) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(random.choice(self.nodes), soft=False)}  # noqa: S311
