"""The contract of text filters: score a document, then decide by the score whether it is kept.

To add a filter, subclass `DocumentFilter`, or one of the two bases below it that need less code:

    DocumentFilter     write `score_document` and `keep_document`
    BoundedFilter      write `score_document` and `bounds`, the range of scores to keep
    StatisticFilter    write `statistics`, `score_counts` and `bounds`; counted in C, once for all such filters

Import it in `gristmill/text/__init__.py`, and add rows to the table in `tests/text/test_filters.py`. `score_document`
is the definition of a score. Override `score_batch` only where a whole column can be scored faster with exactly the
same result. Empty and blank documents need a score too; null is scored like the empty document.

Words are what `str.split` returns. In a `lang` that is written without spaces (Chinese, Japanese, Thai, Lao, Khmer,
Burmese) they are those of `split_words`, which is slower: such text is split in Python. For `lang="zh"` they are those
of a dictionary, as in NeMo Curator (`pip install 'gristmill[zh]'`); "zho" needs none.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import to_array
from gristmill.core.deciding_stage import Rule, rule_of_bounds
from gristmill.core.errors import ContractError
from gristmill.core.run.row_progress import in_turn
from gristmill.text.statistics import column_statistics
from gristmill.text.statistics import kernel_reference as reference
from gristmill.text.statistics.word_segmentation import (
    DICTIONARY_LANGUAGE,
    check_dictionary,
    dictionary_words,
    is_written_without_spaces,
    split_words,
)
from gristmill.text.text_columns import as_array, python_values

if TYPE_CHECKING:
    from gristmill.core.batch import Batch
    from gristmill.text.text_columns import Texts


class DocumentFilter(ABC):
    """Computes one score per document, and decides by it whether the document is kept.

    Constructors have no side effects: they also run in the planner, and filters are pickled to workers.
    """

    name: str = "DocumentFilter"
    """The name of the class, unless set."""

    score_type: pa.DataType | None = None
    """The Arrow type of the scores. If it is not set, it follows from the annotation of `score_document`: `-> int` is
    int64. None stores numbers as float64, so that the type of the score column does not depend on which rows share a
    batch, and other values as what they are."""

    _not_pickled: ClassVar[tuple[str, ...]] = ()
    """Cached attributes that each worker computes again, because they are large or cannot be pickled."""

    @property
    def english_only(self) -> bool:
        """Whether documents in other languages are dropped as a side effect; the run then warns if there are many."""
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        # A subclass that overrides only the document form must not inherit a batch form that computes something else.
        own = cls.__dict__
        if "score_document" in own and "score_type" not in own:
            cls.score_type = annotated_score_type(own["score_document"]) or cls.score_type
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
        """The score of one document, usually a number."""

    @abstractmethod
    def keep_document(self, score: Any) -> bool:
        """Whether a document with this score is kept."""

    def score_batch(self, texts: Texts) -> pa.Array:
        """The scores of a column of strings. A column of other values is scored too, null as None."""
        return score_array([self.score_document(value) for value in in_turn(values_to_score(texts))], self.score_type)

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        """Whether each score of a column is kept."""
        return make_array([bool(self.keep_document(score)) for score in python_values(scores)], pa.bool_())

    def keep_rows(self, scores: pa.Array, batch: Batch) -> pa.BooleanArray:
        """Whether each row of a batch is kept. Override it to decide by the row, as a filter that samples does."""
        return self.keep_batch(scores)

    def statistics(self) -> tuple[str, ...]:
        """The statistics from which `score_counts` computes the score without the text. By default there are none."""
        return ()

    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        """The score, from statistics of one document; or the scores, from columns of them."""
        raise NotImplementedError(f"{self.name} overrides statistics() without score_counts(): write both")

    @property
    def unspaced(self) -> bool:
        """Whether spaces are inserted between words before counting, so that counts cannot be shared."""
        return False

    def threshold(self) -> str:
        """The numbers on which the decision depends, shown for dropped documents."""
        numbers = {key: value for key, value in vars(self).items() if isinstance(value, int | float)}
        return ", ".join(f"{key}={value!r}" for key, value in numbers.items() if not key.startswith("_"))

    def deciding_rules(self) -> Sequence[Rule]:
        """The rules by which documents are kept; none if that is decided in another way."""
        return ()

    def check(self) -> None:  # noqa: B027  (optional)
        """Raise if the filter cannot work, for example because a library is missing. Called by the planner."""

    def setup(self) -> None:  # noqa: B027  (optional)
        """Called once per worker, before the first document: load models here."""

    def __getstate__(self) -> Any:
        if not self._not_pickled:
            return super().__getstate__()
        return {key: value for key, value in vars(self).items() if key not in self._not_pickled}

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if not key.startswith("_"))
        return f"{type(self).__name__}({arguments})"


class BoundedFilter(DocumentFilter):
    """A filter that keeps a range of scores. Null scores are dropped."""

    @abstractmethod
    def bounds(self) -> tuple[float | None, float | None]:
        """The smallest and the largest score to keep; None where there is no limit."""

    def deciding_rules(self) -> Sequence[Rule]:
        own = type(self)
        by_bounds = (own.keep_document, own.keep_rows) == (BoundedFilter.keep_document, DocumentFilter.keep_rows)
        return (rule_of_bounds(self, *self.bounds()),) if by_bounds else ()

    def keep_document(self, score: float) -> bool:
        low, high = self.bounds()
        return (low is None or low <= score) and (high is None or score <= high)

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within_bounds(scores, *self.bounds())


class StatisticFilter(BoundedFilter):
    """A filter whose score is computed from statistics of the text, counted once for all such filters.

    The statistics are defined in `statistics/kernel_reference.py`.
    """

    score_type = pa.float64()
    lang: str = ""

    @abstractmethod
    def statistics(self) -> tuple[str, ...]:
        """The names of the statistics."""

    @abstractmethod
    def score_counts(self, counts: Mapping[str, Any]) -> Any:
        """The score, from statistics of one document; or the scores, from columns of them."""

    @property
    def unspaced(self) -> bool:
        return is_written_without_spaces(self.lang)

    def check(self) -> None:
        check_dictionary(self.lang)

    def score_document(self, text: str) -> Any:
        return self.score_counts(reference.count_statistics(self._spaced(text), self.statistics()))

    def score_batch(self, texts: Texts) -> pa.Array:
        if self.unspaced:
            texts = make_array([self._spaced(text or "") for text in texts.to_pylist()], pa.string())
        return as_array(self.score_counts(column_statistics.count_column(as_array(texts), self.statistics())))

    def _spaced(self, text: str) -> str:
        if not self.unspaced:
            return text
        return " ".join(dictionary_words(text) if self.lang == DICTIONARY_LANGUAGE else split_words(text, self.lang))


def annotated_score_type(function: Any) -> pa.DataType | None:
    """The type of the scores, if the function is annotated with `-> int` or `-> float`."""
    returned = inspect.get_annotations(function).get("return") if callable(function) else None
    return {int: pa.int64(), "int": pa.int64(), float: pa.float64(), "float": pa.float64()}.get(returned)


def values_to_score(column: Texts) -> list[Any]:
    """The values of a column for a function that scores them; null text is the empty document."""
    values = python_values(column)
    return ["" if value is None else value for value in values] if pa.types.is_string(column.type) else values


def safe_ratio(part: Any, total: Any, empty_score: float) -> Any:
    """`part` divided by `total`, as numbers or as columns; `empty_score` where the total is 0."""
    if not isinstance(total, pa.Array):
        return part / total if total else empty_score
    ratios = pc.divide(part.cast(pa.float64()), total.cast(pa.float64()))
    return pc.if_else(pc.equal(total, literal(0, pa.int64())), literal(empty_score, pa.float64()), ratios)


def within_bounds(scores: pa.Array, low: float | None = None, high: float | None = None) -> pa.BooleanArray:
    """Which scores are from `low` to `high`, both included. A null score is not."""
    keep = pc.is_valid(scores)
    numbers = as_array(scores).cast(pa.float64(), safe=False)
    if low is not None:
        keep = pc.and_kleene(keep, pc.greater_equal(numbers, literal(float(low), pa.float64())))
    if high is not None:
        keep = pc.and_kleene(keep, pc.less_equal(numbers, literal(float(high), pa.float64())))
    return as_array(keep)


def score_array(values: list[Any], score_type: pa.DataType | None = None) -> pa.Array:
    """Scores as a column of the given type; without one, numbers become float64 and other values keep their type."""
    if score_type is not None:
        return typed_scores(values, score_type)
    column = to_array(values)
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    return column.cast(pa.float64(), safe=False) if is_number else column


def typed_scores(values: list[Any], score_type: pa.DataType) -> pa.Array:
    """Scores as a column of a declared type, which they must have."""
    try:
        return make_array(values, score_type)
    except TypeError as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in values if value is not None}))
        raise ContractError(
            f"score_document is declared to return {score_type} and returned {kinds}: annotate it with what it returns "
            "(-> int, -> float), or set score_type"
        ) from error
