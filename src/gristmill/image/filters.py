"""Filters for pictures, without models: give each a score, and say by the score whether it is kept.

To add one: subclass `ImageFilter`, write `score_image` and `keep_image`, and add rows to the table in
`tests/image/test_filters.py`. There is nothing to register. `looks_at` says what `score_image` is given:

    PIXELS   the picture in RGB, an array of height, width and 3, decoded so that its shorter side has 256 pixels or
             more: scores of pictures of different sizes can be compared, and decoding is several times as fast
    GREY     the same as brightness from 0 to 255, float32
    HEADER   size, format and number of frames (`Header`), for which nothing is decoded
    SIZE     the number of bytes

A filter between two bounds is a `ImageRangeFilter` and needs no `keep_image`.

The filters that look for signs of something, such as watermarks and text, are in `artifact_filters.py`; the stages that run
filters in `score.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.image.formats import FORMATS, Header

PIXELS, GREY, HEADER, SIZE = "pixels", "grey", "header", "size"


class ImageFilter(ABC):
    """One score per picture, and a verdict per score. Constructors have no side effects."""

    name: str = "ImageFilter"
    """The name of the class, unless set."""

    looks_at: ClassVar[str] = PIXELS
    score_type: ClassVar[pa.DataType] = pa.float64()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    @abstractmethod
    def score_image(self, image: Any) -> Any:
        """The score of one picture: a number, as a rule."""

    @abstractmethod
    def keep_image(self, score: Any) -> bool:
        """Whether a picture with this score is kept."""

    def score_batch(self, images: Sequence[Any]) -> pa.Array:
        return make_array([self.score_image(image) for image in images], self.score_type)

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        """The verdicts for a column of scores. A picture without a score is not kept."""
        kept = [score is not None and bool(self.keep_image(score)) for score in scores.to_pylist()]
        return make_array(kept, pa.bool_())

    def threshold(self) -> str:
        """What the verdict depends on, for people who look at what was dropped."""
        told = {key: value for key, value in vars(self).items() if value is not None and not key.startswith("_")}
        return ", ".join(f"{key}={value!r}" for key, value in told.items())

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if not key.startswith("_"))
        return f"{type(self).__name__}({arguments})"


class ImageRangeFilter(ImageFilter):
    """A filter that keeps scores between two bounds, which belong to it."""

    @abstractmethod
    def bounds(self) -> tuple[float | None, float | None]:
        """The smallest and the largest score that is kept; None for no bound."""

    def keep_image(self, score: Any) -> bool:
        low, high = self.bounds()
        return (low is None or score >= low) and (high is None or score <= high)

    def _check(self) -> None:
        """For constructors: all numbers must be numbers, and a smallest not above a largest."""
        for key, value in vars(self).items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
            if value is not None and (not number or value < 0):
                raise ValueError(f"{self.name}: {key} is {value!r}, must be a number, 0 or more, or None")
        low, high = self.bounds()
        if low is not None and high is not None and low > high:
            raise ValueError(f"{self.name}: {self.threshold()} leaves nothing")


# -- by what is known without decoding -----------------------------------------------------------------------


class ImageResolutionFilter(ImageRangeFilter):
    """Keeps pictures whose shorter side has between `min_side` and `max_side` pixels."""

    looks_at, score_type = HEADER, pa.int64()

    def __init__(self, min_side: int | None = 256, max_side: int | None = None) -> None:
        self.min_side, self.max_side = min_side, max_side
        self._check()

    def score_image(self, image: Header) -> int:
        return min(image.width, image.height)

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_side, self.max_side


class ImageAspectRatioFilter(ImageRangeFilter):
    """Keeps pictures whose width is between `min_ratio` and `max_ratio` times their height."""

    looks_at = HEADER

    def __init__(self, min_ratio: float | None = 1 / 3, max_ratio: float | None = 3.0) -> None:
        self.min_ratio, self.max_ratio = min_ratio, max_ratio
        self._check()

    def score_image(self, image: Header) -> float:
        return image.width / image.height

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_ratio, self.max_ratio


class ImageFileSizeFilter(ImageRangeFilter):
    """Keeps pictures of between `min_bytes` and `max_bytes`, as they are encoded."""

    looks_at, score_type = SIZE, pa.int64()

    def __init__(self, min_bytes: int | None = 5_000, max_bytes: int | None = None) -> None:
        self.min_bytes, self.max_bytes = min_bytes, max_bytes
        self._check()

    def score_image(self, image: int) -> int:
        return image

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_bytes, self.max_bytes


class ImageFormatFilter(ImageFilter):
    """Keeps pictures in one of some `formats`, whatever their files are called."""

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
    """Keeps pictures of at most `max_frames` frames or pages: with 1, nothing that is animated."""

    looks_at, score_type = HEADER, pa.int64()

    def __init__(self, max_frames: int = 1) -> None:
        self.max_frames = max_frames
        self._check()

    def score_image(self, image: Header) -> int:
        return image.frames

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_frames


# -- by their pixels -----------------------------------------------------------------------------------------


class ImageBlurFilter(ImageRangeFilter):
    """Keeps pictures that are sharp: the variance of their Laplacian is `min_sharpness` or more.

    Below about 50 a photograph looks blurred, or shows nothing but smooth areas.
    """

    looks_at = GREY

    def __init__(self, min_sharpness: float = 50.0) -> None:
        self.min_sharpness = min_sharpness
        self._check()

    def score_image(self, image: Any) -> float:
        if min(image.shape) < 3:
            return 0.0
        inside = image[1:-1, 1:-1]
        found = image[:-2, 1:-1] + image[2:, 1:-1] + image[1:-1, :-2] + image[1:-1, 2:] - 4 * inside
        return float(found.var(dtype=np.float64))

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_sharpness, None


class ImageEntropyFilter(ImageRangeFilter):
    """Keeps pictures whose brightness has an entropy of `min_entropy` bits or more, of 8 at most.

    Pictures of one colour have 0, charts and logos 1 to 4, photographs mostly more than 6.
    """

    looks_at = GREY

    def __init__(self, min_entropy: float | None = 3.0, max_entropy: float | None = None) -> None:
        self.min_entropy, self.max_entropy = min_entropy, max_entropy
        self._check()

    def score_image(self, image: Any) -> float:
        shares = np.bincount(np.rint(image).astype(np.uint8).reshape(-1), minlength=256) / image.size
        shares = shares[shares > 0]
        return float(-(shares * np.log2(shares)).sum()) + 0.0

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_entropy, self.max_entropy


class ImageBrightnessFilter(ImageRangeFilter):
    """Keeps pictures whose mean brightness is between two bounds, from 0, black, to 1, white."""

    looks_at = GREY

    def __init__(self, min_brightness: float | None = 0.05, max_brightness: float | None = 0.97) -> None:
        self.min_brightness, self.max_brightness = min_brightness, max_brightness
        self._check()

    def score_image(self, image: Any) -> float:
        return float(image.mean(dtype=np.float64)) / 255

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_brightness, self.max_brightness


class ImageContrastFilter(ImageRangeFilter):
    """Keeps pictures whose brightness varies: its standard deviation is `min_contrast` or more, of 0.5 at most."""

    looks_at = GREY

    def __init__(self, min_contrast: float | None = 0.04, max_contrast: float | None = None) -> None:
        self.min_contrast, self.max_contrast = min_contrast, max_contrast
        self._check()

    def score_image(self, image: Any) -> float:
        return float(image.std(dtype=np.float64)) / 255

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_contrast, self.max_contrast


class ImageColourfulnessFilter(ImageRangeFilter):
    """Keeps pictures that have colours, by the measure of Hasler and Süsstrunk (2003), between two bounds.

    Grey pictures have less than about 3, photographs 15 to 60, garish ones more than 100.
    """

    def __init__(self, min_colourfulness: float | None = 3.0, max_colourfulness: float | None = None) -> None:
        self.min_colourfulness, self.max_colourfulness = min_colourfulness, max_colourfulness
        self._check()

    def score_image(self, image: Any) -> float:
        red, green, blue = (image[..., channel].astype(np.float32) for channel in range(3))
        first, second = red - green, (red + green) / 2 - blue
        spread = math.hypot(float(first.std(dtype=np.float64)), float(second.std(dtype=np.float64)))
        middle = math.hypot(float(first.mean(dtype=np.float64)), float(second.mean(dtype=np.float64)))
        return spread + 0.3 * middle

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_colourfulness, self.max_colourfulness
