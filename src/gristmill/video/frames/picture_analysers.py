"""Analysers that make a number of each of a few frames a second.

PictureMeasure   what the brightness of the picture shows (`samples/picture_measures.py`)
PictureChange    how much the picture differs from the one before: 0 where it is frozen
FilteredFrames   the score that a filter of images gives the picture
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.samples.filters import SampleFilter
from gristmill.samples.picture_measures import border_share, print_share, repetition, sharpness
from gristmill.video.frame_analyser import GRAY, RGB, SAMPLED, FrameAnalyser, FrameRequest, FrameSeries

if TYPE_CHECKING:
    import numpy.typing as npt

    from gristmill.video.stream_info import StreamInfo

VALUE = "value"

PICTURE_SIDE = 256
"""The shorter side, in pixels, of the pictures that are measured: that of the pictures that filters of images see."""

CHANGE_SIDE = 128
"""The longer side of the pictures that are compared with the one before."""


def brightness(image: Any) -> float:
    """The mean, from 0, black, to 1, white."""
    return float(image.mean(dtype=np.float64)) / 255


MEASURES: Mapping[str, Callable[[Any], float]] = {
    "brightness": brightness, "sharpness": sharpness, "border": border_share, "text": print_share,
    "repetition": repetition,
}  # fmt: skip


class _NumberOfFrames(FrameAnalyser):
    """What the analysers share: a column with a number for each frame."""

    _pts: list[npt.NDArray[np.int64]]
    _values: list[float]

    def start(self, info: StreamInfo) -> None:
        self._pts, self._values = [], []

    def add(self, frames: Any, pts: npt.NDArray[np.int64]) -> None:
        self._pts.append(pts)
        self._values.extend(map(self._value, frames))

    def _value(self, picture: Any) -> float:
        raise NotImplementedError

    def finish(self) -> FrameSeries:
        pts = np.concatenate([np.zeros(0, np.int64), *self._pts])
        values = np.array(self._values, np.float64)
        self._pts, self._values = [], []
        return FrameSeries(pts, {VALUE: values})


class PictureMeasure(_NumberOfFrames):
    """Measures `fps` frames a second: "brightness", "sharpness", "border", "text" or "repetition"."""

    def __init__(self, measure: str, fps: float = 2.0) -> None:
        self.measure, self.fps = measure, fps
        self._function = MEASURES[measure]

    def request(self, info: StreamInfo) -> FrameRequest:
        return FrameRequest(GRAY, min_side=PICTURE_SIDE, fps=self.fps)

    def _value(self, picture: Any) -> float:
        return self._function(picture.astype(np.float32))


class PictureChange(_NumberOfFrames):
    """The mean difference in brightness, from 0 to 255, of each of `fps` frames a second to the one before."""

    def __init__(self, fps: float = 2.0) -> None:
        self.fps = fps

    def request(self, info: StreamInfo) -> FrameRequest:
        return FrameRequest(GRAY, max_side=CHANGE_SIDE, scaling=SAMPLED, fps=self.fps)

    def start(self, info: StreamInfo) -> None:
        super().start(info)
        self._last: Any = None

    def _value(self, picture: Any) -> float:
        now, last = picture.astype(np.int16), self._last
        self._last = now
        if last is None:
            return np.nan
        if last.shape != now.shape:
            return 255.0
        return float(np.abs(now - last).mean())


class FilteredFrames(_NumberOfFrames):
    """The score of a filter of images for each of `fps` frames a second."""

    def __init__(self, image_filter: SampleFilter, fps: float = 1.0) -> None:
        self.image_filter, self.fps = image_filter, fps
        self._grey = image_filter.looks_at == "grey"

    def request(self, info: StreamInfo) -> FrameRequest:
        return FrameRequest(GRAY if self._grey else RGB, min_side=PICTURE_SIDE, fps=self.fps)

    def _value(self, picture: Any) -> float:
        score = self.image_filter.score_sample(picture.astype(np.float32) if self._grey else picture)
        return np.nan if score is None else float(score)
