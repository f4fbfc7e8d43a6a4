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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import DecidingStage, Decision, Measures, Rule
from gristmill.core.stage import Columns
from gristmill.image.batch import ImageBatch
from gristmill.image.filters import ImageAspectRatioFilter, ImageBlurFilter, ImageQRCodeFilter, ImageRangeFilter
from gristmill.image.model_filters import ImageTextSimilarityStage
from gristmill.interleaved.batch import InterleavedBatch, as_interleaved
from gristmill.interleaved.item_bytes import ItemBytes, bytes_of
from gristmill.interleaved.item_columns import (
    IMAGE,
    TEXT,
    documents_of,
    item_counts,
    item_field,
    lists_of,
    of_kind,
    sums_of,
)
from gristmill.interleaved.placeholders import ITEMS_COLUMN
from gristmill.interleaved.score import ITEM, JUDGED_AT_ONCE, InterleavedEach
from gristmill.models.fixed_shape_batches import run_in_batches
from gristmill.samples.batch import BadSample, DocumentBatch
from gristmill.samples.model_stages import unit_rows


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


class InterleavedCLIPScoreFilterStage(InterleavedEach):
    """Keeps pictures that fit a text of their document: the cosine of their CLIP embeddings is `min_score` or more.

    A picture is compared with each text, of which it gets the highest cosine; texts are cut at the length that the
    model was made for, 77 tokens. A picture in a document without text has no score and is dropped. The model is that
    of ImageTextSimilarityStage. `gpu_memory_gb` and `drop_invalid_rows` change nothing: `num_gpus_per_worker` asks for
    a GPU if there is one.
    """

    name = "interleaved_clip_score_filter"

    def __init__(
        self,
        drop_invalid_rows: bool = True,
        model_dir: str | Path | None = None,
        min_score: float = 0.15,
        gpu_memory_gb: float = 20.0,
        on_drop: str = ITEM,
        min_items: int = 0,
        storage_options: Mapping[str, Any] | None = None,
        num_gpus_per_worker: float = 0.25,
        model_inference_batch_size: int = 32,
        engine: str = "auto",
    ) -> None:
        self.drop_invalid_rows, self.gpu_memory_gb = drop_invalid_rows, gpu_memory_gb
        self.model_dir, self.min_score = None if model_dir is None else str(model_dir), min_score
        self.num_gpus_per_worker, self.engine = num_gpus_per_worker, engine
        self.model_inference_batch_size = model_inference_batch_size
        super().__init__(ClipScoreFilter(min_score), on_drop, min_items=min_items, storage_options=storage_options)
        fit = TextFit(self.model_dir, num_gpus_per_worker, model_inference_batch_size, engine=engine)
        self._items_judge = _ClipJudge(fit, min_score)
        self.resources = fit.resources

    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
        self._items_judge.stage.setup_on_node(node_info, worker_metadata)


class ClipScoreFilter(ImageRangeFilter):
    """Keeps pictures that fit a text of their document. The stage computes the scores."""

    def __init__(self, min_score: float = 0.15) -> None:
        self.min_score = min_score

    def score_image(self, image: Any) -> float:
        raise NotImplementedError("InterleavedCLIPScoreFilterStage compares pictures with texts")

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_score, None


class TextFit(ImageTextSimilarityStage):
    """Compares pictures with texts."""

    name = "text_fit"

    def set_aside(self, error: str | BaseException, **_: Any) -> None:
        """Do nothing: `pictures` says which could be decoded."""

    def pictures(self, encoded: Sequence[bytes]) -> tuple[Any, list[bool]]:
        """The embeddings of pictures, and which of them could be decoded."""
        batch = ImageBatch(pa.table({"image": make_array(list(encoded), pa.large_binary())}))
        [(values, present)] = self._embedding_rows([batch])
        return values, present.tolist()

    def texts(self, texts: Sequence[str]) -> Any:
        """The embeddings of texts."""
        ids = self._tokenizer(list(texts))
        return unit_rows(np.array(run_in_batches(self._embed_text, ids, self.rows_per_call())))


class _ClipJudge:
    """Judges pictures by the texts of their documents."""

    kind = IMAGE

    def __init__(self, stage: TextFit, min_score: float) -> None:
        self.stage, self.min_score = stage, min_score

    def verdicts(self, items: pa.ListArray, reader: ItemBytes) -> Iterator[list[tuple[Any, bool]]]:
        parents = documents_of(items).to_pylist()
        places = pc.indices_nonzero(of_kind(items, IMAGE)).to_pylist()
        wanted = {parents[place] for place in places}
        texts: dict[int, list[str]] = {}
        for place, text in zip(range(len(parents)), item_field(items, "text").to_pylist(), strict=True):
            if text and parents[place] in wanted:
                texts.setdefault(parents[place], []).append(text)
        known: dict[int, Any] = {}
        for at in range(0, len(places), JUDGED_AT_ONCE):
            yield self._some(places[at : at + JUDGED_AT_ONCE], items, parents, texts, known, reader)

    def _some(
        self,
        places: Sequence[int],
        items: pa.ListArray,
        parents: Sequence[int],
        texts: Mapping[int, list[str]],
        known: dict[int, Any],
        reader: ItemBytes,
    ) -> list[tuple[Any, bool]]:
        found = bytes_of(items, places, reader)
        encoded = {at: one for at, one in enumerate(found) if not isinstance(one, BadSample)}
        values, present = self.stage.pictures(list(encoded.values())) if encoded else (np.zeros((0, 0)), [])
        scores: dict[int, Any] = {}
        for row, at in enumerate(encoded):
            document = parents[places[at]]
            if not present[row]:
                scores[at] = BadSample("a picture that cannot be decoded")
            elif document in texts:
                if document not in known:
                    known[document] = self.stage.texts(texts[document])
                scores[at] = float(np.max(known[document] @ values[row].astype(np.float64)))
        answers: list[tuple[Any, bool]] = []
        for at, one in enumerate(found):
            score = one if isinstance(one, BadSample) else scores.get(at)
            answers.append((score, isinstance(score, float) and score >= self.min_score))
        return answers
