"""The batch of images, and the names of its columns."""

from __future__ import annotations

from gristmill.image.image_header import EXTENSIONS, image_format
from gristmill.samples.batch import SampleBatch

IMAGE, IMAGE_ID = "image", "image_id"
PIXELS, HEADERS = "pixels", "headers"


class ImageBatch(SampleBatch):
    """Images, one per row, as they were encoded. Decoded pixels are objects of the rows, and never reach disk."""

    sample_name = "image"
    id_column = IMAGE_ID
    encoded_column = IMAGE
    decoded_objects = (PIXELS, HEADERS)
    formats = EXTENSIONS
    format_of = staticmethod(image_format)
