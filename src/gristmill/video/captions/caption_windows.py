"""CaptionPreparationStage: the frames of each clip that a model is shown, in windows, as JPEG.

    windows   list of {start_frame, end_frame, frames}: the numbers of the first and the last frame of a window at the
              average rate of the film, counted from the beginning of the clip, and the pictures in it

The pictures are in the rows only until captions are written: they are small, and an endpoint takes them as JPEG.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import require
from gristmill.samples.argument_checks import check_choice, check_count
from gristmill.video.batch import VideoBatch
from gristmill.video.frame_analyser import RGB, CollectedFrames, FrameAnalyser, FrameRequest
from gristmill.video.frame_stage import FrameStage
from gristmill.video.one_pass import Measured

if TYPE_CHECKING:
    from gristmill.core.stage import Columns

WINDOWS, START_FRAME, END_FRAME, FRAMES = "windows", "start_frame", "end_frame", "frames"
CAPTION_PROMPT = "caption_prompt"

PROMPTS = {
    "default": "These pictures are frames of one video, in the order of time. Describe the video in detail: what is "
    "seen, what happens, and how the camera moves. Describe only what can be seen.",
    "short": "These pictures are frames of one video, in the order of time. Say in one sentence what happens in it.",
}
"""By `prompt_variant`."""

_WINDOW = pa.struct([(START_FRAME, pa.int64()), (END_FRAME, pa.int64()), (FRAMES, pa.list_(pa.binary()))])
_JPEG_QUALITY = 85


def caption_windows(num_frames: int, window_size: int = 256, remainder_threshold: int = 128) -> list[tuple[int, int]]:
    """The first and the last frame of each window. What is left at the end is a window of its own if it has
    `remainder_threshold` frames or more, else part of the one before."""
    if num_frames <= 0:
        return []
    starts = list(range(0, num_frames, window_size))
    if len(starts) > 1 and num_frames - starts[-1] < remainder_threshold:
        starts.pop()
    return [(start, end - 1) for start, end in zip(starts, [*starts[1:], num_frames], strict=True)]


class CaptionPreparationStage(FrameStage):
    """Adds the windows of each clip that captions are written for, and the frames in them at `sampling_fps`, as JPEG.

    A window has `window_size` frames of the clip. Pictures are scaled to a longer side of `max_side`. The prompt is
    `prompt_text`, or the one called `prompt_variant`: "default" or "short". `model_variant`, `preprocess_dtype` and
    `generate_previews` change nothing: an endpoint prepares pictures itself, and `PreviewStage` makes previews.
    """

    not_identity: ClassVar[tuple[str, ...]] = ("model_variant", "preprocess_dtype", "generate_previews", "verbose")
    piece_seconds: ClassVar[float | None] = 60.0

    def __init__(
        self,
        model_variant: str = "qwen2.5",
        prompt_variant: str = "default",
        prompt_text: str | None = None,
        verbose: bool = False,
        sampling_fps: float = 2.0,
        window_size: int = 256,
        remainder_threshold: int = 128,
        preprocess_dtype: str = "float32",
        generate_previews: bool = True,
        max_side: int = 448,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_choice(name, "prompt_variant", prompt_variant, PROMPTS)
        check_count(name, "window_size", window_size, least=1)
        check_count(name, "remainder_threshold", remainder_threshold)
        check_count(name, "max_side", max_side, least=1)
        if not sampling_fps > 0:
            raise ValueError(f"{name}: sampling_fps is {sampling_fps!r}, must be above 0")
        self.model_variant, self.prompt_variant, self.prompt_text = model_variant, prompt_variant, prompt_text
        self.verbose, self.sampling_fps, self.window_size = verbose, sampling_fps, window_size
        self.remainder_threshold, self.preprocess_dtype = remainder_threshold, preprocess_dtype
        self.generate_previews, self.max_side = generate_previews, max_side

    def analysers(self) -> Sequence[FrameAnalyser]:
        return [CollectedFrames(FrameRequest(RGB, max_side=self.max_side, fps=self.sampling_fps))]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [WINDOWS, CAPTION_PROMPT]

    def process_measured(self, rows: VideoBatch, measured: Sequence[Measured]) -> VideoBatch:
        windows = make_array([self._windows(one) for one in measured], pa.list_(_WINDOW))
        prompts = [self.prompt_text or PROMPTS[self.prompt_variant]] * rows.num_items
        return rows.with_column(WINDOWS, windows).with_column(CAPTION_PROMPT, make_array(prompts, pa.string()))

    def _windows(self, video: Measured) -> list[dict[str, Any]]:
        series, info = video.series[0], video.info
        start = info.start_pts if video.span is None else video.span[0]
        rate = info.fps or 25
        numbers = np.array([int((pts - start) * info.time_base * rate + 1e-6) for pts in series.pts.tolist()], int)
        seconds = video.seconds
        last = int(numbers[-1]) + 1 if len(numbers) else 0
        count = last if seconds is None else max(round(seconds * float(rate)), last)
        found = []
        for first, final in caption_windows(count, self.window_size, self.remainder_threshold):
            inside = np.flatnonzero((numbers >= first) & (numbers <= final))
            pictures = [jpeg(series.columns["frames"][at]) for at in inside.tolist()]
            if pictures:
                found.append({START_FRAME: first, END_FRAME: final, FRAMES: pictures})
        return found


def jpeg(picture: Any) -> bytes:
    """A picture in RGB as JPEG."""
    encoder = require("simplejpeg", "video", "encoding frames")
    encoded: bytes = encoder.encode_jpeg(np.ascontiguousarray(picture), quality=_JPEG_QUALITY, colorspace="RGB")
    return encoded
