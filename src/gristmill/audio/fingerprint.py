"""Stages that make recordings comparable: by how they sound, or by their samples.

    AudioFingerprintStage  codes that survive other codecs, volume and cutting, for FingerprintDeduplicationStage
    AudioHashStage         a hash of the decoded samples, for ExactDeduplicationStage

A code stands for 32 ms: in each of 32 bands of frequency one bit says whether the difference to the next band has grown
since the code before. 0 stands for silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.audio.batch import AudioBatch
from gristmill.audio.decode import Sound
from gristmill.audio.waveforms import WaveformStage
from gristmill.core.arrow.array_building import make_array
from gristmill.core.stage import Columns

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

FINGERPRINT, AUDIO_HASH = "fingerprint", "audio_hash"
_RATE, _FRAME, _HOP = 8_000, 2048, 256
_LOWEST_HZ, _HIGHEST_HZ, _BANDS = 300.0, 2_800.0, 33
_SILENT_SHARE = 1e-5
"""Of the power of a loud code, 50 dB below, what counts as silence."""

_LEAST_POWER = 1e-4
_CODES_AT_ONCE = 4096


@cache
def _bands() -> tuple[Any, Any]:
    """The bins of the spectrum at which bands begin, and the window before the transform."""
    edges = np.geomspace(_LOWEST_HZ, _HIGHEST_HZ, _BANDS + 1) * _FRAME / _RATE
    return np.rint(edges).astype(np.int64), np.hanning(_FRAME).astype(np.float32)


def fingerprint(samples: Samples) -> Any:
    """The codes of samples at 8 kHz, one channel."""
    if len(samples) < _FRAME + _HOP:
        return np.zeros(0, np.uint32)
    edges, window = _bands()
    frames = np.lib.stride_tricks.sliding_window_view(samples, _FRAME)[::_HOP]
    power = np.empty((len(frames), _BANDS), np.float32)
    for at in range(0, len(frames), _CODES_AT_ONCE):
        spectrum = np.fft.rfft(frames[at : at + _CODES_AT_ONCE] * window, axis=1)[:, : edges[-1]]
        bins = np.square(spectrum.real) + np.square(spectrum.imag)
        power[at : at + _CODES_AT_ONCE] = np.add.reduceat(bins, edges[:-1], axis=1)
    steps = np.diff(power, axis=1)
    bits = np.diff(steps, axis=0) > 0
    codes = np.packbits(bits, axis=1, bitorder="little").view("<u4")[:, 0].copy()
    total = power.sum(axis=1)[1:]
    loud = float(np.percentile(total, 95))
    codes[total <= max(loud * _SILENT_SHARE, _LEAST_POWER)] = 0
    return codes


class AudioFingerprintStage(WaveformStage):
    """Adds an acoustic fingerprint of each recording as `fingerprint_field`: 125 bytes for a second."""

    rate = _RATE

    def __init__(self, fingerprint_field: str = FINGERPRINT) -> None:
        super().__init__()
        self.fingerprint_field = fingerprint_field

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.fingerprint_field]

    def process_sounds(self, rows: AudioBatch, sounds: Sequence[Sound]) -> AudioBatch:
        codes = [fingerprint(sound.samples[:, 0]).tobytes() for sound in sounds]
        return rows.with_column(self.fingerprint_field, make_array(codes, pa.binary()))


class AudioHashStage(WaveformStage):
    """Adds a hash of the decoded samples, with 16 bits each: equal for WAV and FLAC of one recording."""

    rate, mono = None, False

    def __init__(self, hash_field: str = AUDIO_HASH) -> None:
        super().__init__()
        self.hash_field = hash_field

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.hash_field]

    def process_sounds(self, rows: AudioBatch, sounds: Sequence[Sound]) -> AudioBatch:
        return rows.with_column(self.hash_field, make_array([_hash(sound) for sound in sounds], pa.string()))


def _hash(sound: Sound) -> str:
    whole = np.clip(np.rint(sound.samples * np.float32(32768)), -32768, 32767).astype("<i2")
    hashed = xxhash.xxh3_128(np.ascontiguousarray(whole).data)
    hashed.update(f"{sound.rate} {whole.shape[1]}".encode())
    return hashed.hexdigest()
