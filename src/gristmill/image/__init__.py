"""Images: readers, writers, filters and embeddings.

The names below are loaded when first used.
"""

from __future__ import annotations

from gristmill.core.lazy import lazy

_HOME: dict[str, str] = {
    "BadImage": "formats",
    "Header": "formats",
    "ImageAestheticFilterStage": "model_filters",
    "ImageEmbeddingStage": "embed",
    "ImageNSFWFilterStage": "model_filters",
    "ImageReaderStage": "read",
    "ImageTextSimilarityStage": "model_filters",
    "WebDatasetReader": "read",
    "decode": "decode",
    "decoded": "decode",
    "header": "formats",
    "headers_of": "decode",
    "pixels_of": "decode",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME)
