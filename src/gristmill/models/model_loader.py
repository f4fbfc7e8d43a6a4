"""Loads a model with the engine that fits its files. A worker loads it once, then calls it with batches.

    ONNX Runtime   a directory with model.onnx, or with vision_model.onnx and text_model.onnx
    torch          a directory with config.json and model.safetensors of a CLIP model

Both run on the GPU of the worker, or else on as many threads as the stage has cores.
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
"""The two encoders of a model for images and captions, as in the names of their files."""

ENGINES = ("auto", "onnx", "torch")


@dataclass(frozen=True, slots=True)
class ModelInput:
    """An input of a model: an array of this shape, whose first axis is rows. None is any length."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


class Model(Protocol):
    """Maps input arrays to output arrays by name. Each output has as many rows as the inputs, in the same order."""

    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]: ...


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs in a worker."""

    gpu: bool = False
    threads: int = 1


def load_model(place: Path, part: str = IMAGE, device: Device | None = None, engine: str = "auto") -> Model:
    """Load the model in a directory, or for a model with two encoders, the one named by `part`."""
    device = device or Device()
    if engine not in ENGINES:
        raise PlanError(f"engine is {engine!r}, must be one of {', '.join(ENGINES)}")
    graph = onnx_file(place, part)
    if graph and engine != "torch":
        from gristmill.models.onnx_engine import OnnxModel

        return OnnxModel(graph, device)
    if not (place / "config.json").is_file():
        raise InputError(
            f"{place} has no model: no {part}_model.onnx or model.onnx, and no config.json with model.safetensors"
        )
    return _load_clip(place, part, device, engine)


def _load_clip(place: Path, part: str, device: Device, engine: str) -> Model:
    from gristmill.models.clip_architecture import ClipWeights

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
    """The ONNX file of one encoder, or of a model that is one graph; None if there is none."""
    if place.suffix == ".onnx":
        return place
    names = [f"{part}_model.onnx", f"onnx/{part}_model.onnx", *(["model.onnx"] if part == IMAGE else [])]
    file = next((place / name for name in names if (place / name).is_file()), None)
    graphs = sorted(place.glob("*.onnx")) if place.is_dir() and part == IMAGE else []
    return file or (graphs[0] if len(graphs) == 1 and graphs[0].name != f"{TEXT}_model.onnx" else None)


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
