"""Filters of recordings by their transcripts. They read columns, and decode nothing.

    TranscriptCharRateFilter, TranscriptWordRateFilter       characters and words per second
    TranscriptWERFilter, TranscriptCERFilter                 errors of a recognised text against the transcript
    TranscriptEdgeErrorFilter, TranscriptWordMatchFilter     where a segment was cut wrongly; how many words agree
    TranscriptAlphabetFilter, TranscriptRepetitionFilter     foreign characters; words that are said again and again
    TranscriptHallucinationFilter                            signs that a recogniser made it up

Null is scored like the empty text. A row that has no score, because its duration is missing, is not kept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import DURATION, TEXT
from gristmill.audio.filters import COLUMNS, AudioRangeFilter
from gristmill.audio.transcripts.error_rates import (
    character_error_rates,
    edge_errors,
    plain_words,
    word_error_rates,
    word_match_rates,
    words_of,
)
from gristmill.audio.transcripts.hallucination_signs import HallucinationSigns
from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.samples.argument_checks import check_positive

PRED_TEXT = "pred_text"


class TranscriptFilter(AudioRangeFilter):
    """One score per row from its columns: write `columns_read` and `score_columns`."""

    looks_at = COLUMNS

    @abstractmethod
    def columns_read(self) -> list[str]:
        """The columns that `score_columns` is given."""

    @abstractmethod
    def score_columns(self, *columns: pa.Array) -> pa.Array:
        """The scores of all rows."""

    def score_batch(self, samples: Sequence[Any]) -> pa.Array:
        return self.score_columns(*samples)

    def score_audio(self, audio: Any) -> Any:
        return self.score_columns(*audio)[0].as_py()


class _RateFilter(TranscriptFilter):
    """How much of a text there is in a second."""

    def __init__(self, min_rate: float | None, max_rate: float | None, text_key: str, duration_key: str) -> None:
        self.min_rate, self.max_rate = min_rate, max_rate
        self._check_bounds()
        self.text_key, self.duration_key = text_key, duration_key

    def columns_read(self) -> list[str]:
        return [self.text_key, self.duration_key]

    def score_columns(self, *columns: pa.Array) -> pa.Array:
        texts, durations = columns
        counts = self._counts(pc.fill_null(texts.cast(pa.string()), ""))
        seconds = durations.cast(pa.float64())
        seconds = pc.if_else(pc.greater(seconds, 0.0), seconds, pa.scalar(None, pa.float64()))
        return pc.divide(counts.cast(pa.float64()), seconds)

    @abstractmethod
    def _counts(self, texts: pa.Array) -> pa.Array:
        """What is counted, for each text."""

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_rate, self.max_rate


class TranscriptCharRateFilter(_RateFilter):
    """Keeps rows whose text has between `min_rate` and `max_rate` characters per second, without spaces.

    Slow and fast texts are those of another recording. A blank text has 0. Without a duration there is no score.
    """

    def __init__(
        self,
        min_rate: float | None = 1.0,
        max_rate: float | None = 25.0,
        text_key: str = TEXT,
        duration_key: str = DURATION,
    ) -> None:
        super().__init__(min_rate, max_rate, text_key, duration_key)

    def _counts(self, texts: pa.Array) -> pa.Array:
        return pc.utf8_length(pc.replace_substring_regex(texts, r"\s+", ""))


class TranscriptWordRateFilter(_RateFilter):
    """Keeps rows whose text has between `min_rate` and `max_rate` words per second. A blank text has 0.

    Without a duration there is no score.
    """

    def __init__(
        self,
        min_rate: float | None = 0.2,
        max_rate: float | None = 6.0,
        text_key: str = TEXT,
        duration_key: str = DURATION,
    ) -> None:
        super().__init__(min_rate, max_rate, text_key, duration_key)

    def _counts(self, texts: pa.Array) -> pa.Array:
        return make_array([len(text.split()) for text in texts.to_pylist()], pa.int64())


class _AgreementFilter(TranscriptFilter):
    """How a recognised text agrees with the transcript. With `plain`, case and punctuation do not count."""

    def __init__(self, text_key: str, pred_text_key: str, plain: bool) -> None:
        self.text_key, self.pred_text_key, self.plain = text_key, pred_text_key, plain

    def columns_read(self) -> list[str]:
        return [self.text_key, self.pred_text_key]

    def score_columns(self, *columns: pa.Array) -> pa.Array:
        reference, other = (column.to_pylist() for column in columns)
        if self.plain:
            reference, other = [plain_words(text) for text in reference], [plain_words(text) for text in other]
        return pa.array(self._scores(reference, other), pa.float64())

    @abstractmethod
    def _scores(self, references: Sequence[str | None], others: Sequence[str | None]) -> Any:
        """The scores of pairs of texts."""


class TranscriptWERFilter(_AgreementFilter):
    """Keeps rows whose word error rate is at most `max_wer` percent.

    Null counts as blank. Against a blank transcript a blank text has 0, and any other 100.
    """

    def __init__(
        self, max_wer: float = 75.0, text_key: str = TEXT, pred_text_key: str = PRED_TEXT, plain: bool = True
    ) -> None:
        self.max_wer = max_wer
        self._check_bounds()
        super().__init__(text_key, pred_text_key, plain)

    def _scores(self, references: Sequence[str | None], others: Sequence[str | None]) -> Any:
        return word_error_rates(references, others)

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_wer


class TranscriptCERFilter(_AgreementFilter):
    """Keeps rows whose character error rate is at most `max_cer` percent. Blank texts are scored as words are."""

    def __init__(
        self, max_cer: float = 30.0, text_key: str = TEXT, pred_text_key: str = PRED_TEXT, plain: bool = True
    ) -> None:
        self.max_cer = max_cer
        self._check_bounds()
        super().__init__(text_key, pred_text_key, plain)

    def _scores(self, references: Sequence[str | None], others: Sequence[str | None]) -> Any:
        return character_error_rates(references, others)

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_cer


class TranscriptEdgeErrorFilter(_AgreementFilter):
    """Keeps rows of which at most `max_characters` at the beginning, and at the end, were recognised as something else:
    otherwise the segment was probably cut at the wrong place.

    The score is the larger of the two. If no word agrees, it is the length of the longer text.
    """

    def __init__(
        self, max_characters: float = 25.0, text_key: str = TEXT, pred_text_key: str = PRED_TEXT, plain: bool = True
    ) -> None:
        self.max_characters = max_characters
        self._check_bounds()
        super().__init__(text_key, pred_text_key, plain)

    def _scores(self, references: Sequence[str | None], others: Sequence[str | None]) -> Any:
        return [float(max(edge_errors(*pair))) for pair in zip(references, others, strict=True)]

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_characters


class TranscriptWordMatchFilter(_AgreementFilter):
    """Keeps rows with at least `min_match` percent of the words of the transcript in the recognised text, in order.

    If the transcript is blank, a blank text has 100, and any other 0.
    """

    def __init__(
        self, min_match: float = 50.0, text_key: str = TEXT, pred_text_key: str = PRED_TEXT, plain: bool = True
    ) -> None:
        self.min_match = min_match
        self._check_bounds()
        super().__init__(text_key, pred_text_key, plain)

    def _scores(self, references: Sequence[str | None], others: Sequence[str | None]) -> Any:
        return word_match_rates(references, others)

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_match, None


class _TextFilter(TranscriptFilter):
    """A number of each text."""

    def columns_read(self) -> list[str]:
        return [self.text_key]

    text_key: str

    def score_columns(self, *columns: pa.Array) -> pa.Array:
        return make_array([self._score(text or "") for text in columns[0].to_pylist()], pa.float64())

    @abstractmethod
    def _score(self, text: str) -> float:
        """The score of a text."""


class TranscriptAlphabetFilter(_TextFilter):
    """Keeps rows whose text has at most a share of `max_foreign` characters that are not in `alphabet`.

    White space does not count. A blank text has 0.
    """

    def __init__(self, alphabet: str, max_foreign: float = 0.0, text_key: str = TEXT) -> None:
        if not isinstance(alphabet, str) or not alphabet.strip():
            raise ValueError(f"{self.name}: alphabet is {alphabet!r}: give the characters that texts may have")
        self.max_foreign = max_foreign
        self._check_bounds()
        self.alphabet, self.text_key = alphabet, text_key
        self._known = dict.fromkeys(map(ord, alphabet))

    def _score(self, text: str) -> float:
        text = "".join(text.split())
        return len(text.translate(self._known)) / len(text) if text else 0.0

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_foreign


class TranscriptRepetitionFilter(_TextFilter):
    """Keeps rows in whose text at most a share of `max_repeated` of the runs of `ngram` words were there before.

    A text of fewer words has 0.
    """

    def __init__(self, max_repeated: float = 0.3, ngram: int = 3, text_key: str = TEXT) -> None:
        self.max_repeated, self.ngram = max_repeated, ngram
        self._check_bounds()
        check_positive(self.name, "ngram", ngram)
        self.text_key = text_key

    def _score(self, text: str) -> float:
        words = words_of(text.lower())
        runs = len(words) - self.ngram + 1
        if runs < 1:
            return 0.0
        return 1.0 - len(set(zip(*(words[at:] for at in range(self.ngram)), strict=False))) / runs

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_repeated


class TranscriptHallucinationFilter(TranscriptFilter):
    """Keeps rows whose text shows at most `max_signs` signs that the recogniser made it up.

    The signs are those of `WhisperHallucinationStage`: words that repeat, a word that is too long, a phrase that
    recognisers hear in silence, and more characters than anyone can say. A blank text has 0.
    """

    def __init__(
        self,
        max_signs: int = 0,
        phrases: Sequence[str] | None = None,
        text_key: str = PRED_TEXT,
        duration_key: str = DURATION,
    ) -> None:
        self.max_signs = max_signs
        self._check_bounds()
        self.phrases, self.text_key, self.duration_key = phrases, text_key, duration_key
        self._signs = HallucinationSigns() if phrases is None else HallucinationSigns(phrases=phrases)

    def columns_read(self) -> list[str]:
        return [self.text_key, self.duration_key]

    def score_columns(self, *columns: pa.Array) -> pa.Array:
        pairs = zip(columns[0].to_pylist(), columns[1].to_pylist(), strict=True)
        found = [len(self._signs.of(text, seconds)) for text, seconds in pairs]
        return pa.array(np.array(found, np.float64))

    def bounds(self) -> tuple[float | None, float | None]:
        return None, self.max_signs
