"""Deduplication: stages and workflows that drop duplicate rows, on any executor, with data larger than memory.

The names below are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.dedup.clusters.keep_policy import Keep
    from gristmill.dedup.clusters.removal_by_id import ImageDuplicatesRemovalStage, TextDuplicatesRemovalStage
    from gristmill.dedup.decontamination.decontaminate import Decontaminate
    from gristmill.dedup.exact.bloom_filter import BloomDeduplicationStage
    from gristmill.dedup.exact.exact_stage import ExactDeduplicationStage
    from gristmill.dedup.fuzzy.fuzzy_stage import FuzzyDeduplicationStage
    from gristmill.dedup.fuzzy.hash_distance import PerceptualHashDeduplicationStage, SimHashDeduplicationStage
    from gristmill.dedup.index.dedup_index import DedupIndex
    from gristmill.dedup.semantic.ranking_strategy import RankingStrategy
    from gristmill.dedup.semantic.semantic_stage import SemanticDeduplicationStage
    from gristmill.dedup.substring.repeated_lines import LineDeduplicationStage
    from gristmill.dedup.substring.substring_stage import SubstringDeduplicationStage
    from gristmill.dedup.workflows.deduplication_workflows import (
        DeduplicationResult,
        ExactDeduplicationWorkflow,
        FuzzyDeduplicationWorkflow,
        TextDuplicatesRemovalWorkflow,
    )
    from gristmill.dedup.workflows.semantic_workflow import SemanticDeduplicationWorkflow

_HOME = {
    "BloomDeduplicationStage": "exact.bloom_filter",
    "Decontaminate": "decontamination.decontaminate",
    "DedupIndex": "index.dedup_index",
    "DeduplicationResult": "workflows.deduplication_workflows",
    "ExactDeduplicationStage": "exact.exact_stage",
    "ExactDeduplicationWorkflow": "workflows.deduplication_workflows",
    "FuzzyDeduplicationStage": "fuzzy.fuzzy_stage",
    "FuzzyDeduplicationWorkflow": "workflows.deduplication_workflows",
    "ImageDuplicatesRemovalStage": "clusters.removal_by_id",
    "Keep": "clusters.keep_policy",
    "LineDeduplicationStage": "substring.repeated_lines",
    "PerceptualHashDeduplicationStage": "fuzzy.hash_distance",
    "RankingStrategy": "semantic.ranking_strategy",
    "SemanticDeduplicationStage": "semantic.semantic_stage",
    "SemanticDeduplicationWorkflow": "workflows.semantic_workflow",
    "SimHashDeduplicationStage": "fuzzy.hash_distance",
    "SubstringDeduplicationStage": "substring.substring_stage",
    "TextDuplicatesRemovalStage": "clusters.removal_by_id",
    "TextDuplicatesRemovalWorkflow": "workflows.deduplication_workflows",
}

__all__ = [
    "BloomDeduplicationStage",
    "Decontaminate",
    "DedupIndex",
    "DeduplicationResult",
    "ExactDeduplicationStage",
    "ExactDeduplicationWorkflow",
    "FuzzyDeduplicationStage",
    "FuzzyDeduplicationWorkflow",
    "ImageDuplicatesRemovalStage",
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
]

__getattr__, __dir__ = lazy(__name__, _HOME)
