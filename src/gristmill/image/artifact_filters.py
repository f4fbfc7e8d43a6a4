"""Filters that look for signs of something in a picture: borders, text and codes, watermarks. They need no model.

What is given up: certainty. Walls of bricks repeat themselves as watermarks do, and gravel may look like print. Look at
what is dropped (`reject_to`), and choose bounds by it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.image.filters import GREY, ImageRangeFilter

BORDER_TOLERANCE = 6.0
"""Lines of a border differ by so much at most: in themselves, and from the outermost one."""

CELL_PIXELS = 16
"""Pixels of the side of the squares that are looked at for text."""

PRINT_STEP = 48.0
"""A step in brightness from one pixel to the next that print has, and photographs seldom."""

MIN_DETAIL_VARIANCE = 4.0
"""Fine detail of less variance than this counts for less: where there is none, noise is like itself."""


class ImageBorderFilter(ImageRangeFilter):
    """Keeps pictures of which at most the share `max_border` is an even border: frames, letterbox bars."""

    looks_at = GREY

    def __init__(self, max_border: float = 0.25) -> None:
        self.max_border = max_border
        self._check()

    def score_image(self, image: Any) -> float:
        top, bottom = even_lines(image), even_lines(image[::-1])
        if top >= len(image):
            return 1.0
        inside = image[top : len(image) - bottom]
        left, right = even_lines(inside.T), even_lines(inside.T[::-1])
        width = image.shape[1]
        return 1 - len(inside) * (width - left - right) / image.size if left < width else 1.0

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_border


def even_lines(image: Any) -> int:
    """How many lines from the top are of one brightness, that of the first."""
    even = (image.std(axis=1) <= BORDER_TOLERANCE) & (np.abs(image.mean(axis=1) - image[0].mean()) <= BORDER_TOLERANCE)
    return int(len(even) if even.all() else np.argmin(even))


class ImageTextFilter(ImageRangeFilter):
    """Keeps pictures of which at most the share `max_text` looks like print: text, QR codes, bar codes, screenshots.

    Looks at squares of 16 pixels, and counts those that have many steep steps between dark and bright, and little that
    is neither.
    """

    looks_at = GREY

    def __init__(self, max_text: float = 0.3) -> None:
        self.max_text = max_text
        self._check()

    def score_image(self, image: Any) -> float:
        height, width = (side // CELL_PIXELS * CELL_PIXELS for side in image.shape)
        if not height or not width:
            return 0.0
        cells = (
            image[:height, :width]
            .reshape(height // CELL_PIXELS, CELL_PIXELS, width // CELL_PIXELS, CELL_PIXELS)
            .swapaxes(1, 2)
        )
        steps = (np.abs(np.diff(cells, axis=3)) > PRINT_STEP).mean(axis=(2, 3))
        steps = np.maximum(steps, (np.abs(np.diff(cells, axis=2)) > PRINT_STEP).mean(axis=(2, 3)))
        low, high = cells.min(axis=(2, 3)), cells.max(axis=(2, 3))
        gap = (high - low)[..., None, None] + 1e-6
        between = np.abs((cells - low[..., None, None]) / gap - 0.5) < 0.2
        print_like = (steps > 0.06) & (between.mean(axis=(2, 3)) < 0.22) & (high - low > 2 * PRINT_STEP)
        return float(print_like.mean())

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_text


class ImageWatermarkFilter(ImageRangeFilter):
    """Keeps pictures in which nothing repeats itself as the marks do that are laid over pictures again and again.

    The score is how much the fine detail of the picture is like itself at some distance, from 0 to 1.
    """

    looks_at = GREY

    def __init__(self, max_repetition: float = 0.1) -> None:
        self.max_repetition = max_repetition
        self._check()

    def score_image(self, image: Any) -> float:
        height, width = (min(side, 512) for side in image.shape)
        if min(height, width) < 64:
            return 0.0
        detail = np.clip(image[:height, :width] - smooth(image[:height, :width]), -12, 12)
        detail -= detail.mean()
        spectrum = np.fft.rfft2(detail, (2 * height, 2 * width))
        like = np.fft.irfft2(np.abs(spectrum) ** 2, (2 * height, 2 * width))[: height // 2, : width // 2]
        rows, columns = height - np.arange(height // 2), width - np.arange(width // 2)
        like = like / (rows[:, None] * columns[None, :])  # what overlaps is less and less
        if like[0, 0] <= 1e-6:
            return 0.0
        near = max(min(height, width) // 12, 12)
        like[:near, :near] = 0
        like[:2, :] = like[:, :2] = 0  # lines that go on are no repetition
        return float(np.clip(like.max() / max(float((detail**2).mean()), MIN_DETAIL_VARIANCE), 0, 1))

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_repetition


def smooth(image: Any, reach: int = 4) -> Any:
    """The mean of the pixels around each, a square of `2 * reach + 1`."""
    size = 2 * reach + 1
    sums = np.pad(image.astype(np.float64), reach, mode="edge").cumsum(axis=0).cumsum(axis=1)
    sums = np.pad(sums, ((1, 0), (1, 0)))
    found = sums[size:, size:] - sums[:-size, size:] - sums[size:, :-size] + sums[:-size, :-size]
    return (found / size**2).astype(np.float32)
