"""Mathematics in text: formulas of web pages as LaTeX, notebooks, and splitting into chunks for models.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.math.chunks import CenterCropTextStage as CenterCropTextStage
    from gristmill.math.chunks import ChunkMergeStage as ChunkMergeStage
    from gristmill.math.chunks import TokenSplitterStage as TokenSplitterStage
    from gristmill.math.fine_math import FineMathClassifier as FineMathClassifier
    from gristmill.math.llm_cleanup import LLMCleanupStage as LLMCleanupStage
    from gristmill.math.math_extractor import MathContentExtractor as MathContentExtractor
    from gristmill.math.math_extractor import MathExtractStage as MathExtractStage
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
