"""Format, size, mode, frames and EXIF orientation of an encoded image, without decoding it.

The headers of JPEG are parsed here, since they are all that most images need; those of other formats by Pillow. Only
the formats listed here are passed to Pillow, so that no file can choose one of its other decoders.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

from gristmill.core.errors import require
from gristmill.samples.batch import BadSample

JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF = "jpeg", "png", "webp", "gif", "bmp", "tiff", "avif"
FORMATS = (JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF)

EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    JPEG: ("jpg", "jpeg"),
    PNG: ("png",),
    WEBP: ("webp",),
    GIF: ("gif",),
    BMP: ("bmp",),
    TIFF: ("tiff", "tif"),
    AVIF: ("avif",),
}
"""The extensions of each format, the usual one first."""

_MAGIC = (
    (b"\xff\xd8\xff", JPEG),
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"BM", BMP),
    (b"II*\0", TIFF),
    (b"MM\0*", TIFF),
    (b"II+\0", TIFF),
    (b"MM\0+", TIFF),
)
_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_ORIENTATION = 0x0112
_SIDEWAYS = frozenset({5, 6, 7, 8})


class BadImage(BadSample):
    """Bytes that cannot be decoded as an image, and why."""


class Header(NamedTuple):
    """Properties of an image that need no decoding. Width and height are those after EXIF rotation."""

    width: int
    height: int
    mode: str
    format: str
    frames: int = 1
    orientation: int = 1

    @property
    def pixels(self) -> int:
        return self.width * self.height


def image_format(data: Any) -> str | None:
    """The format that the first bytes show; None if it is none of `FORMATS`."""
    head = bytes(data[:32])
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return WEBP
    if head[4:8] == b"ftyp" and (b"avif" in head[8:] or b"avis" in head[8:]):
        return AVIF
    return None


def header(data: Any) -> Header:
    """The header of an encoded image. Raises BadImage."""
    if not len(data):
        raise BadImage("an empty image: no bytes")
    kind = image_format(data)
    if kind is None:
        raise BadImage(f"not an image of a known format ({', '.join(FORMATS)}): it begins with {bytes(data[:12])!r}")
    parsed = jpeg_header(data) if kind == JPEG else None
    if parsed is not None:
        return parsed
    try:
        return header_of(open_image(data, kind), kind, data)
    except BadImage:
        raise
    except Exception as error:  # each of Pillow's formats has errors of its own
        raise BadImage(f"{kind} that cannot be read: {type(error).__name__}: {error}") from error


def open_image(data: Any, kind: str) -> Any:
    """The image as Pillow opens it. Nothing is decoded yet: check its size first."""
    image = require("PIL.Image", "image", "images")
    if kind.upper() not in image.OPEN:
        image.preinit()
    if kind.upper() not in image.OPEN:
        image.init()
    if kind.upper() not in image.OPEN:
        raise BadImage(f"{kind}, which this Pillow was built without")
    # Not Image.open: its limit of pixels is global to the process.
    return image.OPEN[kind.upper()][0](io.BytesIO(data), "")


def header_of(image: Any, kind: str, data: Any) -> Header:
    """The header of an image that Pillow has opened. To count the frames of a GIF, Pillow reads all of it."""
    orientation = orientation_of(image, kind, data)
    width, height = image.size
    if orientation in _SIDEWAYS and kind != TIFF:  # Pillow has swapped the sides of a TIFF
        width, height = height, width
    return Header(width, height, image.mode, kind, int(getattr(image, "n_frames", 1)), orientation)


def orientation_of(image: Any, kind: str, data: Any) -> int:
    """The EXIF orientation that must still be applied to an image that Pillow has opened."""
    if kind == PNG:
        return exif_orientation(_png_exif(memoryview(data)))  # Pillow would decode the image first
    return _one_to_eight(image.getexif().get(_ORIENTATION, 1))


def _png_exif(view: memoryview) -> bytes:
    """The eXIf chunk of a PNG, which may be before or after the pixels."""
    at = 8
    while at + 8 <= len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        if bytes(view[at + 4 : at + 8]) == b"eXIf":
            return bytes(view[at + 8 : at + 8 + size]).removeprefix(b"Exif\0\0")
        at += 12 + size
    return b""


def jpeg_header(data: Any) -> Header | None:
    """The header of a JPEG; None if its segments are not in order, which Pillow may still accept."""
    view = memoryview(data)
    at, end, orientation = 2, len(view), 1
    while at + 9 < end and view[at] == 0xFF:
        marker = view[at + 1]
        if marker == 0xFF or marker in _BARE:
            at += 1 if marker == 0xFF else 2
            continue
        size = int.from_bytes(view[at + 2 : at + 4], "big")
        if marker == 0xE1 and bytes(view[at + 4 : at + 10]) == b"Exif\0\0":
            orientation = exif_orientation(bytes(view[at + 10 : at + 2 + size]))
        if marker in _FRAMES:
            precision, height, width, parts = _frame(view, at)
            if precision != 8 or parts not in _MODES or not width or not height:
                return None
            if orientation in _SIDEWAYS:
                width, height = height, width
            return Header(width, height, _MODES[parts], JPEG, 1, orientation)
        if marker in (0xD9, 0xDA) or size < 2:
            return None
        at += 2 + size
    return None


def _frame(view: memoryview, at: int) -> tuple[int, int, int, int]:
    height, width = (int.from_bytes(view[start : start + 2], "big") for start in (at + 5, at + 7))
    return view[at + 4], height, width, view[at + 9]


def exif_orientation(tiff: bytes) -> int:
    """The orientation in an EXIF block, 1 to 8; 1 if there is none that is valid."""
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(tiff[:4])
    if order is None:
        return 1

    def number(start: int, size: int) -> int:
        return int.from_bytes(tiff[start : start + size], order)  # type: ignore[arg-type]

    first = number(4, 4)
    for entry in range(first + 2, min(first + 2 + 12 * number(first, 2), len(tiff)), 12):
        if number(entry, 2) == _ORIENTATION:
            return _one_to_eight(number(entry + 8, 2))
    return 1


def _one_to_eight(orientation: Any) -> int:
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1
