"""The public names. Whoever adds or removes one changes this list, and says so in CHANGELOG.md."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PUBLIC = {
    "gristmill": [
        "Batch",
        "CompositeStage",
        "CountRows",
        "DocumentBatch",
        "EmptyTask",
        "FileGroupTask",
        "ImageBatch",
        "KeyedStage",
        "LocalExecutor",
        "Pipeline",
        "ProcessingStage",
        "RayActorPoolExecutor",
        "RayClient",
        "RayDataExecutor",
        "Repartition",
        "Resources",
        "Route",
        "Sample",
        "Shuffle",
        "SlurmRayClient",
        "Sort",
        "SourceStage",
        "Task",
        "VerdictStage",
        "XennaExecutor",
        "processing_stage",
    ],
    "gristmill.dedup": [
        "BloomDeduplicationStage",
        "Decontaminate",
        "DedupIndex",
        "DeduplicationResult",
        "ExactDeduplicationStage",
        "ExactDeduplicationWorkflow",
        "FuzzyDeduplicationStage",
        "FuzzyDeduplicationWorkflow",
        "Keep",
        "LineDeduplicationStage",
        "PerceptualHashDeduplicationStage",
        "RankingStrategy",
        "SemanticDeduplicationStage",
        "SemanticDeduplicationWorkflow",
        "SimHashDeduplicationStage",
        "SubstringDeduplicationStage",
        "TextDuplicatesRemovalStage",
        "TextDuplicatesRemovalWorkflow",
    ],
    "gristmill.text": [
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
    ],
    "gristmill.observe": [
        "Events",
        "LiveProgress",
        "MetricsEndpoint",
        "PlainProgress",
        "Several",
        "default_progress",
    ],
    "gristmill.recipes": [
        "Entry",
        "Parameter",
        "Recipe",
        "bundled",
        "catalogue",
        "load_recipe",
        "parse_settings",
        "recipe_of",
        "schema",
    ],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == PUBLIC[module]


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PUBLIC.items() for name in names])
def test_each_can_be_imported_and_says_what_it_is(module: str, name: str) -> None:
    home = importlib.import_module(module)
    thing = getattr(home, name)
    assert (thing.__doc__ or "").strip(), f"{module}.{name} has no docstring"
    assert name in dir(home)


@pytest.mark.parametrize("module", PUBLIC)
def test_no_other_name_is_made_up(module: str) -> None:
    with pytest.raises(AttributeError, match="NoSuchName"):
        _ = importlib.import_module(module).NoSuchName


def test_a_star_import_gives_them_all() -> None:
    code = "from gristmill import *; from gristmill.text import *; print(Pipeline.__name__, ScoreFilter.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Pipeline ScoreFilter\n"
