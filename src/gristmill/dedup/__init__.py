"""Deduplication: stages that drop rows of which there is another one, on any executor, out of core.

The names below are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.dedup.bloom import BloomDeduplicationStage
    from gristmill.dedup.decontaminate import Decontaminate
    from gristmill.dedup.exact import ExactDeduplicationStage
    from gristmill.dedup.fuzzy import FuzzyDeduplicationStage
    from gristmill.dedup.index import DedupIndex
    from gristmill.dedup.keep import Keep
    from gristmill.dedup.perceptual import PerceptualHashDeduplicationStage
    from gristmill.dedup.ranking import RankingStrategy
    from gristmill.dedup.removal import ImageDuplicatesRemovalStage, TextDuplicatesRemovalStage
    from gristmill.dedup.removal_workflow import TextDuplicatesRemovalWorkflow
    from gristmill.dedup.repeated import LineDeduplicationStage
    from gristmill.dedup.semantic import SemanticDeduplicationStage
    from gristmill.dedup.semantic_workflow import SemanticDeduplicationWorkflow
    from gristmill.dedup.simhash import SimHashDeduplicationStage
    from gristmill.dedup.substring import SubstringDeduplicationStage
    from gristmill.dedup.workflow import (
        DeduplicationResult,
        ExactDeduplicationWorkflow,
        FuzzyDeduplicationWorkflow,
    )

_HOME = {
    "BloomDeduplicationStage": "bloom",
    "Decontaminate": "decontaminate",
    "DedupIndex": "index",
    "DeduplicationResult": "workflow",
    "ExactDeduplicationStage": "exact",
    "ExactDeduplicationWorkflow": "workflow",
    "FuzzyDeduplicationStage": "fuzzy",
    "FuzzyDeduplicationWorkflow": "workflow",
    "ImageDuplicatesRemovalStage": "removal",
    "Keep": "keep",
    "LineDeduplicationStage": "repeated",
    "PerceptualHashDeduplicationStage": "perceptual",
    "RankingStrategy": "ranking",
    "SemanticDeduplicationStage": "semantic",
    "SemanticDeduplicationWorkflow": "semantic_workflow",
    "SimHashDeduplicationStage": "simhash",
    "SubstringDeduplicationStage": "substring",
    "TextDuplicatesRemovalStage": "removal",
    "TextDuplicatesRemovalWorkflow": "removal_workflow",
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
