"""Images: readers, writers, filters and embeddings.

The names below are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.image.decode import decode_image, decoded, headers_of, pixels_of
    from gristmill.image.download import ImageDownloadStage
    from gristmill.image.embed import ImageEmbeddingStage
    from gristmill.image.filters import (
        ImageAnimatedFilter,
        ImageAspectRatioFilter,
        ImageBlurFilter,
        ImageBorderFilter,
        ImageBrightnessFilter,
        ImageColourfulnessFilter,
        ImageContrastFilter,
        ImageEntropyFilter,
        ImageFileSizeFilter,
        ImageFilter,
        ImageFormatFilter,
        ImageResolutionFilter,
        ImageTextFilter,
        ImageWatermarkFilter,
    )
    from gristmill.image.formats import BadImage, Header, header
    from gristmill.image.model_filters import ImageAestheticFilterStage, ImageNSFWFilterStage, ImageTextSimilarityStage
    from gristmill.image.perceptual_hash import ImagePerceptualHashStage
    from gristmill.image.read import ImageDirectoryReader, ImageParquetReader, ImageReaderStage, WebDatasetReader
    from gristmill.image.score import ImageScore, ImageScoreFilter
    from gristmill.image.to_documents import ConvertImageBatchToDocumentBatchStage
    from gristmill.image.transform import ImageConvertStage, ImageResizeStage
    from gristmill.image.write import ImageDirectoryWriter, ImageParquetWriter, ImageWriterStage

_HOME: dict[str, str] = {
    "BadImage": "formats",
    "ConvertImageBatchToDocumentBatchStage": "to_documents",
    "Header": "formats",
    "ImageAestheticFilterStage": "model_filters",
    "ImageAnimatedFilter": "filters",
    "ImageAspectRatioFilter": "filters",
    "ImageBlurFilter": "filters",
    "ImageBorderFilter": "filters",
    "ImageBrightnessFilter": "filters",
    "ImageColourfulnessFilter": "filters",
    "ImageContrastFilter": "filters",
    "ImageConvertStage": "transform",
    "ImageDirectoryReader": "read",
    "ImageDirectoryWriter": "write",
    "ImageDownloadStage": "download",
    "ImageEmbeddingStage": "embed",
    "ImageEntropyFilter": "filters",
    "ImageFileSizeFilter": "filters",
    "ImageFilter": "filters",
    "ImageFormatFilter": "filters",
    "ImageNSFWFilterStage": "model_filters",
    "ImageParquetReader": "read",
    "ImageParquetWriter": "write",
    "ImagePerceptualHashStage": "perceptual_hash",
    "ImageReaderStage": "read",
    "ImageResizeStage": "transform",
    "ImageResolutionFilter": "filters",
    "ImageScore": "score",
    "ImageScoreFilter": "score",
    "ImageTextFilter": "filters",
    "ImageTextSimilarityStage": "model_filters",
    "ImageWatermarkFilter": "filters",
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
    "ImageAnimatedFilter",
    "ImageAspectRatioFilter",
    "ImageBlurFilter",
    "ImageBorderFilter",
    "ImageBrightnessFilter",
    "ImageColourfulnessFilter",
    "ImageContrastFilter",
    "ImageConvertStage",
    "ImageDirectoryReader",
    "ImageDirectoryWriter",
    "ImageDownloadStage",
    "ImageEmbeddingStage",
    "ImageEntropyFilter",
    "ImageFileSizeFilter",
    "ImageFilter",
    "ImageFormatFilter",
    "ImageNSFWFilterStage",
    "ImageParquetReader",
    "ImageParquetWriter",
    "ImagePerceptualHashStage",
    "ImageReaderStage",
    "ImageResizeStage",
    "ImageResolutionFilter",
    "ImageScore",
    "ImageScoreFilter",
    "ImageTextFilter",
    "ImageTextSimilarityStage",
    "ImageWatermarkFilter",
    "ImageWriterStage",
    "WebDatasetReader",
    "decode_image",
    "decoded",
    "header",
    "headers_of",
    "pixels_of",
]

__getattr__, __dir__ = lazy(__name__, _HOME)
