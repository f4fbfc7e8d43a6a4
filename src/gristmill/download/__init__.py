"""Sources on the web: what to fetch, how, and the text in it.

The names below are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.download.base import (
        DocumentDownloader,
        DocumentExtractor,
        DocumentIterator,
        HttpDownloader,
        URLGenerator,
    )
    from gristmill.download.stages import DocumentDownloadExtractStage

_HOME: dict[str, str] = {
    "DocumentDownloadExtractStage": "stages",
    "DocumentDownloader": "base",
    "DocumentExtractor": "base",
    "DocumentIterator": "base",
    "HttpDownloader": "base",
    "URLGenerator": "base",
}

__all__ = [
    "DocumentDownloadExtractStage",
    "DocumentDownloader",
    "DocumentExtractor",
    "DocumentIterator",
    "HttpDownloader",
    "URLGenerator",
]

__getattr__, __dir__ = lazy(__name__, _HOME)
