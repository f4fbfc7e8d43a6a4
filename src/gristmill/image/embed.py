"""Embeddings: a vector for each image, such that images of similar things have similar vectors.

The model is CLIP ViT-L/14 unless another one is in the directory: any CLIP of `transformers`, or any ONNX model of
images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.image.batch import IMAGE, PIXELS, ImageBatch
from gristmill.image.image_model_stage import EMBEDDING, ImageModelStage
from gristmill.samples.model_stages import embedding_column, split_by_batch, unit_rows

if TYPE_CHECKING:
    from gristmill.core.stage import Columns
    from gristmill.models.model_loader import Array


class ImageEmbeddingStage(ImageModelStage):
    """Adds the embedding of each image, of length 1, as a column of float32 lists.

    `model_dir` is a directory with a model; or one for models, into which CLIP ViT-L/14 is fetched once; or the name of
    a model on the Hugging Face hub; or None, for CLIP ViT-L/14 in the cache of models. It runs on `num_gpus_per_worker`
    of a GPU if there is one, else on the CPU, with as many threads as `.with_(resources=Resources(cpus=...))` says;
    both give the same numbers to three digits.
    `remove_image_data` removes the images from the rows that go on. `verbose` changes nothing.
    """

    def __init__(
        self,
        model_dir: str | Path | None = None,
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

    def _load(self, folder: Path) -> None:
        model = self._open_model(folder)
        self._sample_model, self._width = model, model.width()

    def process_batch(self, tasks: Sequence[ImageBatch]) -> list[ImageBatch]:
        outputs, good = self._run_model(tasks)
        embeddings = split_by_batch(unit_rows(outputs), good)
        return [self._with_embeddings(*three) for three in zip(tasks, embeddings, good, strict=True)]

    def _with_embeddings(self, batch: ImageBatch, values: Array, good: list[bool]) -> ImageBatch:
        if not all(good):
            batch = batch.keep(make_array(good, pa.bool_()))
        batch = batch.with_column(self.embedding_field, embedding_column(values, [True] * len(values), self._width))
        return without_image_data(batch) if self.remove_image_data else batch


def without_image_data(batch: ImageBatch) -> ImageBatch:
    """The batch without images, encoded or decoded."""
    kept = {name: values for name, values in batch.objects.items() if not name.startswith(PIXELS)}
    batch = batch.with_data(batch.data)
    batch.objects = kept
    return batch.with_data(batch.data.drop_columns([IMAGE])) if IMAGE in batch.get_columns() else batch
