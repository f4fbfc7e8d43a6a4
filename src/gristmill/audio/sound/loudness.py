"""Loudness as EBU R 128 and ITU-R BS.1770-4 define it: LUFS, integrated over a recording, with both gates.

The two filters of the K weighting are applied with the FFT, block by block: their response is over after a fraction of
a second. Surround channels count 1.41 times, the channel for low frequencies not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from gristmill.audio.decode import Samples

QUIETEST_LUFS = -70.0
"""The absolute gate. A recording without anything louder has this loudness."""

_GATE_LU = -10.0
_RESPONSE_SECONDS = 0.4
_FFT_SAMPLES = 2**17
_STEP_SECONDS, _STEPS_PER_BLOCK = 0.1, 4
_SURROUND_WEIGHTS = {5: (1.0, 1.0, 1.0, 1.41, 1.41), 6: (1.0, 1.0, 1.0, 0.0, 1.41, 1.41)}

# The analogue filters that the standard's coefficients at 48 kHz belong to: a shelf, and a high pass.
_SHELF_HERTZ, _SHELF_DB, _SHELF_Q = 1681.974450955533, 3.999843853973347, 0.7071752369554196
_PASS_HERTZ, _PASS_Q = 38.13547087602444, 0.5003270373238773


def loudness(blocks: Iterable[Samples], rate: int, channels: int) -> float:
    """The loudness in LUFS of a recording that comes in blocks, frames by channels."""
    weights = np.array(_SURROUND_WEIGHTS.get(channels, (1.0,) * channels))
    meter = _Meter(rate, channels)
    for block in blocks:
        meter.add(block)
    return gated_loudness(meter.end() @ weights)


def gated_loudness(steps: npt.NDArray[np.float64]) -> float:
    """The loudness of weighted powers of steps of 100 ms."""
    if len(steps) < _STEPS_PER_BLOCK:
        powers = steps.mean(keepdims=True) if len(steps) else np.zeros(1)
    else:
        powers = np.convolve(steps, np.full(_STEPS_PER_BLOCK, 1 / _STEPS_PER_BLOCK), "valid")
    loud = powers[powers > _power(QUIETEST_LUFS)]
    if not len(loud):
        return QUIETEST_LUFS
    loud = loud[loud > loud.mean() * 10 ** (_GATE_LU / 10)]
    return float(-0.691 + 10 * np.log10(loud.mean()))


def _power(lufs: float) -> float:
    return float(10 ** ((lufs + 0.691) / 10))


class _Meter:
    """The power of each step of 100 ms and each channel, after the K weighting."""

    def __init__(self, rate: int, channels: int) -> None:
        self.step = round(_STEP_SECONDS * rate)
        self.tail = round(_RESPONSE_SECONDS * rate)
        size = _FFT_SAMPLES
        while size < 4 * self.tail:
            size *= 2
        self.size, self.response = size, _response(rate, size)
        self.past: Any = np.zeros((self.tail, channels), np.float32)
        self.waiting: list[Samples] = []
        self.count = 0
        self.rest: Any = np.zeros((0, channels), np.float32)
        self.powers: list[Any] = [np.zeros((0, channels))]

    def add(self, block: Samples) -> None:
        self.waiting.append(block)
        self.count += len(block)
        if self.count >= self.size - self.tail:
            samples = np.concatenate(self.waiting)
            usable = self.size - self.tail
            for start in range(0, len(samples) - usable + 1, usable):
                self._filter(samples[start : start + usable])
            left = len(samples) % usable
            self.waiting, self.count = [samples[len(samples) - left :]], left

    def _filter(self, samples: Samples) -> None:
        joined = np.concatenate([self.past, samples])
        spectrum = np.fft.rfft(joined, self.size, axis=0)
        spectrum *= self.response[:, None]
        weighted = np.fft.irfft(spectrum, self.size, axis=0)[self.tail : len(joined)]
        self.past = joined[-self.tail :]
        self.rest = np.concatenate([self.rest, weighted])
        steps = len(self.rest) // self.step
        used = self.rest[: steps * self.step].reshape(steps, self.step, -1)
        self.powers.append(np.einsum("ijk,ijk->ik", used, used, dtype=np.float64) / self.step)
        self.rest = self.rest[steps * self.step :]

    def end(self) -> npt.NDArray[np.float64]:
        if self.count:
            self._filter(np.concatenate(self.waiting))
        powers = np.concatenate(self.powers)
        if not len(powers) and len(self.rest):  # shorter than one step
            powers = np.mean(self.rest.astype(np.float64) ** 2, axis=0, keepdims=True)
        measured: npt.NDArray[np.float64] = powers
        return measured


@cache
def _response(rate: int, size: int) -> Any:
    """The K weighting at each frequency of an FFT."""
    turn = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    answer = np.ones(len(turn), complex)
    for numerator, denominator in (_shelf(rate), _high_pass(rate)):
        answer *= np.polyval(numerator[::-1], turn) / np.polyval(denominator[::-1], turn)
    return answer.astype(np.complex64)


def _shelf(rate: int) -> tuple[Sequence[float], Sequence[float]]:
    warped = np.tan(np.pi * _SHELF_HERTZ / rate)
    high = 10 ** (_SHELF_DB / 20)
    band = high**0.4996667741545416
    scale = 1 + warped / _SHELF_Q + warped**2
    numerator = [high + band * warped / _SHELF_Q + warped**2, 2 * (warped**2 - high)]
    numerator.append(high - band * warped / _SHELF_Q + warped**2)
    denominator = [1.0, 2 * (warped**2 - 1) / scale, (1 - warped / _SHELF_Q + warped**2) / scale]
    return [value / scale for value in numerator], denominator


def _high_pass(rate: int) -> tuple[Sequence[float], Sequence[float]]:
    warped = np.tan(np.pi * _PASS_HERTZ / rate)
    scale = 1 + warped / _PASS_Q + warped**2
    return [1.0, -2.0, 1.0], [1.0, 2 * (warped**2 - 1) / scale, (1 - warped / _PASS_Q + warped**2) / scale]
