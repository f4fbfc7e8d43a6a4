"""DNSMOS: how people would rate speech, from 1 to 5, predicted by the models of the package `speechmos`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.audio.sound.mel_spectra import slaney_bands
from gristmill.audio.speech.package_weights import RATE, PackageFile, session
from gristmill.models.model_loader import Device
from gristmill.models.onnx_engine import OnnxModel
from gristmill.models.onnx_parts import model_part

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

QUALITIES = ("ovrl", "sig", "bak", "p808")
_INSTALL = "pip install --no-deps speechmos==0.0.1.1 (without --no-deps it brings librosa, which is not needed)"
PRIMARY = PackageFile("speechmos", "dnsmos_models/sig_bak_ovr.onnx", _INSTALL)
P808 = PackageFile("speechmos", "dnsmos_models/model_v8.onnx", _INSTALL)

_SECONDS, WINDOW = 9.01, 144_160
"""How much the models hear at once: seconds and samples. The package leaves out windows whose end, in floating point,
is a sample early; so that ratings are the same, they do not count here either."""

_ROOM = 10 * RATE
_FRAMES, _CONVOLVED = "mos_estimator_logpow/truediv:0", "mos_estimator_logpow/conv2d_3/Relu:0"
_EDGE, _NEW_FRAMES = 4, 100
"""How far the large convolutions see, and how many frames there are in a second."""

_FITTED = {
    "ovrl": (-0.06766283, 1.11546468, 0.04602535),
    "sig": (-0.08397278, 1.22083953, 0.0052439),
    "bak": (-0.13166888, 1.60915514, -0.39604546),
}
"""The polynomials that bring what the model says to the scale of people, as published with it."""

_MELS, _FFT, _HOP = 120, 321, 160


def dnsmos(samples: Samples, p808: bool, threads: int = 1) -> dict[str, float]:
    """The mean ratings of windows that begin each second: ovrl, sig and bak, or p808."""
    clipped = np.clip(samples, -1.0, 1.0)
    while len(clipped) < WINDOW:
        clipped = np.concatenate([clipped, clipped])
    return streamed_dnsmos(iter([clipped]), p808, threads)


def streamed_dnsmos(blocks: Iterator[Samples], p808: bool, threads: int = 1) -> dict[str, float]:
    """The same for a recording of at least ten seconds, in blocks of any size. What is held does not depend on it."""
    ratings = _P808(threads) if p808 else _Primary(threads)
    windows = 0
    for number, window in enumerate(_windows(blocks)):
        counts = int((number + _SECONDS) * RATE) - number * RATE >= WINDOW
        ratings.hear(window, counts)
        windows += counts
    return {name: float(value) / windows for name, value in ratings.sums.items()}


def _windows(blocks: Iterator[Samples]) -> Iterator[Samples]:
    """Windows that begin each second; there are ten whole seconds from the beginning of each, unless it is the only
    one, as in the package."""
    rest = np.zeros(0, np.float32)
    given = False
    for block in blocks:
        rest = np.concatenate([rest, np.clip(block, -1.0, 1.0)])
        at = 0
        while len(rest) - at >= _ROOM:
            yield rest[at : at + WINDOW]
            given, at = True, at + RATE
        rest = rest[at:]
    if not given:
        yield rest[:WINDOW]


class _P808:
    """The sum of the ratings of windows by the P.808 model."""

    def __init__(self, threads: int) -> None:
        self._model = session(str(P808.find()), threads)
        self.sums: dict[str, Any] = {"p808": 0.0}

    def hear(self, window: Samples, counts: bool) -> None:
        if counts:
            self.sums["p808"] += self._model({"input_1": _mel(window[:-_HOP])[None]})["Identity:0"][0, 0]


class _Primary:
    """The sums of the ratings of windows by the model of voice, background and both.

    Nearly all of its time goes into four convolutions that see four frames to each side. So in a window they are only
    computed for the frames that are new in it, and for the four at its ends, where the window before saw sound and this
    one sees nothing.
    """

    def __init__(self, threads: int) -> None:
        self._parts = _parts_of(str(PRIMARY.find()), threads)
        self.sums: dict[str, Any] = dict.fromkeys(_FITTED, 0.0)
        self._inner: Any = None  # the convolutions of frames that the next window has too, but for its first ones

    def hear(self, window: Samples, counts: bool) -> None:
        front, convolutions, rating = self._parts
        frames = front({"input_1": np.ascontiguousarray(window)[None]})[_FRAMES]

        def convolved(start: int, end: int) -> Any:
            return convolutions({_FRAMES: np.ascontiguousarray(frames[:, start:end])})[_CONVOLVED]

        count = frames.shape[1]
        if self._inner is None:
            whole = convolved(0, count)
        else:
            known = self._inner.shape[2]  # frames _EDGE to _EDGE + known of this window
            new = convolved(known, count)[:, :, _EDGE:]
            whole = np.concatenate([convolved(0, 2 * _EDGE)[:, :, :_EDGE], self._inner, new], axis=2)
        self._inner = whole[:, :, _EDGE + _NEW_FRAMES : count - _EDGE]
        if not counts:
            return
        raw = rating({_CONVOLVED: whole})["Identity:0"][0]
        for column, name in enumerate(("sig", "bak", "ovrl")):
            self.sums[name] += np.polyval(_FITTED[name], raw[column])


@cache
def _parts_of(path: str, threads: int) -> tuple[OnnxModel, OnnxModel, OnnxModel]:
    """The primary model in three parts: samples to frames, the large convolutions, and the rest."""
    model = Path(path).read_bytes()
    parts = (({"input_1": 2}, _FRAMES), ({_FRAMES: 3}, _CONVOLVED), ({_CONVOLVED: 4}, "Identity:0"))
    made = [OnnxModel(model_part(model, inputs, [output]), Device(threads=threads)) for inputs, output in parts]
    return made[0], made[1], made[2]


def _mel(samples: Samples) -> Any:
    """What the P.808 model is given: 120 mel bands each 10 ms, in decibels below the loudest, scaled."""
    padded = np.pad(samples, _FFT // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::_HOP]
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FFT) / _FFT)).astype(np.float32)
    power = np.abs(np.fft.rfft(frames * window, axis=1)).astype(np.float32) ** 2
    bands = power @ slaney_bands(_MELS, _FFT, RATE).T
    loudest = max(float(bands.max()), 1e-10)
    decibels = np.maximum(10.0 * np.log10(np.maximum(bands, 1e-10) / loudest), -80.0)
    return ((decibels + 40.0) / 40.0).astype(np.float32)
