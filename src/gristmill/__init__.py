"""Gristmill: raw data in, training data out.

The names below are loaded when first used, so that `import gristmill` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.core import VERSION
from gristmill.core import executor as _executor
from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.core.batch import Batch
    from gristmill.core.function import processing_stage
    from gristmill.core.pipeline import Pipeline
    from gristmill.core.resources import Resources
    from gristmill.core.route import Route
    from gristmill.core.sample import Sample
    from gristmill.core.stage import CompositeStage, ProcessingStage, SourceStage
    from gristmill.core.task import EmptyTask, FileGroupTask, Task
    from gristmill.executors.engines.ray_data_executor import RayDataExecutor
    from gristmill.executors.engines.xenna_executor import XennaExecutor
    from gristmill.executors.local.local_executor import LocalExecutor
    from gristmill.executors.ray.actor_pool_executor import RayActorPoolExecutor
    from gristmill.executors.ray.client import RayClient, SlurmRayClient
    from gristmill.image.batch import ImageBatch
    from gristmill.io.exchange.count_rows import CountRows
    from gristmill.io.exchange.keyed_stage import KeyedStage
    from gristmill.io.exchange.sort_shuffle_repartition import Repartition, Shuffle, Sort
    from gristmill.io.join.join_stage import Join
    from gristmill.io.verdicts.verdict_stage import VerdictStage
    from gristmill.samples.batch import DocumentBatch

__version__ = VERSION

_HOME = {
    "Batch": "core.batch",
    "CompositeStage": "core.stage",
    "CountRows": "io.exchange.count_rows",
    "DocumentBatch": "samples.batch",
    "EmptyTask": "core.task",
    "FileGroupTask": "core.task",
    "ImageBatch": "image.batch",
    "Join": "io.join.join_stage",
    "KeyedStage": "io.exchange.keyed_stage",
    "LocalExecutor": "executors.local.local_executor",
    "Pipeline": "core.pipeline",
    "ProcessingStage": "core.stage",
    "RayActorPoolExecutor": "executors.ray.actor_pool_executor",
    "RayClient": "executors.ray.client",
    "RayDataExecutor": "executors.engines.ray_data_executor",
    "Repartition": "io.exchange.sort_shuffle_repartition",
    "Resources": "core.resources",
    "Route": "core.route",
    "Sample": "core.sample",
    "Shuffle": "io.exchange.sort_shuffle_repartition",
    "SlurmRayClient": "executors.ray.client",
    "Sort": "io.exchange.sort_shuffle_repartition",
    "SourceStage": "core.stage",
    "Task": "core.task",
    "VerdictStage": "io.verdicts.verdict_stage",
    "XennaExecutor": "executors.engines.xenna_executor",
    "processing_stage": "core.function",
}

__all__ = [
    "Batch",
    "CompositeStage",
    "CountRows",
    "DocumentBatch",
    "EmptyTask",
    "FileGroupTask",
    "ImageBatch",
    "Join",
    "KeyedStage",
    "LocalExecutor",
    "Pipeline",
    "ProcessingStage",
    "RayActorPoolExecutor",
    "RayClient",
    "RayDataExecutor",
    "Repartition",
    "Resources",
    "Route",
    "Sample",
    "Shuffle",
    "SlurmRayClient",
    "Sort",
    "SourceStage",
    "Task",
    "VerdictStage",
    "XennaExecutor",
    "processing_stage",
]

__getattr__, __dir__ = lazy(__name__, _HOME)


def _local_executor() -> Any:
    from gristmill.executors.local.local_executor import LocalExecutor

    return LocalExecutor()


def _progress(*every_s: float) -> Any:
    from gristmill.observe.progress import default_progress

    return default_progress(*every_s)


def _beside(rejected: str | None, scores: str | None, storage_options: Any) -> Any:
    from gristmill.io.write.score_output import side_output_stages

    return side_output_stages(rejected, scores, storage_options)


def _reporter(store: Any) -> Any:
    from gristmill.report.run_report.reporter import RunReporter

    return RunReporter(store)


def _format(name: str) -> Any:
    from gristmill.text import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter

    return {"jsonl": (JsonlReader, JsonlWriter), "parquet": (ParquetReader, ParquetWriter)}[name]


_executor.set_default("format", _format)
_executor.set_default("reporter", _reporter)
_executor.set_default("executor", _local_executor)
_executor.set_default("beside", _beside)
_executor.set_default("observer", _progress)
