"""Filters of images that use a model: aesthetics, unsafe content, whether the caption fits.

Each writes its score as a column, and drops rows by it. Scores, thresholds and dropped rows are recorded as those of
all filters are (`core/deciding_stage.py`). A row without a score, because it has no embedding or no caption, is
dropped.

Scores are computed from the embedding that `ImageEmbeddingStage` has written, or else from one that is made here and
not kept (`samples/model_stages.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array
from gristmill.core.errors import ContractError
from gristmill.core.stage_roles import ScoringRole
from gristmill.image.batch import ImageBatch
from gristmill.image.image_model_stage import EMBEDDING, ImageModelStage
from gristmill.models.caption_tokenizer import CaptionTokenizer
from gristmill.models.fixed_shape_batches import run_in_batches
from gristmill.models.model_loader import TEXT, Model, load_model
from gristmill.models.score_heads import ScoreHead
from gristmill.samples.model_stages import (
    HeadScoreStage,
    LoadsAestheticHead,
    LoadsUnsafeHead,
    ModelScoreStage,
    unit_rows,
)

if TYPE_CHECKING:
    from gristmill.core.stage import Columns
    from gristmill.models.model_loader import Array


class ImageAestheticFilterStage(LoadsAestheticHead, ImageModelStage, HeadScoreStage[ImageBatch]):
    """How pleasing an image is, from about 1 to 10; keeps the threshold and above.

    This is LAION's predictor, a head on CLIP ViT-L/14. It is `weights_path`, or a file `aesthetic*.safetensors` in
    `model_dir`, or fetched into `model_dir` once. `verbose` changes nothing: the summary says what was dropped.
    """

    def __init__(
        self,
        model_dir: str | Path | None = None,
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

    def setup(self, worker_metadata: Any = None) -> None:
        self._find_device(worker_metadata)
        self._head = ScoreHead.read(self._head_file())


class ImageNSFWFilterStage(LoadsUnsafeHead, ImageModelStage, HeadScoreStage[ImageBatch]):
    """How likely an image is unsafe for work, from 0 to 1; keeps images below the threshold.

    Two kinds of models: one of images (`model_dir` is "open_nsfw", which is Yahoo's and comes with
    `gristmill[nsfw]`, an .onnx file, or its directory), or LAION's head on CLIP ViT-L/14 (`weights_path`, or a file
    `*nsfw*.safetensors` in `model_dir`). `verbose` changes nothing: the summary says what was dropped.
    """

    rule = "below"

    def __init__(
        self,
        model_dir: str | Path | None = "open_nsfw",
        num_gpus_per_worker: float = 0.25,
        model_inference_batch_size: int = 32,
        score_threshold: float = 0.5,
        verbose: bool = False,
        weights_path: str | Path | None = None,
        score_field: str = "nsfw_score",
        embedding_field: str = EMBEDDING,
        engine: str = "auto",
    ) -> None:
        super().__init__(model_dir or "open_nsfw", num_gpus_per_worker, model_inference_batch_size, verbose, engine)
        self.score_threshold, self.score_field, self.embedding_field = score_threshold, score_field, embedding_field
        self.weights_path = None if weights_path is None else str(weights_path)

    def setup(self, worker_metadata: Any = None) -> None:
        self._find_device(worker_metadata)
        file = self._local_head()
        if file is None:
            self._load(self.wanted().place())
        else:
            self._head = ScoreHead.read(file, relu=True, sigmoid=True)

    def _has_embedding(self, batch: ImageBatch) -> bool:
        return self._head is not None and super()._has_embedding(batch)

    def _from_model_output(self, outputs: Array) -> Array:
        return outputs if self._head is None else unit_rows(outputs)

    def _score(self, batch: ImageBatch, values: Array, rows: Array) -> Array:
        if self._head is not None:
            return super()._score(batch, values, rows)
        return self._probabilities(values)


class ImageTextSimilarityStage(ImageModelStage, ModelScoreStage[ImageBatch], ScoringRole):
    """How well a caption fits its image: the cosine between their CLIP embeddings, from -1 to 1.

    Without `score_threshold` nothing is dropped; with it, those at the threshold and above are kept. Captions are cut
    at the length that the model was made for, 77 tokens. `verbose` changes nothing.
    """

    _text_model: Model | None = None

    def __init__(
        self,
        model_dir: str | Path | None = None,
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

    def _load(self, folder: Path) -> None:
        """Only the text half: the image half is loaded if a batch has no embeddings."""
        self._text_model = load_model(folder, TEXT, self._device, self.engine)
        self._tokenizer = CaptionTokenizer(folder)

    def teardown(self) -> None:
        super().teardown()
        self._text_model = None

    def _rows_to_score(self, batch: ImageBatch, present: Array) -> Array:
        captions = as_one_array(batch.data.column(self.caption_field))
        has_caption: Array = np.array(captions.is_valid().to_pylist(), bool)
        return np.logical_and(present, has_caption)

    def _score(self, batch: ImageBatch, values: Array, rows: Array) -> Array:
        if not len(values):
            return np.zeros(0)
        captions = as_one_array(batch.data.column(self.caption_field)).cast(pa.string()).to_pylist()
        ids = self._tokenizer([caption for caption, wanted in zip(captions, rows, strict=True) if wanted])
        texts = unit_rows(np.array(run_in_batches(self._embed_text, ids, self.rows_per_call())))
        if texts.shape[1] != values.shape[1]:
            raise ContractError(
                f"stage {self.name!r}: embeddings in {self.embedding_field!r} have {values.shape[1]} numbers, and "
                f"those of captions {texts.shape[1]}: use the same model for both"
            )
        cosines: Array = (values.astype(np.float64) * texts).sum(axis=1)
        return cosines

    def _embed_text(self, ids: Array) -> Array:
        model = self._text_model
        assert model is not None, "loaded by setup"
        arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        outputs = model({one.name: arrays[one.name] for one in model.inputs if one.name in arrays})
        return outputs.get("text_embeds", outputs[model.outputs[0]])
