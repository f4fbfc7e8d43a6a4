"""Filters of images that need no model: a score for each image, and a decision by the score.

To add one: subclass `ImageFilter`, write `score_image` and `keep_image`, and add rows to the table in
`tests/image/test_filters.py`. There is nothing to register. `looks_at` says what `score_image` is given:

    PIXELS   the image in RGB, an array of height, width and 3, decoded so that its shorter side has 256 pixels or more:
             scores of images of different sizes can be compared, and decoding is several times as fast
    GREY     the same as brightness from 0 to 255, float32
    HEADER   size, format and number of frames (`Header`), without decoding
    SIZE     the number of bytes

A filter between two bounds is an `ImageRangeFilter` and needs no `keep_image`. The stages that run filters are in
`score.py`.

What is given up by the filters of borders, text and watermarks, at the end: certainty. Brick walls repeat themselves as
watermarks do, and gravel may look like print. Look at what is dropped (`reject_to`), and choose the bounds by it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.errors import require
from gristmill.image.image_header import FORMATS, Header
from gristmill.samples.filters import SIZE, RangeFilter, SampleFilter
from gristmill.samples.picture_measures import border_share, print_share, repetition, sharpness

PIXELS, GREY, HEADER = "pixels", "grey", "header"


class ImageFilter(SampleFilter):
    """One score per image, and a decision per score. Constructors have no side effects."""

    looks_at: ClassVar[str] = PIXELS

    @abstractmethod
    def score_image(self, image: Any) -> Any:
        """The score of one image, usually a number."""

    @abstractmethod
    def keep_image(self, score: Any) -> bool:
        """Whether an image with this score is kept."""

    def score_sample(self, sample: Any) -> Any:
        return self.score_image(sample)

    def keep_score(self, score: Any) -> bool:
        return self.keep_image(score)


class ImageRangeFilter(RangeFilter, ImageFilter):
    """A filter that keeps scores between two bounds, which are included."""

    def keep_image(self, score: Any) -> bool:
        return self.keep_score(score)


# -- by the header or the size, without decoding -----------------------------------------------------------------------


class ImageResolutionFilter(ImageRangeFilter):
    """Keeps images whose shorter side has between `min_side` and `max_side` pixels."""

    looks_at, score_type = HEADER, pa.int64()

    def __init__(self, min_side: int | None = 256, max_side: int | None = None) -> None:
        self.min_side, self.max_side = min_side, max_side
        self._check_bounds()

    def score_image(self, image: Header) -> int:
        return min(image.width, image.height)

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_side, self.max_side


class ImageAspectRatioFilter(ImageRangeFilter):
    """Keeps images whose width is between `min_ratio` and `max_ratio` times their height."""

    looks_at = HEADER

    def __init__(self, min_ratio: float | None = 1 / 3, max_ratio: float | None = 3.0) -> None:
        self.min_ratio, self.max_ratio = min_ratio, max_ratio
        self._check_bounds()

    def score_image(self, image: Header) -> float:
        return image.width / image.height

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_ratio, self.max_ratio


class ImageFileSizeFilter(ImageRangeFilter):
    """Keeps images of between `min_bytes` and `max_bytes`, as they are encoded."""

    looks_at, score_type = SIZE, pa.int64()

    def __init__(self, min_bytes: int | None = 5_000, max_bytes: int | None = None) -> None:
        self.min_bytes, self.max_bytes = min_bytes, max_bytes
        self._check_bounds()

    def score_image(self, image: int) -> int:
        return image

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_bytes, self.max_bytes


class ImageFormatFilter(ImageFilter):
    """Keeps images in one of some `formats`, whatever their files are called."""

    looks_at, score_type = HEADER, pa.string()

    def __init__(self, formats: Sequence[str] = FORMATS) -> None:
        self.formats = [formats] if isinstance(formats, str) else list(formats)
        unknown = [name for name in self.formats if name not in FORMATS]
        if unknown or not self.formats:
            raise ValueError(f"{self.name}: formats is {formats!r}, must be a list of {', '.join(FORMATS)}")

    def score_image(self, image: Header) -> str:
        return image.format

    def keep_image(self, score: str) -> bool:
        return score in self.formats


class ImageAnimatedFilter(ImageRangeFilter):
    """Keeps images of at most `max_frames` frames or pages: with 1, nothing that is animated."""

    looks_at, score_type = HEADER, pa.int64()

    def __init__(self, max_frames: int = 1) -> None:
        self.max_frames = max_frames
        self._check_bounds()

    def score_image(self, image: Header) -> int:
        return image.frames

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_frames


# -- by their pixels -----------------------------------------------------------------------------------------


class ImageBlurFilter(ImageRangeFilter):
    """Keeps images that are sharp: the variance of their Laplacian is `min_sharpness` or more.

    Below about 50 a photograph looks blurred, or shows nothing but smooth areas.
    """

    looks_at = GREY

    def __init__(self, min_sharpness: float = 50.0) -> None:
        self.min_sharpness = min_sharpness
        self._check_bounds()

    def score_image(self, image: Any) -> float:
        return sharpness(image)

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_sharpness, None


class ImageEntropyFilter(ImageRangeFilter):
    """Keeps images whose brightness has an entropy of `min_entropy` bits or more, of 8 at most.

    Pictures of one colour have 0, charts and logos 1 to 4, photographs mostly more than 6.
    """

    looks_at = GREY

    def __init__(self, min_entropy: float | None = 3.0, max_entropy: float | None = None) -> None:
        self.min_entropy, self.max_entropy = min_entropy, max_entropy
        self._check_bounds()

    def score_image(self, image: Any) -> float:
        shares = np.bincount(np.rint(image).astype(np.uint8).reshape(-1), minlength=256) / image.size
        shares = shares[shares > 0]
        return float(-(shares * np.log2(shares)).sum()) + 0.0

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_entropy, self.max_entropy


class ImageBrightnessFilter(ImageRangeFilter):
    """Keeps images whose mean brightness is between two bounds, from 0, black, to 1, white."""

    looks_at = GREY

    def __init__(self, min_brightness: float | None = 0.05, max_brightness: float | None = 0.97) -> None:
        self.min_brightness, self.max_brightness = min_brightness, max_brightness
        self._check_bounds()

    def score_image(self, image: Any) -> float:
        return float(image.mean(dtype=np.float64)) / 255

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_brightness, self.max_brightness


class ImageContrastFilter(ImageRangeFilter):
    """Keeps images whose brightness varies: its standard deviation is `min_contrast` or more, of 0.5 at most."""

    looks_at = GREY

    def __init__(self, min_contrast: float | None = 0.04, max_contrast: float | None = None) -> None:
        self.min_contrast, self.max_contrast = min_contrast, max_contrast
        self._check_bounds()

    def score_image(self, image: Any) -> float:
        return float(image.std(dtype=np.float64)) / 255

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_contrast, self.max_contrast


class ImageColourfulnessFilter(ImageRangeFilter):
    """Keeps images that have colours, by the measure of Hasler and Süsstrunk (2003), between two bounds.

    Grey images have less than about 3, photographs 15 to 60, garish ones more than 100.
    """

    def __init__(self, min_colourfulness: float | None = 3.0, max_colourfulness: float | None = None) -> None:
        self.min_colourfulness, self.max_colourfulness = min_colourfulness, max_colourfulness
        self._check_bounds()

    def score_image(self, image: Any) -> float:
        red, green, blue = (image[..., channel].astype(np.float32) for channel in range(3))
        first, second = red - green, (red + green) / 2 - blue
        spread = math.hypot(float(first.std(dtype=np.float64)), float(second.std(dtype=np.float64)))
        middle = math.hypot(float(first.mean(dtype=np.float64)), float(second.mean(dtype=np.float64)))
        return spread + 0.3 * middle

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_colourfulness, self.max_colourfulness


# -- by artifacts: borders, print, watermarks -----------------------------------------------------------------


class ImageBorderFilter(ImageRangeFilter):
    """Keeps images of which at most a share of `max_border` is a uniform border: frames, letterbox bars."""

    looks_at = GREY

    def __init__(self, max_border: float = 0.25) -> None:
        self.max_border = max_border
        self._check_bounds()

    def score_image(self, image: Any) -> float:
        return border_share(image)

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_border


class ImageTextFilter(ImageRangeFilter):
    """Keeps images of which at most a share of `max_text` looks like print: text, QR codes, bar codes, screenshots.

    Counts squares of 16 pixels that have many steep steps between dark and bright, and few pixels in between.
    """

    looks_at = GREY

    def __init__(self, max_text: float = 0.3) -> None:
        self.max_text = max_text
        self._check_bounds()

    def score_image(self, image: Any) -> float:
        return print_share(image)

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_text


class ImageWatermarkFilter(ImageRangeFilter):
    """Keeps images without the repeated marks that agencies lay over pictures.

    The score is the autocorrelation of the fine detail of the image at some distance, from 0 to 1.
    """

    looks_at = GREY

    def __init__(self, max_repetition: float = 0.1) -> None:
        self.max_repetition = max_repetition
        self._check_bounds()

    def score_image(self, image: Any) -> float:
        return repetition(image)

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_repetition


class ImageQRCodeFilter(ImageRangeFilter):
    """Keeps images of which QR codes cover no more than `max_share`.

    Codes are looked for in the image at a shorter side of 256 pixels: one too small to be read there does not count.
    Needs `gristmill[qrcode]`.
    """

    looks_at = PIXELS

    def __init__(self, max_share: float = 0.05) -> None:
        self.max_share = max_share
        self._check_bounds()

    def score_image(self, image: Any) -> float:
        zxing = require("zxingcpp", "qrcode", "QR codes")
        found = zxing.read_barcodes(image, formats=zxing.BarcodeFormat.QRCode, return_errors=True)
        covered = sum(map(_area, found)) / (image.shape[0] * image.shape[1])
        return float(min(1.0, covered))

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_share


def _area(code: Any) -> float:
    """The area between the four corners of a code."""
    place = code.position
    corners = [place.top_left, place.top_right, place.bottom_right, place.bottom_left]
    pairs = zip(corners, [*corners[1:], corners[0]], strict=True)
    return abs(sum(float(one.x * two.y - two.x * one.y) for one, two in pairs)) / 2
