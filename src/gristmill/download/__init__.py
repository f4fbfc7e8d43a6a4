"""Sources on the web: what to fetch, how, and the text in it.

The names below are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.download.common_crawl import CommonCrawlDownloadExtractStage, CommonCrawlUrlGenerator
    from gristmill.download.html import (
        HTMLExtractorAlgorithm,
        JusTextExtractor,
        ResiliparseExtractor,
        TrafilaturaExtractor,
    )
    from gristmill.download.objects import ObjectDownloader
    from gristmill.download.pages import CommonCrawlHTMLExtractor
    from gristmill.download.source import (
        DocumentDownloader,
        DocumentExtractor,
        DocumentIterator,
        HttpDownloader,
        URLGenerator,
    )
    from gristmill.download.stages import DocumentDownloadExtractStage
    from gristmill.download.stop_lists import get_stop_list_dict
    from gristmill.download.warc_ranges import CommonCrawlWARCReader
    from gristmill.download.warc_read import CommonCrawlWarcIterator, WarcReader

_HOME: dict[str, str] = {
    "CommonCrawlDownloadExtractStage": "common_crawl",
    "CommonCrawlHTMLExtractor": "pages",
    "CommonCrawlUrlGenerator": "common_crawl",
    "CommonCrawlWARCReader": "warc_ranges",
    "CommonCrawlWarcIterator": "warc_read",
    "DocumentDownloadExtractStage": "stages",
    "DocumentDownloader": "source",
    "DocumentExtractor": "source",
    "DocumentIterator": "source",
    "HTMLExtractorAlgorithm": "html",
    "HttpDownloader": "source",
    "JusTextExtractor": "html",
    "ObjectDownloader": "objects",
    "ResiliparseExtractor": "html",
    "TrafilaturaExtractor": "html",
    "URLGenerator": "source",
    "WarcReader": "warc_read",
    "get_stop_list_dict": "stop_lists",
}

__all__ = [
    "CommonCrawlDownloadExtractStage",
    "CommonCrawlHTMLExtractor",
    "CommonCrawlUrlGenerator",
    "CommonCrawlWARCReader",
    "CommonCrawlWarcIterator",
    "DocumentDownloadExtractStage",
    "DocumentDownloader",
    "DocumentExtractor",
    "DocumentIterator",
    "HTMLExtractorAlgorithm",
    "HttpDownloader",
    "JusTextExtractor",
    "ObjectDownloader",
    "ResiliparseExtractor",
    "TrafilaturaExtractor",
    "URLGenerator",
    "WarcReader",
    "get_stop_list_dict",
]

__getattr__, __dir__ = lazy(__name__, _HOME)
