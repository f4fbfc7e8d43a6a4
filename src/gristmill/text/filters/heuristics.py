"""Heuristic filters: ratios and counts of characters, words, lines and paragraphs that separate prose from the rest.

They come from Gopher, C4 and their successors, and compute the scores of the NeMo Curator filters of the same names, so
that the same documents are dropped. Where those differ from the papers, the docstring says so. NeMo Curator fails on
documents without words or lines; here they get the score that is furthest from being kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.run.row_progress import in_turn
from gristmill.samples.argument_checks import check_bounds, check_language, check_ratio
from gristmill.text.document_filter import (
    BoundedFilter,
    StatisticFilter,
    safe_ratio,
    score_array,
    values_to_score,
)
from gristmill.text.statistics.kernel_reference import SCORED_URL

if TYPE_CHECKING:
    from gristmill.text.text_columns import Texts


class RatioFilter(StatisticFilter):
    """A filter whose score is one statistic divided by another."""

    _numerator: ClassVar[str]
    _denominator: ClassVar[str] = "chars"
    _empty_score: ClassVar[float] = 1.0

    def statistics(self) -> tuple[str, ...]:
        return self._numerator, self._denominator

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        return safe_ratio(counts[self._numerator], counts[self._denominator], self._empty_score)


# -- characters ----------------------------------------------------------------------------------------------


class NonAlphaNumericFilter(RatioFilter):
    """The share of characters other than a-z, A-Z, 0-9, line feed and ? ! , . The empty document has 1.0.

    Space counts as non-alphanumeric, and so do all letters outside ASCII: this is the score that NeMo Curator
    computes, not the one of the papers it comes from.
    """

    _numerator = "plain"
    english_only = True

    def __init__(self, max_non_alpha_numeric_to_text_ratio: float = 0.25) -> None:
        check_ratio(self.name, "max_non_alpha_numeric_to_text_ratio", max_non_alpha_numeric_to_text_ratio)
        self.max_non_alpha_numeric_to_text_ratio = max_non_alpha_numeric_to_text_ratio

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        plain, chars = counts["plain"], counts["chars"]
        other = pc.subtract(chars, plain) if isinstance(chars, pa.Array) else chars - plain
        return safe_ratio(other, chars, 1.0)

    def bounds(self) -> tuple[None, float]:
        return None, self.max_non_alpha_numeric_to_text_ratio


class NumbersFilter(RatioFilter):
    """The share of characters that are digits, 0 to 9. The empty document has 1.0.

    Digits of other scripts do not count, as in NeMo Curator.
    """

    _numerator = "digits"

    def __init__(self, max_number_to_text_ratio: float = 0.15) -> None:
        check_ratio(self.name, "max_number_to_text_ratio", max_number_to_text_ratio)
        self.max_number_to_text_ratio = max_number_to_text_ratio

    def bounds(self) -> tuple[None, float]:
        return None, self.max_number_to_text_ratio


class WhiteSpaceFilter(RatioFilter):
    """The share of characters that are tab, line feed, carriage return, backspace or space. The empty document has 1.0.

    Other white space, such as the no-break space, does not count.
    """

    _numerator = "white"

    def __init__(self, max_white_space_ratio: float = 0.25) -> None:
        check_ratio(self.name, "max_white_space_ratio", max_white_space_ratio)
        self.max_white_space_ratio = max_white_space_ratio

    def bounds(self) -> tuple[None, float]:
        return None, self.max_white_space_ratio


class ParenthesesFilter(RatioFilter):
    """The share of characters that are brackets: { } ⟨ ⟩ [ ] ( ). The empty document has 1.0.

    The brackets are counted, not the text between them.
    """

    _numerator = "brackets"

    def __init__(self, max_parentheses_ratio: float = 0.1) -> None:
        check_ratio(self.name, "max_parentheses_ratio", max_parentheses_ratio)
        self.max_parentheses_ratio = max_parentheses_ratio

    def bounds(self) -> tuple[None, float]:
        return None, self.max_parentheses_ratio


class _UrlFilter(StatisticFilter):
    """Base of the URL filters. With a `url_regex` of the user, the text is searched in Python, not in C."""

    _statistic_names: ClassVar[tuple[str, ...]]
    url_regex: str | re.Pattern[str] | None

    def _set_regex(self, url_regex: str | re.Pattern[str] | None) -> None:
        try:
            re.compile(url_regex or SCORED_URL)
        except re.error as error:
            raise ValueError(
                f"{type(self).__name__}: url_regex {url_regex!r} is not a regular expression: {error}"
            ) from error
        self.url_regex = url_regex

    def statistics(self) -> tuple[str, ...]:
        return self._statistic_names if self.url_regex is None else ()

    def score_document(self, text: str) -> Any:
        if self.url_regex is None:
            return super().score_document(text)
        urls = [url[0] for url in re.compile(self.url_regex).finditer(text)]
        porn_urls = sum("porn" in url for url in urls)
        return self.score_counts({"url_chars": sum(map(len, urls)), "chars": len(text), "porn_urls": porn_urls})

    def score_batch(self, texts: Texts) -> pa.Array:
        if self.url_regex is None:
            return super().score_batch(texts)
        return score_array([self.score_document(text) for text in in_turn(values_to_score(texts))], self.score_type)


class UrlsFilter(_UrlFilter):
    """The share of characters that are part of a URL. The empty document has 1.0, a blank one 0.0.

    A URL begins with http:// or https:// and includes all following characters that are allowed in a URL; or it is what
    `url_regex` matches.
    """

    _statistic_names = ("url_chars", "chars")

    def __init__(self, max_url_to_text_ratio: float = 0.2, url_regex: str | re.Pattern[str] | None = None) -> None:
        check_ratio(self.name, "max_url_to_text_ratio", max_url_to_text_ratio)
        self.max_url_to_text_ratio = max_url_to_text_ratio
        self._set_regex(url_regex)

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        return safe_ratio(counts["url_chars"], counts["chars"], 1.0)

    def bounds(self) -> tuple[None, float]:
        return None, self.max_url_to_text_ratio


class PornographicUrlsFilter(_UrlFilter):
    """1 if a URL contains "porn", else 0; keeps 0. URLs are those of `UrlsFilter`."""

    score_type = pa.int64()
    _statistic_names = ("porn_urls",)

    def __init__(self, url_regex: str | re.Pattern[str] | None = None) -> None:
        self._set_regex(url_regex)

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        count = counts["porn_urls"]
        return pc.sign(count).cast(pa.int64()) if isinstance(count, pa.Array) else int(count > 0)

    def bounds(self) -> tuple[None, float]:
        return None, 0


# -- words ---------------------------------------------------------------------------------------------------


class WordCountFilter(StatisticFilter):
    """The number of words. A blank document has 0."""

    score_type = pa.int64()

    def __init__(self, min_words: int = 50, max_words: int = 100000, lang: str = "en") -> None:
        check_bounds("WordCountFilter", "words", min_words, max_words)
        check_language("WordCountFilter", lang)
        self.min_words, self.max_words, self.lang = min_words, max_words, lang

    def statistics(self) -> tuple[str, ...]:
        return ("words",)

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        return counts["words"]

    def bounds(self) -> tuple[float, float]:
        return self.min_words, self.max_words


class MeanWordLengthFilter(RatioFilter):
    """The mean number of characters per word. A blank document has 0.0."""

    _numerator, _denominator, _empty_score = "word_chars", "words", 0.0

    def __init__(self, min_mean_word_length: float = 3, max_mean_word_length: float = 10, lang: str = "en") -> None:
        check_bounds("MeanWordLengthFilter", "mean_word_length", min_mean_word_length, max_mean_word_length)
        check_language("MeanWordLengthFilter", lang)
        self.min_mean_word_length, self.max_mean_word_length = min_mean_word_length, max_mean_word_length
        self.lang = lang

    def bounds(self) -> tuple[float, float]:
        return self.min_mean_word_length, self.max_mean_word_length


class LongWordFilter(StatisticFilter):
    """The number of characters of the longest word. A blank document has 0."""

    score_type = pa.int64()

    def __init__(self, max_word_length: int = 1000, lang: str = "en") -> None:
        check_bounds("LongWordFilter", "word_length", 0, max_word_length)
        check_language("LongWordFilter", lang)
        self.max_word_length, self.lang = max_word_length, lang

    def statistics(self) -> tuple[str, ...]:
        return ("longest_word",)

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        return counts["longest_word"]

    def bounds(self) -> tuple[None, float]:
        return None, self.max_word_length


class SymbolsToWordsFilter(RatioFilter):
    """The share of words that are an ellipsis, or have more runs of # than half their characters. Blank: 1.0.

    The paper counts hashes and ellipses anywhere; here, as in NeMo Curator, a word such as #tag does not count.
    """

    _numerator, _denominator = "symbol_words", "words"

    def __init__(self, max_symbol_to_word_ratio: float = 0.1, lang: str = "en") -> None:
        check_ratio(self.name, "max_symbol_to_word_ratio", max_symbol_to_word_ratio)
        check_language("SymbolsToWordsFilter", lang)
        self.max_symbol_to_word_ratio, self.lang = max_symbol_to_word_ratio, lang

    def bounds(self) -> tuple[None, float]:
        return None, self.max_symbol_to_word_ratio


class WordsWithoutAlphabetsFilter(RatioFilter):
    """The share of words with at least one alphabetic character of any script. A blank document has 0.0.

    Alphabetic are letters, letter-like numbers (Ⅳ) and letters in circles and squares. Combining marks alone are not,
    though NeMo Curator counts those that are vowels.
    """

    _numerator, _denominator, _empty_score = "alphabetic_words", "words", 0.0

    def __init__(self, min_words_with_alphabets: float = 0.8, lang: str = "en") -> None:
        check_ratio(self.name, "min_words_with_alphabets", min_words_with_alphabets)
        check_language("WordsWithoutAlphabetsFilter", lang)
        self.min_words_with_alphabets, self.lang = min_words_with_alphabets, lang

    def bounds(self) -> tuple[float, None]:
        return self.min_words_with_alphabets, None


class CommonEnglishWordsFilter(StatisticFilter):
    """How many words are the, be, to, of, and, that, have or with, in lower case. A blank document has 0.

    With `stop_at_false`, counting stops at `min_num_common_words`, which is then the highest score.
    """

    score_type = pa.int64()

    english_only = True

    def __init__(self, min_num_common_words: int = 2, stop_at_false: bool = True) -> None:
        check_bounds("CommonEnglishWordsFilter", "num_common_words", min_num_common_words, 2**53)
        self.min_num_common_words, self.stop_at_false = min_num_common_words, stop_at_false

    def statistics(self) -> tuple[str, ...]:
        return ("common_words",)

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        count, limit = counts["common_words"], self.min_num_common_words
        if not self.stop_at_false:
            return count
        if not isinstance(count, pa.Array):
            return min(count, limit)
        return pc.min_element_wise(count, literal(limit, pa.int64()))

    def bounds(self) -> tuple[float, None]:
        return self.min_num_common_words, None


# -- lines and paragraphs ------------------------------------------------------------------------------------


class BulletsFilter(RatioFilter):
    """The share of lines that start with a bullet, one of • ‣ ⁃ ⁌ ⁍ ∙ ○ ● ◘ ◦ ⦾ ⦿. A blank document has 1.0.

    The hyphen and the asterisk do not count, though the paper counts the hyphen.
    """

    _numerator, _denominator = "bullet_lines", "lines"

    def __init__(self, max_bullet_lines_ratio: float = 0.9) -> None:
        check_ratio(self.name, "max_bullet_lines_ratio", max_bullet_lines_ratio)
        self.max_bullet_lines_ratio = max_bullet_lines_ratio

    def bounds(self) -> tuple[None, float]:
        return None, self.max_bullet_lines_ratio


class PunctuationFilter(RatioFilter):
    """The share of lines that do not end with one of . ? ! " '. A blank document has 1.0."""

    _numerator, _denominator = "unended_lines", "lines"

    def __init__(self, max_num_sentences_without_endmark_ratio: float = 0.85) -> None:
        check_ratio(self.name, "max_num_sentences_without_endmark_ratio", max_num_sentences_without_endmark_ratio)
        self.max_num_sentences_without_endmark_ratio = max_num_sentences_without_endmark_ratio

    def bounds(self) -> tuple[None, float]:
        return None, self.max_num_sentences_without_endmark_ratio


