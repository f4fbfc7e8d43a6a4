"""The batch of images, and the names of its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.image.image_header import EXTENSIONS, image_format
from gristmill.samples.batch import SampleBatch

if TYPE_CHECKING:
    from gristmill.image.image_object import ImageObject

IMAGE, IMAGE_ID = "image", "image_id"
PIXELS, HEADERS = "pixels", "headers"


class ImageBatch(SampleBatch):
    """Images, one per row, as they were encoded. Decoded pixels are objects of the rows, and never reach disk.

    A batch is also built from a list of `ImageObject`.
    """

    sample_name = "image"
    id_column = IMAGE_ID
    encoded_column = IMAGE
    decoded_objects = (PIXELS, HEADERS)
    formats = EXTENSIONS
    format_of = staticmethod(image_format)

    def __post_init__(self) -> None:
        rows = self.__dict__.get("data")
        if isinstance(rows, list) and rows and not isinstance(rows[0], dict):
            self._take_objects(rows)
        super().__post_init__()

    def _take_objects(self, rows: list[ImageObject]) -> None:
        from gristmill.image.image_object import ImageObject, objects_to_rows

        if all(isinstance(one, ImageObject) for one in rows):
            self.data, pixels = objects_to_rows(rows)
            if pixels is not None:
                self.objects = {**self.objects, PIXELS: pixels}

    def to_objects(self) -> list[ImageObject]:
        """The images as objects, decoded. This takes far more memory than the batch."""
        from gristmill.image.image_object import row_to_object

        encoded = self.data.column(IMAGE).to_pylist() if IMAGE in self.get_columns() else [None] * self.num_items
        without = self.with_data(self.data.drop_columns([IMAGE])) if IMAGE in self.get_columns() else self
        pixels = self.objects.get(PIXELS) or [None] * self.num_items
        return [row_to_object(*three) for three in zip(without.to_rows(), encoded, pixels, strict=True)]
