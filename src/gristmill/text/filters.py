"""Filters: give a document a score, and say by the score whether it is kept.

To add one: subclass `DocumentFilter`, write `score_document` and `keep_document`, add rows to the table in
`tests/text/test_filters.py`. There is nothing to register. `score_document` is the definition; override
`score_batch` only where a whole column can be scored faster with exactly the same result. Empty and blank
documents need a score too; null is scored like the empty document.

Words are what `str.split` gives. Chinese and Japanese have no spaces to split at and are refused.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.columns import literal, make_array
from gristmill.core.table import is_json, table_to_rows, to_array

Texts: TypeAlias = "pa.Array | pa.ChunkedArray"

URL = r"https?://\S+|www\.\S+"
"""What counts as a URL, here and in `UrlRemover`."""

URL_START = r"https?://|www\."


class DocumentFilter(ABC):
    """One score per document, and a verdict per score. Constructors have no side effects."""

    name: str = "DocumentFilter"
    """The name of the class, unless set."""

    score_type: pa.DataType | None = None
    """The Arrow type of the scores. None: numbers become float64, so that the type of the score column does
    not depend on which rows met in a batch; other values keep their type."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        # a subclass that only redefines the score of a document must not inherit another batch form
        if "score_document" in cls.__dict__ and "score_batch" not in cls.__dict__:
            cls.score_batch = DocumentFilter.score_batch  # type: ignore[method-assign]
        if "keep_document" in cls.__dict__ and "keep_batch" not in cls.__dict__:
            cls.keep_batch = DocumentFilter.keep_batch  # type: ignore[method-assign]

    @abstractmethod
    def score_document(self, text: str) -> Any:
        """The score of one document: a number, as a rule."""

    @abstractmethod
    def keep_document(self, score: Any) -> bool:
        """Whether a document with this score is kept."""

    def score_batch(self, texts: Texts) -> pa.Array:
        """The scores of a column of strings."""
        return score_array([self.score_document(text or "") for text in texts.to_pylist()], self.score_type)

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        """The verdicts for a column of scores."""
        return make_array([bool(self.keep_document(score)) for score in values_of(scores)], pa.bool_())

    def threshold(self) -> str:
        """The numbers that the verdict depends on, for people who look at what was dropped."""
        numbers = {key: value for key, value in vars(self).items() if isinstance(value, int | float)}
        return ", ".join(f"{key}={value!r}" for key, value in numbers.items() if not key.startswith("_"))

    def check(self) -> None:  # noqa: B027  (optional)
        """Raise if the filter can be seen to fail, for example for want of a library. Called by the planner."""

    def setup(self) -> None:  # noqa: B027  (optional)
        """Once per worker, before the first document: load models here."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if not key.startswith("_"))
        return f"{type(self).__name__}({arguments})"


class WordCountFilter(DocumentFilter):
    """The number of words. A blank document has 0."""

    score_type = pa.int64()

    def __init__(self, min_words: int = 50, max_words: int = 100000, lang: str = "en") -> None:
        check_bounds("WordCountFilter", "words", min_words, max_words)
        check_language("WordCountFilter", lang)
        self.min_words, self.max_words, self.lang = min_words, max_words, lang

    def score_document(self, text: str) -> int:
        return len(text.split())

    def keep_document(self, score: float) -> bool:
        return self.min_words <= score <= self.max_words

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within(scores, self.min_words, self.max_words)


class MeanWordLengthFilter(DocumentFilter):
    """The mean number of characters per word. A blank document has 0.0."""

    score_type = pa.float64()

    def __init__(self, min_mean_word_length: float = 3, max_mean_word_length: float = 10, lang: str = "en") -> None:
        check_bounds("MeanWordLengthFilter", "mean_word_length", min_mean_word_length, max_mean_word_length)
        check_language("MeanWordLengthFilter", lang)
        self.min_mean_word_length, self.max_mean_word_length = min_mean_word_length, max_mean_word_length
        self.lang = lang

    def score_document(self, text: str) -> float:
        words = text.split()
        return sum(map(len, words)) / len(words) if words else 0.0

    def keep_document(self, score: float) -> bool:
        return self.min_mean_word_length <= score <= self.max_mean_word_length

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within(scores, self.min_mean_word_length, self.max_mean_word_length)


class SubstringFilter(DocumentFilter):
    """1 if the text has the substring at the position, else 0; keeps 1. The empty document has none: 0."""

    score_type = pa.int64()

    def __init__(self, substring: str, position: Literal["prefix", "suffix", "any"]) -> None:
        if not substring:
            raise ValueError("SubstringFilter: the substring is empty, so every document would have it")
        if position not in ("prefix", "suffix", "any"):
            raise ValueError(f"SubstringFilter: position is {position!r}, must be 'prefix', 'suffix' or 'any'")
        self.substring, self.position = substring, position

    def score_document(self, text: str) -> int:
        if self.position == "prefix":
            return int(text.startswith(self.substring))
        if self.position == "suffix":
            return int(text.endswith(self.substring))
        return int(self.substring in text)

    def score_batch(self, texts: Texts) -> pa.Array:
        find = {"prefix": pc.starts_with, "suffix": pc.ends_with, "any": pc.match_substring}[self.position]
        return find(as_array(texts), self.substring).fill_null(literal(False, pa.bool_())).cast(pa.int64())

    def keep_document(self, score: float) -> bool:
        return score == 1

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within(scores, 1, 1)


class IncompleteStoryFilter(DocumentFilter):
    """1 if the text ends as a story ends, else 0; keeps 1. A blank document has 0.

    White space at the end is ignored. The last character must be a mark that ends a sentence (. ! ? and an
    ellipsis, and those of Chinese, Japanese, Hindi, Arabic, Urdu, Armenian, Ethiopic, Burmese and Khmer),
    which quotes and brackets may follow. A closing guillemet may stand off by a space, as in French. Quotes
    that follow no such mark do not end a story.
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

    def keep_document(self, score: float) -> bool:
        return score == 1

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within(scores, 1, 1)


