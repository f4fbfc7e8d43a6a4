"""The reference implementation of block matching: where each block of a picture was in the picture before.

It is the definition of what `block_motion` in `kernels/frames.c` computes, and the fallback where the extension could
not be built.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BLOCK = 8


def block_motion(before: Any, frame: Any, width: int, height: int, reach: int, per_step: int) -> bytes:
    """As the kernel of this name: for each whole block of 8 x 8 pixels of a grey picture where it was in the one
    before, relative to where it is: x and y, a signed byte each. A step away costs as much as a difference of
    `per_step`; of equal places the first, from the top left, and before all the place where the block is."""
    old, new = (np.asarray(one, np.uint8).reshape(height, width).astype(np.int64) for one in (before, frame))
    found = [
        _place_of(new[y : y + BLOCK, x : x + BLOCK], old, x, y, reach, per_step)
        for y in range(0, height - BLOCK + 1, BLOCK)
        for x in range(0, width - BLOCK + 1, BLOCK)
    ]
    return np.array(found, np.int8).tobytes()


def _place_of(block: Any, old: Any, x: int, y: int, reach: int, per_step: int) -> tuple[int, int]:
    height, width = old.shape
    steps = range(-reach, reach + 1)
    places = [(0, 0), *((dx, dy) for dy in steps for dx in steps)]
    inside = [(dx, dy) for dx, dy in places if 0 <= x + dx <= width - BLOCK and 0 <= y + dy <= height - BLOCK]

    def cost(place: tuple[int, int]) -> int:
        dx, dy = place
        there = old[y + dy : y + dy + BLOCK, x + dx : x + dx + BLOCK]
        return int(np.abs(block - there).sum()) + per_step * (abs(dx) + abs(dy))

    return min(inside, key=cost)
