"""Text: readers, writers, filters and modifiers, and the stages that run them.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.core.deciding_stage import Rule as Rule
    from gristmill.text.blend import Blend as Blend
    from gristmill.text.classifiers.aegis import AegisClassifier as AegisClassifier
    from gristmill.text.classifiers.aegis import InstructionDataGuardClassifier as InstructionDataGuardClassifier
    from gristmill.text.classifiers.distributed_data import ContentTypeClassifier as ContentTypeClassifier
    from gristmill.text.classifiers.distributed_data import DistributedDataClassifier as DistributedDataClassifier
    from gristmill.text.classifiers.distributed_data import DomainClassifier as DomainClassifier
    from gristmill.text.classifiers.distributed_data import MultilingualDomainClassifier as MultilingualDomainClassifier
    from gristmill.text.classifiers.distributed_data import QualityClassifier as QualityClassifier
    from gristmill.text.classifiers.distributed_data import ToxicityClassifier as ToxicityClassifier
    from gristmill.text.classifiers.fineweb_edu import FineWebEduClassifier as FineWebEduClassifier
    from gristmill.text.classifiers.fineweb_edu import FineWebMixtralEduClassifier as FineWebMixtralEduClassifier
    from gristmill.text.classifiers.fineweb_edu import FineWebNemotronEduClassifier as FineWebNemotronEduClassifier
    from gristmill.text.classifiers.prompt_complexity import (
        PromptTaskComplexityClassifier as PromptTaskComplexityClassifier,
    )
    from gristmill.text.classifiers.quality_buckets import QualityBuckets as QualityBuckets
    from gristmill.text.classifiers.text_model_stage import TokenizerStage as TokenizerStage
    from gristmill.text.classifiers.train_classifier import train_classifier as train_classifier
    from gristmill.text.document_filter import DocumentFilter as DocumentFilter
    from gristmill.text.document_ids import AddId as AddId
    from gristmill.text.document_modifier import DocumentModifier as DocumentModifier
    from gristmill.text.embed import EmbeddingCreatorStage as EmbeddingCreatorStage
    from gristmill.text.embed import EndpointEmbeddingStage as EndpointEmbeddingStage
    from gristmill.text.embed import StaticEmbeddingStage as StaticEmbeddingStage
    from gristmill.text.filters.c4_quality import C4ParagraphFilter as C4ParagraphFilter
    from gristmill.text.filters.c4_quality import C4QualityFilter as C4QualityFilter
    from gristmill.text.filters.character_histogram import HistogramFilter as HistogramFilter
    from gristmill.text.filters.classifier_filter import ClassifierFilter as ClassifierFilter
    from gristmill.text.filters.fasttext_quality import FastTextQualityFilter as FastTextQualityFilter
    from gristmill.text.filters.heuristics import BoilerPlateStringFilter as BoilerPlateStringFilter
    from gristmill.text.filters.heuristics import BulletsFilter as BulletsFilter
    from gristmill.text.filters.heuristics import CommonEnglishWordsFilter as CommonEnglishWordsFilter
    from gristmill.text.filters.heuristics import EllipsisFilter as EllipsisFilter
    from gristmill.text.filters.heuristics import IncompleteStoryFilter as IncompleteStoryFilter
    from gristmill.text.filters.heuristics import LongWordFilter as LongWordFilter
    from gristmill.text.filters.heuristics import MeanWordLengthFilter as MeanWordLengthFilter
    from gristmill.text.filters.heuristics import NonAlphaNumericFilter as NonAlphaNumericFilter
    from gristmill.text.filters.heuristics import NumbersFilter as NumbersFilter
    from gristmill.text.filters.heuristics import ParenthesesFilter as ParenthesesFilter
    from gristmill.text.filters.heuristics import PornographicUrlsFilter as PornographicUrlsFilter
    from gristmill.text.filters.heuristics import PunctuationFilter as PunctuationFilter
    from gristmill.text.filters.heuristics import SymbolsToWordsFilter as SymbolsToWordsFilter
    from gristmill.text.filters.heuristics import UrlsFilter as UrlsFilter
    from gristmill.text.filters.heuristics import WhiteSpaceFilter as WhiteSpaceFilter
    from gristmill.text.filters.heuristics import WordCountFilter as WordCountFilter
    from gristmill.text.filters.heuristics import WordsWithoutAlphabetsFilter as WordsWithoutAlphabetsFilter
    from gristmill.text.filters.pattern_filters import LambdaFilter as LambdaFilter
    from gristmill.text.filters.pattern_filters import RegexFilter as RegexFilter
    from gristmill.text.filters.pattern_filters import SubstringFilter as SubstringFilter
    from gristmill.text.filters.perplexity import PerplexityFilter as PerplexityFilter
    from gristmill.text.filters.quality_presets import FineWebQualityFilter as FineWebQualityFilter
    from gristmill.text.filters.quality_presets import GopherQualityFilter as GopherQualityFilter
    from gristmill.text.filters.quality_presets import GopherRepetitionFilter as GopherRepetitionFilter
    from gristmill.text.filters.repetition import RepeatedLinesByCharFilter as RepeatedLinesByCharFilter
    from gristmill.text.filters.repetition import RepeatedLinesFilter as RepeatedLinesFilter
    from gristmill.text.filters.repetition import RepeatedParagraphsByCharFilter as RepeatedParagraphsByCharFilter
    from gristmill.text.filters.repetition import RepeatedParagraphsFilter as RepeatedParagraphsFilter
    from gristmill.text.filters.repetition import RepeatingDuplicateNGramsFilter as RepeatingDuplicateNGramsFilter
    from gristmill.text.filters.repetition import RepeatingTopNGramsFilter as RepeatingTopNGramsFilter
    from gristmill.text.filters.source_code import AlphaFilter as AlphaFilter
    from gristmill.text.filters.source_code import GeneralCommentToCodeFilter as GeneralCommentToCodeFilter
    from gristmill.text.filters.source_code import HTMLBoilerplateFilter as HTMLBoilerplateFilter
    from gristmill.text.filters.source_code import NumberOfLinesOfCodeFilter as NumberOfLinesOfCodeFilter
    from gristmill.text.filters.source_code import PerExtensionFilter as PerExtensionFilter
    from gristmill.text.filters.source_code import PythonCommentToCodeFilter as PythonCommentToCodeFilter
    from gristmill.text.filters.source_code import TokenizerFertilityFilter as TokenizerFertilityFilter
    from gristmill.text.filters.source_code import XMLHeaderFilter as XMLHeaderFilter
    from gristmill.text.filters.token_count import TokenCountFilter as TokenCountFilter
    from gristmill.text.filters.url_blocklist import UrlBlocklistFilter as UrlBlocklistFilter
    from gristmill.text.filters.word_filters import C4BadWordsFilter as C4BadWordsFilter
    from gristmill.text.filters.word_filters import FlaggedWordsFilter as FlaggedWordsFilter
    from gristmill.text.filters.word_filters import StopWordRatioFilter as StopWordRatioFilter
    from gristmill.text.filters.word_filters import UnigramLogProbFilter as UnigramLogProbFilter
    from gristmill.text.filters.word_filters import write_unigrams as write_unigrams
    from gristmill.text.language_identification import FastTextLangId as FastTextLangId
    from gristmill.text.language_identification import IdentifyLanguage as IdentifyLanguage
    from gristmill.text.modifiers.html_markup import HtmlEntityDecoder as HtmlEntityDecoder
    from gristmill.text.modifiers.html_markup import HtmlRemover as HtmlRemover
    from gristmill.text.modifiers.line_cleaners import LineCleaner as LineCleaner
    from gristmill.text.modifiers.line_cleaners import ParagraphCleaner as ParagraphCleaner
    from gristmill.text.modifiers.removers import BoilerPlateStringModifier as BoilerPlateStringModifier
    from gristmill.text.modifiers.removers import FastTextLabelModifier as FastTextLabelModifier
    from gristmill.text.modifiers.removers import LineRemover as LineRemover
    from gristmill.text.modifiers.removers import MarkdownRemover as MarkdownRemover
    from gristmill.text.modifiers.removers import NewlineNormalizer as NewlineNormalizer
    from gristmill.text.modifiers.removers import QuotationRemover as QuotationRemover
    from gristmill.text.modifiers.removers import QuotationUnifier as QuotationUnifier
    from gristmill.text.modifiers.removers import Slicer as Slicer
    from gristmill.text.modifiers.removers import UrlRemover as UrlRemover
    from gristmill.text.modifiers.unicode_repair import UnicodeReformatter as UnicodeReformatter
    from gristmill.text.pii.redaction import PiiFilter as PiiFilter
    from gristmill.text.pii.redaction import PiiRedactor as PiiRedactor
    from gristmill.text.pii.redaction import RedactPii as RedactPii
    from gristmill.text.read import ArrowReader as ArrowReader
    from gristmill.text.read import CsvReader as CsvReader
    from gristmill.text.read import JsonlReader as JsonlReader
    from gristmill.text.read import JsonlReaderStage as JsonlReaderStage
    from gristmill.text.read import ParquetReader as ParquetReader
    from gristmill.text.read import ParquetReaderStage as ParquetReaderStage
    from gristmill.text.read import TextReader as TextReader
    from gristmill.text.resample import Resample as Resample
    from gristmill.text.rule_filter import RuleFilter as RuleFilter
    from gristmill.text.score import Filter as Filter
    from gristmill.text.score import Modify as Modify
    from gristmill.text.score import Score as Score
    from gristmill.text.score import ScoreFilter as ScoreFilter
    from gristmill.text.split_join import DocumentJoiner as DocumentJoiner
    from gristmill.text.split_join import DocumentSplitter as DocumentSplitter
    from gristmill.text.statistics.word_segmentation import split_words as split_words
    from gristmill.text.tokens.megatron import MegatronTokenizerWriter as MegatronTokenizerWriter
    from gristmill.text.tokens.megatron import merge_megatron as merge_megatron
    from gristmill.text.tokens.packed_sequences import PackedSequenceWriter as PackedSequenceWriter
    from gristmill.text.tokens.tokenize_documents import TokenizeDocuments as TokenizeDocuments
    from gristmill.text.train_test_split import TrainTestSplit as TrainTestSplit
    from gristmill.text.write import JsonlWriter as JsonlWriter
    from gristmill.text.write import ParquetWriter as ParquetWriter
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
