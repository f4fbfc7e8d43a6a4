"""A model: loaded once in a worker, then called with batches. Which engine runs it is not the caller's concern.

    ONNX Runtime   a directory with model.onnx, or with vision_model.onnx and text_model.onnx
    torch          a directory with config.json and model.safetensors of a CLIP model

Both run on the GPU that the worker was given, or else on as many threads as the stage has cores.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gristmill.core.errors import InputError, MissingDependencyError, PlanError

Array = np.ndarray[Any, Any]
IMAGE, TEXT = "vision", "text"
"""The two halves of a model for pictures and captions."""

ENGINES = ("auto", "onnx", "torch")


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What a model takes: one array of this shape, of which the first axis is rows, and None is any length."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


class Model(Protocol):
    """Rows in, rows out: each output has as many as each input, and in the same order."""

    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]: ...


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs in a worker."""

    gpu: bool = False
    threads: int = 1


def load_model(place: Path, part: str = IMAGE, device: Device | None = None, engine: str = "auto") -> Model:
    """The model of a directory, or one half of it."""
    device = device or Device()
    if engine not in ENGINES:
        raise PlanError(f"engine is {engine!r}, must be one of {', '.join(ENGINES)}")
    graph = onnx_file(place, part)
    if graph and engine != "torch":
        from gristmill.models.onnx_engine import OnnxModel

        return OnnxModel(graph, device)
    if not (place / "config.json").is_file():
        raise InputError(
            f"{place} holds no model: neither {part}_model.onnx nor model.onnx, nor config.json with model.safetensors"
        )
    return _load_clip(place, part, device, engine)


def _load_clip(place: Path, part: str, device: Device, engine: str) -> Model:
    from gristmill.models.clip import ClipWeights

    clip = ClipWeights.read(place)
    if engine == "torch" or (engine == "auto" and _installed("torch")):
        from gristmill.models.torch_engine import TorchModel

        return TorchModel(clip, part, device)
    if not (_installed("onnx") and _installed("onnxruntime")):
        raise MissingDependencyError(
            f"the model in {place} needs 'torch', or 'onnx' and 'onnxruntime', which are not installed: "
            "pip install 'gristmill[torch]' or pip install 'gristmill[onnx]'"
        )
    from gristmill.models.clip_to_onnx import build_graph
    from gristmill.models.onnx_engine import OnnxModel

    return OnnxModel(build_graph(clip, part).SerializeToString(), device)


def onnx_file(place: Path, part: str) -> Path | None:
    """The graph of one half of a model, or of a model of one piece."""
    if place.suffix == ".onnx":
        return place
    names = [f"{part}_model.onnx", f"onnx/{part}_model.onnx", *(["model.onnx"] if part == IMAGE else [])]
    found = next((place / name for name in names if (place / name).is_file()), None)
    graphs = sorted(place.glob("*.onnx")) if place.is_dir() and part == IMAGE else []
    return found or (graphs[0] if len(graphs) == 1 and graphs[0].name != f"{TEXT}_model.onnx" else None)


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
