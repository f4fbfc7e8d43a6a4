"""Stages that run a model on images: what is particular to images (`samples/model_stages.py` has the rest)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gristmill.image.batch import IMAGE, PIXELS, ImageBatch
from gristmill.image.decode import decode
from gristmill.image.image_header import BadImage
from gristmill.models.image_preprocess import ImageModel
from gristmill.models.model_files import CLIP
from gristmill.models.model_loader import load_model
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
