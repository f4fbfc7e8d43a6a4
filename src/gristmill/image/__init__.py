"""Images: readers, writers, filters and embeddings.

The names below are loaded when first used.
"""

from __future__ import annotations

from gristmill.core.lazy import lazy

_HOME: dict[str, str] = {
    "BadImage": "formats",
    "ConvertImageBatchToDocumentBatchStage": "convert",
    "Header": "formats",
    "ImageAestheticFilterStage": "model_filters",
    "ImageDirectoryReader": "folders",
    "ImageDirectoryWriter": "write",
    "ImageDownloadStage": "download",
    "ImageEmbeddingStage": "embed",
    "ImageNSFWFilterStage": "model_filters",
    "ImageParquetReader": "tables",
    "ImageParquetWriter": "write",
    "ImageReaderStage": "read",
    "ImageTextSimilarityStage": "model_filters",
    "ImageWriterStage": "write",
    "WebDatasetReader": "read",
    "decode_image": "decode",
    "decoded": "decode",
    "header": "formats",
    "headers_of": "decode",
    "pixels_of": "decode",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME)
