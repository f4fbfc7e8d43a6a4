"""Web sources: which URLs to download, how, and extraction of the text.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.download.arxiv.arxiv_papers import ArxivDownloader as ArxivDownloader
    from gristmill.download.arxiv.arxiv_papers import ArxivDownloadExtractStage as ArxivDownloadExtractStage
    from gristmill.download.arxiv.arxiv_papers import ArxivExtractor as ArxivExtractor
    from gristmill.download.arxiv.arxiv_papers import ArxivIterator as ArxivIterator
    from gristmill.download.arxiv.arxiv_papers import ArxivUrlGenerator as ArxivUrlGenerator
    from gristmill.download.arxiv.latex import LatexCleaner as LatexCleaner
    from gristmill.download.documents.docx_epub import DocxExtractor as DocxExtractor
    from gristmill.download.documents.docx_epub import EpubExtractor as EpubExtractor
    from gristmill.download.documents.pdf import PdfExtractor as PdfExtractor
    from gristmill.download.download_stages import DocumentDownloadExtractStage as DocumentDownloadExtractStage
    from gristmill.download.download_stages import DocumentDownloadStage as DocumentDownloadStage
    from gristmill.download.download_stages import DocumentIterateExtractStage as DocumentIterateExtractStage
    from gristmill.download.download_stages import URLGenerationStage as URLGenerationStage
    from gristmill.download.downloaders import DocumentDownloader as DocumentDownloader
    from gristmill.download.downloaders import HttpDownloader as HttpDownloader
    from gristmill.download.downloaders import ObjectDownloader as ObjectDownloader
    from gristmill.download.hub_datasets import HuggingFaceDownloadExtractStage as HuggingFaceDownloadExtractStage
    from gristmill.download.hub_datasets import TinyStoriesDownloadExtractStage as TinyStoriesDownloadExtractStage
    from gristmill.download.source_interfaces import DocumentExtractor as DocumentExtractor
    from gristmill.download.source_interfaces import DocumentIterator as DocumentIterator
    from gristmill.download.source_interfaces import URLGenerator as URLGenerator
    from gristmill.download.web.common_crawl import CommonCrawlDownloadExtractStage as CommonCrawlDownloadExtractStage
    from gristmill.download.web.common_crawl import CommonCrawlUrlGenerator as CommonCrawlUrlGenerator
    from gristmill.download.web.common_crawl import CommonCrawlWARCDownloader as CommonCrawlWARCDownloader
    from gristmill.download.web.common_crawl import MainCommonCrawlUrlGenerator as MainCommonCrawlUrlGenerator
    from gristmill.download.web.common_crawl import NewsCommonCrawlUrlGenerator as NewsCommonCrawlUrlGenerator
    from gristmill.download.web.common_crawl_extractor import CommonCrawlHTMLExtractor as CommonCrawlHTMLExtractor
    from gristmill.download.web.html_extractors import HTMLExtractorAlgorithm as HTMLExtractorAlgorithm
    from gristmill.download.web.html_extractors import JusTextExtractor as JusTextExtractor
    from gristmill.download.web.html_extractors import ResiliparseExtractor as ResiliparseExtractor
    from gristmill.download.web.html_extractors import TrafilaturaExtractor as TrafilaturaExtractor
    from gristmill.download.web.stop_lists import get_stop_list_dict as get_stop_list_dict
    from gristmill.download.web.url_list import UrlListDownloadExtractStage as UrlListDownloadExtractStage
    from gristmill.download.web.warc_ranges import CommonCrawlWARCReader as CommonCrawlWARCReader
    from gristmill.download.web.warc_reader import CommonCrawlWarcIterator as CommonCrawlWarcIterator
    from gristmill.download.web.warc_reader import WarcReader as WarcReader
    from gristmill.download.wiki.wikipedia import WikipediaDownloader as WikipediaDownloader
    from gristmill.download.wiki.wikipedia import WikipediaDownloadExtractStage as WikipediaDownloadExtractStage
    from gristmill.download.wiki.wikipedia import WikipediaExtractor as WikipediaExtractor
    from gristmill.download.wiki.wikipedia import WikipediaIterator as WikipediaIterator
    from gristmill.download.wiki.wikipedia import WikipediaUrlGenerator as WikipediaUrlGenerator
    from gristmill.download.wiki.wikitext import WikitextCleaner as WikitextCleaner
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
