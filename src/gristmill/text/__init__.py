"""Text: readers, writers, filters and modifiers, and the stages that run them.

The names below are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.text.filters import DocumentFilter, IncompleteStoryFilter, SubstringFilter
    from gristmill.text.heuristics import (
        BoilerPlateStringFilter,
        BulletsFilter,
        CommonEnglishWordsFilter,
        EllipsisFilter,
        LongWordFilter,
        MeanWordLengthFilter,
        NonAlphaNumericFilter,
        NumbersFilter,
        ParenthesesFilter,
        PornographicUrlsFilter,
        PunctuationFilter,
        SymbolsToWordsFilter,
        UrlsFilter,
        WhiteSpaceFilter,
        WordCountFilter,
        WordsWithoutAlphabetsFilter,
    )
    from gristmill.text.modifiers import (
        DocumentModifier,
        NewlineNormalizer,
        QuotationUnifier,
        UnicodeReformatter,
        UrlRemover,
    )
    from gristmill.text.read import ArrowReader, CsvReader, JsonlReader, ParquetReader, TextReader
    from gristmill.text.repetition import (
        RepeatedLinesByCharFilter,
        RepeatedLinesFilter,
        RepeatedParagraphsByCharFilter,
        RepeatedParagraphsFilter,
        RepeatingDuplicateNGramsFilter,
        RepeatingTopNGramsFilter,
    )
    from gristmill.text.score import Filter, Modify, Score, ScoreFilter
    from gristmill.text.write import JsonlWriter, ParquetWriter

_HOME = {
    "ArrowReader": "read",
    "BoilerPlateStringFilter": "heuristics",
    "BulletsFilter": "heuristics",
    "CommonEnglishWordsFilter": "heuristics",
    "CsvReader": "read",
    "DocumentFilter": "filters",
    "DocumentModifier": "modifiers",
    "EllipsisFilter": "heuristics",
    "Filter": "score",
    "IncompleteStoryFilter": "filters",
    "JsonlReader": "read",
    "JsonlWriter": "write",
    "LongWordFilter": "heuristics",
    "MeanWordLengthFilter": "heuristics",
    "Modify": "score",
    "NewlineNormalizer": "modifiers",
    "NonAlphaNumericFilter": "heuristics",
    "NumbersFilter": "heuristics",
    "ParenthesesFilter": "heuristics",
    "ParquetReader": "read",
    "ParquetWriter": "write",
    "PornographicUrlsFilter": "heuristics",
    "PunctuationFilter": "heuristics",
    "QuotationUnifier": "modifiers",
    "RepeatedLinesByCharFilter": "repetition",
    "RepeatedLinesFilter": "repetition",
    "RepeatedParagraphsByCharFilter": "repetition",
    "RepeatedParagraphsFilter": "repetition",
    "RepeatingDuplicateNGramsFilter": "repetition",
    "RepeatingTopNGramsFilter": "repetition",
    "Score": "score",
    "ScoreFilter": "score",
    "SubstringFilter": "filters",
    "SymbolsToWordsFilter": "heuristics",
    "TextReader": "read",
    "UnicodeReformatter": "modifiers",
    "UrlRemover": "modifiers",
    "UrlsFilter": "heuristics",
    "WhiteSpaceFilter": "heuristics",
    "WordCountFilter": "heuristics",
    "WordsWithoutAlphabetsFilter": "heuristics",
}

__all__ = [
    "ArrowReader",
    "BoilerPlateStringFilter",
    "BulletsFilter",
    "CommonEnglishWordsFilter",
    "CsvReader",
    "DocumentFilter",
    "DocumentModifier",
    "EllipsisFilter",
    "Filter",
    "IncompleteStoryFilter",
    "JsonlReader",
    "JsonlWriter",
    "LongWordFilter",
    "MeanWordLengthFilter",
    "Modify",
    "NewlineNormalizer",
    "NonAlphaNumericFilter",
    "NumbersFilter",
    "ParenthesesFilter",
    "ParquetReader",
    "ParquetWriter",
    "PornographicUrlsFilter",
    "PunctuationFilter",
    "QuotationUnifier",
    "RepeatedLinesByCharFilter",
    "RepeatedLinesFilter",
    "RepeatedParagraphsByCharFilter",
    "RepeatedParagraphsFilter",
    "RepeatingDuplicateNGramsFilter",
    "RepeatingTopNGramsFilter",
    "Score",
    "ScoreFilter",
    "SubstringFilter",
    "SymbolsToWordsFilter",
    "TextReader",
    "UnicodeReformatter",
    "UrlRemover",
    "UrlsFilter",
    "WhiteSpaceFilter",
    "WordCountFilter",
    "WordsWithoutAlphabetsFilter",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gristmill.text' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gristmill.text.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
