"""Stages that give frames of clips to a model of pictures, a few of them a second.

The frames are those of the shared decoding pass, scaled down to a shorter side of 256 pixels before the model's own
preparation; stages of a worker that ask for the same rate share them. The rows are taken a minute of film at a time, so
that memory does not grow with the length of a film.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gristmill.models.fixed_shape_batches import run_in_batches
from gristmill.models.image_preprocess import ImageModel
from gristmill.models.model_files import CLIP
from gristmill.models.model_loader import load_model
from gristmill.samples.model_stages import SampleModelStage
from gristmill.video.batch import VideoBatch
from gristmill.video.frame_analyser import RGB, CollectedFrames, FrameAnalyser, FrameRequest
from gristmill.video.frame_stage import FrameStage, LooksAtFrames
from gristmill.video.one_pass import Measured

if TYPE_CHECKING:
    from gristmill.core.stage import Columns
    from gristmill.models.model_loader import Array

MODEL_SIDE = 256
"""The shorter side of the frames, in pixels: models look at 224 or so of them."""

PIECE_SECONDS = 60.0
EMBEDDING = "video_embedding"


class FrameModelStage(SampleModelStage[VideoBatch, VideoBatch], LooksAtFrames):
    """A stage that gives `target_fps` frames a second of each clip to a model of pictures."""

    kind = VideoBatch
    default_model = CLIP
    max_retries = 0
    piece_seconds: ClassVar[float | None] = PIECE_SECONDS
    target_fps: float

    def _set_rate(self, target_fps: float) -> None:
        """For constructors."""
        if not target_fps > 0:
            raise ValueError(f"{type(self).__name__}: target_fps is {target_fps!r}, must be above 0")
        self.target_fps = target_fps

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def _open_model(self, folder: Path) -> ImageModel:
        return ImageModel(load_model(folder, device=self._device, engine=self.engine), folder)

    def _decoded_rows(self, batch: VideoBatch) -> Iterator[Any]:
        raise AssertionError("frames are given to the model, not rows")

    def analysers(self) -> Sequence[FrameAnalyser]:
        return [CollectedFrames(FrameRequest(RGB, min_side=MODEL_SIDE, fps=self.target_fps))]

    def _run_frames(self, measured: Sequence[Measured]) -> list[Array]:
        """What the model gives for the frames of each clip: a row for each."""
        model = self._sample_model
        assert model is not None, "loaded by setup"
        counts = [len(one.series[0].pts) for one in measured]
        frames = (model.prepare(frame) for one in measured for frame in _frames(one))
        outputs = run_in_batches(model, frames, self.rows_per_call())
        if not outputs:
            return [np.zeros((0, 0), np.float32) for _ in counts]
        rows = np.stack(outputs).astype(np.float32, copy=False)
        return np.split(rows, np.cumsum(counts)[:-1])


def _frames(video: Measured) -> Array:
    frames: Array = video.series[0].columns["frames"]
    return frames[: len(video.series[0].pts)]


class FrameModelColumnStage(FrameModelStage, FrameStage):
    """A stage that adds what a model makes of the frames as a column."""
