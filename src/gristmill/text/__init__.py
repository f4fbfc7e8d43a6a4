"""Text: readers, writers, filters and modifiers, and the stages that run them.

The names below are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.text.blend import Blend
    from gristmill.text.document_filter import DocumentFilter, IncompleteStoryFilter, SubstringFilter
    from gristmill.text.document_ids import AddId
    from gristmill.text.filters.character_histogram import HistogramFilter
    from gristmill.text.filters.fasttext_quality import FastTextQualityFilter
    from gristmill.text.filters.heuristics import (
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
    from gristmill.text.filters.per_extension import PerExtensionFilter
    from gristmill.text.filters.quality_presets import (
        C4ParagraphFilter,
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from gristmill.text.filters.repetition import (
        RepeatedLinesByCharFilter,
        RepeatedLinesFilter,
        RepeatedParagraphsByCharFilter,
        RepeatedParagraphsFilter,
        RepeatingDuplicateNGramsFilter,
        RepeatingTopNGramsFilter,
    )
    from gristmill.text.filters.source_code import (
        AlphaFilter,
        GeneralCommentToCodeFilter,
        HTMLBoilerplateFilter,
        NumberOfLinesOfCodeFilter,
        PythonCommentToCodeFilter,
        TokenizerFertilityFilter,
        XMLHeaderFilter,
    )
    from gristmill.text.filters.token_count import TokenCountFilter
    from gristmill.text.filters.url_blocklist import UrlBlocklistFilter
    from gristmill.text.filters.user_rules import LambdaFilter, RegexFilter
    from gristmill.text.filters.vocabulary import (
        C4BadWordsFilter,
        FlaggedWordsFilter,
        StopWordRatioFilter,
        UnigramLogProbFilter,
        write_unigrams,
    )
    from gristmill.text.language_identification import FastTextLangId, IdentifyLanguage
    from gristmill.text.modifiers.boilerplate import BoilerPlateStringModifier
    from gristmill.text.modifiers.document_modifier import (
        DocumentModifier,
        NewlineNormalizer,
        QuotationUnifier,
        UnicodeReformatter,
        UrlRemover,
    )
    from gristmill.text.modifiers.html_markup import HtmlEntityDecoder, HtmlRemover
    from gristmill.text.modifiers.line_cleaners import LineCleaner, ParagraphCleaner
    from gristmill.text.modifiers.removers import (
        FastTextLabelModifier,
        LineRemover,
        MarkdownRemover,
        QuotationRemover,
        Slicer,
    )
    from gristmill.text.pii.redaction import PiiFilter, PiiRedactor, RedactPii
    from gristmill.text.read import ArrowReader, CsvReader, JsonlReader, ParquetReader, TextReader
    from gristmill.text.resample import Resample
    from gristmill.text.score import Filter, Modify, Score, ScoreFilter
    from gristmill.text.split_join import DocumentJoiner, DocumentSplitter
    from gristmill.text.statistics.word_segmentation import split_words
    from gristmill.text.tokens.megatron import MegatronTokenizerWriter, merge_megatron
    from gristmill.text.tokens.packed_sequences import PackedSequenceWriter
    from gristmill.text.tokens.tokenize_documents import TokenizeDocuments
    from gristmill.text.train_test_split import TrainTestSplit
    from gristmill.text.write import JsonlWriter, ParquetWriter

_HOME = {
    "AddId": "document_ids",
    "AlphaFilter": "filters.source_code",
    "ArrowReader": "read",
    "Blend": "blend",
    "BoilerPlateStringFilter": "filters.heuristics",
    "BoilerPlateStringModifier": "modifiers.boilerplate",
    "BulletsFilter": "filters.heuristics",
    "C4BadWordsFilter": "filters.vocabulary",
    "C4ParagraphFilter": "filters.quality_presets",
    "C4QualityFilter": "filters.quality_presets",
    "CommonEnglishWordsFilter": "filters.heuristics",
    "CsvReader": "read",
    "DocumentFilter": "document_filter",
    "DocumentJoiner": "split_join",
    "DocumentModifier": "modifiers.document_modifier",
    "DocumentSplitter": "split_join",
    "EllipsisFilter": "filters.heuristics",
    "FastTextLabelModifier": "modifiers.removers",
    "FastTextLangId": "language_identification",
    "FastTextQualityFilter": "filters.fasttext_quality",
    "Filter": "score",
    "FineWebQualityFilter": "filters.quality_presets",
    "FlaggedWordsFilter": "filters.vocabulary",
    "GeneralCommentToCodeFilter": "filters.source_code",
    "GopherQualityFilter": "filters.quality_presets",
    "GopherRepetitionFilter": "filters.quality_presets",
    "HTMLBoilerplateFilter": "filters.source_code",
    "HistogramFilter": "filters.character_histogram",
    "HtmlEntityDecoder": "modifiers.html_markup",
    "HtmlRemover": "modifiers.html_markup",
    "IdentifyLanguage": "language_identification",
    "IncompleteStoryFilter": "document_filter",
    "JsonlReader": "read",
    "JsonlWriter": "write",
    "LambdaFilter": "filters.user_rules",
    "LineCleaner": "modifiers.line_cleaners",
    "LineRemover": "modifiers.removers",
    "LongWordFilter": "filters.heuristics",
    "MarkdownRemover": "modifiers.removers",
    "MeanWordLengthFilter": "filters.heuristics",
    "MegatronTokenizerWriter": "tokens.megatron",
    "Modify": "score",
    "NewlineNormalizer": "modifiers.document_modifier",
    "NonAlphaNumericFilter": "filters.heuristics",
    "NumberOfLinesOfCodeFilter": "filters.source_code",
    "NumbersFilter": "filters.heuristics",
    "PackedSequenceWriter": "tokens.packed_sequences",
    "ParagraphCleaner": "modifiers.line_cleaners",
    "ParenthesesFilter": "filters.heuristics",
    "ParquetReader": "read",
    "ParquetWriter": "write",
    "PerExtensionFilter": "filters.per_extension",
    "PiiFilter": "pii.redaction",
    "PiiRedactor": "pii.redaction",
    "PornographicUrlsFilter": "filters.heuristics",
    "PunctuationFilter": "filters.heuristics",
    "PythonCommentToCodeFilter": "filters.source_code",
    "QuotationRemover": "modifiers.removers",
    "QuotationUnifier": "modifiers.document_modifier",
    "RedactPii": "pii.redaction",
    "RegexFilter": "filters.user_rules",
    "RepeatedLinesByCharFilter": "filters.repetition",
    "RepeatedLinesFilter": "filters.repetition",
    "RepeatedParagraphsByCharFilter": "filters.repetition",
    "RepeatedParagraphsFilter": "filters.repetition",
    "RepeatingDuplicateNGramsFilter": "filters.repetition",
    "RepeatingTopNGramsFilter": "filters.repetition",
    "Resample": "resample",
    "Score": "score",
    "ScoreFilter": "score",
    "Slicer": "modifiers.removers",
    "StopWordRatioFilter": "filters.vocabulary",
    "SubstringFilter": "document_filter",
    "SymbolsToWordsFilter": "filters.heuristics",
    "TextReader": "read",
    "TokenCountFilter": "filters.token_count",
    "TokenizeDocuments": "tokens.tokenize_documents",
    "TokenizerFertilityFilter": "filters.source_code",
    "TrainTestSplit": "train_test_split",
    "UnicodeReformatter": "modifiers.document_modifier",
    "UnigramLogProbFilter": "filters.vocabulary",
    "UrlBlocklistFilter": "filters.url_blocklist",
    "UrlRemover": "modifiers.document_modifier",
    "UrlsFilter": "filters.heuristics",
    "WhiteSpaceFilter": "filters.heuristics",
    "WordCountFilter": "filters.heuristics",
    "WordsWithoutAlphabetsFilter": "filters.heuristics",
    "XMLHeaderFilter": "filters.source_code",
    "merge_megatron": "tokens.megatron",
    "split_words": "statistics.word_segmentation",
    "write_unigrams": "filters.vocabulary",
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
