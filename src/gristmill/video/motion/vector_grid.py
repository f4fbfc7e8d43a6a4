"""How much moves, from the motion vectors of a codec, on a grid of 8 x 8 pixels.

A frame whose blocks are drawn with the vectors they were predicted by is a field of movement, zero where a block was
not predicted. The motion of a pixel is the length of its vector divided by the width and height of the picture, added
up. A field for each pixel is not needed: blocks lie on a grid of 8 pixels, so the mean over a grid with weights is the
mean over the pixels.

    mean      over the picture
    patches   over each of the parts, of about 256 x 256 pixels, that the picture is divided into

Blocks reach over the edge of a picture whose size is no multiple of 16; they are drawn on the last row or column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Field = npt.NDArray[np.float64]

CELL, MACROBLOCK, PATCH = 8, 16, 256

VECTOR_CODECS = frozenset({
    "h264", "mpeg4", "mpeg1video", "mpeg2video", "mpegvideo", "h263", "h263p", "h263i", "flv", "flv1",
    "msmpeg4v1", "msmpeg4v2", "msmpeg4", "msmpeg4v3", "wmv1", "wmv2", "rv10", "rv20",
})  # fmt: skip
"""Codecs whose decoders in FFmpeg export motion vectors: H.264 and the family of MPEG."""

_BLOCK_SHAPES = ((8, 8), (16, 16), (16, 8), (8, 16))
"""Width and height of the blocks, in the order in which they are drawn."""


class PictureGrid:
    """The means of a field of cells over a picture of this size, and over its patches.

    With `cell_size` a cell covers that many pixels of the picture, and cells do not reach over its edge.
    """

    def __init__(self, width: int, height: int, columns: int, rows: int, across: Field, down: Field) -> None:
        self.width, self.height, self.columns, self.rows = width, height, columns, rows
        self._across, self._down = across, down
        """For each patch, the share of each cell, in the width and in the height."""
        self._mean_across = _overall(across, width)
        self._mean_down = _overall(down, height)

    @classmethod
    def of_vectors(cls, width: int, height: int) -> PictureGrid:
        """The grid of a picture that a codec of macroblocks has encoded."""
        columns, rows = (-(-side // MACROBLOCK) * MACROBLOCK // CELL for side in (width, height))
        return cls(width, height, columns, rows, _shares(width, columns), _shares(height, rows))

    @classmethod
    def of_blocks(cls, width: int, height: int, columns: int, rows: int) -> PictureGrid:
        """The grid of a picture that was divided evenly into so many columns and rows."""
        x, y = (np.linspace(0.0, side, count + 1) for side, count in ((width, columns), (height, rows)))
        return cls(width, height, columns, rows, _even_shares(width, x), _even_shares(height, y))

    @property
    def num_patches(self) -> int:
        return len(self._across) * len(self._down)

    def mean(self, field: Field) -> float:
        return float(self._mean_down @ field @ self._mean_across)

    def patches(self, field: Field) -> Field:
        """The means of the patches, row by row."""
        means: Field = self._down @ field @ self._across.T
        return means.reshape(-1)


def _overall(shares: Field, side: int) -> Field:
    """The share of each cell in the whole, from those in the patches."""
    overall: Field = np.array([size for _, size in _patch_spans(side)], np.float64) @ shares / side
    return overall


def _patch_spans(side: int) -> list[tuple[int, int]]:
    """Where the patches of a side begin, and how long they are: as even as can be."""
    count = max(round(side / PATCH), 1)
    edges = [side * number // count for number in range(count + 1)]
    return [(edges[number], edges[number + 1] - edges[number]) for number in range(count)]


def _shares(side: int, cells: int) -> Field:
    """For each patch of a side, which share of its pixels each cell has."""
    cell_of = np.arange(side) // CELL
    cell_of[-1] = cells - 1  # what reaches over the edge is drawn last, on the last pixel
    spans = _patch_spans(side)
    return np.array([np.bincount(cell_of[at : at + size], minlength=cells) / size for at, size in spans])


def _even_shares(side: int, edges: Field) -> Field:
    shares = []
    for at, size in _patch_spans(side):
        low, high = np.maximum(edges[:-1], at), np.minimum(edges[1:], at + size)
        shares.append(np.maximum(high - low, 0) / size)
    return np.array(shares)


def vector_field(vectors: Any, grid: PictureGrid) -> Field:
    """The motion of each cell, from the motion vectors of a frame as PyAV gives them."""
    field = np.zeros((grid.rows, grid.columns))
    lengths = np.hypot(vectors["motion_x"], vectors["motion_y"]) / vectors["motion_scale"]
    lengths /= grid.width + grid.height
    for width, height in _BLOCK_SHAPES:
        chosen = (vectors["w"] == width) & (vectors["h"] == height)
        if not chosen.any():
            continue
        x = (vectors["dst_x"][chosen].astype(np.int64) - width // 2) // CELL
        y = (vectors["dst_y"][chosen].astype(np.int64) - height // 2) // CELL
        for down in range(height // CELL):
            for right in range(width // CELL):
                rows, columns = y + down, x + right
                inside = (rows >= 0) & (columns >= 0) & (rows < grid.rows) & (columns < grid.columns)
                field[rows[inside], columns[inside]] = lengths[chosen][inside]
    return field
