"""What is done to a picture before a model sees it, as the model's own directory says.

`preprocessor_config.json` is the file that `transformers` writes: resize, crop, scale, normalise. A model's input says
the rest: whether colours come first or last, and of which type the numbers are.

What is given up: steps that a picture's neighbours have a part in, such as padding to the largest of a batch.
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
from gristmill.models.model import Array, ModelInput

CONFIG = "preprocessor_config.json"
BILINEAR, BICUBIC = 2, 3

OPEN_NSFW = {
    "size": {"height": 256, "width": 256}, "resample": BILINEAR, "crop_size": 224, "do_rescale": False,
    "image_mean": [123, 117, 104], "image_std": [1, 1, 1], "do_flip_channel_order": True,
}  # fmt: skip
KNOWN = {"864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa": OPEN_NSFW}
"""Models that come without such a file, by the SHA-256 of theirs."""


@dataclass(frozen=True)
class Preprocess:
    """The steps for one picture."""

    size: tuple[int, int] | int | None
    """Height and width, or the shorter side, or as it is."""
    resample: int
    crop: tuple[int, int] | None
    mean: Array
    """What is taken away from each colour of 0 to 255, and what it is divided by then."""
    spread: Array
    flip: bool
    first: bool
    dtype: str
    whole: bool
    """Nothing is scaled or taken away: the model does that itself."""

    @classmethod
    def read(cls, place: Path, wants: ModelInput) -> Preprocess:
        """What a directory says of its model, or is known of it."""
        return cls.of(_config(place), wants)

    @classmethod
    def of(cls, told: Mapping[str, Any], wants: ModelInput) -> Preprocess:
        scale = told.get("rescale_factor", 1 / 255) if told.get("do_rescale", True) else 1.0
        normal = told.get("do_normalize", True) and told.get("image_mean") is not None
        mean = np.array(told["image_mean"] if normal else [0, 0, 0], np.float64)
        std = np.array(told["image_std"] if normal else [1, 1, 1], np.float64)
        crop = told.get("crop_size") if told.get("do_center_crop", "crop_size" in told) else None
        return cls(
            size=_size(told["size"]) if told.get("do_resize", True) and "size" in told else None,
            resample=told.get("resample", BILINEAR),
            crop=_pair(crop) if crop else None,
            mean=(mean / scale).astype(np.float32),
            spread=(std / scale).astype(np.float32),
            flip=bool(told.get("do_flip_channel_order", False)),
            first=len(wants.shape) != 4 or wants.shape[3] != 3,
            dtype=wants.dtype,
            whole=wants.dtype == "uint8",
        )

    def __call__(self, pixels: Array) -> Array:
        """A picture (height, width, RGB, of bytes) as a model takes it."""
        cut, step = self._cropped(self._resized(pixels)), -1 if self.flip else 1
        ready = np.ascontiguousarray(cut[:, :, ::step].transpose(2, 0, 1) if self.first else cut[:, :, ::step])
        if self.whole:
            return ready
        mean, scale = self.mean[::step], 1 / self.spread[::step]
        if self.first:
            mean, scale = mean[:, None, None], scale[:, None, None]
        floats: Array = np.subtract(ready, mean, dtype=np.float32)
        if not (self.spread == 1).all():
            floats *= scale
        return floats if self.dtype == "float32" else floats.astype(self.dtype)

    def _resized(self, pixels: Array) -> Array:
        height, width = pixels.shape[:2]
        wanted = self.size
        if isinstance(wanted, int):
            short, long = sorted((height, width))
            other = int(wanted * long / short)
            wanted = (wanted, other) if height <= width else (other, wanted)
        if wanted is None or wanted == (height, width):
            return pixels
        image = require("PIL.Image", "image", "resizing images")
        return np.asarray(image.fromarray(pixels).resize((wanted[1], wanted[0]), self.resample))

    def _cropped(self, pixels: Array) -> Array:
        if self.crop is None:
            return pixels
        (height, width), (rows, columns) = self.crop, pixels.shape[:2]
        if rows < height or columns < width:  # black around what is too small
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
            told: dict[str, Any] = json.loads((folder / name).read_text())
            found = told if key is None else told.get(key)
            if found:
                return found
    graphs = [place] if place.is_file() else sorted(folder.glob("*.onnx"))
    for graph in graphs:
        if known := KNOWN.get(hashlib.sha256(graph.read_bytes()).hexdigest()):
            return known
    raise InputError(
        f"{folder} has no {CONFIG}, so it is not known how its model wants pictures. Put one there, for example "
        '{"size": {"shortest_edge": 224}, "resample": 3, "crop_size": 224, "image_mean": [0.5, 0.5, 0.5], '
        '"image_std": [0.5, 0.5, 0.5]}'
    )


def _size(told: Any) -> tuple[int, int] | int:
    if isinstance(told, Mapping):
        return int(told["shortest_edge"]) if "shortest_edge" in told else (int(told["height"]), int(told["width"]))
    return int(told)


def _pair(told: Any) -> tuple[int, int]:
    return (int(told["height"]), int(told["width"])) if isinstance(told, Mapping) else (int(told), int(told))
