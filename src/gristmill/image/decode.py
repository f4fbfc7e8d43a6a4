"""Decode: from encoded bytes to pixels, HWC arrays of uint8 in RGB, as the picture is meant to be seen.

    EXIF orientation      applied
    alpha, transparency   laid on white
    palette, grey, 1 bit  RGB
    CMYK, YCCK            RGB as Pillow converts them (inverted when an Adobe marker says so)
    16 bits a channel     the upper 8 of them; 32-bit floats: 0 to 1
    animated, multi-page  the first frame; `Header.frames` counts them
    too large             more than `max_pixels`: refused before anything is decoded
    damaged, cut short    refused, also where a decoder would fill in grey

JPEG is decoded by libjpeg-turbo (simplejpeg), the rest by Pillow, with the GIL released.

The pixels of a batch are objects of its rows (`batch.objects["pixels"]`), decoded when a stage first asks and shared by
those that are fused with it. They are always what the bytes in the `image` column decode to: a stage that changes a
picture changes its bytes. So they need not travel between processes, and do not (`ImageBatch.__getstate__`): a picture
is ten times as large decoded as encoded.

What is given up: colour profiles, which are not applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.arrow.array_building import as_one_array
from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.batch import ImageBatch
from gristmill.core.errors import BadRecordError, MissingDependencyError, require
from gristmill.image.formats import (
    JPEG,
    BadImage,
    Header,
    header,
    image_format,
    jpeg_header,
    open_image,
    orientation_of,
)
from gristmill.samples.buffer_pool import BUFFER_POOL

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from gristmill.core.stage import ProcessingStage

    Pixels = npt.NDArray[np.uint8]

IMAGE, PIXELS = "image", "pixels"
THREADS = "decode_threads"
"""How many threads decode the images of a batch, in its metadata, if a reader was told."""

MAX_PIXELS = 89_478_485
"""The largest picture that is decoded, unless told otherwise: 256 MiB of RGB, where Pillow begins to warn."""

_DAMAGE = ("premature end of data segment", "bad Huffman code", "Unsupported marker")
"""What libjpeg goes on after, with grey or garbage for the rest. Its other warnings are about harmless oddities."""


def decode(data: Any, max_pixels: int | None = MAX_PIXELS, at_least: int | None = None) -> Pixels:
    """The pixels of one encoded image. Raises BadImage.

    With `at_least` the picture may come smaller, with a shorter side of at least so many pixels: JPEG is then decoded
    at a smaller size, which is several times as fast.
    """
    view = memoryview(data).cast("B")
    if not len(view):
        raise BadImage("an empty image: no bytes")
    kind = image_format(view)
    try:
        if kind == JPEG and (found := jpeg_header(view)) and found.mode != "CMYK":
            _check_size(found.width, found.height, max_pixels)
            pixels = _decode_jpeg(view, at_least, None if at_least else BUFFER_POOL.borrow(3 * found.pixels))
            if pixels is not None:
                return _read_only(_upright(pixels, found.orientation))
        return _read_only(_decode_with_pillow(view, kind, max_pixels, at_least))
    except (BadImage, MissingDependencyError):
        raise
    except MemoryError as error:
        raise BadImage(f"{kind} that does not fit into memory") from error
    except Exception as error:  # each of Pillow's formats has errors of its own
        raise BadImage(f"{kind} that cannot be decoded: {type(error).__name__}: {error}") from error


decode_image = decode
"""Its name in `gristmill.image`, where `decode` is this file."""


def _check_size(width: int, height: int, max_pixels: int | None) -> None:
    if max_pixels is not None and width * height > max_pixels:
        raise BadImage(
            f"{width:,} x {height:,} pixels are more than max_pixels={max_pixels:,}: refused, since so "
            "large a picture may be made to exhaust memory"
        )


def _decode_jpeg(view: memoryview, at_least: int | None, room: Pixels | None) -> Pixels | None:
    """None for what libjpeg-turbo has reservations about: Pillow is to decide."""
    simplejpeg = require("simplejpeg", "image", "images")
    least = at_least or 0
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(view, "RGB", min_height=least, min_width=least, buffer=room)
    except ValueError as error:
        if any(damage in str(error) for damage in _DAMAGE):
            raise BadImage(f"a damaged jpeg: {error}") from error
        return None
    return pixels


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    if orientation == 1:
        return pixels
    turned = {
        2: lambda: pixels[:, ::-1],
        3: lambda: pixels[::-1, ::-1],
        4: lambda: pixels[::-1],
        5: lambda: pixels.transpose(1, 0, 2),
        6: lambda: np.rot90(pixels, -1),
        7: lambda: pixels[::-1, ::-1].transpose(1, 0, 2),
        8: lambda: np.rot90(pixels),
    }[orientation]()
    return np.ascontiguousarray(turned)


def _decode_with_pillow(view: memoryview, kind: str | None, max_pixels: int | None, at_least: int | None) -> Pixels:
    if kind is None:
        header(view)  # says what is wrong with it
        raise AssertionError("an image of no format has no header")
    image = open_image(view, kind)
    _check_size(image.width, image.height, max_pixels)
    image.load()
    orientation = orientation_of(image, kind, view)  # to TIFF Pillow has applied it by now
    image = to_rgb(image)
    factor = min(image.size) // at_least if at_least else 1
    return _upright(np.asarray(image.reduce(factor) if factor > 1 else image), orientation)


def to_rgb(image: Any) -> Any:
    """A Pillow image in RGB, with what is transparent on white."""
    pillow = require("PIL.Image", "image", "images")
    if image.mode.startswith("I"):
        deep = np.clip(np.asarray(image).astype(np.int64), 0, 65535) >> 8
        image = pillow.fromarray(deep.astype(np.uint8))
    elif image.mode == "F":
        image = pillow.fromarray((np.nan_to_num(np.clip(np.asarray(image), 0, 1)) * 255).astype(np.uint8))
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        seen = image.convert("RGBA")
        image = pillow.new("RGB", seen.size, "white")
        image.paste(seen, mask=seen.getchannel("A"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _read_only(pixels: Pixels) -> Pixels:
    """Stages share them: who wants to change pixels makes a copy."""
    pixels.flags.writeable = False
    return pixels


# -- the images of a batch ---------------------------------------------------------------------------------


def decoded(
    batch: ImageBatch,
    stage: ProcessingStage[Any, Any] | None = None,
    *,
    max_pixels: int | None = MAX_PIXELS,
    threads: int | None = None,
    field: str = IMAGE,
) -> ImageBatch:
    """The batch with pixels, without the rows that cannot be decoded: those are set aside for the `stage`.

    Nothing is decoded twice: pixels that are there are used as they are. Without a stage a bad image raises.
    """
    images = pixels_of(batch, stage, max_pixels=max_pixels, threads=threads, field=field)
    if not any(image is None for image in images):
        return batch
    return batch.take([index for index, image in enumerate(images) if image is not None])


def pixels_of(
    batch: ImageBatch,
    stage: ProcessingStage[Any, Any] | None = None,
    *,
    at_least: int | None = None,
    max_pixels: int | None = MAX_PIXELS,
    threads: int | None = None,
    field: str = IMAGE,
) -> list[Pixels | None]:
    """The pixels of each row; None for one that cannot be decoded, which is set aside: such rows are to be dropped.

    They stay with the batch. With `at_least` they may be smaller, as `decode` gives them; full-size pixels do not take
    their place, so that the result does not depend on what other stages have asked for.
    """
    name = PIXELS if at_least is None else f"{PIXELS}_{at_least}"
    known: list[Pixels | None] | None = batch.objects.get(name)
    if known is None:
        work = partial(_result_or_error, partial(decode, max_pixels=max_pixels, at_least=at_least))
        known = set_aside_bad_images(batch, _apply_to_images(work, batch, threads, field), stage)
        batch.objects[name] = known
    return known


def headers_of(
    batch: ImageBatch, stage: ProcessingStage[Any, Any] | None = None, *, field: str = IMAGE
) -> list[Header | None]:
    """What is known of each image without decoding it; None for what is no image, which is set aside."""
    known: list[Header | None] | None = batch.objects.get("headers")
    if known is None:
        known = set_aside_bad_images(batch, _apply_to_images(partial(_result_or_error, header), batch, 1, field), stage)
        batch.objects["headers"] = known
    return known


def set_aside_bad_images(
    batch: ImageBatch, results: Sequence[Any], stage: ProcessingStage[Any, Any] | None
) -> list[Any]:
    """The results, with None in place of each BadImage. Its row is set aside for the stage, or raises without one."""
    for index, result in enumerate(results):
        if not isinstance(result, BadImage):
            continue
        row = table_to_rows(batch.data.slice(index, 1))[0]
        position, file = row.pop(POSITION, None), batch.metadata.get("file")
        reason = f"image {row['image_id']!r}: {result}" if row.get("image_id") is not None else str(result)
        if stage is None:
            raise BadRecordError(f"{file or row.get('source') or 'image'}: {reason}")
        stage.set_aside(reason, row=row, file=file, position=position)
    return [None if isinstance(result, BadImage) else result for result in results]


def image_bytes(batch: ImageBatch, field: str = IMAGE) -> list[memoryview | None]:
    """The encoded images where they lie in memory; None where there is none."""
    column: pa.Array = as_one_array(batch.data.column(field))
    buffers = (value.as_buffer() for value in column)
    return [None if buffer is None else memoryview(buffer).cast("B") for buffer in buffers]


def _apply_to_images(work: Callable[[Any], Any], batch: ImageBatch, threads: int | None, field: str) -> list[Any]:
    data = image_bytes(batch, field)
    threads = min(threads or int(batch.metadata.get(THREADS, 1)), len(data))
    if threads <= 1:
        return [work(view) for view in data]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, data))


def _result_or_error(work: Callable[[Any], Any], view: memoryview | None) -> Any:
    try:
        return work(b"" if view is None else view)
    except BadImage as error:
        return error
