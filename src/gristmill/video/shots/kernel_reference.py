"""The reference implementation of how much the colours of a frame differ from those of the one before.

It is the definition of what `hsv_changes` in `kernels/frames.c` computes, and the fallback where the extension could
not be built. All arithmetic is on integers.

    RGB   from YUV by BT.601, in steps of 1/256
    HSV   hue from 0 to 179, saturation and value from 0 to 255, as OpenCV has them for pictures of 8 bits
"""

from __future__ import annotations

from typing import Any

import numpy as np

_SHIFT = 12
_HALF = 1 << (_SHIFT - 1)
_LIMITED, _FULL = (16, 298, 409, -100, -208, 516), (0, 256, 359, -88, -183, 454)
_I = np.maximum(np.arange(256), 1)
_BY_VALUE = np.where(np.arange(256) > 0, (2 * (255 << _SHIFT) + _I) // (2 * _I), 0)
_BY_RANGE = np.where(np.arange(256) > 0, (2 * (30 << _SHIFT) + _I) // (2 * _I), 0)


def hsv_of(yuv: Any, full_range: bool) -> Any:
    """Pixels in YUV, in the last axis, as HSV."""
    black, luma, red_v, green_u, green_v, blue_u = _FULL if full_range else _LIMITED
    y, u, v = (yuv[..., 0].astype(np.int64) - black, *(yuv[..., k].astype(np.int64) - 128 for k in (1, 2)))
    grey = luma * y + 128
    red, green, blue = (
        np.clip((grey + colour) >> 8, 0, 255) for colour in (red_v * v, green_u * u + green_v * v, blue_u * u)
    )
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    turn = np.where(value == green, blue - red + 2 * spread, red - green + 4 * spread)
    turn = np.where(value == red, green - blue, turn)
    hue = (turn * _BY_RANGE[spread] + _HALF) >> _SHIFT
    saturation = (spread * _BY_VALUE[value] + _HALF) >> _SHIFT
    return np.stack([np.where(hue < 0, hue + 180, hue), saturation, value], axis=-1).astype(np.uint8)


def hsv_changes(frames: Any, pixels: int, full_range: bool, last: Any) -> bytes:
    """As the kernel of this name: for each frame the sums of the differences in hue, saturation and value to the frame
    before it. `last` has the colours of that frame, and is changed."""
    hsv = hsv_of(np.asarray(frames).reshape(-1, pixels, 3), full_range).astype(np.int64)
    before = np.concatenate([np.asarray(last).reshape(1, pixels, 3).astype(np.int64), hsv[:-1]])
    if len(hsv):
        np.asarray(last).reshape(pixels, 3)[:] = hsv[-1]
    sums: bytes = np.abs(hsv - before).sum(axis=1).astype(np.int64).tobytes()
    return sums
