"""Where people speak, by the Silero model of voice activity: 16 kHz, one probability for each 32 ms.

The weights are those of the package `silero-vad`, in the form that takes a whole recording in one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gristmill.audio.speech.package_weights import RATE, PackageFile, session

if TYPE_CHECKING:
    import numpy.typing as npt

    Probabilities = npt.NDArray[np.float32]

SILERO = PackageFile(
    "silero_vad",
    "data/silero_vad_16k_sequence.onnx",
    "pip install --no-deps 'silero-vad>=6.2.2' (without --no-deps it brings PyTorch, which is not needed)",
)
FRAME, CONTEXT = 512, 64
_CALL_FRAMES = 2048
_SHORT_SILENCE = 0.098
"""Seconds of silence at which speech that lasts too long may be cut."""


def speech_probabilities(samples: npt.NDArray[np.float32], threads: int = 1) -> Probabilities:
    """For each frame of 512 samples at 16 kHz the probability that someone speaks."""
    return streamed_probabilities(iter([samples]), threads)[0]


def streamed_probabilities(blocks: Iterator[npt.NDArray[np.float32]], threads: int = 1) -> tuple[Probabilities, float]:
    """The same for samples in blocks of any size, and how many seconds they are. Little of it is held at once."""
    model = session(str(SILERO.find()), threads)
    state = {"h": np.zeros((1, 1, 128), np.float32), "c": np.zeros((1, 1, 128), np.float32)}
    found: list[Probabilities] = []
    rest = np.zeros(CONTEXT, np.float32)  # what the next frame needs of the one before, and the samples after it
    total = 0

    def heard(padded: npt.NDArray[np.float32]) -> None:
        frames = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + FRAME)[::FRAME]
        for at in range(0, len(frames), _CALL_FRAMES):
            answer = model({"input": np.ascontiguousarray(frames[at : at + _CALL_FRAMES]), **state})
            found.append(answer["speech_probs"])
            state.update(h=answer["hn"], c=answer["cn"])

    for block in blocks:
        total += len(block)
        rest = np.concatenate([rest, block])
        whole = (len(rest) - CONTEXT) // FRAME * FRAME
        if whole:
            heard(rest[: CONTEXT + whole])
            rest = rest[whole:]
    if len(rest) > CONTEXT:
        heard(np.pad(rest, (0, CONTEXT + FRAME - len(rest))))
    return np.concatenate(found) if found else np.zeros(0, np.float32), total / RATE


class SpeechLimits(NamedTuple):
    """What counts as one stretch of speech; all in seconds, but the threshold."""

    threshold: float = 0.5
    min_silence: float = 0.5
    min_speech: float = 2.0
    max_speech: float = 60.0
    pad: float = 0.3


class _Stretch(NamedTuple):
    """Speech from one frame to another, with the silences in it: their beginnings and ends."""

    start: int
    end: int
    silences: list[tuple[int, int]]


def speech_spans(probabilities: Probabilities, seconds: float, limits: SpeechLimits) -> list[tuple[float, float]]:
    """Beginnings and ends of speech, in seconds.

    Speech begins where the probability reaches the threshold, and ends where it falls 0.15 below and stays below
    the threshold for `min_silence`. What lasts longer than `max_speech` with its padding is cut at its longest silence,
    or where it must be. Then stretches of less than `min_speech` are dropped, and the others padded, but not into each
    other.
    """
    step = FRAME / RATE
    last = seconds / step
    longest = max(limits.max_speech - 2 * limits.pad - step, step) / step
    spans: list[tuple[float, float]] = []
    for stretch in _stretches(probabilities, limits):
        spans += _cut(stretch, min(stretch.end, last), longest)
    kept = [(start * step, min(end * step, seconds)) for start, end in spans]
    return _padded([span for span in kept if span[1] - span[0] > limits.min_speech], seconds, limits.pad)


def _stretches(probabilities: Probabilities, limits: SpeechLimits) -> list[_Stretch]:
    high = np.flatnonzero(probabilities >= limits.threshold)
    if not len(high):
        return []
    low = np.flatnonzero(probabilities < max(limits.threshold - 0.15, 0.01))
    patience, short = limits.min_silence * RATE / FRAME, _SHORT_SILENCE * RATE / FRAME
    found: list[_Stretch] = []
    start = int(high[0])
    silences: list[tuple[int, int]] = []
    before = np.flatnonzero(np.diff(high) > 1)
    for at in before.tolist():
        until = int(high[at + 1])
        place = int(np.searchsorted(low, high[at]))
        silent = int(low[place]) if place < len(low) else until
        if silent >= until:
            continue
        if until - 1 - silent >= patience:
            found.append(_Stretch(start, silent, silences))
            start, silences = until, []
        elif until - silent > short:
            silences.append((silent, until))
    place = int(np.searchsorted(low, high[-1]))
    end = (
        int(low[place]) if place < len(low) and len(probabilities) - 1 - low[place] >= patience else len(probabilities)
    )
    return [*found, _Stretch(start, end, silences)]


def _cut(stretch: _Stretch, end: float, longest: float) -> list[tuple[float, float]]:
    spans: list[tuple[float, float]] = []
    start: float = stretch.start
    while end - start > longest:
        within = [silence for silence in stretch.silences if start < silence[0] and silence[1] <= start + longest]
        cut, resume = max(within, key=lambda one: one[1] - one[0]) if within else (start + longest, start + longest)
        spans.append((start, cut))
        start = resume
    return [*spans, (start, end)]


def _padded(spans: list[tuple[float, float]], seconds: float, pad: float) -> list[tuple[float, float]]:
    found = []
    for at, (start, end) in enumerate(spans):
        before = start if at == 0 else (start - spans[at - 1][1]) / 2
        after = seconds - end if at == len(spans) - 1 else (spans[at + 1][0] - end) / 2
        found.append((start - min(pad, before), end + min(pad, after)))
    return found
