"""Where a name of NeMo Curator is found in Gristmill.

The map is derived: a class has the same name here, in one of the public packages below that exist. The tables hold only
what has another name or place, and why something is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

CURATOR = "nemo_curator"
_PACKAGES = ("", "text", "dedup", "download", "image", "audio", "video", "synthetic")
_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "BaseExecutor": ("gristmill.core.executor", "Executor"),
    "NodeInfo": ("gristmill.core.stage", "NodeInfo"),
    "WorkerMetadata": ("gristmill.core.stage", "WorkerMetadata"),
    "JsonlReaderStage": ("gristmill.text.read", "JsonlReaderStage"),
    "ParquetReaderStage": ("gristmill.text.read", "ParquetReaderStage"),
    "create_pipeline_from_yaml": ("gristmill.migrate", "create_pipeline_from_yaml"),
}
_MISSING: Mapping[str, str] = {
    "core.serve": "runs on GPUs; start a server yourself and pass its address",
    "stages.text.classifiers": "runs on GPUs",
    "stages.text.embedders": "runs on GPUs; SemanticDeduplicationStage makes its embeddings itself",
    "stages.deduplication.fuzzy": "a part of deduplication on GPUs; FuzzyDeduplicationWorkflow does all of it",
    "stages.deduplication.exact": "a part of deduplication on GPUs; ExactDeduplicationWorkflow does all of it",
    "stages.deduplication.semantic": "a part of deduplication on GPUs; SemanticDeduplicationWorkflow does all of it",
    "stages.deduplication.shuffle_utils": "runs on GPUs; Shuffle and KeyedStage do this",
    "tasks.utils": "a run measures its stages: result.summary()",
    "utils.performance_utils": "a run measures its stages: result.summary()",
    "backends.slurm_array": "give run(..., run_dir=..., shard='slurm'), or gristmill run --shard slurm",
}


class Place(NamedTuple):
    """A module of Gristmill and the name in it."""

    module: str
    name: str

    def load(self) -> Any:
        return getattr(import_module(self.module), self.name)


def find_name(module: str, name: str) -> Place | None:
    """Where a name from a module of NeMo Curator (`nemo_curator.pipeline`) is here; None if it is missing."""
    if name in _ELSEWHERE:
        return Place(*_ELSEWHERE[name])
    places = _public_names().get(name, [])
    modality = module.removeprefix(f"{CURATOR}.stages.").partition(".")[0]
    own = [place for place in places if place.module == f"gristmill.{modality}"]
    return next(iter([place for place in places if place.module == "gristmill"] + own + places), None)


def why_missing(module: str, name: str) -> str:
    """What to say of a name that is not here."""
    path = f"{module}.{name}".removeprefix(f"{CURATOR}.")
    reasons = [reason for start, reason in _MISSING.items() if path.startswith(start)]
    return f"{name} is not in Gristmill" + (f": {reasons[0]}" if reasons else "")


@cache
def _public_names() -> dict[str, list[Place]]:
    found: dict[str, list[Place]] = {}
    for package in _PACKAGES:
        module = f"gristmill.{package}".rstrip(".")
        if find_spec(module) is not None:
            for name in import_module(module).__all__:
                found.setdefault(name, []).append(Place(module, name))
    return found
