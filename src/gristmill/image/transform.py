"""Stages that change images: the only ones that encode.

    ImageResizeStage    to another size
    ImageConvertStage   to another format

An image that needs no change keeps its bytes. Changed images are upright and in RGB, first frame only, as they are
decoded (`decode.py`). What is given up: EXIF data and colour profiles of changed images.
"""

from __future__ import annotations

from abc import abstractmethod
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import require
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.image.batch import IMAGE, ImageBatch
from gristmill.image.decode import MAX_PIXELS, decode
from gristmill.image.image_header import AVIF, EXTENSIONS, FORMATS, GIF, JPEG, PNG, WEBP, BadImage, Header, header
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.decode import encoded_views, set_aside_bad_samples, without_decoded
from gristmill.samples.sample_files import EXTENSION

_LOSSY = (JPEG, WEBP, AVIF)


def encode(pixels: Any, kind: str, quality: int) -> bytes:
    """RGB pixels as an image file."""
    if kind == JPEG:
        simplejpeg = require("simplejpeg", "image", "images")
        return bytes(simplejpeg.encode_jpeg(pixels, quality, "RGB", "420"))
    image = require("PIL.Image", "image", "images").fromarray(pixels)
    data = BytesIO()
    image.save(data, kind.upper(), **({"quality": quality} if kind in _LOSSY else {}))
    return data.getvalue()


class _ImageTransform(ProcessingStage[ImageBatch, ImageBatch]):
    """Base of the stages that change images."""

    def __init__(self, quality: int, image_field: str, max_pixels: int | None) -> None:
        super().__init__()
        if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100:
            raise ValueError(f"{type(self).__name__}: quality is {quality!r}, must be a whole number from 1 to 100")
        self.quality, self.image_field, self.max_pixels = quality, image_field, max_pixels

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.image_field]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.image_field]

    @abstractmethod
    def changed(self, data: Any, known: Header) -> tuple[bytes, str] | None:
        """The new bytes and their format; None if the image needs no change."""

    def process(self, task: ImageBatch) -> ImageBatch:
        attempts = [self._attempt(data) for data in encoded_views(task, self.image_field)]
        results = set_aside_bad_samples(task, attempts, self)
        good = [row for row, result in enumerate(results) if result is not None]
        task = task.take(good) if len(good) < len(results) else task
        results = [results[row] for row in good]
        if not any(results):
            return task
        old = encoded_views(task, self.image_field)
        encoded = [new[0] if new else bytes(data or b"") for new, data in zip(results, old, strict=True)]
        table = task.data.set_column(
            task.data.column_names.index(self.image_field), self.image_field, make_array(encoded, pa.large_binary())
        )
        if EXTENSION in table.column_names:
            pairs = zip(results, table.column(EXTENSION).to_pylist(), strict=True)
            extensions = [EXTENSIONS[new[1]][0] if new else given for new, given in pairs]
            column = make_array(extensions, pa.string())
            table = table.set_column(table.column_names.index(EXTENSION), EXTENSION, column)
        changed = ImageBatch(
            table, objects=without_decoded(task), dataset_name=task.dataset_name, metadata=task.metadata
        )
        changed.lineage = task.lineage
        return changed

    def _attempt(self, data: Any) -> Any:
        try:
            known = header(b"" if data is None else data)
            return self.changed(data, known) or ()
        except BadImage as error:
            return error


class ImageResizeStage(_ImageTransform):
    """Makes images smaller: `mode` "fit" so that they fit into `width` x `height`, "cover" so that they cover it,
    "crop" so that they cover it and the middle is cut out, "exact" to just that size, whatever their shape.

    `height` is `width` unless given. Images that are small enough are not changed, unless `enlarge`. `format` is that
    of changed images, their own unless given (PNG for GIF).
    """

    def __init__(
        self,
        width: int,
        height: int | None = None,
        mode: str = "fit",
        enlarge: bool = False,
        format: str | None = None,  # noqa: A002
        quality: int = 95,
        image_field: str = IMAGE,
        max_pixels: int | None = MAX_PIXELS,
    ) -> None:
        super().__init__(quality, image_field, max_pixels)
        for what, value in (("width", width), ("height", height)):
            if value is not None:
                check_positive("ImageResizeStage", what, value)
        if mode not in ("fit", "cover", "crop", "exact"):
            raise ValueError(f"ImageResizeStage: mode is {mode!r}, must be fit, cover, crop or exact")
        self.width, self.height, self.mode, self.enlarge = width, height, mode, enlarge
        self.format = _check_format("ImageResizeStage", format)

    def changed(self, data: Any, known: Header) -> tuple[bytes, str] | None:
        wanted = self.width, self.height or self.width
        size, crop = self._size(known, *wanted)
        if size == (known.width, known.height) and crop == size:
            return None
        kind = self.format or (PNG if known.format == GIF else known.format)
        pillow = require("PIL.Image", "image", "images")
        pixels = decode(data, self.max_pixels, at_least=2 * min(size) if min(size) >= 32 else None)
        image = pillow.fromarray(pixels).resize(size, pillow.Resampling.LANCZOS, reducing_gap=3.0)
        if crop != size:
            left, top = (size[0] - crop[0]) // 2, (size[1] - crop[1]) // 2
            image = image.crop((left, top, left + crop[0], top + crop[1]))
        return encode(np.ascontiguousarray(np.asarray(image)), kind, self.quality), kind

    def _size(self, known: Header, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The size that the image is scaled to, and the size of the part that is kept."""
        if self.mode == "exact":
            return (width, height), (width, height)
        ratios = width / known.width, height / known.height
        scale = min(ratios) if self.mode == "fit" else max(ratios)
        if not self.enlarge:
            scale = min(scale, 1.0)
        size = max(round(known.width * scale), 1), max(round(known.height * scale), 1)
        return size, (min(size[0], width), min(size[1], height)) if self.mode == "crop" else size


class ImageConvertStage(_ImageTransform):
    """Encodes images in another `format`: "jpeg", "png", "webp", "avif", "bmp", "tiff" or "gif".

    Those that have it are not changed, unless `always`. `quality` is for formats that lose detail.
    """

    def __init__(
        self,
        format: str = JPEG,  # noqa: A002
        quality: int = 95,
        always: bool = False,
        image_field: str = IMAGE,
        max_pixels: int | None = MAX_PIXELS,
    ) -> None:
        super().__init__(quality, image_field, max_pixels)
        self.format, self.always = _check_format("ImageConvertStage", format) or JPEG, always

    def changed(self, data: Any, known: Header) -> tuple[bytes, str] | None:
        if known.format == self.format and not self.always:
            return None
        return encode(decode(data, self.max_pixels), self.format, self.quality), self.format


def _check_format(stage: str, kind: str | None) -> str | None:
    if kind is not None and kind not in FORMATS:
        raise ValueError(f"{stage}: format is {kind!r}, must be one of {', '.join(FORMATS)}")
    return kind
