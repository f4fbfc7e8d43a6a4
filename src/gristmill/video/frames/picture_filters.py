"""Filters of videos and clips by what their pictures show: a few frames a second are measured, and reduced to one
score.

    VideoBrightnessFilter, VideoBlurFilter                  the mean brightness; how sharp the pictures are
    VideoBlackFilter, VideoFrozenFilter                     the share of frames that are black, or like the one before
    VideoLetterboxFilter                                    the bars that all frames have
    VideoTextFilter, VideoWatermarkFilter                   print, subtitles; marks that are repeated over the picture
    VideoImageFilter                                        any filter of images

The pictures have a shorter side of 256 pixels, as those that filters of images see. What the filters of text and
watermarks give up is said in `samples/picture_measures.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.deciding_stage import Rule
from gristmill.samples.argument_checks import check_choice
from gristmill.samples.filters import SampleFilter
from gristmill.video.filters import (
    MEAN,
    MEDIAN,
    MIN,
    REDUCTIONS,
    VideoFilter,
    VideoRangeFilter,
    check_reduction,
    reduced,
)
from gristmill.video.frame_analyser import FrameAnalyser
from gristmill.video.frames.picture_analysers import VALUE, FilteredFrames, PictureChange, PictureMeasure
from gristmill.video.one_pass import Measured

SHARE = "share"
"""A reduction: the share of the frames that the filter of images keeps."""

BLACK, FROZEN = 0.06, 0.25
"""A frame is black if its mean brightness, from 0 to 1, is less; frozen if its pixels differ by less, of 255."""


class _MeasureFilter(VideoRangeFilter):
    """A filter of one of the measures of pictures."""

    measure: str
    fps: float
    reduction: str

    def _check(self, fps: float, reduction: str) -> None:
        """For constructors, after the bounds are set."""
        self._check_bounds()
        check_reduction(self.name, reduction)
        if not fps > 0:
            raise ValueError(f"{self.name}: fps is {fps!r}, must be above 0")
        self.fps, self.reduction = fps, reduction

    def threshold(self) -> str:
        bounds = {name: value for name, value in vars(self).items() if name.startswith(("min_", "max_"))}
        return ", ".join(f"{name}={value!r}" for name, value in bounds.items() if value is not None)

    def analyser(self) -> FrameAnalyser:
        return PictureMeasure(self.measure, self.fps)

    def score_video(self, video: Measured) -> float | None:
        return reduced(video.series[0].columns[VALUE], self.reduction)


class VideoBrightnessFilter(_MeasureFilter):
    """Keeps videos whose brightness is between two bounds, from 0, black, to 1, white."""

    measure = "brightness"

    def __init__(
        self,
        min_brightness: float | None = 0.05,
        max_brightness: float | None = 0.97,
        fps: float = 2.0,
        reduction: str = MEAN,
    ) -> None:
        self.min_brightness, self.max_brightness = min_brightness, max_brightness
        self._check(fps, reduction)

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_brightness, self.max_brightness


class VideoBlurFilter(_MeasureFilter):
    """Keeps videos that are sharp: the variance of the Laplacian of their frames is `min_sharpness` or more."""

    measure = "sharpness"

    def __init__(self, min_sharpness: float = 20.0, fps: float = 2.0, reduction: str = MEDIAN) -> None:
        self.min_sharpness = min_sharpness
        self._check(fps, reduction)

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_sharpness, None


class VideoBlackFilter(_MeasureFilter):
    """Keeps videos of whose frames at most a share of `max_black` is black."""

    measure = "brightness"

    def __init__(self, max_black: float = 0.2, black_below: float = BLACK, fps: float = 2.0) -> None:
        self.max_black, self.black_below = max_black, black_below
        self._check(fps, MEAN)

    def score_video(self, video: Measured) -> float | None:
        return reduced(video.series[0].columns[VALUE] < self.black_below, MEAN)

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_black


class VideoFrozenFilter(_MeasureFilter):
    """Keeps videos of whose frames, `fps` a second, at most a share of `max_frozen` is like the one before."""

    def __init__(self, max_frozen: float = 0.5, frozen_below: float = FROZEN, fps: float = 2.0) -> None:
        self.max_frozen, self.frozen_below = max_frozen, frozen_below
        self._check(fps, MEAN)

    def analyser(self) -> FrameAnalyser:
        return PictureChange(self.fps)

    def score_video(self, video: Measured) -> float | None:
        changes = video.series[0].columns[VALUE][1:]  # the first is compared with a frame that is not of the clip
        return reduced(changes < self.frozen_below, MEAN)

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_frozen


class VideoLetterboxFilter(_MeasureFilter):
    """Keeps videos of whose picture at most a share of `max_border` is a uniform border in all frames."""

    measure = "border"

    def __init__(self, max_border: float = 0.05, fps: float = 2.0, reduction: str = MIN) -> None:
        self.max_border = max_border
        self._check(fps, reduction)

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_border


class VideoTextFilter(_MeasureFilter):
    """Keeps videos of whose picture at most a share of `max_text` looks like print: titles, subtitles, screens."""

    measure = "text"

    def __init__(self, max_text: float = 0.1, fps: float = 1.0, reduction: str = MEAN) -> None:
        self.max_text = max_text
        self._check(fps, reduction)

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_text


class VideoWatermarkFilter(_MeasureFilter):
    """Keeps videos without repeated marks, as agencies lay them over pictures: at most `max_repetition`, from 0 to
    1."""

    measure = "repetition"

    def __init__(self, max_repetition: float = 0.1, fps: float = 0.5, reduction: str = MEDIAN) -> None:
        self.max_repetition = max_repetition
        self._check(fps, reduction)

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_repetition


class VideoImageFilter(VideoFilter):
    """Scores `fps` frames a second with a filter of images, and keeps videos by the reduced score.

    `reduction` is "min", "mean", "max" or "median": the filter of images decides on that score. Or it is "share": the
    score is the share of frames that the filter keeps, and must be `min_share` or more.
    """

    def __init__(
        self, image_filter: SampleFilter, reduction: str = MEAN, fps: float = 1.0, min_share: float = 0.5
    ) -> None:
        check_choice("VideoImageFilter", "reduction", reduction, (*REDUCTIONS, SHARE))
        if image_filter.looks_at not in ("pixels", "grey") or not pa.types.is_floating(image_filter.score_type):
            raise ValueError(
                f"VideoImageFilter: {image_filter!r} does not score pixels by a number: use a filter of videos instead"
            )
        self.image_filter, self.reduction, self.fps, self.min_share = image_filter, reduction, fps, min_share
        self.name = image_filter.name

    def analyser(self) -> FrameAnalyser:
        return FilteredFrames(self.image_filter, self.fps)

    def score_video(self, video: Measured) -> float | None:
        values = video.series[0].columns[VALUE]
        if self.reduction != SHARE:
            return reduced(values, self.reduction)
        return reduced(np.array([bool(self.image_filter.keep_score(one)) for one in values[np.isfinite(values)]]), MEAN)

    def keep_video(self, score: Any) -> bool:
        return score >= self.min_share if self.reduction == SHARE else self.image_filter.keep_score(score)

    def deciding_rules(self) -> Sequence[Rule]:
        if self.reduction == SHARE:
            return (Rule("", low=self.min_share, low_name="min_share"),)
        return self.image_filter.deciding_rules()

    def threshold(self) -> str:
        return f"min_share={self.min_share}" if self.reduction == SHARE else self.image_filter.threshold()
