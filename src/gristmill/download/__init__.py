"""Documents from the web: URLs to download, records of files, and the text in them.

The names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.download.arxiv.arxiv_papers import ArxivDownloadExtractStage
    from gristmill.download.arxiv.latex import LatexCleaner
    from gristmill.download.documents.pdf import PdfExtractor
    from gristmill.download.documents.zip_documents import DocxExtractor, EpubExtractor
    from gristmill.download.download_stages import DocumentDownloadExtractStage
    from gristmill.download.downloaders import DocumentDownloader, HttpDownloader, ObjectDownloader
    from gristmill.download.hub_datasets import HuggingFaceDownloadExtractStage, TinyStoriesDownloadExtractStage
    from gristmill.download.interfaces import DocumentExtractor, DocumentIterator, URLGenerator
    from gristmill.download.web.common_crawl import CommonCrawlDownloadExtractStage, CommonCrawlUrlGenerator
    from gristmill.download.web.html_extractors import (
        HTMLExtractorAlgorithm,
        JusTextExtractor,
        ResiliparseExtractor,
        TrafilaturaExtractor,
    )
    from gristmill.download.web.page_extractor import CommonCrawlHTMLExtractor
    from gristmill.download.web.stop_lists import get_stop_list_dict
    from gristmill.download.web.url_list import UrlListDownloadExtractStage
    from gristmill.download.web.warc_ranges import CommonCrawlWARCReader
    from gristmill.download.web.warc_reader import CommonCrawlWarcIterator, WarcReader
    from gristmill.download.wiki.wikipedia import WikipediaDownloadExtractStage
    from gristmill.download.wiki.wikitext import WikitextCleaner

_HOME: dict[str, str] = {
    "ArxivDownloadExtractStage": "arxiv.arxiv_papers",
    "CommonCrawlDownloadExtractStage": "web.common_crawl",
    "CommonCrawlHTMLExtractor": "web.page_extractor",
    "CommonCrawlUrlGenerator": "web.common_crawl",
    "CommonCrawlWARCReader": "web.warc_ranges",
    "CommonCrawlWarcIterator": "web.warc_reader",
    "DocumentDownloadExtractStage": "download_stages",
    "DocumentDownloader": "downloaders",
    "DocumentExtractor": "interfaces",
    "DocumentIterator": "interfaces",
    "DocxExtractor": "documents.zip_documents",
    "EpubExtractor": "documents.zip_documents",
    "HTMLExtractorAlgorithm": "web.html_extractors",
    "HttpDownloader": "downloaders",
    "HuggingFaceDownloadExtractStage": "hub_datasets",
    "JusTextExtractor": "web.html_extractors",
    "LatexCleaner": "arxiv.latex",
    "ObjectDownloader": "downloaders",
    "PdfExtractor": "documents.pdf",
    "ResiliparseExtractor": "web.html_extractors",
    "TinyStoriesDownloadExtractStage": "hub_datasets",
    "TrafilaturaExtractor": "web.html_extractors",
    "URLGenerator": "interfaces",
    "UrlListDownloadExtractStage": "web.url_list",
    "WarcReader": "web.warc_reader",
    "WikipediaDownloadExtractStage": "wiki.wikipedia",
    "WikitextCleaner": "wiki.wikitext",
    "get_stop_list_dict": "web.stop_lists",
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
