"""Filters from a rule that the user brings: a regular expression, or a function."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from gristmill.text.document_filter import DocumentFilter, check_bounds, within_bounds


class RegexFilter(DocumentFilter):
    """The number of matches of a regular expression; by default keeps documents without any.

    With `min_matches=1` and `max_matches=None`, only documents that match are kept. The expression is Python's; its
    flags are written in it, as in `(?i)`.
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

    def keep_document(self, score: float) -> bool:
        return score >= self.min_matches and (self.max_matches is None or score <= self.max_matches)

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within_bounds(scores, self.min_matches, self.max_matches)


class LambdaFilter(DocumentFilter):
    """What a function of the text returns; keeps documents for which it is true.

    For a function of another column, or without a score, use `Filter`. A recipe cannot hold a function.
    """

    def __init__(self, function: Callable[[str], Any]) -> None:
        if not callable(function):
            raise TypeError(f"LambdaFilter takes a function of the text, not {function!r}")
        self.function = function

    def score_document(self, text: str) -> Any:
        return self.function(text)

    def keep_document(self, score: Any) -> bool:
        return bool(score)
