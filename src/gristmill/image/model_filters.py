"""Filters that ask a model: how pleasing a picture is, whether it is unsafe, whether its caption fits.

Each writes its score as a column, and drops rows by it. Scores, thresholds and dropped rows are told as those of all
filters are (`core/score.py`). A row without a score, because it has no embedding or no caption, is dropped.

The scores are made of the embedding that `ImageEmbeddingStage` has written, or else of one that is made here.

What is given up: an embedding that is made here is not kept, and made again by the next stage that needs one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, make_array
from gristmill.core.batch import ImageBatch
from gristmill.core.errors import ContractError, InputError
from gristmill.core.score import DecidingStage, Decision
from gristmill.core.stage_roles import ScoringRole
from gristmill.image.decode import IMAGE
from gristmill.image.embed import unit_rows
from gristmill.image.model_stage import EMBEDDING, ImageModel, ImageModelStage, embedding_matrix, split_by_batch
from gristmill.models.caption_tokenizer import CaptionTokenizer
from gristmill.models.fixed_shape_batches import run_in_batches
from gristmill.models.model import TEXT, load_model, onnx_file
from gristmill.models.model_files import AESTHETIC
from gristmill.models.score_heads import ScoreHead

if TYPE_CHECKING:
    from gristmill.core.stage import Columns
    from gristmill.models.model import Array

EmbeddingRows = tuple["Array", "Array"]
"""A row for each picture of a batch, and which of them are there."""


class ModelScoreStage(DecidingStage[ImageBatch], ImageModelStage):
    """Scores pictures and keeps those on one side of a threshold."""

    score_field: str
    score_threshold: float | None
    embedding_field: str = EMBEDDING
    rule: ClassVar[str] = "min_score"
    """How people name the threshold: "min_score" is the least score that is kept, "below" what it must stay below."""

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []  # an embedding or a picture: which of them is known when rows come

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.score_field]

    def decide(self, batch: ImageBatch) -> Decision:
        return self.decide_batch([batch])[0]

    def decide_batch(self, batches: Sequence[ImageBatch]) -> list[Decision]:
        seen = self._embedding_rows(batches)
        return [self._decision(*pair) for pair in zip(batches, seen, strict=True)]

    def _decision(self, batch: ImageBatch, seen: EmbeddingRows) -> Decision:
        values, there = seen
        rows = self._rows_to_score(batch, there)
        scores = np.full(len(there), np.nan)
        scores[rows] = self._score(batch, values[rows], rows)
        column = make_array([None if np.isnan(score) else float(score) for score in scores], pa.float64())
        aside = (
            None if there.all() or self._has_embedding(batch) else make_array([not one for one in there], pa.bool_())
        )
        return Decision(self._kept(column), {self.score_field: column}, aside=aside)

    def apply(self, batch: ImageBatch, decision: Decision) -> ImageBatch:
        return batch.with_column(self.score_field, decision.scores[self.score_field]).keep(decision.keep)

    def judge(self, scores: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """The verdict on scores that were given before."""
        return {label: self._kept(column) for label, column in scores.items() if label == self.score_field}

    def thresholds(self) -> dict[str, str]:
        return {} if self.score_threshold is None else {self.score_field: f"{self.rule}={self.score_threshold!r}"}

    def _kept(self, scores: pa.Array) -> pa.Array:
        least = self.rule == "min_score"
        bound = self.score_threshold
        if bound is None:
            return make_array([True] * len(scores), pa.bool_())
        verdicts = [score is not None and (score >= bound if least else score < bound) for score in scores.to_pylist()]
        return make_array(verdicts, pa.bool_())

    # -- what is scored: embeddings, as far as they are there ------------------------------------------------

    def _has_embedding(self, batch: ImageBatch) -> bool:
        return self.embedding_field in batch.get_columns()

    def _embedding_rows(self, batches: Sequence[ImageBatch]) -> list[EmbeddingRows]:
        """A row for each picture: the embedding that it has, or else what the model sees."""
        made = [index for index, batch in enumerate(batches) if not self._has_embedding(batch)]
        for index in made:
            if IMAGE not in batches[index].get_columns() and "pixels" not in batches[index].objects:
                raise ContractError(
                    f"stage {self.name!r} needs column {self.embedding_field!r} or {IMAGE!r}, and there are "
                    f"{', '.join(batches[index].get_columns())}: put ImageEmbeddingStage before it"
                )
        if made and not hasattr(self, "_image_model"):
            self._load_model()
        found, good = self.see([batches[index] for index in made]) if made else (np.zeros((0, 0)), [])
        parts = map(_scatter_rows, split_by_batch(self._from_model_output(found), good), good)
        return [next(parts) if index in made else self._column(batch) for index, batch in enumerate(batches)]

    def _from_model_output(self, found: Array) -> Array:
        return unit_rows(found)

    def _load_model(self) -> None:
        place = self.wanted().fetch()
        self._image_model = ImageModel(load_model(place, device=self._device, engine=self.engine), place)

    def _column(self, batch: ImageBatch) -> EmbeddingRows:
        column = as_one_array(batch.data.column(self.embedding_field))
        return embedding_matrix(self, column, self.embedding_field), np.array(column.is_valid().to_pylist(), bool)

    def _rows_to_score(self, batch: ImageBatch, there: Array) -> Array:
        """Which rows get a score."""
        return there

    def _score(self, batch: ImageBatch, values: Array, rows: Array) -> Array:
        """The scores of some rows of a batch."""
        raise NotImplementedError


def _scatter_rows(values: Array, good: Sequence[bool]) -> EmbeddingRows:
    there = np.array(good, bool)
    spread = np.zeros((len(good), values.shape[1] if values.ndim == 2 else 0), np.float32)
    spread[there] = values
    return spread, there


def head_file(name: str, given: str | None, model_dir: str, patterns: Sequence[str]) -> Path | None:
    """The file of a head: the one that was given, or the only one in a directory that is named like one."""
    if given is not None:
        file = Path(given).expanduser()
        if not file.is_file():
            raise InputError(f"{name}: there is no file {given}: give weights_path=... of a .safetensors or .pth file")
        return file
    found = [file for pattern in patterns for file in sorted(Path(model_dir).expanduser().glob(pattern))]
    return found[0] if found else None


class _HeadStage(ModelScoreStage):
    """A stage whose score is what a head makes of the embedding."""

    _head: ScoreHead

    def _check_width(self, values: Array) -> None:
        if len(values) and values.shape[1] != self._head.width:
            raise ContractError(
                f"stage {self.name!r}: its head is for embeddings of {self._head.width} numbers, and those in "
                f"{self.embedding_field!r} have {values.shape[1]}: use the model that the head was made for"
            )

    def _score(self, batch: ImageBatch, values: Array, rows: Array) -> Array:
        self._check_width(values)
        return self._head(values)


class ImageAestheticFilterStage(_HeadStage):
    """How pleasing a picture is, from about 1 to 10; keeps the threshold and above.

    This is LAION's predictor, a head on CLIP ViT-L/14. It is `weights_path`, or a file `aesthetic*.safetensors` in
    `model_dir`, or fetched into `model_dir` once. `verbose` changes nothing: the summary tells what was dropped.
    """

    def __init__(
        self,
        model_dir: str | Path,
        num_gpus_per_worker: float = 0.25,
        model_inference_batch_size: int = 32,
        score_threshold: float = 0.5,
        verbose: bool = False,
        weights_path: str | Path | None = None,
        score_field: str = "aesthetic_score",
        embedding_field: str = EMBEDDING,
        engine: str = "auto",
    ) -> None:
        super().__init__(model_dir, num_gpus_per_worker, model_inference_batch_size, verbose, engine)
        self.score_threshold, self.score_field, self.embedding_field = score_threshold, score_field, embedding_field
        self.weights_path = None if weights_path is None else str(weights_path)

    def check(self) -> None:
        if self._local_head() is None:
            self.wanted().beside(AESTHETIC).check()

    def setup_on_node(self, node_info: Any, worker_metadata: Any) -> None:
        if self._local_head() is None:
            self.wanted().beside(AESTHETIC).fetch()

    def _local_head(self) -> Path | None:
        names = ("aesthetic*.safetensors", "aesthetic*.pth", "sac*logos*ava*.pth", "sac*logos*ava*.safetensors")
        return head_file(self.name, self.weights_path, self.model_dir, names)

    def setup(self, worker_metadata: Any) -> None:
        self._find_device(worker_metadata)
        file = self._local_head() or self.wanted().beside(AESTHETIC).fetch() / "model.safetensors"
        self._head = ScoreHead.read(file)


class ImageNSFWFilterStage(_HeadStage):
    """How likely a picture is unsafe for work, from 0 to 1; keeps pictures below the threshold.

    Two kinds of models: one that looks at pictures (`model_dir` is "open_nsfw", which is Yahoo's and comes with
    `gristmill[nsfw]`, an .onnx file, or its directory), or LAION's head on CLIP ViT-L/14 (`weights_path`, or a file
    `*nsfw*.safetensors` in `model_dir`). `verbose` changes nothing: the summary tells what was dropped.
    """

    rule = "below"

    def __init__(
        self,
        model_dir: str | Path = "open_nsfw",
        num_gpus_per_worker: float = 0.25,
        model_inference_batch_size: int = 32,
        score_threshold: float = 0.5,
        verbose: bool = False,
        weights_path: str | Path | None = None,
        score_field: str = "nsfw_score",
        embedding_field: str = EMBEDDING,
        engine: str = "auto",
    ) -> None:
        super().__init__(model_dir, num_gpus_per_worker, model_inference_batch_size, verbose, engine)
        self.score_threshold, self.score_field, self.embedding_field = score_threshold, score_field, embedding_field
        self.weights_path = None if weights_path is None else str(weights_path)

    def _local_head(self) -> Path | None:
        names = ("*nsfw*.safetensors", "*nsfw*.pth")
        return head_file(self.name, self.weights_path, self.model_dir, names)

    def check(self) -> None:
        if self._local_head() is None and onnx_file(self.wanted().place(), "vision") is None:
            raise InputError(
                f"{self.name}: {self.model_dir} holds neither a model of pictures (.onnx) nor a head for CLIP "
                "(*nsfw*.safetensors): use model_dir='open_nsfw', or give weights_path=..., for example of LAION's "
                "CLIP-based-NSFW-Detector"
            )

    def setup_on_node(self, node_info: Any, worker_metadata: Any) -> None:
        """Nothing is fetched before it is known that it is needed."""

    def setup(self, worker_metadata: Any) -> None:
        self._find_device(worker_metadata)
        file = self._local_head()
        if file is None:
            self._load(self.wanted().place())
        else:
            self._head = ScoreHead.read(file, relu=True, sigmoid=True)

    def _has_embedding(self, batch: ImageBatch) -> bool:
        return hasattr(self, "_head") and super()._has_embedding(batch)

    def _from_model_output(self, found: Array) -> Array:
        return unit_rows(found) if hasattr(self, "_head") else found

    def _score(self, batch: ImageBatch, values: Array, rows: Array) -> Array:
        if hasattr(self, "_head"):
            return super()._score(batch, values, rows)
        scores = values[:, -1]
        if len(values) and (values.shape[1] > 2 or scores.min() < 0 or scores.max() > 1 + 1e-6):
            raise ContractError(
                f"stage {self.name!r}: the model gives {values.shape[1]} numbers for each picture, from "
                f"{values.min():g} to {values.max():g}, and not a probability: use one that ends in softmax or "
                "sigmoid, with the unsafe class last"
            )
        return np.minimum(scores, 1)


class ImageTextSimilarityStage(ModelScoreStage, ScoringRole):
    """How well a caption fits its picture: the cosine between their CLIP embeddings, from -1 to 1.

    Without `score_threshold` nothing is dropped; with it, those at the threshold and above are kept. Captions are cut
    at the length that the model was made for, 77 tokens. `verbose` changes nothing.
    """

    def __init__(
        self,
        model_dir: str | Path,
        num_gpus_per_worker: float = 0.25,
        model_inference_batch_size: int = 32,
        score_threshold: float | None = None,
        verbose: bool = False,
        caption_field: str = "caption",
        score_field: str = "image_text_similarity",
        embedding_field: str = EMBEDDING,
        engine: str = "auto",
    ) -> None:
        super().__init__(model_dir, num_gpus_per_worker, model_inference_batch_size, verbose, engine)
        self.score_threshold, self.caption_field = score_threshold, caption_field
        self.score_field, self.embedding_field = score_field, embedding_field

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.caption_field: "string"}

    def recorded(self) -> list[str]:
        return [] if self.score_threshold is not None else [self.score_field]

    def _load(self, place: Path) -> None:
        self._text = load_model(place, TEXT, self._device, self.engine)
        self._captions = CaptionTokenizer(place)

    def _rows_to_score(self, batch: ImageBatch, there: Array) -> Array:
        captions = as_one_array(batch.data.column(self.caption_field))
        known: Array = np.array(captions.is_valid().to_pylist(), bool)
        return np.logical_and(there, known)

    def _score(self, batch: ImageBatch, values: Array, rows: Array) -> Array:
        if not len(values):
            return np.zeros(0)
        told = as_one_array(batch.data.column(self.caption_field)).cast(pa.string()).to_pylist()
        ids = self._captions([caption for caption, wanted in zip(told, rows, strict=True) if wanted])
        texts = unit_rows(np.array(run_in_batches(self._embed_text, ids, self.rows_per_call())))
        if texts.shape[1] != values.shape[1]:
            raise ContractError(
                f"stage {self.name!r}: embeddings in {self.embedding_field!r} have {values.shape[1]} numbers, and "
                f"those of captions {texts.shape[1]}: use the same model for both"
            )
        cosines: Array = (values.astype(np.float64) * texts).sum(axis=1)
        return cosines

    def _embed_text(self, ids: Array) -> Array:
        wanted = {one.name for one in self._text.inputs}
        arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        found = self._text({name: array for name, array in arrays.items() if name in wanted})
        return found.get("text_embeds", found[self._text.outputs[0]])
