"""From shots to the spans of clips: pure functions on time stamps.

A span is `(start, end)`: frames from `start` up to, and without, `end`. Nothing is lost from shots to spans but what
the rules leave out: the last frame of a film belongs to its last clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gristmill.video.frame_analyser import SHOT

if TYPE_CHECKING:
    from gristmill.video.frame_analyser import FrameSeries

Span = tuple[int, int]

STRIDE, TRUNCATE = MAX_LENGTH_MODES = ("stride", "truncate")


def shot_spans(series: FrameSeries, end_pts: int) -> list[Span]:
    """The spans of the shots that a detector has numbered; `end_pts` is where the last frame ends."""
    numbers = series.columns[SHOT]
    if not len(numbers):
        return []
    firsts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    starts = [*(int(series.pts[first]) for first in firsts), end_pts]
    return [span for span, first in zip(pairwise(starts), firsts, strict=True) if numbers[first] >= 0]


@dataclass(frozen=True)
class ClipLengths:
    """How shots become clips.

    `crop_s` seconds are cut off at both ends of each shot. What is longer than `max_length_s` is cut into pieces of
    that length ("stride") or to its first piece ("truncate"); None: shots stay whole. What is shorter than
    `min_length_s` is left out. Without `entire_scene_as_clip`, a film without any cut gives no clip. `limit_clips` is
    the most clips of a film; 0 or less: all.
    """

    min_length_s: float | None = 2.0
    max_length_s: float | None = 10.0
    max_length_mode: str = STRIDE
    crop_s: float | None = 0.5
    entire_scene_as_clip: bool = True
    limit_clips: int = -1

    def __post_init__(self) -> None:
        if self.max_length_mode not in MAX_LENGTH_MODES:
            raise ValueError(f"max_length_mode is {self.max_length_mode!r}, must be {' or '.join(MAX_LENGTH_MODES)}")
        for name in ("min_length_s", "max_length_s", "crop_s"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value!r}, must be 0 or more, or None")
        if self.max_length_s and (self.min_length_s or 0) > self.max_length_s:
            raise ValueError(f"min_length_s={self.min_length_s} is more than max_length_s={self.max_length_s}")

    def clips(self, shots: Sequence[Span], time_base: Fraction) -> list[Span]:
        """The spans of the clips of a film with these shots."""
        if len(shots) == 1 and not self.entire_scene_as_clip:
            return []
        crop = round(Fraction(self.crop_s or 0) / time_base)
        least = Fraction(self.min_length_s or 0)
        pieces = [piece for start, end in shots for piece in self._pieces(start + crop, end - crop, time_base)]
        kept = [piece for piece in pieces if piece[1] > piece[0] and (piece[1] - piece[0]) * time_base >= least]
        return kept[: self.limit_clips] if self.limit_clips > 0 else kept

    def _pieces(self, start: int, end: int, time_base: Fraction) -> list[Span]:
        if not self.max_length_s or (end - start) * time_base <= Fraction(self.max_length_s):
            return [(start, end)]
        length = Fraction(self.max_length_s) / time_base
        count = 1 if self.max_length_mode == TRUNCATE else -int((start - end) // length)
        edges = [min(start + round(k * length), end) for k in range(count + 1)]
        return list(pairwise(edges))
