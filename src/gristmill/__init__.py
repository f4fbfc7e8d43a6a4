"""Gristmill: raw data in, training data out.

The names below are imported on first use, so that `import gristmill` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.core import VERSION
from gristmill.core import executor as _executor
from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.core.batch import Batch as Batch
    from gristmill.core.branching.route import Route as Route
    from gristmill.core.branching.tee import Tee as Tee
    from gristmill.core.function_stage import processing_stage as processing_stage
    from gristmill.core.pipeline import Pipeline as Pipeline
    from gristmill.core.resources import Resources as Resources
    from gristmill.core.row_sampling import Sample as Sample
    from gristmill.core.secret_values import Secret as Secret
    from gristmill.core.stage import CompositeStage as CompositeStage
    from gristmill.core.stage import ProcessingStage as ProcessingStage
    from gristmill.core.stage import SourceStage as SourceStage
    from gristmill.core.stage_roles import MergingStage as MergingStage
    from gristmill.core.task import EmptyTask as EmptyTask
    from gristmill.core.task import FileGroupTask as FileGroupTask
    from gristmill.core.task import Task as Task
    from gristmill.executors.engines.ray_data_executor import RayDataExecutor as RayDataExecutor
    from gristmill.executors.engines.xenna_executor import XennaExecutor as XennaExecutor
    from gristmill.executors.local.local_executor import LocalExecutor as LocalExecutor
    from gristmill.executors.ray.actor_pool_executor import RayActorPoolExecutor as RayActorPoolExecutor
    from gristmill.executors.ray.ray_client import RayClient as RayClient
    from gristmill.executors.ray.ray_client import SlurmRayClient as SlurmRayClient
    from gristmill.image.batch import ImageBatch as ImageBatch
    from gristmill.io.exchange.count_by_column import CountRows as CountRows
    from gristmill.io.exchange.keyed_stage import KeyedStage as KeyedStage
    from gristmill.io.exchange.sort_shuffle_repartition import Repartition as Repartition
    from gristmill.io.exchange.sort_shuffle_repartition import Shuffle as Shuffle
    from gristmill.io.exchange.sort_shuffle_repartition import Sort as Sort
    from gristmill.io.exchange.verdict_stage import VerdictStage as VerdictStage
    from gristmill.io.join.join_stage import Join as Join
    from gristmill.io.read.file_partitions import FilePartitioningStage as FilePartitioningStage
    from gristmill.samples.batch import DocumentBatch as DocumentBatch
else:
    __getattr__, __dir__, __all__ = lazy(__name__)

__version__ = VERSION


def _local_executor() -> Any:
    from gristmill.executors.local.local_executor import LocalExecutor

    return LocalExecutor()


def _progress(*every_s: float) -> Any:
    from gristmill.observe.progress_lines import default_progress

    return default_progress(*every_s)


def _side_outputs(rejected: str | None, scores: str | None, storage_options: Any) -> Any:
    from gristmill.io.write.side_outputs import side_output_stages

    return side_output_stages(rejected, scores, storage_options)


def _reporter(store: Any) -> Any:
    from gristmill.report.run_report.reporter import RunReporter

    return RunReporter(store, _recipe)


def _recipe(plan: Any) -> str | None:
    """The pipeline of a plan as a recipe, if YAML can express it."""
    from gristmill.core.errors import GristmillError
    from gristmill.core.pipeline import Pipeline
    from gristmill.recipes.pipeline_to_recipe import recipe_of

    try:
        return recipe_of(Pipeline(plan.name, stages=list(plan.user_stages))).to_yaml()
    except GristmillError:
        return None


def _format(name: str) -> Any:
    from gristmill.text import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter

    return {"jsonl": (JsonlReader, JsonlWriter), "parquet": (ParquetReader, ParquetWriter)}[name]


def _text_embedder(model: Any, max_chars: int | None, hf_token: str | None, **parameters: Any) -> Any:
    from gristmill.text.embed import WORDLLAMA, EmbeddingCreatorStage, StaticEmbeddingStage

    if str(model) == WORDLLAMA:
        return StaticEmbeddingStage(model, **parameters)
    return EmbeddingCreatorStage(model, max_chars=max_chars, hf_token=hf_token, **parameters)


_executor.set_default("text_embedder", _text_embedder)
_executor.set_default("format", _format)
_executor.set_default("reporter", _reporter)
_executor.set_default("executor", _local_executor)
_executor.set_default("side_outputs", _side_outputs)
_executor.set_default("observer", _progress)
