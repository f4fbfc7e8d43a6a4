"""DNSMOS: how people would rate speech, from 1 to 5, predicted by the models of the package `speechmos`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.audio.speech.package_weights import RATE, PackageFile, session

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

QUALITIES = ("ovrl", "sig", "bak", "p808")
_INSTALL = "pip install --no-deps speechmos==0.0.1.1 (without --no-deps it brings librosa, which is not needed)"
PRIMARY = PackageFile("speechmos", "dnsmos_models/sig_bak_ovr.onnx", _INSTALL)
P808 = PackageFile("speechmos", "dnsmos_models/model_v8.onnx", _INSTALL)

WINDOW = 144_160
"""Samples that the models hear at once, 9.01 seconds."""

_FITTED = {
    "ovrl": (-0.06766283, 1.11546468, 0.04602535),
    "sig": (-0.08397278, 1.22083953, 0.0052439),
    "bak": (-0.13166888, 1.60915514, -0.39604546),
}
"""The polynomials that bring what the model says to the scale of people, as published with it."""

_MELS, _FFT, _HOP = 120, 321, 160


def dnsmos(samples: Samples, p808: bool, threads: int = 1) -> dict[str, float]:
    """The mean ratings of windows that begin each second: ovrl, sig and bak, or p808."""
    windows = _windows(samples)
    if p808:
        model = session(str(P808.find()), threads)
        ratings = [model({"input_1": _mel(window[:-_HOP])[None]})["Identity:0"][0, 0] for window in windows]
        return {"p808": float(np.mean(ratings))}
    model = session(str(PRIMARY.find()), threads)
    raw = np.concatenate([model({"input_1": window[None]})["Identity:0"] for window in windows])
    columns = {"sig": raw[:, 0], "bak": raw[:, 1], "ovrl": raw[:, 2]}
    return {name: float(np.mean(np.polyval(_FITTED[name], column))) for name, column in columns.items()}


def _windows(samples: Samples) -> list[Samples]:
    clipped = np.clip(samples, -1.0, 1.0)
    while len(clipped) < WINDOW:
        clipped = np.concatenate([clipped, clipped])
    count = max(len(clipped) // RATE - WINDOW // RATE, 1)  # of whole seconds, as in the package
    return [np.ascontiguousarray(clipped[at * RATE : at * RATE + WINDOW]) for at in range(count)]


@cache
def _mel_bands() -> Any:
    """Triangles of equal area on the Slaney mel scale: linear to 1 kHz, then logarithmic."""
    log_step = np.log(6.4) / 27.0
    top = 15.0 + np.log(RATE / 2 / 1000.0) / log_step
    mels = np.linspace(0.0, top, _MELS + 2)
    edges = np.where(mels < 15.0, mels * 200.0 / 3.0, 1000.0 * np.exp(log_step * (mels - 15.0)))
    frequencies = np.fft.rfftfreq(_FFT, 1.0 / RATE)
    rising = (frequencies[None] - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - frequencies[None]) / np.diff(edges)[1:, None]
    bands = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return bands.astype(np.float32)


def _mel(samples: Samples) -> Any:
    """What the P.808 model is given: 120 mel bands each 10 ms, in decibels below the loudest, scaled."""
    padded = np.pad(samples, _FFT // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::_HOP]
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FFT) / _FFT)).astype(np.float32)
    power = np.abs(np.fft.rfft(frames * window, axis=1)).astype(np.float32) ** 2
    bands = power @ _mel_bands().T
    loudest = max(float(bands.max()), 1e-10)
    decibels = np.maximum(10.0 * np.log10(np.maximum(bands, 1e-10) / loudest), -80.0)
    return ((decibels + 40.0) / 40.0).astype(np.float32)
