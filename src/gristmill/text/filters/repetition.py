"""Repetition filters: how much of a document is repeated lines, paragraphs or n-grams.

They come from Gopher and compute the scores of the NeMo Curator filters of the same names. Lines, paragraphs and
n-grams are defined in `statistics/kernel_reference.py`. Documents without any get the score that is furthest from being
kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.samples.argument_checks import check_language, check_ratio
from gristmill.text.document_filter import StatisticFilter, safe_ratio
from gristmill.text.filters.heuristics import RatioFilter
from gristmill.text.statistics.kernel_reference import MAX_NGRAM_WORDS


class RepeatedLinesFilter(RatioFilter):
    """The number of distinct lines, as a share of all lines. A blank document has 0.0.

    `max_repeated_line_fraction` is the smallest share that is kept, despite its name.
    """

    _numerator, _denominator, _empty_score = "distinct_lines", "lines", 0.0

    def __init__(self, max_repeated_line_fraction: float = 0.7) -> None:
        check_ratio(self.name, "max_repeated_line_fraction", max_repeated_line_fraction)
        self.max_repeated_line_fraction = max_repeated_line_fraction

    def bounds(self) -> tuple[float, None]:
        return self.max_repeated_line_fraction, None


class RepeatedParagraphsFilter(RatioFilter):
    """The number of distinct paragraphs, as a share of all paragraphs. An empty document is one empty paragraph: 1.0.

    `max_repeated_paragraphs_ratio` is the smallest share that is kept, despite its name.
    """

    _numerator, _denominator, _empty_score = "distinct_paragraphs", "paragraphs", 1.0

    def __init__(self, max_repeated_paragraphs_ratio: float = 0.7) -> None:
        check_ratio(self.name, "max_repeated_paragraphs_ratio", max_repeated_paragraphs_ratio)
        self.max_repeated_paragraphs_ratio = max_repeated_paragraphs_ratio

    def bounds(self) -> tuple[float, None]:
        return self.max_repeated_paragraphs_ratio, None


class RepeatedLinesByCharFilter(RatioFilter):
    """The characters of the distinct lines, as a share of those of all lines. A blank document has 0.0.

    `max_repeated_lines_char_ratio` is the smallest share that is kept, despite its name.
    """

    _numerator, _denominator, _empty_score = "distinct_line_chars", "line_chars", 0.0

    def __init__(self, max_repeated_lines_char_ratio: float = 0.8) -> None:
        check_ratio(self.name, "max_repeated_lines_char_ratio", max_repeated_lines_char_ratio)
        self.max_repeated_lines_char_ratio = max_repeated_lines_char_ratio

    def bounds(self) -> tuple[float, None]:
        return self.max_repeated_lines_char_ratio, None


class RepeatedParagraphsByCharFilter(RatioFilter):
    """The characters of the distinct paragraphs, as a share of those of all paragraphs. An empty document has 0.0.

    `max_repeated_paragraphs_char_ratio` is the smallest share that is kept, despite its name.
    """

    _numerator, _denominator, _empty_score = "distinct_paragraph_chars", "paragraph_chars", 0.0

    def __init__(self, max_repeated_paragraphs_char_ratio: float = 0.8) -> None:
        check_ratio(self.name, "max_repeated_paragraphs_char_ratio", max_repeated_paragraphs_char_ratio)
        self.max_repeated_paragraphs_char_ratio = max_repeated_paragraphs_char_ratio

    def bounds(self) -> tuple[float, None]:
        return self.max_repeated_paragraphs_char_ratio, None


class _NGramFilter(StatisticFilter):
    """Base of the n-gram filters: a share of the characters. Fewer than n words: 1.0."""

    _statistic_family: str
    n: int

    def _check(self, n: int, lang: str) -> None:
        name = type(self).__name__
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_NGRAM_WORDS:
            raise ValueError(f"{name}: n is {n!r}, must be a whole number from 1 to {MAX_NGRAM_WORDS}")
        check_language(name, lang)

    def statistics(self) -> tuple[str, ...]:
        return f"{self._statistic_family}_{self.n}", "words", "chars"

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        repeated, words, chars = (counts[name] for name in self.statistics())
        score = safe_ratio(repeated, chars, 1.0)
        if not isinstance(words, pa.Array):
            return 1.0 if words < self.n else score
        return pc.if_else(pc.less(words, literal(self.n, pa.int64())), literal(1.0, pa.float64()), score)


class RepeatingTopNGramsFilter(_NGramFilter):
    """The share of the characters that are removed with the most frequent n-gram. Fewer than n words: 1.0.

    As in NeMo Curator, every literal occurrence of its words with single spaces between them is removed: also inside
    longer words, but not across a line end. The paper multiplies its length by how often it occurs. Of several n-grams
    that are equally frequent, the first in the text counts; in NeMo Curator that depends on the hash seed.
    """

    _statistic_family = "top_ngram"

    def __init__(self, n: int = 2, max_repeating_ngram_ratio: float = 0.2, lang: str = "en") -> None:
        check_ratio(self.name, "max_repeating_ngram_ratio", max_repeating_ngram_ratio)
        self._check(n, lang)
        self.n, self.max_repeating_ngram_ratio, self.lang = n, max_repeating_ngram_ratio, lang

    def bounds(self) -> tuple[None, float]:
        return None, self.max_repeating_ngram_ratio


class RepeatingDuplicateNGramsFilter(_NGramFilter):
    """The share of the characters that are in n-grams which occurred before. Fewer than n words: 1.0.

    A word in several such n-grams counts once. Spaces between the words count as well.
    """

    _statistic_family = "duplicate_ngram"

    def __init__(self, n: int = 2, max_repeating_duplicate_ngram_ratio: float = 0.2, lang: str = "en") -> None:
        check_ratio(self.name, "max_repeating_duplicate_ngram_ratio", max_repeating_duplicate_ngram_ratio)
        self._check(n, lang)
        self.n, self.lang = n, lang
        self.max_repeating_duplicate_ngram_ratio = max_repeating_duplicate_ngram_ratio

    def bounds(self) -> tuple[None, float]:
        return None, self.max_repeating_duplicate_ngram_ratio
