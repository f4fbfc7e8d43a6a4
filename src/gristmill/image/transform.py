"""Stages that change pictures: the only ones that encode anew.

    ImageResizeStage    to another size
    ImageConvertStage   to another format

A picture that is already as it should be keeps its bytes. Pictures come out upright and in RGB, first frame only, as
they are decoded (`decode.py`); EXIF data and colour profiles are left behind.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.batch import ImageBatch
from gristmill.core.errors import require
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.image.decode import IMAGE, MAX_PIXELS, decode, image_bytes, set_aside_bad_images
from gristmill.image.formats import AVIF, EXTENSIONS, FORMATS, GIF, JPEG, PNG, WEBP, BadImage, Header, header

EXTENSION = "extension"
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
    """What the stages here have in common."""

    def __init__(self, quality: int, image_field: str, max_pixels: int | None) -> None:
        super().__init__()
        if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100:
            raise ValueError(f"{type(self).__name__}: quality is {quality!r}, must be a whole number from 1 to 100")
        self.quality, self.image_field, self.max_pixels = quality, image_field, max_pixels

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.image_field]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.image_field]

    def changed(self, data: Any, known: Header) -> tuple[bytes, str] | None:
        """The new bytes and their format; None if the picture is as it should be."""
        raise NotImplementedError

    def process(self, task: ImageBatch) -> ImageBatch:
        found = [self._attempt(data) for data in image_bytes(task, self.image_field)]
        results = set_aside_bad_images(task, found, self)
        sound = [row for row, result in enumerate(results) if result is not None]
        task = task.take(sound) if len(sound) < len(results) else task
        results = [results[row] for row in sound]
        if not any(results):
            return task
        old = image_bytes(task, self.image_field)
        made = [new[0] if new else bytes(data or b"") for new, data in zip(results, old, strict=True)]
        objects = {name: value for name, value in task.objects.items() if not name.startswith(("pixels", "headers"))}
        table = task.data.set_column(
            task.data.column_names.index(self.image_field), self.image_field, make_array(made, pa.large_binary())
        )
        if EXTENSION in table.column_names:
            pairs = zip(results, table.column(EXTENSION).to_pylist(), strict=True)
            named = [EXTENSIONS[new[1]][0] if new else was for new, was in pairs]
            table = table.set_column(table.column_names.index(EXTENSION), EXTENSION, make_array(named, pa.string()))
        changed = ImageBatch(table, objects=objects, dataset_name=task.dataset_name, metadata=task.metadata)
        changed.lineage = task.lineage
        return changed

    def _attempt(self, data: Any) -> Any:
        try:
            known = header(b"" if data is None else data)
            return self.changed(data, known) or ()
        except BadImage as error:
            return error


class ImageResizeStage(_ImageTransform):
    """Makes pictures smaller: `mode` "fit" so that they fit into `width` x `height`, "cover" so that they cover it,
    "crop" so that they cover it and the middle is cut out, "exact" to just that size, whatever their shape.

    `height` is `width` unless given. Pictures that are small enough are left alone, unless `enlarge`. `format` is that
    of changed pictures, their own unless given (PNG for GIF).
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
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"ImageResizeStage: {what} is {value!r}, must be a whole number, 1 or more")
        if mode not in ("fit", "cover", "crop", "exact"):
            raise ValueError(f"ImageResizeStage: mode is {mode!r}, must be fit, cover, crop or exact")
        self.width, self.height, self.mode, self.enlarge = width, height, mode, enlarge
        self.format = _check_format("ImageResizeStage", format)

    def changed(self, data: Any, known: Header) -> tuple[bytes, str] | None:
        wanted = self.width, self.height or self.width
        size, cut = self._size(known, *wanted)
        if size == (known.width, known.height) and cut == size:
            return None
        kind = self.format or (PNG if known.format == GIF else known.format)
        pillow = require("PIL.Image", "image", "images")
        pixels = decode(data, self.max_pixels, at_least=2 * min(size) if min(size) >= 32 else None)
        image = pillow.fromarray(pixels).resize(size, pillow.Resampling.LANCZOS, reducing_gap=3.0)
        if cut != size:
            left, top = (size[0] - cut[0]) // 2, (size[1] - cut[1]) // 2
            image = image.crop((left, top, left + cut[0], top + cut[1]))
        return encode(np.ascontiguousarray(np.asarray(image)), kind, self.quality), kind

    def _size(self, known: Header, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The size that the picture is scaled to, and what is cut out of it."""
        if self.mode == "exact":
            return (width, height), (width, height)
        ratios = width / known.width, height / known.height
        scale = min(ratios) if self.mode == "fit" else max(ratios)
        if not self.enlarge:
            scale = min(scale, 1.0)
        size = max(round(known.width * scale), 1), max(round(known.height * scale), 1)
        return size, (min(size[0], width), min(size[1], height)) if self.mode == "crop" else size


class ImageConvertStage(_ImageTransform):
    """Encodes pictures in another `format`: "jpeg", "png", "webp", "avif", "bmp", "tiff" or "gif".

    Those that have it are left alone, unless `always`. `quality` is for formats that lose detail.
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
