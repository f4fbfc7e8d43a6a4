"""Embeddings: a vector for each picture, such that pictures of similar things have similar vectors.

The model is CLIP ViT-L/14 unless another one is in the directory: any CLIP of `transformers`, or any ONNX model that
takes pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.batch import ImageBatch
from gristmill.image.decode import IMAGE
from gristmill.image.model_stage import EMBEDDING, ImageModelStage, embedding_column, split_by_batch

if TYPE_CHECKING:
    from gristmill.core.stage import Columns
    from gristmill.models.model import Array


class ImageEmbeddingStage(ImageModelStage):
    """Adds the embedding of each picture, of length 1, as a column of float32 lists.

    `model_dir` is a directory with a model; or one for models, into which CLIP ViT-L/14 is fetched once; or the name of
    a model on the Hugging Face hub. It runs on `num_gpus_per_worker` of a GPU if there is one, else on the CPU, with as
    many threads as `.with_(resources=Resources(cpus=...))` says; both give the same numbers to three digits.
    `remove_image_data` leaves the pictures out of what goes on. `verbose` changes nothing: the summary tells.
    """

    def __init__(
        self,
        model_dir: str | Path,
        num_gpus_per_worker: float = 0.25,
        model_inference_batch_size: int = 32,
        remove_image_data: bool = False,
        verbose: bool = False,
        embedding_field: str = EMBEDDING,
        engine: str = "auto",
    ) -> None:
        super().__init__(model_dir, num_gpus_per_worker, model_inference_batch_size, verbose, engine)
        self.remove_image_data, self.embedding_field = remove_image_data, embedding_field

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.embedding_field]

    def _load(self, place: Path) -> None:
        super()._load(place)
        self._width = self._image_model.width()

    def process_batch(self, tasks: Sequence[ImageBatch]) -> list[ImageBatch]:
        found, good = self.see(tasks)
        parts = split_by_batch(unit_rows(found), good)
        return [self._with(*three) for three in zip(tasks, parts, good, strict=True)]

    def _with(self, batch: ImageBatch, values: Array, good: list[bool]) -> ImageBatch:
        if not all(good):
            batch = batch.keep(make_array(good, pa.bool_()))
        batch = batch.with_column(self.embedding_field, embedding_column(values, [True] * len(values), self._width))
        return without_image_data(batch) if self.remove_image_data else batch


def unit_rows(values: Array) -> Array:
    """The rows, each of length 1; a row of zeros stays as it is."""
    length = np.sqrt((values.astype(np.float64) ** 2).sum(axis=1))
    return (values / np.where(length > 0, length, 1.0)[:, None]).astype(np.float32)


def without_image_data(batch: ImageBatch) -> ImageBatch:
    kept = {name: values for name, values in batch.objects.items() if not name.startswith("pixels")}
    batch = batch.with_data(batch.data)
    batch.objects = kept
    return batch.with_data(batch.data.drop_columns([IMAGE])) if IMAGE in batch.get_columns() else batch
