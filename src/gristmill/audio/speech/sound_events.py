"""Which sounds are heard when: music, dogs, engines.

SEDInferenceStage        how probable each class of sound is at each moment, by a model in an ONNX file
SEDPostprocessingStage   the events: class, beginning and end
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import AudioBatch
from gristmill.audio.decode import Sound
from gristmill.audio.sound_transforms import check_rate
from gristmill.audio.speech.package_weights import session
from gristmill.audio.transcripts.transcript_flags import nested, values_of
from gristmill.audio.waveforms import WaveformStage
from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import ColumnError, InputError, require
from gristmill.core.stage import Columns, ProcessingStage

if TYPE_CHECKING:
    import numpy.typing as npt

FRAMEWISE, FPS, FRAMES = "_sed_framewise", "sed_fps", "sed_valid_frames"


class SEDInferenceStage(WaveformStage):
    """Adds how probable each class of sound is at each moment, as bytes of 16-bit floats: moments by classes.

    `checkpoint_path` is an ONNX file that takes samples at `sample_rate`, of shape (1, samples), and gives
    probabilities of shape (1, moments, classes), such as an exported PANNs model. `fps_key` says how many moments
    there are in a second, and `valid_frames_key` how many in all. `SEDPostprocessingStage` makes events of them.
    """

    def __init__(
        self,
        checkpoint_path: str,
        sample_rate: int = 32_000,
        framewise_output_key: str = FRAMEWISE,
        valid_frames_key: str = FRAMES,
        fps_key: str = FPS,
    ) -> None:
        super().__init__()
        check_rate("SEDInferenceStage: sample_rate", sample_rate)
        self.checkpoint_path, self.sample_rate = str(checkpoint_path), sample_rate
        self.framewise_output_key, self.valid_frames_key, self.fps_key = (
            framewise_output_key,
            valid_frames_key,
            fps_key,
        )

    def waveform_rate(self) -> int | None:
        return self.sample_rate

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.framewise_output_key, self.valid_frames_key, self.fps_key]

    def check(self) -> None:
        require("onnxruntime", "onnx", "finding sounds")
        if not Path(self.checkpoint_path).is_file():
            raise InputError(f"{self.checkpoint_path}: there is no such file: give a model of sound events, as ONNX")

    def process_sounds(self, rows: AudioBatch, sounds: Sequence[Sound]) -> AudioBatch:
        model = session(self.checkpoint_path, max(int(self.resources.cpus), 1))
        found, counts, rates = [], [], []
        for sound in sounds:
            [answer, *_] = model({model.inputs[0].name: sound.samples[None, :, 0]}).values()
            found.append(answer[0].astype(np.float16).tobytes())
            counts.append(answer.shape[1])
            rates.append(answer.shape[1] / sound.seconds)
        rows = rows.with_column(self.framewise_output_key, make_array(found, pa.large_binary()))
        rows = rows.with_column(self.valid_frames_key, make_array(counts, pa.int64()))
        return rows.with_column(self.fps_key, make_array(rates, pa.float64()))


class SEDPostprocessingStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Adds `events_key`: a list of the sounds that are heard, with class, start_time, end_time and the mean and largest
    confidence, and takes the probabilities away.

    A sound is heard while it is more probable than `threshold`; with `hysteresis_high` and `hysteresis_low` from the
    one until the other. Probabilities are the median of `smoothing_window_sec`, pauses of up to `merge_gap_sec` are no
    end, and events have at least `min_duration_sec`. `labels` are the names of the classes. With `emit_superclasses`
    there are events of `superclasses` in place of classes: names with the numbers of their classes, joined by
    `agg_mode` ("noisy_or", "max" or "mean").
    """

    def __init__(
        self,
        agg_mode: str = "noisy_or",
        threshold: float = 0.5,
        min_duration_sec: float = 0.3,
        smoothing_window_sec: float = 0.0,
        hysteresis_low: float | None = None,
        hysteresis_high: float | None = None,
        merge_gap_sec: float = 0.0,
        emit_superclasses: bool = False,
        framewise_key: str = FRAMEWISE,
        events_key: str = "sed_events",
        *,
        labels: Sequence[str] = (),
        superclasses: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        super().__init__()
        if agg_mode not in _JOINED:
            raise ValueError(f"SEDPostprocessingStage: agg_mode is {agg_mode!r}, must be one of {', '.join(_JOINED)}")
        if (hysteresis_low is None) != (hysteresis_high is None):
            raise ValueError("SEDPostprocessingStage: hysteresis_low and hysteresis_high are given together")
        if emit_superclasses and not superclasses:
            raise ValueError("SEDPostprocessingStage: emit_superclasses needs superclasses={'speech': [0, 1, 2], ...}")
        self.agg_mode, self.threshold, self.min_duration_sec = agg_mode, threshold, min_duration_sec
        self.smoothing_window_sec, self.merge_gap_sec = smoothing_window_sec, merge_gap_sec
        self.hysteresis_low, self.hysteresis_high = hysteresis_low, hysteresis_high
        self.emit_superclasses, self.framewise_key, self.events_key = emit_superclasses, framewise_key, events_key
        self.labels, self.superclasses = list(labels), dict(superclasses or {})

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.framewise_key, FPS, FRAMES]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.events_key]

    def process(self, task: AudioBatch) -> AudioBatch:
        if self.framewise_key not in task.get_columns():
            raise ColumnError(f"{self.name!r}: there is no column {self.framewise_key!r}: use SEDInferenceStage before")
        rows = zip(*(values_of(task, name) for name in (self.framewise_key, FRAMES, FPS)), strict=True)
        found = [None if data is None else self._events(data, frames, fps) for data, frames, fps in rows]
        task = task.with_column(self.events_key, nested(found))
        return task.with_data(task.data.drop_columns([self.framewise_key]))

    def _events(self, data: bytes, frames: int, fps: float) -> list[dict[str, Any]]:
        chances = np.frombuffer(data, np.float16).astype(np.float32).reshape(frames, -1)
        events: list[dict[str, Any]] = []
        for name, curve in self._curves(chances):
            smooth = _median(curve, round(self.smoothing_window_sec * fps))
            for start, end in self._spans(smooth, fps):
                events.append({
                    "class": name, "start_time": round(start / fps, 3), "end_time": round(end / fps, 3),
                    "mean_confidence": round(float(smooth[start:end].mean()), 4),
                    "max_confidence": round(float(smooth[start:end].max()), 4),
                })  # fmt: skip
        return sorted(events, key=lambda event: (event["start_time"], event["end_time"], str(event["class"])))

    def _curves(self, chances: Any) -> list[tuple[str, Any]]:
        if self.emit_superclasses:
            joined = _JOINED[self.agg_mode]
            return [(name, joined(chances[:, list(members)])) for name, members in self.superclasses.items()]
        heard = np.flatnonzero(chances.max(axis=0, initial=0.0) >= min(self.threshold, self.hysteresis_high or 1.0))
        named = self.labels
        return [(named[at] if at < len(named) else str(at), chances[:, at]) for at in heard.tolist()]

    def _spans(self, curve: Any, fps: float) -> list[tuple[int, int]]:
        low = self.threshold if self.hysteresis_low is None else self.hysteresis_low
        high = self.threshold if self.hysteresis_high is None else self.hysteresis_high
        spans: list[tuple[int, int]] = []
        for start, end in _runs(curve >= low):
            if curve[start:end].max() < high:
                continue
            if spans and (start - spans[-1][1]) / fps <= self.merge_gap_sec:
                spans[-1] = spans[-1][0], end
            else:
                spans.append((start, end))
        return [(start, end) for start, end in spans if (end - start) / fps >= self.min_duration_sec]


_JOINED: Mapping[str, Any] = {
    "noisy_or": lambda chances: 1.0 - np.prod(1.0 - chances, axis=1),
    "max": lambda chances: chances.max(axis=1),
    "mean": lambda chances: chances.mean(axis=1),
}


def _runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where runs of true begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _median(curve: Any, size: int) -> Any:
    """The median of `size` moments around each."""
    if size <= 1:
        return curve
    padded = np.pad(curve, (size // 2, size - 1 - size // 2), mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, size), axis=1)
