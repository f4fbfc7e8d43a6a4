"""Filters of interleaved documents under the names of NeMo Curator, with its parameters and defaults.

    InterleavedAspectRatioFilterStage        pictures, by width over height
    InterleavedBlurFilterStage               pictures, by their sharpness
    InterleavedQRCodeFilterStage             pictures, by the share that QR codes cover
    InterleavedCLIPScoreFilterStage          pictures, by how well a text of the document fits
    InterleavedImageToTextRatioFilterStage   documents, by pictures per word

The first four drop pictures, with their place in the text; with `on_drop="document"` they drop documents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import DecidingStage, Decision, Measures, Rule
from gristmill.core.stage import Columns
from gristmill.image.filters import ImageAspectRatioFilter, ImageBlurFilter, ImageQRCodeFilter
from gristmill.interleaved.batch import InterleavedBatch, as_interleaved
from gristmill.interleaved.item_columns import IMAGE, TEXT, item_counts, item_field, lists_of, of_kind, sums_of
from gristmill.interleaved.placeholders import ITEMS_COLUMN
from gristmill.interleaved.score import ITEM, InterleavedEach
from gristmill.samples.batch import DocumentBatch


class InterleavedAspectRatioFilterStage(InterleavedEach):
    """Keeps pictures whose width is between `min_aspect_ratio` and `max_aspect_ratio` times their height.

    `drop_invalid_rows` changes nothing: pictures that cannot be read are dropped and counted.
    """

    name = "interleaved_aspect_ratio_filter"

    def __init__(
        self,
        drop_invalid_rows: bool = True,
        min_aspect_ratio: float = 1.0,
        max_aspect_ratio: float = 2.0,
        on_drop: str = ITEM,
        min_items: int = 0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.drop_invalid_rows = drop_invalid_rows
        self.min_aspect_ratio, self.max_aspect_ratio = min_aspect_ratio, max_aspect_ratio
        tool = ImageAspectRatioFilter(min_aspect_ratio, max_aspect_ratio)
        super().__init__(tool, on_drop, min_items=min_items, storage_options=storage_options)


class InterleavedBlurFilterStage(InterleavedEach):
    """Keeps pictures that are sharp: the variance of their Laplacian is `score_threshold` or more.

    It is measured at a shorter side of 256 pixels, so that it does not depend on the size of the picture.
    `drop_invalid_rows` changes nothing: pictures that cannot be read are dropped and counted.
    """

    name = "interleaved_blur_filter"

    def __init__(
        self,
        drop_invalid_rows: bool = True,
        score_threshold: float = 100.0,
        on_drop: str = ITEM,
        min_items: int = 0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.drop_invalid_rows, self.score_threshold = drop_invalid_rows, score_threshold
        super().__init__(
            ImageBlurFilter(score_threshold), on_drop, min_items=min_items, storage_options=storage_options
        )


class InterleavedQRCodeFilterStage(InterleavedEach):
    """Keeps pictures of which QR codes cover no more than `score_threshold`.

    `drop_invalid_rows` changes nothing: pictures that cannot be read are dropped and counted.
    """

    name = "interleaved_qrcode_filter"

    def __init__(
        self,
        drop_invalid_rows: bool = True,
        score_threshold: float = 0.05,
        on_drop: str = ITEM,
        min_items: int = 0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.drop_invalid_rows, self.score_threshold = drop_invalid_rows, score_threshold
        tool = ImageQRCodeFilter(score_threshold)
        super().__init__(tool, on_drop, min_items=min_items, storage_options=storage_options)


class InterleavedImageToTextRatioFilterStage(DecidingStage[DocumentBatch]):
    """Keeps documents with `min_ratio` to `max_ratio` pictures per word of their text.

    A document without words counts as one of one word. `drop_invalid_rows` changes nothing.
    """

    name = "interleaved_image_to_text_ratio_filter"
    takes_empty = True

    def __init__(self, drop_invalid_rows: bool = True, min_ratio: float = 0.0, max_ratio: float = math.inf) -> None:
        super().__init__()
        if not 0 <= min_ratio <= max_ratio:
            raise ValueError(f"{self.name}: min_ratio={min_ratio} and max_ratio={max_ratio}: 0 <= min <= max")
        self.drop_invalid_rows, self.min_ratio, self.max_ratio = drop_invalid_rows, min_ratio, max_ratio

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [ITEMS_COLUMN]

    def decide(self, batch: DocumentBatch) -> Decision:
        items = as_interleaved(batch).items()
        ratios = image_to_text_ratios(items)
        return Decision(self._rule().holds(ratios), {self.name: ratios})

    def apply(self, batch: DocumentBatch, decision: Decision) -> InterleavedBatch:
        return as_interleaved(batch).keep(decision.keep)

    def _rule(self) -> Rule:
        high = None if math.isinf(self.max_ratio) else self.max_ratio
        return Rule("", self.min_ratio, high, "min_ratio", "max_ratio")

    def rules(self) -> dict[str, Sequence[Rule]]:
        return {self.name: (self._rule(),)}

    def thresholds(self) -> dict[str, str]:
        return {self.name: f"min_ratio={self.min_ratio!r}, max_ratio={self.max_ratio!r}"}

    def judge(
        self, scores: Mapping[str, pa.Array], measures: Mapping[str, Measures] | None = None
    ) -> dict[str, pa.Array]:
        return {self.name: self._rule().holds(scores[self.name])} if self.name in scores else {}


def image_to_text_ratios(items: pa.ListArray) -> pa.Array:
    """Pictures per word of each document."""
    counts = item_counts(items)
    texts = pc.utf8_trim_whitespace(item_field(items, "text").fill_null(literal("", pa.string())))
    words = pc.list_value_length(pc.utf8_split_whitespace(texts)).cast(pa.int64())
    counted = pc.and_(of_kind(items, TEXT), pc.greater(pc.binary_length(texts), literal(0, pa.int32())))
    words = pc.if_else(counted, words, literal(0, pa.int64()))
    pictures = sums_of(lists_of(of_kind(items, IMAGE).cast(pa.int64()), counts))
    total = pc.max_element_wise(sums_of(lists_of(words, counts)), literal(1, pa.int64()))
    return pc.divide(pictures.cast(pa.float64()), total.cast(pa.float64()))
