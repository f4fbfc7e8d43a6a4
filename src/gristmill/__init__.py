"""Gristmill: raw data in, training data out.

The names below are loaded when first used, so that `import gristmill` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.core import VERSION
from gristmill.core import executor as _executor
from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.core.batch import Batch, DocumentBatch, ImageBatch
    from gristmill.core.function import processing_stage
    from gristmill.core.pipeline import Pipeline
    from gristmill.core.resources import Resources
    from gristmill.core.route import Route
    from gristmill.core.sample import Sample
    from gristmill.core.stage import CompositeStage, ProcessingStage, SourceStage
    from gristmill.core.task import EmptyTask, FileGroupTask, Task
    from gristmill.executors.local import LocalExecutor
    from gristmill.executors.ray_actors import RayActorPoolExecutor
    from gristmill.executors.ray_client import RayClient, SlurmRayClient
    from gristmill.executors.ray_data import RayDataExecutor
    from gristmill.executors.xenna import XennaExecutor
    from gristmill.io.arrange import Repartition, Shuffle, Sort
    from gristmill.io.counts import CountRows
    from gristmill.io.join import Join
    from gristmill.io.keyed import KeyedStage
    from gristmill.io.verdicts import VerdictStage

__version__ = VERSION

_HOME = {
    "Batch": "core.batch",
    "CompositeStage": "core.stage",
    "CountRows": "io.counts",
    "DocumentBatch": "core.batch",
    "EmptyTask": "core.task",
    "FileGroupTask": "core.task",
    "ImageBatch": "core.batch",
    "Join": "io.join",
    "KeyedStage": "io.keyed",
    "LocalExecutor": "executors.local",
    "Pipeline": "core.pipeline",
    "ProcessingStage": "core.stage",
    "RayActorPoolExecutor": "executors.ray_actors",
    "RayClient": "executors.ray_client",
    "RayDataExecutor": "executors.ray_data",
    "Repartition": "io.arrange",
    "Resources": "core.resources",
    "Route": "core.route",
    "Sample": "core.sample",
    "Shuffle": "io.arrange",
    "SlurmRayClient": "executors.ray_client",
    "Sort": "io.arrange",
    "SourceStage": "core.stage",
    "Task": "core.task",
    "VerdictStage": "io.verdicts",
    "XennaExecutor": "executors.xenna",
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
    from gristmill.executors.local import LocalExecutor

    return LocalExecutor()


def _progress(*every_s: float) -> Any:
    from gristmill.observe.progress import default_progress

    return default_progress(*every_s)


def _beside(rejected: str | None, scores: str | None, storage_options: Any) -> Any:
    from gristmill.io.scores import stages_beside

    return stages_beside(rejected, scores, storage_options)


def _reporter(store: Any) -> Any:
    from gristmill.report.write import Reporter

    return Reporter(store)


def _format(name: str) -> Any:
    from gristmill.text import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter

    return {"jsonl": (JsonlReader, JsonlWriter), "parquet": (ParquetReader, ParquetWriter)}[name]


_executor.set_default("format", _format)
_executor.set_default("reporter", _reporter)
_executor.set_default("executor", _local_executor)
_executor.set_default("beside", _beside)
_executor.set_default("observer", _progress)
