"""Common Crawl: lists the files of snapshots, downloads them and extracts text.

Snapshots of the main crawl are named by year and week ("2024-10"), those of the news crawl by year and month
("2024-05").
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

import orjson

from gristmill.core.errors import DownloadError, PlanError
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import EmptyTask
from gristmill.download.download_stages import DocumentDownloadExtractStage
from gristmill.download.downloaders import (
    DocumentDownloader,
    HttpDownloader,
    ObjectDownloader,
    manners_for_host,
    read_object,
)
from gristmill.download.source_interfaces import URLGenerator
from gristmill.download.web.common_crawl_extractor import CommonCrawlHTMLExtractor
from gristmill.download.web.html_extractors import HTMLExtractorAlgorithm
from gristmill.download.web.warc_reader import CommonCrawlWarcIterator
from gristmill.io.fetch.http_client import HttpClient, Manners
from gristmill.samples.batch import DocumentBatch

HTTPS, INDEX, S3 = "https://data.commoncrawl.org", "https://index.commoncrawl.org", "s3://commoncrawl"
MAIN, NEWS = "main", "news"
FIRST_NEWS = (2016, 8)


@dataclass(eq=False)
class CommonCrawlUrlGenerator(URLGenerator):
    """Lists the files of all snapshots from `start_snapshot` to `end_snapshot`, both included."""

    start_snapshot: str
    end_snapshot: str
    crawl_type: str = MAIN
    file_type: str = "warc"
    base_url: str = HTTPS
    index_url: str = INDEX
    manners: Manners | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.crawl_type not in (MAIN, NEWS):
            raise ValueError(f"crawl_type is {self.crawl_type!r}, must be 'main' or 'news'")
        if self.file_type not in ("warc", "wet") or (self.crawl_type == NEWS and self.file_type != "warc"):
            raise ValueError(f"file_type is {self.file_type!r}, must be 'warc', or for the main crawl 'wet'")
        self._start, self._end = self._parse(self.start_snapshot), self._parse(self.end_snapshot)
        if self._start > self._end:
            raise ValueError(f"start_snapshot {self.start_snapshot!r} is after end_snapshot {self.end_snapshot!r}")
        if self.crawl_type == NEWS and self._end < FIRST_NEWS:
            raise ValueError(f"end_snapshot is {self.end_snapshot!r}: the news crawl begins with 2016-08")

    def _parse(self, snapshot: str) -> tuple[int, int]:
        match = re.fullmatch(r"(20\d\d)-(\d\d)", str(snapshot))
        last, unit = (12, "month, as in '2024-05'") if self.crawl_type == NEWS else (53, "week, as in '2024-10'")
        if not match or not 1 <= int(match[2]) <= last:
            raise ValueError(f"{snapshot!r} is not a snapshot of the {self.crawl_type} crawl: give a year and a {unit}")
        return int(match[1]), int(match[2])

    def generate_urls(self) -> list[str]:
        return self.files_of(self.listings())

    def listings(self) -> list[str]:
        """The URLs of the lists of files, one for each snapshot."""
        folders = self._news() if self.crawl_type == NEWS else self._main()
        return [f"{self.base_url.rstrip('/')}/crawl-data/{folder}/{self.file_type}.paths.gz" for folder in folders]

    def files_of(self, listings: Iterable[str]) -> list[str]:
        """The URLs of the files in lists of files."""
        urls: list[str] = []
        for listing in listings:
            try:
                lines = zlib.decompress(self._fetch(listing), zlib.MAX_WBITS | 32).decode().split()
            except zlib.error as error:
                raise PlanError(f"the list of files is damaged: {listing}: {error}. Try again") from error
            except DownloadError as error:
                hint = (
                    ": there is no such snapshot, see https://commoncrawl.org/get-started"
                    if error.status == 404
                    else ""
                )
                raise PlanError(f"the list of files cannot be fetched: {error}{hint}") from error
            urls += [f"{self.base_url.rstrip('/')}/{line}" for line in lines]
        return urls

    def _main(self) -> list[str]:
        if self._start == self._end:
            return ["CC-MAIN-{}-{:02}".format(*self._start)]
        index = f"{self.index_url.rstrip('/')}/collinfo.json"
        try:
            snapshots = orjson.loads(HttpClient(self.manners).fetch(index).body)
            names = [str(snapshot["id"]) for snapshot in snapshots]
        except (DownloadError, ValueError, KeyError, TypeError) as error:
            raise PlanError(f"the list of snapshots cannot be read: {index}: {error}") from error
        dated = [(match, name) for name in names if (match := re.fullmatch(r"CC-MAIN-(\d{4})-(\d\d)", name))]
        in_range = [name for match, name in dated if self._start <= (int(match[1]), int(match[2])) <= self._end]
        if not in_range:
            last = ", ".join(sorted(name.removeprefix("CC-MAIN-") for _, name in dated)[-5:])
            raise PlanError(
                f"there is no snapshot from {self.start_snapshot} to {self.end_snapshot}; the latest are: {last}"
            )
        return sorted(in_range)

    def _news(self) -> list[str]:
        first = max(self._start, FIRST_NEWS)
        months = range(first[0] * 12 + first[1] - 1, self._end[0] * 12 + self._end[1])
        return [f"CC-NEWS/{month // 12}/{month % 12 + 1:02}" for month in months]

    def _fetch(self, url: str) -> bytes:
        if url.startswith("s3://"):
            return read_object(url, self.storage_options)
        return HttpClient(self.manners).fetch(url).body


@dataclass(eq=False)
class MainCommonCrawlUrlGenerator(URLGenerator):
    """Lists the files of snapshots of the main crawl, as `CommonCrawlUrlGenerator` does, under NeMo Curator's names.

    `limit` is the maximum number of files.
    """

    start_snapshot_str: str
    end_snapshot_str: str
    data_prefix: str = HTTPS
    limit: int | None = None
    index_prefix: str = INDEX
    manners: Manners | None = None

    crawl_type: ClassVar[str] = MAIN

    def __post_init__(self) -> None:
        self._urls()  # raise for wrong parameters now

    def _urls(self) -> CommonCrawlUrlGenerator:
        return CommonCrawlUrlGenerator(
            self.start_snapshot_str,
            self.end_snapshot_str,
            self.crawl_type,
            base_url=self.data_prefix,
            index_url=self.index_prefix,
            manners=manners_for_host(self.data_prefix, HTTPS, self.manners),
        )

    def generate_path_urls(self) -> list[str]:
        """The URLs of the lists of files, one for each snapshot."""
        return self._urls().listings()

    def generate_data_urls(self, path_urls: str | Sequence[str] | None = None) -> list[str]:
        """The URLs of the files in the given lists, or in those of all snapshots."""
        listings = self.generate_path_urls() if path_urls is None else path_urls
        return self._urls().files_of([listings] if isinstance(listings, str) else listings)[: self.limit]

    def generate_urls(self) -> list[str]:
        return self.generate_data_urls()


class NewsCommonCrawlUrlGenerator(MainCommonCrawlUrlGenerator):
    """Lists the files of the news crawl, whose snapshots are months: "2024-05"."""

    crawl_type = NEWS


class CommonCrawlWARCDownloader(HttpDownloader):
    """Downloads files of Common Crawl by HTTP, or from S3 with `use_aws_to_download`."""

    def __init__(
        self,
        download_dir: str,
        use_aws_to_download: bool = False,
        verbose: bool = False,
        manners: Manners | None = None,
        workers: int = 2,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(download_dir, verbose, manners, workers)
        self.use_aws_to_download, self.storage_options = use_aws_to_download, dict(storage_options or {})

    def fetch(self, url: str) -> str:
        if not self.use_aws_to_download:
            return super().fetch(url)
        object_url = f"{S3}{urlsplit(url).path}" if url.startswith(("http:", "https:")) else url
        return ObjectDownloader(self.download_dir, self.verbose, self.storage_options).fetch(object_url)


@dataclass(eq=False, repr=False)
class CommonCrawlDownloadExtractStage(CompositeStage[EmptyTask, DocumentBatch]):
    """Documents of Common Crawl: `url`, `warc_id`, `source_id`, `language`, `text` and the name of the file.

    `html_extraction` is "justext" (the default), "resiliparse", "trafilatura" or an instance of one of their classes.
    `file_type="wet"` uses the text that Common Crawl has extracted. `use_aws_to_download` downloads from S3 with the
    credentials of `storage_options` or the environment. `verbose` has no effect; it is accepted for scripts written for
    NeMo Curator.
    """

    start_snapshot: str
    end_snapshot: str
    download_dir: str
    crawl_type: str = MAIN
    html_extraction: HTMLExtractorAlgorithm | str | None = None
    html_extraction_kwargs: Mapping[str, Any] | None = None
    stop_lists: Mapping[str, Iterable[str]] | None = None
    use_aws_to_download: bool = False
    verbose: bool = False
    url_limit: int | None = None
    record_limit: int | None = None
    add_filename_column: bool | str = True
    extractor_max_calls_per_worker: int | None = None
    file_type: str = "warc"
    base_url: str | None = None
    index_url: str = INDEX
    download_workers: int = 2
    requests_per_second: float | None = None
    allow_private: bool = False
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.decompose()  # raise for wrong parameters now, not when the pipeline is planned

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        return DocumentDownloadExtractStage(
            self.urls(),
            self.downloader(),
            CommonCrawlWarcIterator(),
            CommonCrawlHTMLExtractor(self.html_extraction, self.html_extraction_kwargs, self.stop_lists),
            self.url_limit,
            self.record_limit,
            self.add_filename_column,
            self.extractor_max_calls_per_worker,
        ).decompose()

    def urls(self) -> CommonCrawlUrlGenerator:
        return CommonCrawlUrlGenerator(
            self.start_snapshot,
            self.end_snapshot,
            self.crawl_type,
            self.file_type,
            self.base_url or (S3 if self.use_aws_to_download else HTTPS),
            self.index_url,
            self._manners(),
            self.storage_options or {},
        )

    def downloader(self) -> DocumentDownloader:
        return CommonCrawlWARCDownloader(
            self.download_dir,
            self.use_aws_to_download,
            self.verbose,
            self._manners(),
            self.download_workers,
            self.storage_options,
        )

    def _manners(self) -> Manners:
        return Manners(requests_per_second=self.requests_per_second, allow_private=self.allow_private)
