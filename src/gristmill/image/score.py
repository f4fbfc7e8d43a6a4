"""Stages that run filters on pictures.

    ImageScoreFilter   score pictures and drop some by their score
    ImageScore         only add the score as a column

Filters of one stage, and stages that share a worker, decode each picture once. One that cannot be decoded is set aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import ImageBatch
from gristmill.core.errors import shorten
from gristmill.core.score import FilteringStage, FilterStep
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.core.stage_roles import ScoringRole
from gristmill.image.decode import IMAGE, MAX_PIXELS, decode, headers_of, image_bytes, pixels_of
from gristmill.image.filters import GREY, HEADER, SIZE, ImageFilter
from gristmill.image.formats import BadImage, header

AT_LEAST = 256
"""The shorter side of the pictures that filters look at, in pixels."""

_GREY = f"pixels_{AT_LEAST}_grey"
_WEIGHTS = np.array([0.299, 0.587, 0.114], np.float32)


def grey(pixels: Any) -> Any:
    """The brightness of RGB pixels, from 0 to 255."""
    return pixels @ _WEIGHTS


class _IgnoreSetAside:
    """For pictures that cannot be decoded: the row is found, and set aside, by the worker."""

    def set_aside(self, *_: Any, **__: Any) -> None:
        return None


def filter_inputs(batch: ImageBatch, what: str, field: str, max_pixels: int | None) -> Sequence[Any]:
    """What filters are given of the pictures of a batch. One that cannot be decoded raises: its row is set aside."""
    if what == SIZE:
        return pc.binary_length(as_one_array(batch.data.column(field))).to_pylist()  # type: ignore[no-any-return]
    quiet: Any = _IgnoreSetAside()
    if what == HEADER:
        found: Sequence[Any] = headers_of(batch, quiet, field=field)
    else:
        found = pixels_of(batch, quiet, at_least=AT_LEAST, max_pixels=max_pixels, field=field)
    if any(one is None for one in found):
        if batch.num_items > 1:
            raise BadImage("one of the pictures cannot be read")
        data = image_bytes(batch, field)[0]
        header(data or b"") if what == HEADER else decode(data or b"", max_pixels, AT_LEAST)
        raise BadImage("the picture cannot be read")
    if what != GREY:
        return found
    if _GREY not in batch.objects:
        batch.objects[_GREY] = [grey(one) for one in found]
    return batch.objects[_GREY]


def score_column(tool: ImageFilter, batch: ImageBatch, field: str, max_pixels: int | None) -> pa.Array:
    if not batch.num_items:
        return make_array([], tool.score_type)
    return tool.score_batch(filter_inputs(batch, tool.looks_at, field, max_pixels))


def _filters(stage: str, given: ImageFilter | Sequence[ImageFilter]) -> list[ImageFilter]:
    filters: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    for one in filters:
        if not isinstance(one, ImageFilter):
            hint = f"write {one.__name__}(...), not the class" if isinstance(one, type) else f"not {one!r}"
            raise TypeError(f"{stage} takes an ImageFilter, or a list of them: {hint}")
    if not filters:
        raise ValueError(f"{stage} was given an empty list: give at least one")
    return filters


def _columns(stage: str, names: str | Sequence[str | None] | None, count: int) -> list[str | None]:
    found = [names] * count if names is None or (isinstance(names, str) and count == 1) else names
    given = [] if isinstance(found, str) else [name for name in found if name is not None]
    if isinstance(found, str) or len(found) != count or len(set(given)) != len(given):
        raise ValueError(f"{stage}: score_field is {names!r}: give one column for each of {count} filters, or None")
    return list(found)


class ImageScoreFilter(FilteringStage[ImageBatch]):
    """Scores pictures and keeps those that the filter keeps, or with `invert` those that it does not.

    `filter_obj` is a filter, or a list that is run in order: a picture that one drops is not scored by the next.
    `score_field` is the column to put the scores in, or a list of one for each; None puts them nowhere.
    """

    takes_empty = True

    def __init__(
        self,
        filter_obj: ImageFilter | Sequence[ImageFilter],
        score_field: str | Sequence[str | None] | None = None,
        invert: bool = False,
        image_field: str = IMAGE,
        max_pixels: int | None = MAX_PIXELS,
    ) -> None:
        super().__init__()
        self.filter_obj, self.score_field, self.invert = filter_obj, score_field, invert
        self.image_field, self.max_pixels = image_field, max_pixels
        filters = _filters("ImageScoreFilter", filter_obj)
        columns = _columns("ImageScoreFilter", score_field, len(filters))
        names = [one.name for one in filters]
        labels = [name if names[:at].count(name) == 0 else f"{name} {at + 1}" for at, name in enumerate(names)]
        made = zip(filters, labels, columns, strict=True)
        self._steps = [FilterStep(one, image_field, label, column, invert) for one, label, column in made]
        if not self._own_name:
            self.name = shorten(names)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.image_field]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [step.score_field for step in self._steps if step.score_field is not None]

    def _judge(self, step: FilterStep, batch: ImageBatch) -> tuple[pa.Array, pa.Array]:
        scores = score_column(step.tool, batch, self.image_field, self.max_pixels)
        return scores, step.tool.keep_batch(scores)

    def _verdict(self, step: FilterStep, scores: pa.Array) -> pa.Array | None:
        verdicts: pa.Array = step.tool.keep_batch(scores)
        return verdicts

    def _threshold(self, step: FilterStep) -> str | None:
        threshold = type(step.tool).threshold
        return threshold(step.tool) if callable(threshold) else None  # a filter may have a number of that name


class ImageScore(ProcessingStage[ImageBatch, ImageBatch], ScoringRole):
    """Adds a column with the score of each picture, and drops none."""

    takes_empty = True

    def __init__(
        self,
        score_fn: ImageFilter | Sequence[ImageFilter],
        score_field: str | Sequence[str],
        image_field: str = IMAGE,
        max_pixels: int | None = MAX_PIXELS,
    ) -> None:
        super().__init__()
        self.score_fn, self.score_field = score_fn, score_field
        self.image_field, self.max_pixels = image_field, max_pixels
        filters = _filters("ImageScore", score_fn)
        self._steps = list(zip(filters, _columns("ImageScore", score_field, len(filters)), strict=True))
        if not self._own_name:
            self.name = shorten([one.name for one in filters])

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.image_field]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], self.recorded()

    def recorded(self) -> list[str]:
        return [column for _, column in self._steps if column is not None]

    def process(self, task: ImageBatch) -> ImageBatch:
        for tool, column in self._steps:
            if column is not None:
                task = task.with_column(column, score_column(tool, task, self.image_field, self.max_pixels))
        return task
