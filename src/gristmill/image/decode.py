"""Decode: from encoded bytes to pixels, HWC arrays of uint8 in RGB, upright and in the colours that a viewer shows.

    EXIF orientation      applied
    alpha, transparency   on white
    palette, grey, 1 bit  RGB
    CMYK, YCCK            RGB as Pillow converts them (inverted when an Adobe marker says so)
    16 bits a channel     the upper 8 of them; 32-bit floats: 0 to 1
    animated, multi-page  the first frame; `Header.frames` counts them
    too large             more than `max_pixels`: refused before anything is decoded
    damaged, cut short    refused, also where a decoder would fill in grey

JPEG is decoded by libjpeg-turbo (simplejpeg), the rest by Pillow, with the GIL released.

The pixels of a batch are objects of its rows, decoded once for all stages of a worker (`samples/decode.py`).

What is given up: colour profiles, which are not applied.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import MissingDependencyError, require
from gristmill.image.batch import HEADERS, IMAGE, PIXELS, ImageBatch
from gristmill.image.image_header import (
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
from gristmill.samples.decode import Decoder, decoded_objects

if TYPE_CHECKING:
    import numpy.typing as npt

    from gristmill.core.stage import ProcessingStage

    Pixels = npt.NDArray[np.uint8]

MAX_PIXELS = 89_478_485
"""The default for the largest image that is decoded: 256 MiB of RGB, the size at which Pillow begins to warn."""

_DAMAGE = ("premature end of data segment", "bad Huffman code", "Unsupported marker")
"""Warnings after which libjpeg fills the rest with grey or garbage. Its other warnings are harmless."""


def decode(data: Any, max_pixels: int | None = MAX_PIXELS, at_least: int | None = None) -> Pixels:
    """The pixels of one encoded image. Raises BadImage.

    With `at_least` the image may be smaller, with a shorter side of at least that many pixels: JPEG is then decoded at
    a smaller size, which is several times as fast.
    """
    view = memoryview(data).cast("B")
    if not len(view):
        raise BadImage("an empty image: no bytes")
    kind = image_format(view)
    try:
        if kind == JPEG and (known := jpeg_header(view)) and known.mode != "CMYK":
            _check_size(known.width, known.height, max_pixels)
            pixels = _decode_jpeg(view, at_least, None if at_least else BUFFER_POOL.borrow(3 * known.pixels))
            if pixels is not None:
                return _read_only(_upright(pixels, known.orientation))
        return _read_only(_decode_with_pillow(view, kind, max_pixels, at_least))
    except (BadImage, MissingDependencyError):
        raise
    except MemoryError as error:
        raise BadImage(f"{kind} that does not fit into memory") from error
    except Exception as error:  # each of Pillow's formats has errors of its own
        raise BadImage(f"{kind} that cannot be decoded: {type(error).__name__}: {error}") from error


decode_image = decode
"""The name in `gristmill.image`, where `decode` is this module."""


def _check_size(width: int, height: int, max_pixels: int | None) -> None:
    if max_pixels is not None and width * height > max_pixels:
        raise BadImage(
            f"{width:,} x {height:,} pixels are more than max_pixels={max_pixels:,}: not decoded, since it may be "
            "made to exhaust memory"
        )


def _decode_jpeg(view: memoryview, at_least: int | None, buffer: Pixels | None) -> Pixels | None:
    """The pixels; None if libjpeg-turbo warns of something that may be harmless, which Pillow then decides."""
    simplejpeg = require("simplejpeg", "image", "images")
    side = at_least or 0
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(view, "RGB", min_height=side, min_width=side, buffer=buffer)
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
        header(view)  # raises with the reason
        raise AssertionError("an image of no format has no header")
    image = open_image(view, kind)
    _check_size(image.width, image.height, max_pixels)
    image.load()
    orientation = orientation_of(image, kind, view)  # load() has applied that of a TIFF
    image = to_rgb(image)
    factor = min(image.size) // at_least if at_least else 1
    return _upright(np.asarray(image.reduce(factor) if factor > 1 else image), orientation)


def to_rgb(image: Any) -> Any:
    """A Pillow image in RGB, with transparent parts on white."""
    pillow = require("PIL.Image", "image", "images")
    if image.mode.startswith("I"):
        deep = np.clip(np.asarray(image).astype(np.int64), 0, 65535) >> 8
        image = pillow.fromarray(deep.astype(np.uint8))
    elif image.mode == "F":
        image = pillow.fromarray((np.nan_to_num(np.clip(np.asarray(image), 0, 1)) * 255).astype(np.uint8))
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = pillow.new("RGB", layer.size, "white")
        image.paste(layer, mask=layer.getchannel("A"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _read_only(pixels: Pixels) -> Pixels:
    """Stages share pixels, so a stage that changes them must copy them first."""
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

    Pixels that the batch already has are used. Without a stage a bad image raises.
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
    """The pixels of each row; None for one that cannot be decoded, which is set aside: the caller must drop such rows.

    They stay with the batch. With `at_least` they may be smaller, as `decode` gives them; full-size pixels are not used
    instead, so that the result does not depend on what other stages have decoded.
    """
    return decoded_objects(batch, pixel_decoder(at_least, max_pixels, threads), stage, field)


def pixel_decoder(
    at_least: int | None = None, max_pixels: int | None = MAX_PIXELS, threads: int | None = None
) -> Decoder:
    name = PIXELS if at_least is None else f"{PIXELS}_{at_least}"
    return Decoder(name, partial(decode, max_pixels=max_pixels, at_least=at_least), threads)


HEADER_DECODER = Decoder(HEADERS, header, threads=1)


def headers_of(
    batch: ImageBatch, stage: ProcessingStage[Any, Any] | None = None, *, field: str = IMAGE
) -> list[Header | None]:
    """Size and format of each image, without decoding it; None for bytes that are no image, which are set aside."""
    return decoded_objects(batch, HEADER_DECODER, stage, field)
