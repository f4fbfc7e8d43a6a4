"""Filters of recordings by models that listen to them at 16 kHz.

SpeechShareFilter   the share of a recording in which people speak
DNSMOSFilter        how good it sounds, as people would judge it
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gristmill.audio.filters import AudioRangeFilter
from gristmill.audio.speech.dnsmos import PRIMARY, QUALITIES, dnsmos, streamed_dnsmos
from gristmill.audio.speech.package_weights import RATE
from gristmill.audio.speech.silero import SILERO, speech_probabilities, streamed_probabilities
from gristmill.core.errors import did_you_mean, require

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

HEARD = "heard"


class SpeechModelFilter(AudioRangeFilter):
    """A filter whose score is made of what a model says: write `hear` and `score_audio`.

    Filters with the same `heard_as` share what the model says.
    """

    looks_at = HEARD

    rate: ClassVar[int] = RATE
    """Samples per second that the model hears."""

    @abstractmethod
    def heard_as(self) -> Hashable:
        """What the answer of the model is known by."""

    @abstractmethod
    def hear(self, samples: Samples) -> Any:
        """What the model says to samples, one channel. `score_audio` is given it."""

    @abstractmethod
    def hear_blocks(self, blocks: Iterator[Samples]) -> Any:
        """The same for a long recording, in blocks of any size."""

    @abstractmethod
    def check(self) -> None:
        """Raise if the model cannot run here."""


class SpeechShareFilter(SpeechModelFilter):
    """Keeps recordings in which people speak during a share of at least `min_share`, found with Silero.

    A frame of 32 ms counts as speech if it is speech with at least this `probability`.
    """

    def __init__(self, min_share: float = 0.5, max_share: float | None = None, probability: float = 0.5) -> None:
        self.min_share, self.max_share = min_share, max_share
        self._check_bounds()
        self.probability = probability

    def heard_as(self) -> Hashable:
        return "silero"

    def check(self) -> None:
        require("onnxruntime", "onnx", "voice activity detection")
        SILERO.find()

    def hear(self, samples: Samples) -> Any:
        return speech_probabilities(samples)

    def hear_blocks(self, blocks: Iterator[Samples]) -> Any:
        return streamed_probabilities(blocks)[0]

    def score_audio(self, audio: Any) -> float:
        return float(np.mean(audio >= self.probability))

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_share, self.max_share


class DNSMOSFilter(SpeechModelFilter):
    """Keeps speech that people would rate at `min_mos` or more, of 5, as the DNSMOS model predicts.

    `quality` is "ovrl" (all), "sig" (the voice), "bak" (the background) or "p808". The score is the mean over windows
    of nine seconds, one each second; shorter recordings are repeated.
    """

    def __init__(self, min_mos: float = 2.8, quality: str = "ovrl") -> None:
        self.min_mos = min_mos
        self._check_bounds()
        if quality not in QUALITIES:
            hint = did_you_mean(quality, QUALITIES)
            raise ValueError(f"DNSMOSFilter: quality is {quality!r}, must be one of {', '.join(QUALITIES)}.{hint}")
        self.quality = quality

    def heard_as(self) -> Hashable:
        return "dnsmos", self.quality == "p808"

    def check(self) -> None:
        require("onnxruntime", "onnx", "DNSMOS")
        PRIMARY.find()

    def hear(self, samples: Samples) -> Any:
        return dnsmos(samples, self.quality == "p808")

    def hear_blocks(self, blocks: Iterator[Samples]) -> Any:
        return streamed_dnsmos(blocks, self.quality == "p808")

    def score_audio(self, audio: Any) -> float:
        return float(audio[self.quality])

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_mos, None
