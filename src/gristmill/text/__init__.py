"""Text: readers, writers, filters and modifiers, and the stages that run them.

The names below are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.text.filters import (
        DocumentFilter,
        IncompleteStoryFilter,
        MeanWordLengthFilter,
        NonAlphaNumericFilter,
        SubstringFilter,
        UrlsFilter,
        WordCountFilter,
    )
    from gristmill.text.modifiers import (
        DocumentModifier,
        NewlineNormalizer,
        QuotationUnifier,
        UnicodeReformatter,
        UrlRemover,
    )
    from gristmill.text.read import ArrowReader, CsvReader, JsonlReader, ParquetReader, TextReader
    from gristmill.text.score import Filter, Modify, Score, ScoreFilter
    from gristmill.text.write import JsonlWriter, ParquetWriter

_HOME = {
    "ArrowReader": "read",
    "CsvReader": "read",
    "DocumentFilter": "filters",
    "DocumentModifier": "modifiers",
    "Filter": "score",
    "IncompleteStoryFilter": "filters",
    "JsonlReader": "read",
    "JsonlWriter": "write",
    "MeanWordLengthFilter": "filters",
    "Modify": "score",
    "NewlineNormalizer": "modifiers",
    "NonAlphaNumericFilter": "filters",
    "ParquetReader": "read",
    "ParquetWriter": "write",
    "QuotationUnifier": "modifiers",
    "Score": "score",
    "ScoreFilter": "score",
    "SubstringFilter": "filters",
    "TextReader": "read",
    "UnicodeReformatter": "modifiers",
    "UrlRemover": "modifiers",
    "UrlsFilter": "filters",
    "WordCountFilter": "filters",
}

__all__ = [
    "ArrowReader",
    "CsvReader",
    "DocumentFilter",
    "DocumentModifier",
    "Filter",
    "IncompleteStoryFilter",
    "JsonlReader",
    "JsonlWriter",
    "MeanWordLengthFilter",
    "Modify",
    "NewlineNormalizer",
    "NonAlphaNumericFilter",
    "ParquetReader",
    "ParquetWriter",
    "QuotationUnifier",
    "Score",
    "ScoreFilter",
    "SubstringFilter",
    "TextReader",
    "UnicodeReformatter",
    "UrlRemover",
    "UrlsFilter",
    "WordCountFilter",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gristmill.text' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gristmill.text.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
