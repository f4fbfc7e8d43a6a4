"""Gristmill: raw data in, training data out.

The names below are loaded when first used, so that `import gristmill` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gristmill.core import VERSION
from gristmill.core import executor as _executor

if TYPE_CHECKING:
    from gristmill.core.batch import Batch, DocumentBatch
    from gristmill.core.pipeline import Pipeline
    from gristmill.core.resources import Resources
    from gristmill.core.route import Route
    from gristmill.core.sample import Sample
    from gristmill.core.stage import CompositeStage, ProcessingStage, SourceStage, processing_stage
    from gristmill.core.task import EmptyTask, FileGroupTask, Task
    from gristmill.executors.local import LocalExecutor
    from gristmill.executors.ray_actors import RayActorPoolExecutor
    from gristmill.executors.ray_client import RayClient, SlurmRayClient
    from gristmill.executors.ray_data import RayDataExecutor
    from gristmill.executors.xenna import XennaExecutor

__version__ = VERSION

_HOME = {
    "Batch": "core.batch",
    "CompositeStage": "core.stage",
    "DocumentBatch": "core.batch",
    "EmptyTask": "core.task",
    "FileGroupTask": "core.task",
    "LocalExecutor": "executors.local",
    "Pipeline": "core.pipeline",
    "ProcessingStage": "core.stage",
    "RayActorPoolExecutor": "executors.ray_actors",
    "RayClient": "executors.ray_client",
    "RayDataExecutor": "executors.ray_data",
    "Resources": "core.resources",
    "Route": "core.route",
    "Sample": "core.sample",
    "SlurmRayClient": "executors.ray_client",
    "SourceStage": "core.stage",
    "Task": "core.task",
    "XennaExecutor": "executors.xenna",
    "processing_stage": "core.stage",
}

__all__ = [
    "Batch",
    "CompositeStage",
    "DocumentBatch",
    "EmptyTask",
    "FileGroupTask",
    "LocalExecutor",
    "Pipeline",
    "ProcessingStage",
    "RayActorPoolExecutor",
    "RayClient",
    "RayDataExecutor",
    "Resources",
    "Route",
    "Sample",
    "SlurmRayClient",
    "SourceStage",
    "Task",
    "XennaExecutor",
    "processing_stage",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gristmill.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _local_executor() -> Any:
    from gristmill.executors.local import LocalExecutor

    return LocalExecutor()


def _progress(*every_s: float) -> Any:
    from gristmill.observe.progress import default_progress

    return default_progress(*every_s)


def _rejects(url: str, storage_options: Any) -> Any:
    from gristmill.io.rejects import reject_stages

    return reject_stages(url, storage_options)


_executor.set_default("executor", _local_executor)
_executor.set_default("rejects", _rejects)
_executor.set_default("observer", _progress)
