"""Text: readers, writers, filters and modifiers, and the stages that run them.

The names below are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.text.blend import Blend
    from gristmill.text.boilerplate import BoilerPlateStringModifier
    from gristmill.text.code import (
        AlphaFilter,
        GeneralCommentToCodeFilter,
        HTMLBoilerplateFilter,
        NumberOfLinesOfCodeFilter,
        PythonCommentToCodeFilter,
        TokenizerFertilityFilter,
        XMLHeaderFilter,
    )
    from gristmill.text.code_files import PerExtensionFilter
    from gristmill.text.edit import FastTextLabelModifier, LineRemover, MarkdownRemover, QuotationRemover, Slicer
    from gristmill.text.fasttext import FastTextQualityFilter
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
    from gristmill.text.histogram import HistogramFilter
    from gristmill.text.ids import AddId
    from gristmill.text.language import FastTextLangId, IdentifyLanguage
    from gristmill.text.lines import LineCleaner, ParagraphCleaner
    from gristmill.text.markup import HtmlEntityDecoder, HtmlRemover
    from gristmill.text.megatron import MegatronTokenizerWriter, merge_megatron
    from gristmill.text.modifiers import (
        DocumentModifier,
        NewlineNormalizer,
        QuotationUnifier,
        UnicodeReformatter,
        UrlRemover,
    )
    from gristmill.text.packed import PackedSequenceWriter
    from gristmill.text.pii import PiiFilter, PiiRedactor, RedactPii
    from gristmill.text.presets import (
        C4ParagraphFilter,
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
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
    from gristmill.text.resample import Resample
    from gristmill.text.rules import LambdaFilter, RegexFilter
    from gristmill.text.score import Filter, Modify, Score, ScoreFilter
    from gristmill.text.segments import DocumentJoiner, DocumentSplitter
    from gristmill.text.split import TrainTestSplit
    from gristmill.text.tokenize import TokenizeDocuments
    from gristmill.text.tokens import TokenCountFilter
    from gristmill.text.urls import UrlBlocklistFilter
    from gristmill.text.vocabulary import (
        C4BadWordsFilter,
        FlaggedWordsFilter,
        StopWordRatioFilter,
        UnigramLogProbFilter,
        write_unigrams,
    )
    from gristmill.text.words import split_words
    from gristmill.text.write import JsonlWriter, ParquetWriter

_HOME = {
    "AddId": "ids",
    "AlphaFilter": "code",
    "ArrowReader": "read",
    "Blend": "blend",
    "BoilerPlateStringFilter": "heuristics",
    "BoilerPlateStringModifier": "boilerplate",
    "BulletsFilter": "heuristics",
    "C4BadWordsFilter": "vocabulary",
    "C4ParagraphFilter": "presets",
    "C4QualityFilter": "presets",
    "CommonEnglishWordsFilter": "heuristics",
    "CsvReader": "read",
    "DocumentFilter": "filters",
    "DocumentJoiner": "segments",
    "DocumentModifier": "modifiers",
    "DocumentSplitter": "segments",
    "EllipsisFilter": "heuristics",
    "FastTextLabelModifier": "edit",
    "FastTextLangId": "language",
    "FastTextQualityFilter": "fasttext",
    "Filter": "score",
    "FineWebQualityFilter": "presets",
    "FlaggedWordsFilter": "vocabulary",
    "GeneralCommentToCodeFilter": "code",
    "GopherQualityFilter": "presets",
    "GopherRepetitionFilter": "presets",
    "HTMLBoilerplateFilter": "code",
    "HistogramFilter": "histogram",
    "HtmlEntityDecoder": "markup",
    "HtmlRemover": "markup",
    "IdentifyLanguage": "language",
    "IncompleteStoryFilter": "filters",
    "JsonlReader": "read",
    "JsonlWriter": "write",
    "LambdaFilter": "rules",
    "LineCleaner": "lines",
    "LineRemover": "edit",
    "LongWordFilter": "heuristics",
    "MarkdownRemover": "edit",
    "MeanWordLengthFilter": "heuristics",
    "MegatronTokenizerWriter": "megatron",
    "Modify": "score",
    "NewlineNormalizer": "modifiers",
    "NonAlphaNumericFilter": "heuristics",
    "NumberOfLinesOfCodeFilter": "code",
    "NumbersFilter": "heuristics",
    "PackedSequenceWriter": "packed",
    "ParagraphCleaner": "lines",
    "ParenthesesFilter": "heuristics",
    "ParquetReader": "read",
    "ParquetWriter": "write",
    "PerExtensionFilter": "code_files",
    "PiiFilter": "pii",
    "PiiRedactor": "pii",
    "PornographicUrlsFilter": "heuristics",
    "PunctuationFilter": "heuristics",
    "PythonCommentToCodeFilter": "code",
    "QuotationRemover": "edit",
    "QuotationUnifier": "modifiers",
    "RedactPii": "pii",
    "RegexFilter": "rules",
    "RepeatedLinesByCharFilter": "repetition",
    "RepeatedLinesFilter": "repetition",
    "RepeatedParagraphsByCharFilter": "repetition",
    "RepeatedParagraphsFilter": "repetition",
    "RepeatingDuplicateNGramsFilter": "repetition",
    "RepeatingTopNGramsFilter": "repetition",
    "Resample": "resample",
    "Score": "score",
    "ScoreFilter": "score",
    "Slicer": "edit",
    "StopWordRatioFilter": "vocabulary",
    "SubstringFilter": "filters",
    "SymbolsToWordsFilter": "heuristics",
    "TextReader": "read",
    "TokenCountFilter": "tokens",
    "TokenizeDocuments": "tokenize",
    "TokenizerFertilityFilter": "code",
    "TrainTestSplit": "split",
    "UnicodeReformatter": "modifiers",
    "UnigramLogProbFilter": "vocabulary",
    "UrlBlocklistFilter": "urls",
    "UrlRemover": "modifiers",
    "UrlsFilter": "heuristics",
    "WhiteSpaceFilter": "heuristics",
    "WordCountFilter": "heuristics",
    "WordsWithoutAlphabetsFilter": "heuristics",
    "XMLHeaderFilter": "code",
    "merge_megatron": "megatron",
    "split_words": "words",
    "write_unigrams": "vocabulary",
}

__all__ = [
    "AddId",
    "AlphaFilter",
    "ArrowReader",
    "Blend",
    "BoilerPlateStringFilter",
    "BoilerPlateStringModifier",
    "BulletsFilter",
    "C4BadWordsFilter",
    "C4ParagraphFilter",
    "C4QualityFilter",
    "CommonEnglishWordsFilter",
    "CsvReader",
    "DocumentFilter",
    "DocumentJoiner",
    "DocumentModifier",
    "DocumentSplitter",
    "EllipsisFilter",
    "FastTextLabelModifier",
    "FastTextLangId",
    "FastTextQualityFilter",
    "Filter",
    "FineWebQualityFilter",
    "FlaggedWordsFilter",
    "GeneralCommentToCodeFilter",
    "GopherQualityFilter",
    "GopherRepetitionFilter",
    "HTMLBoilerplateFilter",
    "HistogramFilter",
    "HtmlEntityDecoder",
    "HtmlRemover",
    "IdentifyLanguage",
    "IncompleteStoryFilter",
    "JsonlReader",
    "JsonlWriter",
    "LambdaFilter",
    "LineCleaner",
    "LineRemover",
    "LongWordFilter",
    "MarkdownRemover",
    "MeanWordLengthFilter",
    "MegatronTokenizerWriter",
    "Modify",
    "NewlineNormalizer",
    "NonAlphaNumericFilter",
    "NumberOfLinesOfCodeFilter",
    "NumbersFilter",
    "PackedSequenceWriter",
    "ParagraphCleaner",
    "ParenthesesFilter",
    "ParquetReader",
    "ParquetWriter",
    "PerExtensionFilter",
    "PiiFilter",
    "PiiRedactor",
    "PornographicUrlsFilter",
    "PunctuationFilter",
    "PythonCommentToCodeFilter",
    "QuotationRemover",
    "QuotationUnifier",
    "RedactPii",
    "RegexFilter",
    "RepeatedLinesByCharFilter",
    "RepeatedLinesFilter",
    "RepeatedParagraphsByCharFilter",
    "RepeatedParagraphsFilter",
    "RepeatingDuplicateNGramsFilter",
    "RepeatingTopNGramsFilter",
    "Resample",
    "Score",
    "ScoreFilter",
    "Slicer",
    "StopWordRatioFilter",
    "SubstringFilter",
    "SymbolsToWordsFilter",
    "TextReader",
    "TokenCountFilter",
    "TokenizeDocuments",
    "TokenizerFertilityFilter",
    "TrainTestSplit",
    "UnicodeReformatter",
    "UnigramLogProbFilter",
    "UrlBlocklistFilter",
    "UrlRemover",
    "UrlsFilter",
    "WhiteSpaceFilter",
    "WordCountFilter",
    "WordsWithoutAlphabetsFilter",
    "XMLHeaderFilter",
    "merge_megatron",
    "split_words",
    "write_unigrams",
]

__getattr__, __dir__ = lazy(__name__, _HOME)
