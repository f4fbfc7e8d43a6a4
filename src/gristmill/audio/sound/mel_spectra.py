"""What models of sound see: power in bands that are as wide as ears hear them, for each hundredth of a second.

mel_power    bands of equal area on Slaney's scale, as librosa makes them
log_fbank    logarithms of triangles on the scale of HTK, as Kaldi makes them
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

HOP_SECONDS = 0.01
_SLANEY_BREAK = 1000.0


@cache
def slaney_bands(count: int, size: int, rate: int) -> Any:
    """Weights of shape (count, frequencies): triangles of equal area, linear to 1 kHz and then logarithmic."""
    log_step = np.log(6.4) / 27.0
    top = 15.0 + np.log(rate / 2 / _SLANEY_BREAK) / log_step
    mels = np.linspace(0.0, top, count + 2)
    edges = np.where(mels < 15.0, mels * 200.0 / 3.0, _SLANEY_BREAK * np.exp(log_step * (mels - 15.0)))
    bands = _triangles(edges, np.fft.rfftfreq(size, 1.0 / rate))
    return (bands * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


@cache
def _htk_bands(count: int, size: int, rate: int, lowest: float) -> Any:
    """Weights of shape (count, frequencies): triangles whose edges are even on the mel scale, not on that of hertz."""
    low, high = (1127.0 * np.log1p(edge / 700.0) for edge in (lowest, rate / 2))
    frequencies = 1127.0 * np.log1p(np.fft.rfftfreq(size, 1.0 / rate) / 700.0)
    return _triangles(np.linspace(low, high, count + 2), frequencies).astype(np.float32)


def _triangles(edges: Any, places: Any) -> Any:
    rising = (places[None] - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - places[None]) / np.diff(edges)[1:, None]
    return np.maximum(0.0, np.minimum(rising, falling))


def _hann(size: int) -> Any:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)


def mel_power(samples: Samples, rate: int, count: int, size: int) -> Any:
    """Frames by bands; the first frame is centred on the first sample."""
    padded = np.pad(samples, size // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[:: round(HOP_SECONDS * rate)]
    spectrum = np.fft.rfft(frames * _hann(size), axis=1)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
    return power @ slaney_bands(count, size, rate).T


def log_fbank(samples: Samples, rate: int, count: int) -> Any:
    """Frames by bands, of windows of 25 ms that lie within the samples; the mean of each band is 0."""
    size, hop = round(0.025 * rate), round(HOP_SECONDS * rate)
    given = np.pad(samples, (0, max(size - len(samples), 0))) * np.float32(32_768)
    frames = np.lib.stride_tricks.sliding_window_view(given, size)[::hop].astype(np.float32)
    frames = frames - frames.mean(axis=1, keepdims=True)
    frames[:, 1:] -= np.float32(0.97) * frames[:, :-1]
    frames[:, 0] *= np.float32(0.03)
    turn = 2 * np.pi * np.arange(size) / (size - 1)
    window = ((0.5 - 0.5 * np.cos(turn)) ** 0.85).astype(np.float32)
    length = 1 << (size - 1).bit_length()
    spectrum = np.fft.rfft(frames * window, length, axis=1)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
    bands = np.log(np.maximum(power @ _htk_bands(count, length, rate, 20.0).T, np.finfo(np.float32).eps))
    return (bands - bands.mean(axis=0)).astype(np.float32)
