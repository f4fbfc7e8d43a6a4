"""Detectors of cuts that need no model, as analysers of frames: by the change of colours, and by fades.

    ContentDetector    the mean change of hue, saturation and value from frame to frame
    AdaptiveDetector   that change, compared with the changes around it
    FadeDetector       dark between bright

They decide as the detectors of PySceneDetect do, with the same parameters and defaults. The pictures are every n-th
pixel of the film: their colours change as those of the whole picture do, and neither scaling nor conversion costs time.

What is given up: dissolves, which change too little from frame to frame. `transnet.py` finds them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.arrow.native_kernels import kernels
from gristmill.video.frame_analyser import GRAY, SAMPLED, SHOT, YUV, FrameAnalyser, FrameRequest, FrameSeries
from gristmill.video.shots import kernel_reference as reference
from gristmill.video.shots.cut_rules import adaptive_cuts, content_cuts, fade_cuts, shot_numbers

if TYPE_CHECKING:
    import numpy.typing as npt

    from gristmill.video.stream_info import StreamInfo

CONTENT, BRIGHTNESS = "content", "mean_luma"
"""Columns: the change to the frame before, and the mean brightness, from 0 to 255."""

PICTURE_SIDE = 128
"""The longer side, in pixels, of the pictures that are compared: about so many."""

hsv_changes = getattr(kernels, "hsv_changes", reference.hsv_changes)


class _CutDetector(FrameAnalyser):
    """What the detectors share: a number for each frame, and then cuts."""

    column: str
    whole_film = True

    def start(self, info: StreamInfo) -> None:
        self._values: list[npt.NDArray[np.float64]] = []
        self._pts: list[npt.NDArray[np.int64]] = []
        self._full_range = info.color_range == "pc" or info.pixel_format.startswith("yuvj")

    def add(self, frames: Any, pts: npt.NDArray[np.int64]) -> None:
        self._values.append(self._measure(frames))
        self._pts.append(pts)

    def finish(self) -> FrameSeries:
        values = np.concatenate([np.zeros(0), *self._values])
        pts = np.concatenate([np.zeros(0, np.int64), *self._pts])
        self._values, self._pts = [], []
        numbers = shot_numbers(self.cuts(values), len(values))
        return FrameSeries(pts, {SHOT: numbers, self.column: values})

    @abstractmethod
    def _measure(self, frames: Any) -> npt.NDArray[np.float64]:
        """A number for each frame."""

    @abstractmethod
    def cuts(self, values: npt.NDArray[np.float64]) -> list[int]:
        """The frames at which shots begin, without the first."""


class ContentDetector(_CutDetector):
    """Finds cuts by the change of colours from frame to frame: at `threshold` or more, `min_scene_len` frames apart.

    `weights` are those of the changes in hue, saturation and value.
    """

    column = CONTENT

    def __init__(
        self, threshold: float = 27.0, min_scene_len: int = 15, weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    ) -> None:
        self.threshold, self.min_scene_len, self.weights = threshold, min_scene_len, weights
        if len(weights) != 3 or not sum(map(abs, weights)):
            raise ValueError(f"{type(self).__name__}: weights is {weights!r}, must be three numbers, not all 0")

    def request(self, info: StreamInfo) -> FrameRequest:
        return FrameRequest(YUV, max_side=PICTURE_SIDE, scaling=SAMPLED)

    def start(self, info: StreamInfo) -> None:
        super().start(info)
        self._last: Any = None

    def _measure(self, frames: Any) -> npt.NDArray[np.float64]:
        pixels = frames.shape[1] * frames.shape[2]
        first = self._last is None or self._last.shape != frames.shape[1:]  # a stream may change its size
        if first:
            self._last = np.zeros(frames.shape[1:], np.uint8)
        sums = hsv_changes(np.ascontiguousarray(frames), pixels, self._full_range, self._last)
        parts = np.frombuffer(sums, np.int64).reshape(-1, 3) / pixels
        change: npt.NDArray[np.float64] = parts @ np.array(self.weights, np.float64) / sum(map(abs, self.weights))
        if first:
            change[0] = 0.0
        return change

    def cuts(self, values: npt.NDArray[np.float64]) -> list[int]:
        return content_cuts(values, self.threshold, self.min_scene_len)


class AdaptiveDetector(ContentDetector):
    """Finds cuts by changes that are large compared with those of the frames around them: fast movement is no cut."""

    def __init__(
        self,
        adaptive_threshold: float = 3.0,
        min_scene_len: int = 15,
        window_width: int = 2,
        min_content_val: float = 15.0,
        weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
    ) -> None:
        super().__init__(255.0, min_scene_len, weights)
        self.adaptive_threshold, self.window_width = adaptive_threshold, window_width
        self.min_content_val = min_content_val
        if window_width < 1:
            raise ValueError(f"AdaptiveDetector: window_width is {window_width}, must be 1 or more")

    def cuts(self, values: npt.NDArray[np.float64]) -> list[int]:
        return adaptive_cuts(
            values, self.adaptive_threshold, self.min_scene_len, self.window_width, self.min_content_val
        )


class FadeDetector(_CutDetector):
    """Finds shots that fade out and in: the cut is between, at the middle of the frames darker than `threshold`."""

    column = BRIGHTNESS

    def __init__(
        self,
        threshold: float = 12.0,
        min_scene_len: int = 15,
        fade_bias: float = 0.0,
        add_final_scene: bool = False,
    ) -> None:
        self.threshold, self.min_scene_len = threshold, min_scene_len
        self.fade_bias, self.add_final_scene = fade_bias, add_final_scene
        if not -1 <= fade_bias <= 1:
            raise ValueError(f"FadeDetector: fade_bias is {fade_bias}, must be between -1 and 1")

    def request(self, info: StreamInfo) -> FrameRequest:
        return FrameRequest(GRAY, max_side=PICTURE_SIDE, scaling=SAMPLED)

    def _measure(self, frames: Any) -> npt.NDArray[np.float64]:
        means: npt.NDArray[np.float64] = frames.mean(axis=(1, 2), dtype=np.float64)
        return means

    def cuts(self, values: npt.NDArray[np.float64]) -> list[int]:
        return fade_cuts(values, self.threshold, self.min_scene_len, self.fade_bias, self.add_final_scene)
