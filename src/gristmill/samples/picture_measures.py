"""What the brightness of a picture shows: sharpness, borders, print, marks that repeat themselves.

A picture is an array of height and width, from 0 to 255, as float32. Numbers of pictures of different sizes can be
compared if their shorter sides are alike: filters are given 256 pixels.

What is given up by `print_share` and `repetition`: certainty. Gravel may look like print, and brick walls repeat
themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BORDER_TOLERANCE = 6.0
"""The most that lines of a border differ: within each line, and from the outermost one."""

CELL_PIXELS = 16
"""The side, in pixels, of the squares that are searched for text."""

PRINT_STEP = 48.0
"""A step in brightness from one pixel to the next that is usual in print, and rare in photographs."""

MIN_DETAIL_VARIANCE = 4.0
"""A floor for the variance of fine detail: in an image without any, noise alone would correlate with itself."""


def sharpness(image: Any) -> float:
    """The variance of the Laplacian: below about 50 a photograph looks blurred."""
    if min(image.shape) < 3:
        return 0.0
    inside = image[1:-1, 1:-1]
    laplacian = image[:-2, 1:-1] + image[2:, 1:-1] + image[1:-1, :-2] + image[1:-1, 2:] - 4 * inside
    return float(laplacian.var(dtype=np.float64))


def border_share(image: Any) -> float:
    """Which share of a picture is a uniform border: frames, letterbox bars."""
    top, bottom = even_lines(image), even_lines(image[::-1])
    if top >= len(image):
        return 1.0
    inside = image[top : len(image) - bottom]
    left, right = even_lines(inside.T), even_lines(inside.T[::-1])
    width = image.shape[1]
    return 1 - len(inside) * (width - left - right) / image.size if left < width else 1.0


def even_lines(image: Any) -> int:
    """How many lines from the top have the brightness of the first."""
    even = (image.std(axis=1) <= BORDER_TOLERANCE) & (np.abs(image.mean(axis=1) - image[0].mean()) <= BORDER_TOLERANCE)
    return int(len(even) if even.all() else np.argmin(even))


def print_share(image: Any) -> float:
    """Which share of a picture looks like print: text, QR codes, screenshots.

    Counts squares of 16 pixels that have many steep steps between dark and bright, and few pixels in between.
    """
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


def repetition(image: Any) -> float:
    """The autocorrelation of the fine detail at some distance, from 0 to 1: high for marks that are repeated."""
    height, width = (min(side, 512) for side in image.shape)
    if min(height, width) < 64:
        return 0.0
    detail = np.clip(image[:height, :width] - smooth(image[:height, :width]), -12, 12)
    detail -= detail.mean()
    spectrum = np.fft.rfft2(detail, (2 * height, 2 * width))
    like = np.fft.irfft2(np.abs(spectrum) ** 2, (2 * height, 2 * width))[: height // 2, : width // 2]
    rows, columns = height - np.arange(height // 2), width - np.arange(width // 2)
    like = like / (rows[:, None] * columns[None, :])  # the overlap shrinks with the distance
    if like[0, 0] <= 1e-6:
        return 0.0
    near = max(min(height, width) // 12, 12)
    like[:near, :near] = 0
    like[:2, :] = like[:, :2] = 0  # continuous lines are no repetition
    return float(np.clip(like.max() / max(float((detail**2).mean()), MIN_DETAIL_VARIANCE), 0, 1))


def smooth(image: Any, reach: int = 4) -> Any:
    """The mean of the pixels around each, a square of `2 * reach + 1`."""
    size = 2 * reach + 1
    sums = np.pad(image.astype(np.float64), reach, mode="edge").cumsum(axis=0).cumsum(axis=1)
    sums = np.pad(sums, ((1, 0), (1, 0)))
    squares = sums[size:, size:] - sums[:-size, size:] - sums[size:, :-size] + sums[:-size, :-size]
    return (squares / size**2).astype(np.float32)
