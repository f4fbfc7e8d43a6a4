"""Where stages run that would use a GPU and can do without: on what the executor has.

`Resources(gpus=0.25, or_cpu=True)` is a wish that every machine can meet. What comes out is the same; only a plan that
is about to run knows which of the two it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gristmill.core.plan import decompose
from gristmill.core.stage import ProcessingStage


def placed(stages: Iterable[ProcessingStage[Any, Any]], executor: object) -> Sequence[ProcessingStage[Any, Any]]:
    """The stages, with no wish for a GPU in those that do not need one, if the executor has none."""
    flat = decompose(stages)
    choosy = [stage.resources.or_cpu and stage.resources.requires_gpu for stage in flat]
    if not any(choosy) or _has_gpu(executor):
        return flat
    return [_on_cpu(stage) if chooses else stage for stage, chooses in zip(flat, choosy, strict=True)]


def _has_gpu(executor: Any) -> bool:
    return hasattr(executor, "machine") and bool(executor.machine().gpus)


def _on_cpu(stage: ProcessingStage[Any, Any]) -> ProcessingStage[Any, Any]:
    return stage.with_(resources=replace(stage.resources, gpus=0.0, gpu_memory_gb=0.0))
