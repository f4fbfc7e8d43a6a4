"""Text: readers, writers, filters and modifiers, and the stages that run them.

The names below are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.text.boilerplate import BoilerPlateStringModifier
    from gristmill.text.edit import FastTextLabelModifier, LineRemover, MarkdownRemover, QuotationRemover, Slicer
    from gristmill.text.fasttext import FastTextQualityFilter
    from gristmill.text.filters import (
        DocumentFilter,
        IncompleteStoryFilter,
        MeanWordLengthFilter,
        NonAlphaNumericFilter,
        SubstringFilter,
        UrlsFilter,
        WordCountFilter,
    )
    from gristmill.text.histogram import HistogramFilter
    from gristmill.text.ids import AddId
    from gristmill.text.language import FastTextLangId, IdentifyLanguage
    from gristmill.text.lines import LineCleaner, ParagraphCleaner
    from gristmill.text.markup import HtmlEntityDecoder, HtmlRemover
    from gristmill.text.modifiers import (
        DocumentModifier,
        NewlineNormalizer,
        QuotationUnifier,
        UnicodeReformatter,
        UrlRemover,
    )
    from gristmill.text.pii import PiiFilter, PiiRedactor, RedactPii
    from gristmill.text.read import ArrowReader, CsvReader, JsonlReader, ParquetReader, TextReader
    from gristmill.text.score import Filter, Modify, Score, ScoreFilter
    from gristmill.text.segments import DocumentJoiner, DocumentSplitter
    from gristmill.text.split import TrainTestSplit
    from gristmill.text.tokens import TokenCountFilter
    from gristmill.text.words import split_words
    from gristmill.text.write import JsonlWriter, ParquetWriter

_HOME = {
    "AddId": "ids",
    "ArrowReader": "read",
    "BoilerPlateStringModifier": "boilerplate",
    "CsvReader": "read",
    "DocumentFilter": "filters",
    "DocumentJoiner": "segments",
    "DocumentModifier": "modifiers",
    "DocumentSplitter": "segments",
    "FastTextLabelModifier": "edit",
    "FastTextLangId": "language",
    "FastTextQualityFilter": "fasttext",
    "Filter": "score",
    "HistogramFilter": "histogram",
    "HtmlEntityDecoder": "markup",
    "HtmlRemover": "markup",
    "IdentifyLanguage": "language",
    "IncompleteStoryFilter": "filters",
    "JsonlReader": "read",
    "JsonlWriter": "write",
    "LineCleaner": "lines",
    "LineRemover": "edit",
    "MarkdownRemover": "edit",
    "MeanWordLengthFilter": "filters",
    "Modify": "score",
    "NewlineNormalizer": "modifiers",
    "NonAlphaNumericFilter": "filters",
    "ParagraphCleaner": "lines",
    "ParquetReader": "read",
    "ParquetWriter": "write",
    "PiiFilter": "pii",
    "PiiRedactor": "pii",
    "QuotationRemover": "edit",
    "QuotationUnifier": "modifiers",
    "RedactPii": "pii",
    "Score": "score",
    "ScoreFilter": "score",
    "Slicer": "edit",
    "SubstringFilter": "filters",
    "TextReader": "read",
    "TokenCountFilter": "tokens",
    "TrainTestSplit": "split",
    "UnicodeReformatter": "modifiers",
    "UrlRemover": "modifiers",
    "UrlsFilter": "filters",
    "WordCountFilter": "filters",
    "split_words": "words",
}

__all__ = [
    "AddId",
    "ArrowReader",
    "BoilerPlateStringModifier",
    "CsvReader",
    "DocumentFilter",
    "DocumentJoiner",
    "DocumentModifier",
    "DocumentSplitter",
    "FastTextLabelModifier",
    "FastTextLangId",
    "FastTextQualityFilter",
    "Filter",
    "HistogramFilter",
    "HtmlEntityDecoder",
    "HtmlRemover",
    "IdentifyLanguage",
    "IncompleteStoryFilter",
    "JsonlReader",
    "JsonlWriter",
    "LineCleaner",
    "LineRemover",
    "MarkdownRemover",
    "MeanWordLengthFilter",
    "Modify",
    "NewlineNormalizer",
    "NonAlphaNumericFilter",
    "ParagraphCleaner",
    "ParquetReader",
    "ParquetWriter",
    "PiiFilter",
    "PiiRedactor",
    "QuotationRemover",
    "QuotationUnifier",
    "RedactPii",
    "Score",
    "ScoreFilter",
    "Slicer",
    "SubstringFilter",
    "TextReader",
    "TokenCountFilter",
    "TrainTestSplit",
    "UnicodeReformatter",
    "UrlRemover",
    "UrlsFilter",
    "WordCountFilter",
    "split_words",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gristmill.text' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gristmill.text.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
