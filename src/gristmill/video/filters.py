"""Filters of videos and clips: a score for each, and a decision by the score.

To add one: subclass `VideoFilter` or, with a lower and an upper bound, `VideoRangeFilter`. `looks_at` says what
`score_video` is given:

    FRAMES   a `Measured`, with the series of the analyser that the filter names in `analyser()`, within the clip
    HEADER   a `Measured` without series: size, rate and length, without decoding
    SIZE     the number of bytes of a video that is carried in its row

A score of frames is usually one number for each frame, reduced: `reduced(values, "mean")`. Measurements that compare a
frame with the one before it leave out the first of a clip (`frame_analyser.py`). Filters of one stage, and stages that
share a worker, share one decoding pass. The stages that run filters are in `score.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.samples.argument_checks import check_choice
from gristmill.samples.filters import RangeFilter, SampleFilter
from gristmill.video.frame_analyser import FrameAnalyser
from gristmill.video.one_pass import Measured

FRAMES, HEADER = "frames", "header"

MIN, MEAN, MAX, MEDIAN = REDUCTIONS = ("min", "mean", "max", "median")

_REDUCE: dict[str, Any] = {MIN: np.min, MEAN: np.mean, MAX: np.max, MEDIAN: np.median}


def check_reduction(name: str, reduction: Any) -> None:
    """For constructors."""
    check_choice(name, "reduction", reduction, REDUCTIONS)


def reduced(values: Any, reduction: str) -> float | None:
    """One number for those of several frames; None if there are none. What is no number is left out."""
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    return float(_REDUCE[reduction](numbers)) if len(numbers) else None


class VideoFilter(SampleFilter):
    """One score per video or clip, and a decision per score. Constructors have no side effects."""

    looks_at: ClassVar[str] = FRAMES

    def analyser(self) -> FrameAnalyser:
        """What measures the frames, for filters that look at FRAMES."""
        raise NotImplementedError(f"{self.name} looks at frames, and must write analyser()")

    @abstractmethod
    def score_video(self, video: Measured) -> Any:
        """The score of one video or clip, usually a number. None: it has no score, and is not kept."""

    @abstractmethod
    def keep_video(self, score: Any) -> bool:
        """Whether a video with this score is kept."""

    def score_sample(self, sample: Any) -> Any:
        return self.score_video(sample)

    def keep_score(self, score: Any) -> bool:
        return self.keep_video(score)


class VideoRangeFilter(RangeFilter, VideoFilter):
    """A filter that keeps scores between two bounds, which are included."""

    def keep_video(self, score: Any) -> bool:
        return self.keep_score(score)


class VideoDurationFilter(VideoRangeFilter):
    """Keeps videos and clips of between `min_seconds` and `max_seconds`, without decoding them."""

    looks_at = HEADER

    def __init__(self, min_seconds: float | None = 2.0, max_seconds: float | None = None) -> None:
        self.min_seconds, self.max_seconds = min_seconds, max_seconds
        self._check_bounds()

    def score_video(self, video: Measured) -> float | None:
        return video.seconds

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_seconds, self.max_seconds


class VideoResolutionFilter(VideoRangeFilter):
    """Keeps videos whose shorter side has between `min_side` and `max_side` pixels, without decoding them."""

    looks_at, score_type = HEADER, pa.int64()

    def __init__(self, min_side: int | None = 360, max_side: int | None = None) -> None:
        self.min_side, self.max_side = min_side, max_side
        self._check_bounds()

    def score_video(self, video: Measured) -> int:
        return min(video.info.display_size)

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_side, self.max_side


class VideoFrameRateFilter(VideoRangeFilter):
    """Keeps videos with between `min_fps` and `max_fps` frames per second on average, without decoding them."""

    looks_at = HEADER

    def __init__(self, min_fps: float | None = 12.0, max_fps: float | None = None) -> None:
        self.min_fps, self.max_fps = min_fps, max_fps
        self._check_bounds()

    def score_video(self, video: Measured) -> float | None:
        return None if video.info.fps is None else float(video.info.fps)

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_fps, self.max_fps


class VideoAspectRatioFilter(VideoRangeFilter):
    """Keeps videos whose width divided by their height, as shown, lies between two bounds, without decoding them."""

    looks_at = HEADER

    def __init__(self, min_ratio: float | None = 0.4, max_ratio: float | None = 2.5) -> None:
        self.min_ratio, self.max_ratio = min_ratio, max_ratio
        self._check_bounds()

    def score_video(self, video: Measured) -> float:
        info = video.info
        aspect = float(info.pixel_aspect)
        ratio = info.width * aspect / info.height
        return ratio if info.rotation in (0, 180) else 1 / ratio

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_ratio, self.max_ratio


class VideoBitRateFilter(VideoRangeFilter):
    """Keeps videos with at least `min_bits_per_pixel` for each pixel of each frame: less looks blurred and blocky.

    It is the bit rate divided by pixels and frames per second, as the header has them, so that videos of different
    sizes can be compared. Codecs differ: HEVC, VP9 and AV1 need about half of what H.264 needs.
    """

    looks_at = HEADER

    def __init__(self, min_bits_per_pixel: float | None = 0.01, max_bits_per_pixel: float | None = None) -> None:
        self.min_bits_per_pixel, self.max_bits_per_pixel = min_bits_per_pixel, max_bits_per_pixel
        self._check_bounds()

    def score_video(self, video: Measured) -> float | None:
        info = video.info
        if not info.bit_rate or not info.fps:
            return None
        return info.bit_rate / (info.width * info.height * float(info.fps))

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_bits_per_pixel, self.max_bits_per_pixel
