"""Signs that a recogniser made a text up. Recognisers of the Whisper family do so in silence, noise and music."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PHRASES = (
    "thank you for watching",
    "thanks for watching",
    "please subscribe to my channel",
    "please subscribe",
    "like and subscribe",
    "subtitles by the amara.org community",
    "see you in the next video",
)
"""What recognisers hear in silence, since films and videos end with it."""

COMPOUNDING = frozenset({"de", "et", "fi", "hu", "is", "nl", "no", "da", "sv", "tr"})
"""Languages whose words may be very long."""

_MIN_PREFIX = 8
"""A text that goes on after a phrase of at least as many characters is made up too."""


def _plain(text: str) -> str:
    return " ".join("".join(" " if char == "-" else char for char in text.lower() if char not in ".,!?").split())


class HallucinationSigns(NamedTuple):
    """The limits: at most this share of different words, and so on."""

    unique_words_threshold: float = 0.4
    long_word_threshold: int = 25
    agglutinative_long_word_threshold: int = 35
    long_word_rel_threshold: float = 3.0
    max_char_rate: float = 40.0
    phrases: Sequence[str] = PHRASES

    def of(self, text: str | None, seconds: float | None, language: str | None = None) -> list[str]:
        """The names of the signs in a text; none in a blank one."""
        words = text.split() if text else []
        if not words:
            return []
        lengths = sorted(map(len, words))
        signs = {
            "repeated_ngrams": len(set(words)) / len(words) <= self.unique_words_threshold,
            "long_word": self._long(lengths, (language or "").strip().lower() in COMPOUNDING),
            "phrase_match": self._is_phrase(_plain(text or "")),
            "high_char_rate": seconds is not None and 0 < seconds < sum(lengths) / self.max_char_rate,
        }
        return [name for name, found in signs.items() if found]

    def _long(self, lengths: Sequence[int], compounding: bool) -> bool:
        if compounding:
            return lengths[-1] >= self.agglutinative_long_word_threshold
        if lengths[-1] >= self.long_word_threshold:
            return True
        return len(lengths) > 1 and (lengths[-1] - lengths[-2]) / lengths[-2] >= self.long_word_rel_threshold

    def _is_phrase(self, text: str) -> bool:
        known = [_plain(phrase) for phrase in self.phrases]
        return any(text == one or (len(one) >= _MIN_PREFIX and text.startswith(one)) for one in known if one)
