"""Images: readers, writers, filters and embeddings.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.image.decode import decode_image as decode_image
    from gristmill.image.decode import decoded as decoded
    from gristmill.image.decode import headers_of as headers_of
    from gristmill.image.decode import pixels_of as pixels_of
    from gristmill.image.download import ImageDownloadStage as ImageDownloadStage
    from gristmill.image.embed import ImageEmbeddingStage as ImageEmbeddingStage
    from gristmill.image.filters import ImageAnimatedFilter as ImageAnimatedFilter
    from gristmill.image.filters import ImageAspectRatioFilter as ImageAspectRatioFilter
    from gristmill.image.filters import ImageBlurFilter as ImageBlurFilter
    from gristmill.image.filters import ImageBorderFilter as ImageBorderFilter
    from gristmill.image.filters import ImageBrightnessFilter as ImageBrightnessFilter
    from gristmill.image.filters import ImageColourfulnessFilter as ImageColourfulnessFilter
    from gristmill.image.filters import ImageContrastFilter as ImageContrastFilter
    from gristmill.image.filters import ImageEntropyFilter as ImageEntropyFilter
    from gristmill.image.filters import ImageFileSizeFilter as ImageFileSizeFilter
    from gristmill.image.filters import ImageFilter as ImageFilter
    from gristmill.image.filters import ImageFormatFilter as ImageFormatFilter
    from gristmill.image.filters import ImageQRCodeFilter as ImageQRCodeFilter
    from gristmill.image.filters import ImageResolutionFilter as ImageResolutionFilter
    from gristmill.image.filters import ImageTextFilter as ImageTextFilter
    from gristmill.image.filters import ImageWatermarkFilter as ImageWatermarkFilter
    from gristmill.image.image_header import BadImage as BadImage
    from gristmill.image.image_header import Header as Header
    from gristmill.image.image_header import header as header
    from gristmill.image.image_object import ImageObject as ImageObject
    from gristmill.image.model_filters import ImageAestheticFilterStage as ImageAestheticFilterStage
    from gristmill.image.model_filters import ImageNSFWFilterStage as ImageNSFWFilterStage
    from gristmill.image.model_filters import ImageTextSimilarityStage as ImageTextSimilarityStage
    from gristmill.image.perceptual_hash import ImagePerceptualHashStage as ImagePerceptualHashStage
    from gristmill.image.read import ImageDirectoryReader as ImageDirectoryReader
    from gristmill.image.read import ImageParquetReader as ImageParquetReader
    from gristmill.image.read import ImageReaderStage as ImageReaderStage
    from gristmill.image.read import WebDatasetReader as WebDatasetReader
    from gristmill.image.score import ImageScore as ImageScore
    from gristmill.image.score import ImageScoreFilter as ImageScoreFilter
    from gristmill.image.to_documents import (
        ConvertImageBatchToDocumentBatchStage as ConvertImageBatchToDocumentBatchStage,
    )
    from gristmill.image.transform import ImageConvertStage as ImageConvertStage
    from gristmill.image.transform import ImageResizeStage as ImageResizeStage
    from gristmill.image.write import ImageDirectoryWriter as ImageDirectoryWriter
    from gristmill.image.write import ImageParquetWriter as ImageParquetWriter
    from gristmill.image.write import ImageWriterStage as ImageWriterStage
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
