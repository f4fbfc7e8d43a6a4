"""Perceptual hashes: 64 bits that stay nearly the same when an image is resized or compressed again.

    phash   the signs of the lowest frequencies of 32 x 32 pixels (a cosine transform): the most robust
    dhash   whether each of 8 x 8 pixels is brighter than the one to its left
    ahash   whether each of 8 x 8 pixels is brighter than their mean

The bits are those of the ImageHash library for images that are decoded at full size. Here an image is decoded at a
smaller size, which is several times as fast, and few bits differ.

What is given up: images that are rotated, mirrored or cropped have another hash. One without any contrast has none,
since all such images would be alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import require
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.image.batch import IMAGE, ImageBatch
from gristmill.image.decode import MAX_PIXELS, pixels_of

if TYPE_CHECKING:
    import numpy.typing as npt

PHASH, DHASH, AHASH = METHODS = ("phash", "dhash", "ahash")
AT_LEAST = 64
"""The shorter side, in pixels, of the images that hashes are made of."""

FLAT = 3
"""Images whose brightest and darkest pixels differ by no more have no hash."""

_SIZES = {PHASH: (32, 32), DHASH: (9, 8), AHASH: (8, 8)}


class ImagePerceptualHashStage(ProcessingStage[ImageBatch, ImageBatch]):
    """Adds a perceptual hash of each image: 64 bits, as a number.

    `method` is "phash", "dhash" or "ahash", and `hash_field` the column, named after it unless given. Null is the hash
    of an image of one colour. Images that cannot be decoded go to quarantine.
    """

    takes_empty = True

    def __init__(
        self,
        method: str = PHASH,
        hash_field: str | None = None,
        image_field: str = IMAGE,
        max_pixels: int | None = MAX_PIXELS,
    ) -> None:
        super().__init__()
        if method not in METHODS:
            raise ValueError(f"ImagePerceptualHashStage: method is {method!r}, must be one of {', '.join(METHODS)}")
        self.method, self.hash_field, self.image_field, self.max_pixels = method, hash_field, image_field, max_pixels

    @property
    def _column(self) -> str:
        return self.hash_field or self.method

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.image_field]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self._column]

    def process(self, task: ImageBatch) -> ImageBatch:
        if not task.num_items:
            return task.with_column(self._column, make_array([], pa.uint64()))
        pixels = pixels_of(task, self, at_least=AT_LEAST, max_pixels=self.max_pixels, field=self.image_field)
        good = [row for row, image in enumerate(pixels) if image is not None]
        if len(good) < len(pixels):
            task = task.take(good)
        column = hashes([image for image in pixels if image is not None], self.method)
        return task.with_column(self._column, make_array(column, pa.uint64()))


def hashes(pixels: list[Any], method: str = PHASH) -> list[int | None]:
    """The hash of each image, given as RGB pixels; None for one without contrast."""
    if not pixels:
        return []
    small = np.stack([_grey(image, _SIZES[method]) for image in pixels])
    bits = {PHASH: _by_frequency, DHASH: _by_gradient, AHASH: _by_mean}[method](small)
    packed = np.packbits(bits.reshape(len(pixels), 64), axis=1).view(">u8").reshape(-1)
    flat = small.max(axis=(1, 2)).astype(np.int64) - small.min(axis=(1, 2)) <= FLAT
    return [None if is_flat else int(value) for value, is_flat in zip(packed, flat, strict=True)]


def _grey(pixels: Any, size: tuple[int, int]) -> Any:
    pillow = require("PIL.Image", "image", "images")
    return np.asarray(pillow.fromarray(pixels).convert("L").resize(size, pillow.Resampling.LANCZOS))


def _by_frequency(small: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    frequencies = _COSINES @ small.astype(np.float64) @ _COSINES.T
    median = np.median(frequencies.reshape(len(frequencies), 64), axis=1)
    above: npt.NDArray[np.bool_] = frequencies > median[:, None, None]
    return above


def _by_gradient(small: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    brighter: npt.NDArray[np.bool_] = small[:, :, 1:] > small[:, :, :-1]
    return brighter


def _by_mean(small: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    brighter: npt.NDArray[np.bool_] = small > small.mean(axis=(1, 2), keepdims=True)
    return brighter


_COSINES = 2 * np.cos(np.pi * np.arange(8)[:, None] * (2 * np.arange(32) + 1) / 64)
"""The eight lowest frequencies of the cosine transform of 32 numbers."""
