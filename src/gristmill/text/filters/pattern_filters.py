"""Filters by a rule of the user's: a substring, a regular expression or a function."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.samples.argument_checks import check_bounds
from gristmill.text.document_filter import BoundedFilter, DocumentFilter
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    from gristmill.text.text_columns import Texts


class SubstringFilter(BoundedFilter):
    """1 if the text has the substring at the position, else 0; keeps 1. The empty document has 0."""

    score_type = pa.int64()

    def __init__(self, substring: str, position: Literal["prefix", "suffix", "any"]) -> None:
        if not substring:
            raise ValueError("SubstringFilter: the substring is empty, so every document contains it: give some text")
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

    def bounds(self) -> tuple[float, float]:
        return 1, 1


class RegexFilter(BoundedFilter):
    """The number of matches of a regular expression; by default keeps documents without any.

    With `min_matches=1` and `max_matches=None`, only documents that match are kept. The syntax is that of `re`, with
    flags inside the expression, as in `(?i)`.
    """

    score_type = pa.int64()

    def __init__(self, pattern: str, min_matches: int = 0, max_matches: int | None = 0) -> None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"RegexFilter: {pattern!r} is not a regular expression: {error}") from error
        check_bounds("RegexFilter", "matches", min_matches, min_matches if max_matches is None else max_matches)
        self.pattern, self.min_matches, self.max_matches = pattern, min_matches, max_matches

    def score_document(self, text: str) -> int:
        return sum(1 for _ in re.compile(self.pattern).finditer(text))

    def bounds(self) -> tuple[float, float | None]:
        return self.min_matches, self.max_matches


class LambdaFilter(DocumentFilter):
    """What a function of the text returns; keeps documents for which it is true.

    For a function of another column, or without a score, use `Filter`. A recipe cannot contain a function.
    """

    def __init__(self, function: Callable[[str], Any]) -> None:
        if not callable(function):
            raise TypeError(f"LambdaFilter takes a function of the text, not {function!r}")
        self.function = function

    def score_document(self, text: str) -> Any:
        return self.function(text)

    def keep_document(self, score: Any) -> bool:
        return bool(score)
