"""Who speaks when in a recording: speech found with Silero, in windows whose voices are clustered.

What is given up: two people who speak at once are one. Windows are 1.6 seconds long, and a change of speakers without a
pause is found to about 0.4 seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.audio.speakers.speaker_model import STEP_SECONDS, WINDOW_SECONDS, SpeakerModel
from gristmill.audio.speakers.voice_clusters import cluster_voices
from gristmill.audio.speech.package_weights import RATE
from gristmill.audio.speech.silero import SpeechLimits, speech_probabilities, speech_spans

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

_SPEECH = SpeechLimits(threshold=0.5, min_silence=0.2, min_speech=0.25, max_speech=1e9, pad=0.05)


class Turn(NamedTuple):
    """A part of a recording in which one person speaks: seconds, and the number of the person, from 0."""

    start: float
    end: float
    speaker: int


class _Window(NamedTuple):
    """Where a window of speech is, and the stretch of speech that it is in."""

    start: float
    end: float
    stretch: int


def diarise(
    parts: Iterator[Samples], model: SpeakerModel, least_similarity: float, most: int | None, threads: int = 1
) -> list[Turn]:
    """The turns of a recording, given in parts that follow each other, in order."""
    windows: list[_Window] = []
    vectors, offset = [], 0.0
    for part in parts:
        spans = speech_spans(speech_probabilities(part, threads), len(part) / RATE, _SPEECH)
        own = [window for number, span in enumerate(spans) for window in _windows_of(*span, len(windows) + number)]
        vectors.append(model.vectors(part, [round(window.start * RATE) for window in own]))
        windows += [_Window(one.start + offset, one.end + offset, one.stretch) for one in own]
        offset += len(part) / RATE
    if not windows:
        return []
    return _turns(windows, cluster_voices(np.concatenate([one for one in vectors if len(one)]), least_similarity, most))


def _windows_of(start: float, end: float, stretch: int) -> list[_Window]:
    """Windows that cover a stretch of speech; the last one ends with it."""
    count = max(int(np.ceil((end - start - WINDOW_SECONDS) / STEP_SECONDS)), 0) + 1
    last = max(end - WINDOW_SECONDS, start)
    starts = np.linspace(start, last, count).tolist()
    return [_Window(at, min(at + WINDOW_SECONDS, end), stretch) for at in starts]


def _turns(windows: Sequence[_Window], speakers: Any) -> list[Turn]:
    """One turn for windows of one voice that follow each other in a stretch. Windows overlap: a turn ends in the middle
    of what it has in common with the next."""
    turns: list[Turn] = []
    for number, (window, speaker) in enumerate(zip(windows, speakers.tolist(), strict=True)):
        follows = number and windows[number - 1].stretch == window.stretch
        if follows and turns[-1].speaker == speaker:
            turns[-1] = turns[-1]._replace(end=window.end)
        elif follows:
            change = (window.start + turns[-1].end) / 2
            turns[-1] = turns[-1]._replace(end=change)
            turns.append(Turn(change, window.end, speaker))
        else:
            turns.append(Turn(window.start, window.end, speaker))
    return turns


def merged_turns(turns: Sequence[Turn], gap: float, shortest: float) -> list[Turn]:
    """Neighbouring turns of one speaker, not more than `gap` seconds apart, as one; without those shorter than
    `shortest`. Speakers are numbered anew, in the order in which they first speak."""
    found: list[Turn] = []
    for turn in turns:
        if found and found[-1].speaker == turn.speaker and turn.start - found[-1].end <= gap:
            found[-1] = found[-1]._replace(end=turn.end)
        else:
            found.append(turn)
    kept = [turn for turn in found if turn.end - turn.start >= shortest]
    numbers = {speaker: number for number, speaker in enumerate(dict.fromkeys(turn.speaker for turn in kept))}
    return [turn._replace(speaker=numbers[turn.speaker]) for turn in kept]
