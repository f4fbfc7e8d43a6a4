"""A model that tells voices apart: an ONNX file that makes a vector of about two seconds of speech.

Two kinds of models are known by their input, of shape (clips, frames, bands):

    40 bands    GE2E, as in Resemblyzer: mel power of 160 frames
    80 bands    ECAPA, CAM++, ResNet, as WeSpeaker and 3D-Speaker export them: log fbank of any number of frames
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.audio.sound.mel_spectra import log_fbank, mel_power
from gristmill.audio.speech.package_weights import RATE, session
from gristmill.core.errors import InputError, require

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

WINDOW_SECONDS, STEP_SECONDS = 1.6, 0.8
_GE2E_BANDS, _FBANK_BANDS = 40, 80
_WINDOW = round(WINDOW_SECONDS * RATE)
_CLIPS_AT_ONCE = 32
_LOUDNESS_DB = -30.0


class SpeakerModel:
    """A loaded model of voices."""

    def __init__(self, path: str, threads: int = 1) -> None:
        check_speaker_model(path)
        self._model = session(path, threads)
        self._input = self._model.inputs[0]
        bands = self._input.shape[-1]
        if bands not in (_GE2E_BANDS, _FBANK_BANDS):
            raise InputError(
                f"{path}: the input has {bands} values for a frame, and models of voices have {_GE2E_BANDS} (GE2E) or "
                f"{_FBANK_BANDS} (fbank): export it with that number, and not as a free size"
            )
        self._bands = bands
        self.width = int(self.vectors(np.zeros(_WINDOW, np.float32), [0]).shape[1])

    def vectors(self, samples: Samples, starts: Any) -> Any:
        """A vector of length 1 for each window of 1.6 seconds, which begins at a sample. What is missing at the end is
        filled by repetition."""
        louder = _louder(samples)
        windows = [_filled(louder[start : start + _WINDOW]) for start in starts]
        found = []
        for at in range(0, len(windows), _CLIPS_AT_ONCE):
            given = np.stack([self._seen(window) for window in windows[at : at + _CLIPS_AT_ONCE]])
            [answer, *_] = self._model({self._input.name: given}).values()
            found.append(answer.reshape(len(given), -1))
        vectors = np.concatenate(found) if found else np.zeros((0, 1), np.float32)
        return _of_length_1(vectors)

    def voice(self, samples: Samples) -> Any:
        """The vector of all of a clip: the mean of its windows."""
        count = max(-(-(len(samples) - _WINDOW) // round(STEP_SECONDS * RATE)), 0) + 1
        starts = np.linspace(0, max(len(samples) - _WINDOW, 0), count).astype(int)
        return _of_length_1(self.vectors(samples, starts).mean(axis=0, keepdims=True))[0]

    def _seen(self, window: Samples) -> Any:
        if self._bands == _GE2E_BANDS:
            return mel_power(window, RATE, _GE2E_BANDS, round(0.025 * RATE))[: round(WINDOW_SECONDS * 100)]
        return log_fbank(window, RATE, _FBANK_BANDS)


def check_speaker_model(path: str) -> None:
    """Raise if there is no such model, or nothing to run it."""
    require("onnxruntime", "onnx", "telling voices apart")
    if not Path(path).is_file():
        raise InputError(f"{path}: there is no such file: give the path of a speaker embedding model, as ONNX")


def _louder(samples: Samples) -> Samples:
    """Quiet speech as loud as the models have learned it."""
    power = float(np.mean(np.square(samples, dtype=np.float64))) if len(samples) else 0.0
    wanted = 10 ** (_LOUDNESS_DB / 10)
    return samples * np.float32(np.sqrt(wanted / power)) if 0 < power < wanted else samples


def _filled(window: Samples) -> Samples:
    return np.resize(window, _WINDOW) if len(window) else np.zeros(_WINDOW, np.float32)


def _of_length_1(vectors: Any) -> Any:
    return (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)).astype(np.float32)
