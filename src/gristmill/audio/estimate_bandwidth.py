"""BandwidthEstimationStage: the highest frequency of recordings, or of the segments that are listed in their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.audio.batch import DURATION, TEXT, AudioBatch
from gristmill.audio.decode import Sound
from gristmill.audio.waveforms import WaveformStage
from gristmill.core.arrow.table_conversion import column_values, to_array
from gristmill.core.stage import Columns

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

_FRAMES_AT_ONCE = 4096
_WINDOW_TERMS = (0.35875, -0.48829, 0.14128, -0.01168)  # Blackman-Harris


class BandwidthEstimationStage(WaveformStage):
    """Adds `metrics` with `bandwidth`: the highest frequency, in hertz, whose mean power is within
    `frequency_threshold` decibels of the strongest.

    If rows have `segments_key`, a list of dicts with `start` and `end` in seconds, each segment gets `metrics` instead,
    but for those without a speaker or without text. One that is no part of its recording gets `metric_skip_reason`.
    """

    rate, mono = None, True

    def __init__(
        self,
        n_fft: int = 512,
        stride_seconds: float = 0.01,
        top_db: float = 100.0,
        frequency_threshold: float = -50.0,
        segments_key: str = "segments",
    ) -> None:
        super().__init__()
        if not isinstance(n_fft, int) or n_fft < 16 or stride_seconds <= 0 or top_db <= 0 or frequency_threshold >= 0:
            raise ValueError(
                f"BandwidthEstimationStage: n_fft={n_fft!r} must be 16 or more, stride_seconds={stride_seconds} and "
                f"top_db={top_db} above 0, frequency_threshold={frequency_threshold} below 0"
            )
        self.n_fft, self.stride_seconds, self.top_db = n_fft, stride_seconds, top_db
        self.frequency_threshold, self.segments_key = frequency_threshold, segments_key

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def process_sounds(self, rows: AudioBatch, sounds: Sequence[Sound]) -> AudioBatch:
        names = rows.get_columns()
        if self.segments_key not in names:
            metrics = column_values(rows.data.column("metrics")) if "metrics" in names else [None] * len(sounds)
            pairs = zip(metrics, sounds, strict=True)
            return rows.with_column("metrics", to_array([{**(old or {}), **self._of(one)} for old, one in pairs]))
        given = column_values(rows.data.column(self.segments_key))
        measured = [
            None if segments is None else [self._measured(dict(segment), sound) for segment in segments]
            for segments, sound in zip(given, sounds, strict=True)
        ]
        return rows.with_column(self.segments_key, to_array(measured))

    def _of(self, sound: Sound) -> dict[str, int]:
        return {"bandwidth": int(self.bandwidth(sound.samples[:, 0], sound.rate))}

    def _measured(self, segment: dict[str, Any], sound: Sound) -> dict[str, Any]:
        text = segment.get(TEXT)
        if segment.get("speaker") == "no-speaker" or (isinstance(text, str) and not text.strip()):
            return segment
        start, end = segment.get("start") or 0.0, segment.get("end", segment.get(DURATION))
        part = sound.samples[int(start * sound.rate) : int((end or 0.0) * sound.rate)]
        if start < 0 or end is None or not len(part):
            found: dict[str, Any] = {"metric_skip_reason": f"no sound from {start} to {end} s"}
        else:
            found = self._of(Sound(part, sound.rate))
        return {**segment, "metrics": {**(segment.get("metrics") or {}), **found}}

    def bandwidth(self, samples: Samples, rate: int) -> float:
        """The highest frequency of one channel, in hertz."""
        size, hop = self.n_fft, max(int(rate * self.stride_seconds), 1)
        turn = 2 * np.pi * np.arange(size) / size
        window = sum(share * np.cos(term * turn) for term, share in enumerate(_WINDOW_TERMS)).astype(np.float32)  # type: ignore[union-attr]
        padded = np.pad(samples, size // 2)
        frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
        power = np.zeros(size // 2 + 1)
        for start in range(0, len(frames), _FRAMES_AT_ONCE):
            spectrum = np.fft.rfft(frames[start : start + _FRAMES_AT_ONCE] * window, axis=1)
            power += (spectrum.real**2 + spectrum.imag**2).sum(axis=0, dtype=np.float64)
        decibels = 10 * np.log10(np.maximum(power / len(frames), 1e-10))
        decibels = np.maximum(decibels, decibels.max() - self.top_db)
        loud = np.flatnonzero(decibels - decibels.max() > self.frequency_threshold)
        return float(loud[-1] * rate / size) if len(loud) else 0.0
