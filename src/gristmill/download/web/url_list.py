"""Fetches the URLs in text files and extracts documents: HTML, PDF, EPUB, DOCX or plain text.

    UrlListDownloadExtractStage("urls.txt")

Files have one URL per line. The kind of a document is detected from its first bytes, then from the Content-Type of the
server. A URL that cannot be fetched, or whose document cannot be read, is a record in quarantine.

Gives up: keeping the fetched files. Running the pipeline again fetches them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import DownloadError
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage, WorkerMetadata
from gristmill.core.task import EmptyTask, FileGroupTask
from gristmill.download.documents.docx_epub import DocxExtractor, EpubExtractor
from gristmill.download.documents.pdf import PdfExtractor
from gristmill.download.download_stages import DocumentExtractStage, rows_to_table
from gristmill.download.source_interfaces import DocumentExtractor
from gristmill.download.web.charset import decode_page
from gristmill.download.web.common_crawl_extractor import CommonCrawlHTMLExtractor
from gristmill.io.fetch.http_client import HttpClient, Manners
from gristmill.io.formats.plain_text import TEXT_COLUMN, read_text_lines
from gristmill.io.read.file_listing import Paths
from gristmill.io.read.file_partitions import BY_LINES, FilePartition, FilePartitioningStage
from gristmill.io.storage.file_input import BadRecord, FileInput
from gristmill.samples.batch import DocumentBatch

URLS_PER_BATCH = 32
"""URLs per batch, and so the maximum number of threads. The contents of a batch are in memory at the same time."""

_HTML = (b"<!doctype html", b"<html", b"<head", b"<body")


class UrlReadStage(ProcessingStage[FileGroupTask, DocumentBatch]):
    """Reads URLs from files in small batches. Lines that begin with # are comments."""

    name = "read_urls"

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["url"]

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        for part in task.parts():
            name = task.name_of(part.path) if isinstance(task, FilePartition) else part.path
            source = FileInput(part, task.storage_options, on_bad=partial(self._set_aside, name))
            rows: list[dict[str, Any]] = []
            for table in read_text_lines(source):
                for row in table_to_rows(table):
                    url = row[TEXT_COLUMN].strip()
                    if not url.startswith("#"):
                        rows.append({"url": url, POSITION: row[POSITION]})
            for start in range(0, max(len(rows), 1), URLS_PER_BATCH):
                table = rows_to_table(rows[start : start + URLS_PER_BATCH], ["url"])
                yield DocumentBatch(
                    table, dataset_name=task.dataset_name, metadata={**task.metadata, SOURCE_FILE: name}
                )

    def _set_aside(self, name: str, record: BadRecord) -> None:
        self.set_aside(record.reason, content=record.content, file=name, position=record.position)


class UrlFetchStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Fetches the URL in a column of each row and adds `content` (bytes) and `content_type`."""

    name = "fetch_urls"
    max_retries = 0  # the client has retried already

    def __init__(
        self,
        url_field: str = "url",
        manners: Manners | None = None,
        max_bytes: int = 32 * 2**20,
        threads: int = 16,
    ) -> None:
        super().__init__()
        self.url_field, self.manners, self.max_bytes, self.threads = url_field, manners, max_bytes, threads
        self._client: HttpClient | None = None

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._client = HttpClient(self.manners)

    def teardown(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.url_field]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["content", "content_type"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        rows = table_to_rows(task.data)
        with ThreadPoolExecutor(max(1, min(self.threads, len(rows)))) as pool:
            answers = list(pool.map(self._fetch, rows))
        kept = []
        for row, answer in zip(rows, answers, strict=True):
            if isinstance(answer, DownloadError):
                position = row.pop(POSITION, None)
                self.set_aside(answer, row=row, file=task.metadata.get(SOURCE_FILE), position=position)
            else:
                kept.append({**row, **answer})
        names = [name for name in task.data.column_names if name != POSITION]
        return task.with_data(rows_to_table(kept, [*names, "content", "content_type"]))

    def _fetch(self, row: Mapping[str, Any]) -> dict[str, Any] | DownloadError:
        client = self._client or HttpClient(self.manners)
        try:
            answer = client.fetch(str(row[self.url_field] or ""), max_bytes=self.max_bytes)
        except DownloadError as error:
            return error
        return {"content": answer.body, "content_type": answer.headers.get("content-type", "")}


class ContentExtractor(DocumentExtractor):
    """Extracts the text of HTML, PDF, EPUB, DOCX and plain text. Content of other kinds is dropped and counted."""

    def __init__(self, html: DocumentExtractor | None = None, url_field: str = "url") -> None:
        self.url_field = url_field
        self.by_kind: dict[str, DocumentExtractor] = {
            "html": html or CommonCrawlHTMLExtractor(),
            "pdf": PdfExtractor(),
            "epub": EpubExtractor(),
            "docx": DocxExtractor(),
        }
        self._set_up: set[str] = set()

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        content, content_type = record["content"] or b"", record.get("content_type") or ""
        kind = content_kind(content, content_type, str(record.get(self.url_field) or ""))
        rest = {name: value for name, value in record.items() if name not in ("content", "content_type")}
        if kind == "text":
            text = decode_page(content, content_type).strip()
            row: Mapping[str, Any] | None = {"text": text} if text else None
        elif kind in self.by_kind:
            if kind == "html" and "html" not in content_type:  # the page extractor drops other content types
                content_type = ""
            row = self._extract_with(kind, {**record, "content_type": content_type})
        else:
            self.count(f"no_text_of_{kind}")
            return None
        return None if row is None else {"text": row["text"], "kind": kind, **rest}

    def _extract_with(self, kind: str, record: dict[str, Any]) -> Mapping[str, Any] | None:
        extractor = self.by_kind[kind]
        if kind not in self._set_up:  # lazily: a library is needed only if its kind occurs
            extractor.setup()
            self._set_up.add(kind)
        row = extractor.extract(record)
        for name, value in extractor.take_counts().items():
            self.count(name, value)
        return row

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_set_up": set()}

    def input_columns(self) -> list[str]:
        return ["content", "content_type"]

    def output_columns(self) -> list[str]:
        return ["text", "kind", self.url_field]


def content_kind(content: bytes, content_type: str, url: str = "") -> str:  # noqa: PLR0911  one for each kind
    """The kind of content, from its first bytes, then its Content-Type, then its URL."""
    head = content[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if content[:1024].find(b"%PDF-") >= 0:
        return "pdf"
    if content.startswith(b"PK\x03\x04"):
        return "epub" if b"application/epub+zip" in content[:200] else "docx" if b"word/" in content else "zip"
    if head.startswith(_HTML) or any(mark in head for mark in _HTML[:2]):
        return "html"
    media_type = content_type.partition(";")[0].strip().lower()
    if "html" in media_type:
        return "html"
    if media_type.startswith("text/") or (not media_type and b"\0" not in head):
        return "text"
    if media_type == "application/octet-stream" and urlsplit(url).path.lower().endswith((".txt", ".md")):
        return "text"
    return media_type.rpartition("/")[2].replace("+", "_") or "unknown"


@dataclass(eq=False, repr=False)
class UrlListDownloadExtractStage(CompositeStage[EmptyTask, DocumentBatch]):
    """Documents from files that list URLs: text, kind and url."""

    file_paths: Paths
    manners: Manners | None = None
    max_bytes: int = 32 * 2**20
    threads: int = 16
    html_extraction: DocumentExtractor | None = None
    storage_options: dict[str, Any] | None = None

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        extensions = [".txt", ".urls", ".list", ".lst", ".txt.gz", ".txt.zst"]
        return [
            FilePartitioningStage(
                self.file_paths,
                blocksize=2**16,
                file_extensions=extensions,
                storage_options=self.storage_options,
                split_by=BY_LINES,
            ),
            UrlReadStage(),
            UrlFetchStage(manners=self.manners, max_bytes=self.max_bytes, threads=self.threads),
            DocumentExtractStage(ContentExtractor(self.html_extraction), None),
        ]
