"""Deduplication: stages that drop duplicate rows, on any executor, of data that is larger than memory.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.dedup.clusters.curator_duplicate_ids import CURATOR_DEDUP_ID_STR as CURATOR_DEDUP_ID_STR
    from gristmill.dedup.clusters.keep_policy import Keep as Keep
    from gristmill.dedup.clusters.removal_by_id import ImageDuplicatesRemovalStage as ImageDuplicatesRemovalStage
    from gristmill.dedup.clusters.removal_by_id import TextDuplicatesRemovalStage as TextDuplicatesRemovalStage
    from gristmill.dedup.decontamination.decontaminate import Decontaminate as Decontaminate
    from gristmill.dedup.exact.bloom_filter import BloomDeduplicationStage as BloomDeduplicationStage
    from gristmill.dedup.exact.exact_stage import ExactDeduplicationStage as ExactDeduplicationStage
    from gristmill.dedup.fuzzy.fingerprint_stage import FingerprintDeduplicationStage as FingerprintDeduplicationStage
    from gristmill.dedup.fuzzy.fuzzy_stage import FuzzyDeduplicationStage as FuzzyDeduplicationStage
    from gristmill.dedup.fuzzy.hash_distance_stages import (
        PerceptualHashDeduplicationStage as PerceptualHashDeduplicationStage,
    )
    from gristmill.dedup.fuzzy.hash_distance_stages import SimHashDeduplicationStage as SimHashDeduplicationStage
    from gristmill.dedup.index.dedup_index import DedupIndex as DedupIndex
    from gristmill.dedup.semantic.ranking_strategy import RankingStrategy as RankingStrategy
    from gristmill.dedup.semantic.semantic_stage import SemanticDeduplicationStage as SemanticDeduplicationStage
    from gristmill.dedup.substring.repeated_lines import LineDeduplicationStage as LineDeduplicationStage
    from gristmill.dedup.substring.substring_stage import SubstringDeduplicationStage as SubstringDeduplicationStage
    from gristmill.dedup.workflows.deduplication_workflows import DeduplicationResult as DeduplicationResult
    from gristmill.dedup.workflows.deduplication_workflows import (
        ExactDeduplicationWorkflow as ExactDeduplicationWorkflow,
    )
    from gristmill.dedup.workflows.deduplication_workflows import (
        FuzzyDeduplicationWorkflow as FuzzyDeduplicationWorkflow,
    )
    from gristmill.dedup.workflows.deduplication_workflows import (
        TextDuplicatesRemovalWorkflow as TextDuplicatesRemovalWorkflow,
    )
    from gristmill.dedup.workflows.semantic_workflow import (
        SemanticDeduplicationWorkflow as SemanticDeduplicationWorkflow,
    )
    from gristmill.dedup.workflows.text_semantic_workflow import (
        TextSemanticDeduplicationWorkflow as TextSemanticDeduplicationWorkflow,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
