"""Prepares images for a model as the model's own directory specifies; `ImageModel` is a model with its preparation.

`preprocessor_config.json` is the file that `transformers` writes: resize, crop, rescale, normalise. The input of the
model gives the rest: whether the colour axis comes first or last, and the type of the numbers.

Gives up: steps that depend on other images, such as padding to the largest of a batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import InputError, require
from gristmill.models.fixed_shape_batches import CPU_ROWS
from gristmill.models.model_loader import Array, Model, ModelInput

CONFIG = "preprocessor_config.json"
BILINEAR, BICUBIC = 2, 3

OPEN_NSFW = {
    "size": {"height": 256, "width": 256}, "resample": BILINEAR, "crop_size": 224, "do_rescale": False,
    "image_mean": [123, 117, 104], "image_std": [1, 1, 1], "do_flip_channel_order": True,
}  # fmt: skip
KNOWN = {"864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa": OPEN_NSFW}
"""Configurations of models that come without one, by the SHA-256 of the model file."""


@dataclass(frozen=True)
class Preprocess:
    """The preparation of one image."""

    size: tuple[int, int] | int | None
    """Height and width, or the length of the shorter side, or None to keep the size."""
    resample: int
    crop: tuple[int, int] | None
    mean: Array
    """Subtracted from each colour, which is from 0 to 255."""
    spread: Array
    """Divides each colour after that."""
    flip: bool
    """BGR instead of RGB."""
    first: bool
    """The colour axis is the first."""
    dtype: str
    whole: bool
    """The model takes bytes and does the normalisation itself."""

    @classmethod
    def read(cls, place: Path, wants: ModelInput) -> Preprocess:
        """The preparation for the model in a directory or file."""
        return cls.of(_config(place), wants)

    @classmethod
    def of(cls, config: Mapping[str, Any], wants: ModelInput) -> Preprocess:
        scale = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
        normalise = config.get("do_normalize", True) and config.get("image_mean") is not None
        mean = np.array(config["image_mean"] if normalise else [0, 0, 0], np.float64)
        std = np.array(config["image_std"] if normalise else [1, 1, 1], np.float64)
        crop = config.get("crop_size") if config.get("do_center_crop", "crop_size" in config) else None
        return cls(
            size=_size(config["size"]) if config.get("do_resize", True) and "size" in config else None,
            resample=config.get("resample", BILINEAR),
            crop=_pair(crop) if crop else None,
            mean=(mean / scale).astype(np.float32),
            spread=(std / scale).astype(np.float32),
            flip=bool(config.get("do_flip_channel_order", False)),
            first=len(wants.shape) != 4 or wants.shape[3] != 3,
            dtype=wants.dtype,
            whole=wants.dtype == "uint8",
        )

    def __call__(self, pixels: Array) -> Array:
        """Prepare an image given as bytes of shape (height, width, 3), in RGB."""
        step = -1 if self.flip else 1
        colours = self._cropped(self._resized(pixels))[:, :, ::step]
        values = np.ascontiguousarray(colours.transpose(2, 0, 1) if self.first else colours)
        if self.whole:
            return values
        mean, scale = self.mean[::step], 1 / self.spread[::step]
        if self.first:
            mean, scale = mean[:, None, None], scale[:, None, None]
        floats: Array = np.subtract(values, mean, dtype=np.float32)
        if not (self.spread == 1).all():
            floats *= scale
        return floats if self.dtype == "float32" else floats.astype(self.dtype)

    def _resized(self, pixels: Array) -> Array:
        height, width = pixels.shape[:2]
        size = self.size
        if isinstance(size, int):
            short, long = sorted((height, width))
            other = int(size * long / short)
            size = (size, other) if height <= width else (other, size)
        if size is None or size == (height, width):
            return pixels
        image = require("PIL.Image", "image", "resizing images")
        return np.asarray(image.fromarray(pixels).resize((size[1], size[0]), self.resample))

    def _cropped(self, pixels: Array) -> Array:
        if self.crop is None:
            return pixels
        (height, width), (rows, columns) = self.crop, pixels.shape[:2]
        if rows < height or columns < width:  # pad with black
            top, left = max(0, (height - rows + 1) // 2), max(0, (width - columns + 1) // 2)
            below, right = max(0, height - rows - top), max(0, width - columns - left)
            pixels = np.pad(pixels, ((top, below), (left, right), (0, 0)))
            rows, columns = pixels.shape[:2]
        top, left = (rows - height) // 2, (columns - width) // 2
        return pixels[top : top + height, left : left + width]


def _config(place: Path) -> Mapping[str, Any]:
    folder = place.parent if place.is_file() else place
    for name, key in ((CONFIG, None), ("processor_config.json", "image_processor")):
        if (folder / name).is_file():
            content: dict[str, Any] = json.loads((folder / name).read_text())
            config = content if key is None else content.get(key)
            if config:
                return config
    graphs = [place] if place.is_file() else sorted(folder.glob("*.onnx"))
    for graph in graphs:
        if known := KNOWN.get(hashlib.sha256(graph.read_bytes()).hexdigest()):
            return known
    raise InputError(
        f"{folder} has no {CONFIG}, which says how to prepare images for the model. Put one there, for example "
        '{"size": {"shortest_edge": 224}, "resample": 3, "crop_size": 224, "image_mean": [0.5, 0.5, 0.5], '
        '"image_std": [0.5, 0.5, 0.5]}'
    )


def _size(size: Any) -> tuple[int, int] | int:
    if isinstance(size, Mapping):
        return int(size["shortest_edge"]) if "shortest_edge" in size else (int(size["height"]), int(size["width"]))
    return int(size)


def _pair(size: Any) -> tuple[int, int]:
    return (int(size["height"]), int(size["width"])) if isinstance(size, Mapping) else (int(size), int(size))


class ImageModel:
    """A model of images together with their preparation."""

    def __init__(self, model: Model, folder: Path) -> None:
        if len(model.inputs) != 1 or len(model.inputs[0].shape) != 4:
            takes = ", ".join(f"{one.name} {one.shape}" for one in model.inputs)
            raise InputError(f"the model in {folder} takes {takes}, and not images alone: give one that does")
        self.model, self.input = model, model.inputs[0]
        self.output = "image_embeds" if "image_embeds" in model.outputs else model.outputs[0]
        self.prepare = Preprocess.read(folder, self.input)

    def __call__(self, images: Array) -> Array:
        return self.model({self.input.name: images})[self.output].reshape(len(images), -1)

    def width(self) -> int:
        """How many numbers there are for each image: found by a run on zeros, since not all models say."""
        shape = [size or 224 for size in self.input.shape[1:]]
        return int(self(np.zeros((CPU_ROWS, *shape), self.input.dtype)).shape[1])
