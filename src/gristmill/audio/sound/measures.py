"""What is measured of a recording, in one pass over its samples: windows of any size, so that memory stays flat.

    seconds, rate, channels   as decoded
    peak                      the largest sample, of 1
    clipped_share             the share of samples at full scale, 0.99 and more
    dc_offset                 the mean of the samples, of the channel where it is largest
    levels                    how many stretches of 20 ms have which level, in half decibels
    spectrum                  the mean power at each frequency, of windows of 1024 samples
    channel_correlation       between the first two channels; 1 if they are the same

Levels are decibels below full scale, where a square wave of amplitude 1 has 0. Loudness is measured in `loudness.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.audio.decode import mixed

if TYPE_CHECKING:
    import numpy.typing as npt

    from gristmill.audio.decode import Samples

FULL_SCALE = 0.99
STRETCH_SECONDS = 0.02
FFT_SAMPLES = 1024
QUIETEST_DB, LEVELS_PER_DB = -120, 2
NOISE_PERCENT, SIGNAL_PERCENT = 10, 90


class Measures:
    """The measures of one recording."""

    def __init__(self, rate: int, channels: int) -> None:
        self.rate, self.channels = rate, channels
        self.frames, self.clipped, self.peak = 0, 0, 0.0
        self.levels: npt.NDArray[np.int64] = np.zeros(-QUIETEST_DB * LEVELS_PER_DB + 1, np.int64)
        self.power: npt.NDArray[np.float64] = np.zeros(FFT_SAMPLES // 2 + 1)
        self._sums = np.zeros(channels)
        self._products = np.zeros(5)
        self._rest: Any = np.zeros(0, np.float32)
        self._fft_rest: Any = np.zeros(0, np.float32)

    @classmethod
    def of(cls, blocks: Iterable[Samples], rate: int, channels: int) -> Measures:
        """The measures of a recording that comes in blocks, frames by channels."""
        measures = cls(rate, channels)
        for block in blocks:
            measures._add(block)
        measures._end()
        return measures

    def _add(self, block: Samples) -> None:
        self.frames += len(block)
        sizes = np.abs(block)
        self.peak = max(self.peak, float(sizes.max(initial=0.0)))
        self.clipped += int(np.count_nonzero(sizes >= FULL_SCALE)) if self.peak >= FULL_SCALE else 0
        self._sums += block.sum(axis=0, dtype=np.float64)
        if self.channels > 1:
            left, right = block[:, 0].astype(np.float64), block[:, 1].astype(np.float64)
            self._products += (left.sum(), right.sum(), left @ left, right @ right, left @ right)
        mono = mixed(block)
        self._rest = self._add_levels(np.concatenate([self._rest, mono]))
        self._fft_rest = self._add_spectrum(np.concatenate([self._fft_rest, mono]))

    def _add_levels(self, samples: Samples) -> Samples:
        size = max(round(STRETCH_SECONDS * self.rate), 1)
        count = len(samples) // size
        self._count_levels(samples[: count * size].reshape(count, size))
        return samples[count * size :]

    def _count_levels(self, stretches: Samples) -> None:
        if stretches.size:
            power = np.einsum("ij,ij->i", stretches, stretches) / stretches.shape[1]
            decibels = 10 * np.log10(np.maximum(power, 10 ** (QUIETEST_DB / 10)))
            places = np.rint((decibels - QUIETEST_DB) * LEVELS_PER_DB).astype(np.int64)
            self.levels += np.bincount(np.minimum(places, len(self.levels) - 1), minlength=len(self.levels))

    def _add_spectrum(self, samples: Samples) -> Samples:
        count = len(samples) // FFT_SAMPLES
        windows = samples[: count * FFT_SAMPLES].reshape(count, FFT_SAMPLES) * _WINDOW
        spectrum = np.fft.rfft(windows, axis=1)
        self.power += (spectrum.real**2 + spectrum.imag**2).sum(axis=0, dtype=np.float64)
        return samples[count * FFT_SAMPLES :]

    def _end(self) -> None:
        """Count the rest, if the recording is shorter than one stretch or window."""
        if not self.levels.any() and len(self._rest):
            self._count_levels(self._rest[None])
        if not self.power.any() and len(self._fft_rest):
            self._add_spectrum(np.pad(self._fft_rest, (0, FFT_SAMPLES - len(self._fft_rest))))
        self._rest = self._fft_rest = np.zeros(0, np.float32)

    @property
    def seconds(self) -> float:
        return self.frames / self.rate

    @property
    def clipped_share(self) -> float:
        return self.clipped / max(self.frames * self.channels, 1)

    @property
    def dc_offset(self) -> float:
        return float(np.abs(self._sums).max() / max(self.frames, 1))

    def silence_share(self, below_db: float) -> float:
        """The share of stretches whose level is below `below_db`."""
        quiet = max(round((below_db - QUIETEST_DB) * LEVELS_PER_DB), 0)
        return float(self.levels[:quiet].sum() / max(self.levels.sum(), 1))

    def level(self, percent: float) -> float:
        """The level that so many percent of the stretches do not exceed."""
        at = int(np.searchsorted(np.cumsum(self.levels), percent / 100 * self.levels.sum()))
        return QUIETEST_DB + min(at, len(self.levels) - 1) / LEVELS_PER_DB

    @cached_property
    def snr(self) -> float:
        """Decibels between the loud stretches and the quiet ones, less the noise in the loud ones."""
        noise, loud = (10 ** (self.level(percent) / 10) for percent in (NOISE_PERCENT, SIGNAL_PERCENT))
        return float(10 * np.log10(max(loud - noise, noise) / noise))

    def bandwidth(self, threshold_db: float) -> float:
        """The highest frequency, in hertz, whose mean power is not more than `threshold_db` below the strongest."""
        strongest = float(self.power.max(initial=0.0))
        if not strongest:
            return 0.0
        present = np.flatnonzero(self.power >= strongest * 10 ** (threshold_db / 10))
        return float(present[-1] * self.rate / FFT_SAMPLES)

    @property
    def channel_correlation(self) -> float | None:
        """None for one channel, and for a channel that is silent."""
        left, right, left_square, right_square, both = self._products
        count = max(self.frames, 1)
        spread = (left_square - left * left / count) * (right_square - right * right / count)
        return float((both - left * right / count) / np.sqrt(spread)) if self.channels > 1 and spread > 0 else None


_WINDOW = np.hanning(FFT_SAMPLES + 1)[:-1].astype(np.float32)
