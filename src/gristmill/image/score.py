"""Stages that run filters on images.

    ImageScoreFilter   scores images and drops some by their score
    ImageScore         only adds the score as a column

Filters of one stage, and stages that share a worker, decode each image once. An image that cannot be decoded goes to
quarantine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill.core.deciding_stage import FilterStep
from gristmill.image.batch import IMAGE, ImageBatch
from gristmill.image.decode import (
    HEADER_DECODER,
    MAX_PIXELS,
    pixel_decoder,
)
from gristmill.image.filters import GREY, HEADER, PIXELS, ImageFilter
from gristmill.samples.batch import SampleBatch
from gristmill.samples.decode import Decoder, share_decoded
from gristmill.samples.score import SampleScore, SampleScoreFilter, ScoresSamples

FILTER_PIXELS = 256
"""The shorter side, in pixels, of the images that filters are given."""

_GREY_OBJECTS = f"pixels_{FILTER_PIXELS}_grey"
_WEIGHTS = np.array([0.299, 0.587, 0.114], np.float32)


def grey(pixels: Any) -> Any:
    """The brightness of RGB pixels, from 0 to 255."""
    return pixels @ _WEIGHTS


class _ScoresImages(ScoresSamples):
    kind = ImageBatch
    filter_class = ImageFilter
    image_field: str
    max_pixels: int | None

    def encoded_field(self) -> str:
        return self.image_field

    def decoder(self, looks_at: str) -> Decoder:
        return HEADER_DECODER if looks_at == HEADER else pixel_decoder(FILTER_PIXELS, self.max_pixels)

    def filter_inputs(self, batch: SampleBatch, looks_at: str) -> Sequence[Any]:
        if looks_at != GREY:
            return super().filter_inputs(batch, looks_at)
        pixels = super().filter_inputs(batch, PIXELS)
        cells = share_decoded(batch)
        for cell, one in zip(cells, pixels, strict=True):
            if _GREY_OBJECTS not in cell:
                cell[_GREY_OBJECTS] = grey(one)
        return [cell[_GREY_OBJECTS] for cell in cells]


class ImageScoreFilter(_ScoresImages, SampleScoreFilter[ImageBatch]):
    """Scores images and keeps those that the filter keeps, or with `invert` those that it does not.

    `filter_obj` is a filter, or a list that is run in order: an image that one drops is not scored by the next.
    `score_field` is the column for the scores, or a list of one for each filter; None: they are not written.
    """

    def __init__(
        self,
        filter_obj: ImageFilter | Sequence[ImageFilter],
        score_field: str | Sequence[str | None] | None = None,
        invert: bool = False,
        image_field: str = IMAGE,
        max_pixels: int | None = MAX_PIXELS,
    ) -> None:
        self.image_field, self.max_pixels = image_field, max_pixels
        super().__init__(filter_obj, score_field, invert)

    def _threshold(self, step: FilterStep) -> str | None:
        threshold = type(step.tool).threshold
        return threshold(step.tool) if callable(threshold) else None  # a filter may have a number of that name


class ImageScore(_ScoresImages, SampleScore[ImageBatch]):
    """Adds a column with the score of each image, and drops none."""

    def __init__(
        self,
        score_fn: ImageFilter | Sequence[ImageFilter],
        score_field: str | Sequence[str],
        image_field: str = IMAGE,
        max_pixels: int | None = MAX_PIXELS,
    ) -> None:
        self.image_field, self.max_pixels = image_field, max_pixels
        super().__init__(score_fn, score_field)
