"""Interleaved documents: text with pictures, sound and film in their places.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.interleaved.batch import InterleavedBatch as InterleavedBatch
    from gristmill.interleaved.download import InterleavedDownloadStage as InterleavedDownloadStage
    from gristmill.interleaved.explode import InterleavedExplodeStage as InterleavedExplodeStage
    from gristmill.interleaved.explode import InterleavedImplodeStage as InterleavedImplodeStage
    from gristmill.interleaved.explode import InterleavedMediaDeduplicationStage as InterleavedMediaDeduplicationStage
    from gristmill.interleaved.filters import InterleavedAspectRatioFilterStage as InterleavedAspectRatioFilterStage
    from gristmill.interleaved.filters import InterleavedBlurFilterStage as InterleavedBlurFilterStage
    from gristmill.interleaved.filters import InterleavedCLIPScoreFilterStage as InterleavedCLIPScoreFilterStage
    from gristmill.interleaved.filters import (
        InterleavedImageToTextRatioFilterStage as InterleavedImageToTextRatioFilterStage,
    )
    from gristmill.interleaved.filters import InterleavedQRCodeFilterStage as InterleavedQRCodeFilterStage
    from gristmill.interleaved.item_bytes import InterleavedMaterializeStage as InterleavedMaterializeStage
    from gristmill.interleaved.placeholders import PlaceholderError as PlaceholderError
    from gristmill.interleaved.read import ChatJsonlReader as ChatJsonlReader
    from gristmill.interleaved.read import InterleavedHtmlReader as InterleavedHtmlReader
    from gristmill.interleaved.read import InterleavedHtmlStage as InterleavedHtmlStage
    from gristmill.interleaved.read import InterleavedParquetReader as InterleavedParquetReader
    from gristmill.interleaved.read import InterleavedPdfReader as InterleavedPdfReader
    from gristmill.interleaved.read import InterleavedWebdatasetReader as InterleavedWebdatasetReader
    from gristmill.interleaved.score import InterleavedEach as InterleavedEach
    from gristmill.interleaved.score import InterleavedModify as InterleavedModify
    from gristmill.interleaved.write import ChatJsonlWriter as ChatJsonlWriter
    from gristmill.interleaved.write import InterleavedDocumentsWriter as InterleavedDocumentsWriter
    from gristmill.interleaved.write import InterleavedParquetWriterStage as InterleavedParquetWriterStage
    from gristmill.interleaved.write import InterleavedWebdatasetWriterStage as InterleavedWebdatasetWriterStage
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