class EllipsisFilter(RatioFilter):
    """The share of lines that end with an ellipsis, such as ... or […], or with "read more". Blank: 1.0."""

    _numerator, _denominator = "ellipsis_lines", "lines"

    def __init__(self, max_num_lines_ending_with_ellipsis_ratio: float = 0.3) -> None:
        check_ratio(self.name, "max_num_lines_ending_with_ellipsis_ratio", max_num_lines_ending_with_ellipsis_ratio)
        self.max_num_lines_ending_with_ellipsis_ratio = max_num_lines_ending_with_ellipsis_ratio

    def bounds(self) -> tuple[None, float]:
        return None, self.max_num_lines_ending_with_ellipsis_ratio


class BoilerPlateStringFilter(StatisticFilter):
    """The share of paragraphs with a phrase of a policy or cookie notice; 1.0 if there is a "lorem ipsum".

    An empty document has 0.0. `remove_if_at_top_or_bottom` has no effect, as in NeMo Curator.
    """

    def __init__(self, remove_if_at_top_or_bottom: bool = True, max_boilerplate_string_ratio: float = 0.4) -> None:
        check_ratio(self.name, "max_boilerplate_string_ratio", max_boilerplate_string_ratio)
        self.remove_if_at_top_or_bottom = remove_if_at_top_or_bottom
        self.max_boilerplate_string_ratio = max_boilerplate_string_ratio

    def statistics(self) -> tuple[str, ...]:
        return "boilerplate_paragraphs", "paragraphs", "lorem_paragraphs"

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        score = safe_ratio(counts["boilerplate_paragraphs"], counts["paragraphs"], 0.0)
        lorem = counts["lorem_paragraphs"]
        if not isinstance(lorem, pa.Array):
            return 1.0 if lorem else score
        return pc.if_else(pc.greater(lorem, literal(0, pa.int64())), literal(1.0, pa.float64()), score)

    def bounds(self) -> tuple[None, float]:
        return None, self.max_boilerplate_string_ratio


class IncompleteStoryFilter(BoundedFilter):
    """1 if the text ends with the end of a sentence, else 0; keeps 1. A blank document has 0.

    White space at the end is ignored. The last character must be a mark that ends a sentence (. ! ? an ellipsis, or
    one of Chinese, Japanese, Hindi, Arabic, Urdu, Armenian, Ethiopic, Burmese or Khmer), which quotes and brackets may
    follow. A closing guillemet may follow after a space, as in French.
    """

    score_type = pa.int64()

    _MARKS = frozenset(".!?…‼⁇⁈⁉‽。．｡！？।॥؟۔։።፧။។")
    _CLOSERS = "\"'’‘”“»«›‹)]}）］｝」』】》〉〕｣"

    def score_document(self, text: str) -> int:
        text = text.rstrip()
        story = text.rstrip(self._CLOSERS)
        if text[len(story) : len(story) + 1] in ("»", "›"):
            story = story.rstrip()
        return int(story[-1:] in self._MARKS)

    def bounds(self) -> tuple[float, float]:
        return 1, 1
