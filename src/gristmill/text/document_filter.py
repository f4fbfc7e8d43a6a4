"""Filters: give a document a score, and say by the score whether it is kept.

To add one: subclass `DocumentFilter`, write `score_document` and `keep_document`, add rows to the table in
`tests/text/test_filters.py`. There is nothing to register. `score_document` is the definition; override
`score_batch` only where a whole column can be scored faster with exactly the same result. Empty and blank
documents need a score too; null is scored like the empty document.

The filters of English heuristics are in `heuristics.py` and `repetition.py`.

Words are what `str.split` gives. Where `lang` is written without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese),
they are those of `split_words`, and a text is counted as if it had a space between any two of them.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import is_json, table_to_rows, to_array
from gristmill.text.statistics import column_statistics, reference
from gristmill.text.statistics.word_segmentation import is_written_without_spaces, split_words

if TYPE_CHECKING:
    from gristmill.core.batch import Batch

Texts: TypeAlias = "pa.Array | pa.ChunkedArray"


class DocumentFilter(ABC):
    """One score per document, and a verdict per score. Constructors have no side effects."""

    name: str = "DocumentFilter"
    """The name of the class, unless set."""

    score_type: pa.DataType | None = None
    """The Arrow type of the scores. None: numbers become float64, so that the type of the score column does
    not depend on which rows met in a batch; other values keep their type."""

    @property
    def english_only(self) -> bool:
        """Whether documents are dropped for being in another language: the run then tells how many there were."""
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        # a subclass that only redefines the score of a document must not inherit another batch form
        own = cls.__dict__
        if "score_document" in own and "score_batch" not in own:
            cls.score_batch = DocumentFilter.score_batch  # type: ignore[method-assign]
        if ("score_document" in own or "score_batch" in own) and "statistics" not in own:
            cls.statistics = DocumentFilter.statistics  # type: ignore[method-assign]
        if "keep_document" in own and "keep_batch" not in own:
            cls.keep_batch = DocumentFilter.keep_batch  # type: ignore[method-assign]
        if ("keep_document" in own or "keep_batch" in own) and "keep_rows" not in own:
            cls.keep_rows = DocumentFilter.keep_rows  # type: ignore[method-assign]

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
        return make_array([bool(self.keep_document(score)) for score in python_values(scores)], pa.bool_())

    def keep_rows(self, scores: pa.Array, batch: Batch) -> pa.BooleanArray:
        """The verdicts for the scores of a batch's rows. For a filter that draws lots: by the row, not by its score."""
        return self.keep_batch(scores)

    def statistics(self) -> tuple[str, ...]:
        """Statistics that the score can be made of by `score_counts`, without the text. None, as a rule."""
        return ()

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        raise NotImplementedError(f"{self.name} names statistics and does not say what to make of them")

    @property
    def unspaced(self) -> bool:
        """Whether statistics are those of the text with spaces put in, which no other filter has."""
        return False

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


class StatisticFilter(DocumentFilter):
    """A filter whose score is made of statistics of the text (`reference.py`), counted once for all such filters."""

    score_type = pa.float64()

    @abstractmethod
    def statistics(self) -> tuple[str, ...]:
        """The names of the statistics."""

    @abstractmethod
    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        """The score, from the statistics of one document; or the scores, from columns of them."""

    @abstractmethod
    def bounds(self) -> tuple[float | None, float | None]:
        """The smallest and the largest score that is kept."""

    @property
    def unspaced(self) -> bool:
        return is_written_without_spaces(getattr(self, "lang", ""))

    def score_document(self, text: str) -> Any:
        return self.score_counts(reference.count_statistics(self._spaced(text), self.statistics()))

    def score_batch(self, texts: Texts) -> pa.Array:
        if self.unspaced:
            texts = make_array([self._spaced(text or "") for text in texts.to_pylist()], pa.string())
        return as_array(self.score_counts(column_statistics.count_column(as_array(texts), self.statistics())))

    def _spaced(self, text: str) -> str:
        return " ".join(split_words(text, getattr(self, "lang", ""))) if self.unspaced else text

    def keep_document(self, score: float) -> bool:
        low, high = self.bounds()
        return (low is None or low <= score) and (high is None or score <= high)

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within_bounds(scores, *self.bounds())


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
        return within_bounds(scores, 1, 1)


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
        return within_bounds(scores, 1, 1)


def safe_ratio(part: Any, whole: Any, nothing: float) -> Any:
    """What part of the whole it is, as numbers or as columns; `nothing` where the whole is 0."""
    if not isinstance(whole, pa.Array):
        return part / whole if whole else nothing
    shares = pc.divide(part.cast(pa.float64()), whole.cast(pa.float64()))
    return pc.if_else(pc.equal(whole, literal(0, pa.int64())), literal(nothing, pa.float64()), shares)


def within_bounds(scores: pa.Array, low: float | None = None, high: float | None = None) -> pa.BooleanArray:
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


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Python values; those of a JSON column are the objects that it holds."""
    if not is_json(column.type):
        values: list[Any] = column.to_pylist()
        return values
    return [row["value"] for row in table_to_rows(pa.table({"value": column}))]


def as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def check_number(name: str, parameter: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise TypeError(f"{name}: {parameter} is {value!r}, must be a number")


def check_count(name: str, parameter: str, value: Any, least: int = 0) -> None:
    check_number(name, parameter, value)
    if value < least or not isinstance(value, Integral):
        raise ValueError(f"{name}: {parameter} is {value!r}, must be a whole number, {least} or more")


def check_bounds(name: str, what: str, low: float, high: float) -> None:
    check_number(name, f"min_{what}", low)
    check_number(name, f"max_{what}", high)
    if not 0 <= low <= high:
        raise ValueError(f"{name}: min_{what}={low} and max_{what}={high} must be 0 or more, and min not above max")


def check_ratio(name: str, parameter: str, ratio: float) -> None:
    check_number(name, parameter, ratio)
    if not 0 <= ratio <= 1:
        raise ValueError(f"{name}: {parameter} is {ratio!r}, must be a share from 0 to 1")


def check_language(name: str, lang: str) -> None:
    if not isinstance(lang, str) or not re.fullmatch(r"[a-z]{2,3}(?:[_-][A-Za-z]{2,4})?", lang):
        raise ValueError(f"{name}: lang is {lang!r}, must be the code of a language, such as 'en', 'zh' or 'tha'")
