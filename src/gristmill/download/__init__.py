"""Sources on the web: what to fetch, how, and the text in it.

The names below are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.download.arxiv import ArxivDownloadExtractStage
    from gristmill.download.common_crawl import CommonCrawlDownloadExtractStage, CommonCrawlUrlGenerator
    from gristmill.download.docx import DocxExtractor
    from gristmill.download.epub import EpubExtractor
    from gristmill.download.html import (
        HTMLExtractorAlgorithm,
        JusTextExtractor,
        ResiliparseExtractor,
        TrafilaturaExtractor,
    )
    from gristmill.download.hub import HuggingFaceDownloadExtractStage
    from gristmill.download.latex import LatexCleaner
    from gristmill.download.objects import ObjectDownloader
    from gristmill.download.pages import CommonCrawlHTMLExtractor
    from gristmill.download.pdf import PdfExtractor
    from gristmill.download.source import (
        DocumentDownloader,
        DocumentExtractor,
        DocumentIterator,
        HttpDownloader,
        URLGenerator,
    )
    from gristmill.download.stages import DocumentDownloadExtractStage
    from gristmill.download.stop_lists import get_stop_list_dict
    from gristmill.download.tinystories import TinyStoriesDownloadExtractStage
    from gristmill.download.urls import UrlListDownloadExtractStage
    from gristmill.download.warc_ranges import CommonCrawlWARCReader
    from gristmill.download.warc_read import CommonCrawlWarcIterator, WarcReader
    from gristmill.download.wikipedia import WikipediaDownloadExtractStage
    from gristmill.download.wikitext import WikitextCleaner

_HOME: dict[str, str] = {
    "ArxivDownloadExtractStage": "arxiv",
    "CommonCrawlDownloadExtractStage": "common_crawl",
    "CommonCrawlHTMLExtractor": "pages",
    "CommonCrawlUrlGenerator": "common_crawl",
    "CommonCrawlWARCReader": "warc_ranges",
    "CommonCrawlWarcIterator": "warc_read",
    "DocumentDownloadExtractStage": "stages",
    "DocumentDownloader": "source",
    "DocumentExtractor": "source",
    "DocumentIterator": "source",
    "DocxExtractor": "docx",
    "EpubExtractor": "epub",
    "HTMLExtractorAlgorithm": "html",
    "HttpDownloader": "source",
    "HuggingFaceDownloadExtractStage": "hub",
    "JusTextExtractor": "html",
    "LatexCleaner": "latex",
    "ObjectDownloader": "objects",
    "PdfExtractor": "pdf",
    "ResiliparseExtractor": "html",
    "TinyStoriesDownloadExtractStage": "tinystories",
    "TrafilaturaExtractor": "html",
    "URLGenerator": "source",
    "UrlListDownloadExtractStage": "urls",
    "WarcReader": "warc_read",
    "WikipediaDownloadExtractStage": "wikipedia",
    "WikitextCleaner": "wikitext",
    "get_stop_list_dict": "stop_lists",
}

__all__ = [
    "ArxivDownloadExtractStage",
    "CommonCrawlDownloadExtractStage",
    "CommonCrawlHTMLExtractor",
    "CommonCrawlUrlGenerator",
    "CommonCrawlWARCReader",
    "CommonCrawlWarcIterator",
    "DocumentDownloadExtractStage",
    "DocumentDownloader",
    "DocumentExtractor",
    "DocumentIterator",
    "DocxExtractor",
    "EpubExtractor",
    "HTMLExtractorAlgorithm",
    "HttpDownloader",
    "HuggingFaceDownloadExtractStage",
    "JusTextExtractor",
    "LatexCleaner",
    "ObjectDownloader",
    "PdfExtractor",
    "ResiliparseExtractor",
    "TinyStoriesDownloadExtractStage",
    "TrafilaturaExtractor",
    "URLGenerator",
    "UrlListDownloadExtractStage",
    "WarcReader",
    "WikipediaDownloadExtractStage",
    "WikitextCleaner",
    "get_stop_list_dict",
]

__getattr__, __dir__ = lazy(__name__, _HOME)
