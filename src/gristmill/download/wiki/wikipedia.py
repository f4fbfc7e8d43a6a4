"""Wikipedia: downloads the dumps of a language and extracts the text of articles.

    WikipediaDownloadExtractStage(language="de", download_dir="dumps")

The status file of a dump lists its files with their checksums. Files are concatenated bz2 streams of a hundred pages
each, so several workers read one file (`wiki_dump.py`). Articles are cleaned by `wikitext.py`; redirects and pages of
other namespaces are counted and dropped.

Gives up: older revisions, talk pages, and projects other than Wikipedia.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import DownloadError
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import EmptyTask
from gristmill.download.download_stages import DocumentDownloadExtractStage
from gristmill.download.downloaders import ChecksumDownloader, file_name, manners_for_host, with_checksum
from gristmill.download.source_interfaces import DocumentExtractor, DocumentIterator, URLGenerator
from gristmill.download.wiki.wiki_dump import PART, read_pages, split_dump
from gristmill.download.wiki.wikitext import KEEP, WikitextCleaner
from gristmill.io.fetch.http_client import HttpClient, Manners
from gristmill.io.storage.file_input import BadRecord
from gristmill.samples.batch import DocumentBatch

DUMPS = "https://dumps.wikimedia.org"

_DATE = re.compile(r'href="(\d{8})/?"')
_JOBS = ("articlesmultistreamdump", "articlesdump")
_DATES_TRIED = 6
_LANGUAGE = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


class WikipediaUrlGenerator(URLGenerator):
    """Lists the files of the dump of `dump_date` (YYYYMMDD), or of the latest complete dump."""

    def __init__(
        self,
        language: str = "en",
        dump_date: str | None = None,
        wikidumps_index_prefix: str = DUMPS,
        manners: Manners | None = None,
    ) -> None:
        if not _LANGUAGE.fullmatch(language):
            raise ValueError(f"language is {language!r}, must be the code in a wiki's host name: 'en', 'zh-yue'")
        if dump_date is not None and not re.fullmatch(r"\d{8}", str(dump_date)):
            raise ValueError(f"dump_date is {dump_date!r}, must be a date such as '20240601'")
        self.language = language
        self.dump_date = dump_date
        self.wikidumps_index_prefix = wikidumps_index_prefix.rstrip("/")
        self.manners = manners_for_host(wikidumps_index_prefix, DUMPS, manners)

    @property
    def wiki(self) -> str:
        return f"{self.language.replace('-', '_')}wiki"

    def generate_urls(self) -> list[str]:
        client = HttpClient(self.manners)
        index = f"{self.wikidumps_index_prefix}/{self.wiki}/"
        if self.dump_date is not None:
            files = self._files(client, self.dump_date)
            if files is None:
                raise DownloadError(
                    f"{index}{self.dump_date}/",
                    "this dump is not complete: use another dump_date, or none for the latest",
                )
            return files
        listing = client.fetch(index).body.decode("utf-8", "replace")
        dates = sorted(set(_DATE.findall(listing)), reverse=True)
        for date in dates[:_DATES_TRIED]:
            files = self._files(client, date)
            if files:
                return files
        raise DownloadError(
            index, f"none of the latest dumps is complete: {', '.join(dates[:_DATES_TRIED]) or 'there are no dumps'}"
        )

    def _files(self, client: HttpClient, date: str) -> list[str] | None:
        """The files of the dump of one date, with checksums; None if the dump is not complete."""
        url = f"{self.wikidumps_index_prefix}/{self.wiki}/{date}/dumpstatus.json"
        try:
            jobs = orjson.loads(client.fetch(url).body).get("jobs", {})
        except DownloadError as error:
            if error.status == 404:
                return None
            raise
        except (orjson.JSONDecodeError, AttributeError) as error:
            raise DownloadError(url, f"this is not the status of a dump: {error}") from error
        for name in _JOBS:
            job = jobs.get(name, {})
            if job.get("status") == "done":
                return [self._file_url(date, file, facts) for file, facts in job["files"].items() if ".xml" in file]
        return None

    def _file_url(self, date: str, file: str, facts: dict[str, Any]) -> str:
        path = facts.get("url") or f"/{self.wiki}/{date}/{file}"
        kind = next((kind for kind in ("sha1", "md5") if facts.get(kind)), None)
        return with_checksum(f"{self.wikidumps_index_prefix}{path}", kind, facts.get(kind or ""))


class WikipediaDownloader(ChecksumDownloader):
    """Downloads the files of a dump, and verifies the checksums in their URLs."""


class WikipediaIterator(DocumentIterator):
    """Yields the pages of a dump file. Pages that are not articles have no content. `log_frequency` has no effect."""

    def __init__(self, language: str = "en", log_frequency: int = 1000) -> None:
        self.language, self.log_frequency = language, log_frequency

    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | BadRecord]:
        return self._records(file_path, 0, None)

    def parts(self, file_path: str) -> Sequence[tuple[int, int]]:
        return split_dump(file_path, PART)

    def iterate_part(self, file_path: str, start: int, end: int) -> Iterator[dict[str, Any] | BadRecord]:
        return self._records(file_path, start, end)

    def _records(self, path: str, start: int, end: int | None) -> Iterator[dict[str, Any] | BadRecord]:
        source = file_name(f"file:///{path.rsplit('/', 1)[-1]}")
        for page in read_pages(path, start, end):
            if isinstance(page, BadRecord):
                yield page
                continue
            article = page.namespace == 0 and not page.redirect and page.model in ("", "wikitext")
            yield {
                "title": page.title,
                "id": page.id,
                "url": f"https://{self.language}.wikipedia.org/wiki/{quote(page.title.replace(' ', '_'))}",
                "language": self.language,
                "source_id": source,
                "raw_content": page.text if article else "",
                "kind": "redirect" if page.redirect else "article" if article else "other",
                "namespaces": "|".join(page.namespaces),
                POSITION: page.position,
            }

    def output_columns(self) -> list[str]:
        return ["title", "id", "url", "language", "source_id", "raw_content", "kind", "namespaces"]


class WikipediaExtractor(DocumentExtractor):
    """Extracts the text of articles. `math` is "keep" for formulas as LaTeX, or "drop"."""

    def __init__(self, language: str = "en", math: str = KEEP) -> None:
        self.language, self.math = language, math
        self._cleaners: dict[str, WikitextCleaner] = {}
        self._cleaner("")

    def _cleaner(self, namespaces: str) -> WikitextCleaner:
        if namespaces not in self._cleaners:
            self._cleaners[namespaces] = WikitextCleaner(self.language, self.math, namespaces.split("|"))
        return self._cleaners[namespaces]

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        if record.get("kind", "article") != "article":
            self.count("redirects" if record["kind"] == "redirect" else "other_namespaces")
            return None
        text = self._cleaner(record.get("namespaces") or "").clean(record["raw_content"] or "", record["title"])
        if not text:
            self.count("empty_articles")
            return None
        return {"text": text, **{name: record[name] for name in self.output_columns()[1:]}}

    def input_columns(self) -> list[str]:
        return ["title", "id", "url", "language", "source_id", "raw_content"]

    def output_columns(self) -> list[str]:
        return ["text", "title", "id", "url", "language", "source_id"]


@dataclass(eq=False, repr=False)
class WikipediaDownloadExtractStage(CompositeStage[EmptyTask, DocumentBatch]):
    """Articles of Wikipedia: text, title, id, url, language, source_id and file_name.

    `log_frequency` and `verbose` have no effect; they are accepted for scripts written for NeMo Curator.
    """

    language: str = "en"
    download_dir: str = "./wikipedia_downloads"
    dump_date: str | None = None
    wikidumps_index_prefix: str = DUMPS
    verbose: bool = False
    url_limit: int | None = None
    record_limit: int | None = None
    add_filename_column: bool | str = True
    log_frequency: int = 1000
    math: str = KEEP
    manners: Manners | None = None

    def __post_init__(self) -> None:
        self.decompose()

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        urls = WikipediaUrlGenerator(self.language, self.dump_date, self.wikidumps_index_prefix, self.manners)
        return DocumentDownloadExtractStage(
            url_generator=urls,
            downloader=WikipediaDownloader(self.download_dir, self.verbose, urls.manners, workers=2),
            iterator=WikipediaIterator(self.language, self.log_frequency),
            extractor=WikipediaExtractor(self.language, self.math),
            url_limit=self.url_limit,
            record_limit=self.record_limit,
            add_filename_column=self.add_filename_column,
        ).decompose()
