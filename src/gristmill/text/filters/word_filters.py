"""Filters by the words of a document: flagged words, stop words, and the probability of its words."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.errors import InputError
from gristmill.core.task import digest
from gristmill.samples.argument_checks import check_count, check_number, check_ratio
from gristmill.text.document_filter import BoundedFilter, DocumentFilter
from gristmill.text.filters.read_word_lists import EntriesOrFile, check_entries_file, read_entries
from gristmill.text.statistics.stop_words import STOP_WORDS
from gristmill.text.statistics.word_segmentation import is_written_without_spaces, split_words

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

UNKNOWN_WORD_PROBABILITY = 1e-9
"""The probability of a word that is not in the table."""

_BETWEEN_EDGES = re.compile(r"[\W_]*+(.*[^\W_])?", re.DOTALL)
r"""Matches every text. Searching for `[\W_]+$` instead would be quadratic in the length of a word."""


def normalised_words(text: str, lang: str | None = None) -> list[str]:
    """The words in lower case, without punctuation around them. Words of punctuation only are left out."""
    found = (_BETWEEN_EDGES.match(word) for word in split_words(text.lower(), lang))
    return [match[1] for match in found if match and match[1]]


class FlaggedWordsFilter(BoundedFilter):
    """The share of words that are on a list, in any case; keeps shares up to `max_ratio`. A blank document has 0.0.

    `words` is a list, or a file with one word per line. Punctuation around a word is ignored.
    """

    score_type = pa.float64()

    def __init__(self, words: EntriesOrFile, max_ratio: float = 0.045, lang: str | None = None) -> None:
        check_ratio("FlaggedWordsFilter", "max_ratio", max_ratio)
        self.words, self.max_ratio, self.lang = words, max_ratio, lang

    def check(self) -> None:
        check_entries_file("FlaggedWordsFilter", self.words)

    @cached_property
    def _flagged(self) -> frozenset[str]:
        return frozenset(word.lower() for word in read_entries("FlaggedWordsFilter", self.words))

    def score_document(self, text: str) -> float:
        words = normalised_words(text, self.lang)
        return sum(word in self._flagged for word in words) / len(words) if words else 0.0

    def bounds(self) -> tuple[None, float]:
        return None, self.max_ratio


class C4BadWordsFilter(BoundedFilter):
    """1 if a document has a word or phrase of a list, else 0; keeps 0.

    In languages with spaces, an entry matches whole words only. `keep_fraction` of such documents get 0 all the same,
    chosen by a hash of `seed` and the text. `words` is a list, or a file with one entry per line. C4 was made with the
    "List of Dirty, Naughty, Obscene and Otherwise Bad Words", which is not included.
    """

    score_type = pa.int64()

    def __init__(self, words: EntriesOrFile, lang: str = "en", keep_fraction: float = 0.0, seed: int = 0) -> None:
        check_ratio("C4BadWordsFilter", "keep_fraction", keep_fraction)
        check_count("C4BadWordsFilter", "seed", seed)
        self.words, self.lang, self.keep_fraction, self.seed = words, lang, keep_fraction, seed

    def check(self) -> None:
        check_entries_file("C4BadWordsFilter", self.words)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        entries = [re.escape(entry.lower()) for entry in read_entries("C4BadWordsFilter", self.words) if entry]
        either = "|".join(sorted(entries, key=len, reverse=True)) or "(?!)"
        return re.compile(either if is_written_without_spaces(self.lang) else rf"(?<!\w)(?:{either})(?!\w)")

    def score_document(self, text: str) -> int:
        if not self._pattern.search(text.lower()):
            return 0
        drawn = int(digest([str(self.seed), "C4BadWordsFilter", text]), 16) / 2**64
        return int(drawn >= self.keep_fraction)

    def bounds(self) -> tuple[float, float]:
        return 0, 0


class StopWordRatioFilter(BoundedFilter):
    """The share of words that are stop words of a language, such as "the" and "of"; a blank document has 0.0.

    Prose has many of them; lists, tables and keywords have few. `lang` is one of 25 languages. For others, give
    `words`, a list or a file with one word per line.
    """

    score_type = pa.float64()

    def __init__(
        self, lang: str = "en", min_ratio: float = 0.1, max_ratio: float = 1.0, words: EntriesOrFile | None = None
    ) -> None:
        check_ratio("StopWordRatioFilter", "min_ratio", min_ratio)
        check_ratio("StopWordRatioFilter", "max_ratio", max_ratio)
        if words is None and lang not in STOP_WORDS:
            raise ValueError(
                f"StopWordRatioFilter: there are no stop words for lang={lang!r}. Give words=..., or one of: "
                f"{', '.join(STOP_WORDS)}"
            )
        self.lang, self.min_ratio, self.max_ratio, self.words = lang, min_ratio, max_ratio, words

    def check(self) -> None:
        check_entries_file("StopWordRatioFilter", self.words or ())

    @cached_property
    def _stop_words(self) -> frozenset[str]:
        if self.words is None:
            return STOP_WORDS[self.lang]
        return frozenset(word.lower() for word in read_entries("StopWordRatioFilter", self.words))

    def score_document(self, text: str) -> float:
        words = normalised_words(text, self.lang)
        return sum(word in self._stop_words for word in words) / len(words) if words else 0.0

    def bounds(self) -> tuple[float, float]:
        return self.min_ratio, self.max_ratio


class UnigramLogProbFilter(DocumentFilter):
    """The mean logarithm of the probability of a document's words; keeps those above `logprobs_threshold`.

    `table` is how often each word occurs: a mapping, or a file with a word, a tab and a count per line, such as
    `write_unigrams` writes for a corpus. A word that is not in it has the probability 1e-9, and so has a document
    without words. Case and punctuation around words are ignored.
    """

    score_type = pa.float64()
    _not_pickled = ("_logs",)

    def __init__(
        self,
        table: str | os.PathLike[str] | Mapping[str, float],
        logprobs_threshold: float = -10,
        lang: str | None = None,
    ) -> None:
        check_number("UnigramLogProbFilter", "logprobs_threshold", logprobs_threshold)
        if isinstance(table, dict):
            _lower_case_counts("UnigramLogProbFilter", table)
        self.table, self.logprobs_threshold, self.lang = table, logprobs_threshold, lang

    def check(self) -> None:
        if not isinstance(self.table, dict) and not Path(str(self.table)).expanduser().is_file():
            raise InputError(
                f"UnigramLogProbFilter: the file {self.table} does not exist: write it with write_unigrams"
            )

    def setup(self) -> None:
        self._logs  # noqa: B018  (reads the file)

    @cached_property
    def _logs(self) -> dict[str, float]:
        counts = self.table if isinstance(self.table, dict) else read_unigrams(str(self.table))
        counts = _lower_case_counts("UnigramLogProbFilter", counts)
        total = sum(counts.values())
        return {word: math.log(max(count / total, UNKNOWN_WORD_PROBABILITY)) for word, count in counts.items()}

    def score_document(self, text: str) -> float:
        words = normalised_words(text, self.lang)
        rare = math.log(UNKNOWN_WORD_PROBABILITY)
        return math.fsum(self._logs.get(word, rare) for word in words) / len(words) if words else rare

    def keep_document(self, score: float) -> bool:
        return score > self.logprobs_threshold


def _lower_case_counts(name: str, table: Mapping[str, float]) -> dict[str, float]:
    """How often each word occurs, in any case."""
    counts: dict[str, float] = {}
    for word, count in table.items():
        check_number(name, f"the count of {word!r}", count)
        if not 0 <= count < math.inf:
            raise ValueError(f"{name}: the count of {word!r} is {count!r}, must be 0 or more")
        counts[word.lower()] = counts.get(word.lower(), 0) + count
    if not sum(counts.values()):
        raise ValueError(f"{name}: all counts are 0: at least one word must have a count above 0")
    return counts


def write_unigrams(
    texts: Iterable[str], path: str | os.PathLike[str], min_count: int = 1, lang: str | None = None
) -> None:
    """Count the words of texts and write the table that `UnigramLogProbFilter` reads, the most frequent first."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalised_words(text, lang))
    lines = [f"{word}\t{count}\n" for word, count in sorted(counts.items(), key=_by_count) if count >= min_count]
    Path(path).expanduser().write_text("".join(lines), encoding="utf-8")


def _by_count(entry: tuple[str, int]) -> tuple[int, str]:
    return -entry[1], entry[0]


def read_unigrams(path: str) -> dict[str, float]:
    counts: dict[str, float] = {}
    for number, line in enumerate(Path(path).expanduser().read_text(encoding="utf-8").split("\n"), 1):
        word, tab, count = line.partition("\t")
        try:
            if line:
                counts[word] = float(count)
        except ValueError:
            reason = "has no tab" if not tab else f"has {count!r}, which is not a number"
            raise InputError(f"UnigramLogProbFilter: {path}, line {number}, {reason}") from None
    if not counts:
        raise InputError(f"UnigramLogProbFilter: {path} has no words: write it with write_unigrams")
    return counts