class NonAlphaNumericFilter(DocumentFilter):
    """The share of characters other than a-z, A-Z, 0-9, line feed and ? ! , . The empty document has 1.0.

    Space counts as non-alphanumeric, and so do all letters outside ASCII: this is the score that NeMo Curator
    computes, not the one of the papers it comes from.
    """

    score_type = pa.float64()

    _COUNTED = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789\n?!,."

    def __init__(self, max_non_alpha_numeric_to_text_ratio: float = 0.25) -> None:
        check_ratio("max_non_alpha_numeric_to_text_ratio", max_non_alpha_numeric_to_text_ratio)
        self.max_non_alpha_numeric_to_text_ratio = max_non_alpha_numeric_to_text_ratio

    def score_document(self, text: str) -> float:
        return self._share(text.encode("utf-8", "surrogatepass"), len(text))

    def score_batch(self, texts: Texts) -> pa.Array:
        texts = as_array(texts).fill_null(literal("", pa.string()))
        raws, lengths = texts.cast(pa.binary()).to_pylist(), pc.utf8_length(texts).to_pylist()
        return make_array(map(self._share, raws, lengths), pa.float64())

    def _share(self, raw: bytes, length: int) -> float:
        # all counted characters are single bytes in UTF-8, and deleting bytes is very fast
        counted = len(raw) - len(raw.translate(None, self._COUNTED))
        return (length - counted) / length if length else 1.0

    def keep_document(self, score: float) -> bool:
        return score <= self.max_non_alpha_numeric_to_text_ratio

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within(scores, high=self.max_non_alpha_numeric_to_text_ratio)


class UrlsFilter(DocumentFilter):
    """The share of characters that are part of a URL. The empty document has 1.0, a blank one 0.0.

    A URL is `https?://\\S+|www\\.\\S+`, or what `url_regex` matches.
    """

    score_type = pa.float64()

    def __init__(self, max_url_to_text_ratio: float = 0.2, url_regex: str | re.Pattern[str] | None = None) -> None:
        check_ratio("max_url_to_text_ratio", max_url_to_text_ratio)
        try:
            re.compile(url_regex or URL)
        except re.error as error:
            raise ValueError(f"UrlsFilter: url_regex {url_regex!r} is not a regular expression: {error}") from error
        self.max_url_to_text_ratio, self.url_regex = max_url_to_text_ratio, url_regex

    def score_document(self, text: str) -> float:
        if not text:
            return 1.0
        urls = re.compile(self.url_regex or URL).finditer(text)
        return sum(url.end() - url.start() for url in urls) / len(text)

    def score_batch(self, texts: Texts) -> pa.Array:
        texts = as_array(texts).fill_null(literal("", pa.string()))
        if self.url_regex is not None:
            return super().score_batch(texts)
        empty = pc.equal(texts, literal("", pa.string()))
        scores = empty.cast(pa.float64())
        rows = pc.or_(empty, pc.match_substring_regex(texts, URL_START))
        return pc.replace_with_mask(scores, rows, super().score_batch(texts.filter(rows)))

    def keep_document(self, score: float) -> bool:
        return score <= self.max_url_to_text_ratio

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within(scores, high=self.max_url_to_text_ratio)


def within(scores: pa.Array, low: float | None = None, high: float | None = None) -> pa.BooleanArray:
    """Which scores lie between the bounds, which belong to it. A null score does not."""
    keep = pc.is_valid(scores)
    numbers = as_array(scores).cast(pa.float64(), safe=False)
    if low is not None:
        keep = pc.and_kleene(keep, pc.greater_equal(numbers, literal(float(low), pa.float64())))
    if high is not None:
        keep = pc.and_kleene(keep, pc.less_equal(numbers, literal(float(high), pa.float64())))
    return as_array(keep)


def score_array(values: list[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Scores as a column: of the given type, else numbers as float64 and other values as they are."""
    if kind is not None:
        return make_array(values, kind)
    column = to_array(values)
    number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    return column.cast(pa.float64(), safe=False) if number else column


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Python values; those of a JSON column are the objects that it holds."""
    if not is_json(column.type):
        values: list[Any] = column.to_pylist()
        return values
    return [row["value"] for row in table_to_rows(pa.table({"value": column}))]


def as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def check_bounds(name: str, what: str, low: float, high: float) -> None:
    if not 0 <= low <= high:
        raise ValueError(f"{name}: min_{what}={low} and max_{what}={high} must be 0 or more, and min not above max")


def check_ratio(name: str, ratio: float) -> None:
    if not 0 <= ratio <= 1:
        raise ValueError(f"{name} is {ratio!r}, must be a share from 0 to 1")


def check_language(name: str, lang: str) -> None:
    if lang in ("zh", "ja"):
        raise ValueError(
            f"{name}: lang={lang!r} is written without spaces between words, and Gristmill has no segmenter for it. "
            "Count characters instead, in a DocumentFilter of your own"
        )
