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
_PACKAGES = ("", "text", "dedup", "download", "image", "audio", "video", "interleaved", "math", "synthetic")
_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "ALMManifestReader": ("gristmill.audio", "ManifestReader"),
    "ALMManifestWriterStage": ("gristmill.audio", "ManifestWriterStage"),
    "BaseExecutor": ("gristmill.core.executor", "Executor"),
    "NodeInfo": ("gristmill.core.stage", "NodeInfo"),
    "WorkerMetadata": ("gristmill.core.stage", "WorkerMetadata"),
    "create_pipeline_from_yaml": ("gristmill.migrate", "create_pipeline_from_yaml"),
}
_MISSING: Mapping[str, str] = {
    "backends": "part of an executor; executors here are LocalExecutor, RayActorPoolExecutor, RayDataExecutor ...",
    "core.serve": "runs on GPUs; start a server yourself and pass its address",
    "eval": "not built as a workflow; LLMJudgeStage and LLMFilter of gristmill.synthetic judge documents",
    "models": "a model on its own; the stages that are here load theirs",
    "stages.audio": "not built; docs/audio.md lists what is, and what is not",
    "pipeline": "a base of its workflows; those that are here have run()",
    "stages.base": "a part of ProcessingStage",
    "stages.client_partitioning": "readers list their files themselves",
    "stages.image": "a part of what the stages for images do",
    "stages.interleaved": "not built; docs/interleaved.md lists what is",
    "stages.math": "not built, or a part of what MathContentExtractor does",
    "stages.synthetic": "not built; docs/llm.md lists what is",
    "stages.text.classifiers": "not built, or a part of what the classifiers of gristmill.text do",
    "stages.text.deduplication.semantic": "a part of what TextSemanticDeduplicationWorkflow does",
    "stages.text.embedders": "a part of what EmbeddingCreatorStage does",
    "stages.deduplication.fuzzy": "a part of deduplication on GPUs; FuzzyDeduplicationWorkflow does all of it",
    "stages.deduplication.exact": "a part of deduplication on GPUs; ExactDeduplicationWorkflow does all of it",
    "stages.deduplication.semantic": "a part of deduplication on GPUs; SemanticDeduplicationWorkflow does all of it",
    "stages.deduplication": "a part of deduplication that the workflows do themselves",
    "stages.deduplication.shuffle_utils": "runs on GPUs; Shuffle and KeyedStage do this",
    "stages.text.experimental": "a part of TranslationStage, which does all of it",
    "stages.text.models": "a part of what the classifiers of gristmill.text do",
    "stages.text.io": "use the readers and writers that are here, or a ProcessingStage of your own",
    "stages.text.download": "a part of what CommonCrawlDownloadExtractStage does",
    "stages.text.utils": "a helper of its own stages",
    "stages.video": "not built, or a part of what the stages for video do",
    "tasks.utils": "a run measures its stages: result.summary()",
    "tasks": "a task of stages that are not here",
    "utils.performance_utils": "a run measures its stages: result.summary()",
    "utils": "a helper of its own stages",
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
    longest = max((start for start in _MISSING if path.startswith(start)), key=len, default=None)
    return f"{name} is not in Gristmill" + (f": {_MISSING[longest]}" if longest else "")


@cache
def _public_names() -> dict[str, list[Place]]:
    found: dict[str, list[Place]] = {}
    for package in _PACKAGES:
        module = f"gristmill.{package}".rstrip(".")
        if find_spec(module) is not None:
            for name in import_module(module).__all__:
                found.setdefault(name, []).append(Place(module, name))
    return found
