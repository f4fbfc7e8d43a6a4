"""Images: readers, writers, filters and embeddings.

The names below are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.image.convert import ConvertImageBatchToDocumentBatchStage
    from gristmill.image.decode import decode_image, decoded, headers_of, pixels_of
    from gristmill.image.download import ImageDownloadStage
    from gristmill.image.embed import ImageEmbeddingStage
    from gristmill.image.folders import ImageDirectoryReader
    from gristmill.image.formats import BadImage, Header, header
    from gristmill.image.model_filters import ImageAestheticFilterStage, ImageNSFWFilterStage, ImageTextSimilarityStage
    from gristmill.image.read import ImageReaderStage, WebDatasetReader
    from gristmill.image.tables import ImageParquetReader
    from gristmill.image.write import ImageDirectoryWriter, ImageParquetWriter, ImageWriterStage

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

__all__ = [
    "BadImage",
    "ConvertImageBatchToDocumentBatchStage",
    "Header",
    "ImageAestheticFilterStage",
    "ImageDirectoryReader",
    "ImageDirectoryWriter",
    "ImageDownloadStage",
    "ImageEmbeddingStage",
    "ImageNSFWFilterStage",
    "ImageParquetReader",
    "ImageParquetWriter",
    "ImageReaderStage",
    "ImageTextSimilarityStage",
    "ImageWriterStage",
    "WebDatasetReader",
    "decode_image",
    "decoded",
    "header",
    "headers_of",
    "pixels_of",
]

__getattr__, __dir__ = lazy(__name__, _HOME)
