"""ImageModel: a model that takes pictures, together with how they are prepared for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gristmill.core.errors import InputError
from gristmill.models.fixed_shape_batches import CPU_ROWS
from gristmill.models.image_preprocess import Preprocess
from gristmill.models.model_loader import Array, Model


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
