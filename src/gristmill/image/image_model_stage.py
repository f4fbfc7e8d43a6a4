"""Stages that run a model on images: what is particular to images (`samples/model_stages.py` has the rest)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import InputError
from gristmill.image.batch import IMAGE, PIXELS, ImageBatch
from gristmill.image.decode import decode
from gristmill.image.image_header import BadImage
from gristmill.models.fixed_shape_batches import CPU_ROWS
from gristmill.models.image_preprocess import Preprocess
from gristmill.models.model_files import CLIP
from gristmill.models.model_loader import Array, Model, load_model
from gristmill.samples.decode import encoded_views
from gristmill.samples.model_stages import SampleModelStage

EMBEDDING = "image_embedding"


class ImageModelStage(SampleModelStage[ImageBatch, ImageBatch]):
    """A stage that gives images to a model."""

    kind = ImageBatch
    default_model = CLIP

    def _open_model(self, folder: Path) -> ImageModel:
        return ImageModel(load_model(folder, device=self._device, engine=self.engine), folder)

    def _decoded_rows(self, batch: ImageBatch) -> Iterator[Any]:
        pixels = batch.objects.get(PIXELS)
        if pixels is not None and (IMAGE not in batch.get_columns() or all(one is not None for one in pixels)):
            yield from (BadImage("no pixels, and no bytes to decode") if one is None else one for one in pixels)
            return
        for view in encoded_views(batch):
            try:
                yield decode(b"" if view is None else view)
            except BadImage as error:
                yield error


class ImageModel:
    """A model of images together with their preparation."""

    def __init__(self, model: Model, folder: Path) -> None:
        if len(model.inputs) != 1 or len(model.inputs[0].shape) != 4:
            takes = ", ".join(f"{one.name} {one.shape}" for one in model.inputs)
            raise InputError(f"the model in {folder} takes {takes}, and not images alone: give one that does")
        self.model, self.input = model, model.inputs[0]
        self.output = "image_embeds" if "image_embeds" in model.outputs else model.outputs[0]
        self.prepare = Preprocess.read(folder, self.input)

    def __call__(self, images: Array) -> Array:
        return self.model({self.input.name: images})[self.output].reshape(len(images), -1)

    def width(self) -> int:
        """How many numbers there are for each image: found by a run on zeros, since not all models say."""
        shape = [size or 224 for size in self.input.shape[1:]]
        return int(self(np.zeros((CPU_ROWS, *shape), self.input.dtype)).shape[1])
