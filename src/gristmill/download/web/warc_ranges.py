"""Reads single pages out of remote WARC files: each row of an index names a file, an offset and a length."""

from __future__ import annotations

import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import DownloadError
from gristmill.core.stage import Columns, ProcessingStage, WorkerMetadata
from gristmill.download.downloaders import read_object
from gristmill.download.web.common_crawl import HTTPS
from gristmill.download.web.warc import http_response, read_warc
from gristmill.io.fetch.http_client import HttpClient, Manners
from gristmill.io.storage.file_input import BadRecord
from gristmill.samples.batch import DocumentBatch


class CommonCrawlWARCReader(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds a column with the page of each row, given a WARC file name, an offset and a length as in the Common Crawl
    index.

    A row whose page cannot be fetched goes to quarantine; with `drop_failed=False` it is kept, with a null page.
    `use_s3` reads from `s3_bucket` with the credentials of `storage_options` or the environment.
    """

    name = "read_warc_ranges"

    def __init__(
        self,
        warc_filename_col: str = "warc_filename",
        warc_record_offset_col: str = "warc_record_offset",
        warc_record_length_col: str = "warc_record_length",
        binary_content_col: str = "binary_content",
        drop_failed: bool = True,
        max_workers: int = 16,
        timeout: float = 30,
        max_retries: int = 3,
        use_s3: bool | None = None,
        s3_bucket: str = "commoncrawl",
        s3_key_prefix: str = "",
        *,
        base_url: str = HTTPS,
        allow_private: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.warc_filename_col = warc_filename_col
        self.warc_record_offset_col, self.warc_record_length_col = warc_record_offset_col, warc_record_length_col
        self.binary_content_col, self.drop_failed = binary_content_col, drop_failed
        self.max_workers, self.timeout, self.max_retries = max_workers, timeout, max_retries
        self.use_s3, self.s3_bucket, self.s3_key_prefix = use_s3, s3_bucket, s3_key_prefix
        self.base_url, self.allow_private = base_url, allow_private
        self.storage_options = dict(storage_options or {})
        if max_workers < 1 or max_retries < 0 or timeout <= 0:
            raise ValueError(
                "CommonCrawlWARCReader: max_workers must be 1 or more, max_retries 0 or more, timeout above 0"
            )
        self._client: HttpClient | None = None

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._client = HttpClient(
            Manners(
                per_host=self.max_workers,
                connect_timeout_s=self.timeout,
                read_timeout_s=self.timeout,
                max_retries=self.max_retries,
                allow_private=self.allow_private,
            )
        )

    def teardown(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.warc_filename_col, self.warc_record_offset_col, self.warc_record_length_col]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.binary_content_col]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        columns = [*self.inputs()[1], *([POSITION] if POSITION in task.get_columns() else [])]
        rows = table_to_rows(task.data.select(columns))
        with ThreadPoolExecutor(self.max_workers) as threads:
            answers = list(threads.map(self._page_or_error, rows))
        failed = [index for index, answer in enumerate(answers) if isinstance(answer, Exception)]
        pages = [None if isinstance(answer, Exception) else answer for answer in answers]
        batch = task.with_column(self.binary_content_col, make_array(pages, pa.large_binary()))
        if not self.drop_failed:
            self.count("failed", len(failed))
            return batch
        for index in failed:
            position = rows[index].pop(POSITION, None)
            answer = answers[index]
            assert isinstance(answer, Exception)
            self.set_aside(answer, row=rows[index], file=task.metadata.get(SOURCE_FILE), position=position)
        if not failed:
            return batch
        return batch.keep(make_array([not isinstance(answer, Exception) for answer in answers], pa.bool_()))

    def _page_or_error(self, row: Mapping[str, Any]) -> bytes | Exception:
        try:
            return self._page(row)
        except (DownloadError, ValueError, TypeError) as error:
            return error

    def _page(self, row: Mapping[str, Any]) -> bytes:
        name = row[self.warc_filename_col]
        start, length = int(row[self.warc_record_offset_col]), int(row[self.warc_record_length_col])
        if not name or start < 0 or length < 1:
            raise ValueError(f"not a range of a WARC file: {name!r}, offset {start:,}, length {length:,}")
        raw = self._range(str(name), start, start + length)
        record = next(read_warc(io.BytesIO(raw)), None)
        if record is None or isinstance(record, BadRecord):
            why = record.reason if record else "no WARC record"
            raise ValueError(f"{name}, {length:,} bytes at offset {start:,}: {why}")
        is_http = record.headers.get("content-type", "").lower().startswith("application/http")
        return http_response(record.block).body if is_http else record.block

    def _range(self, name: str, start: int, end: int) -> bytes:
        if self.use_s3:
            return read_object(f"s3://{self.s3_bucket}/{self.s3_key_prefix}{name}", self.storage_options, start, end)
        assert self._client is not None
        return self._client.fetch(f"{self.base_url.rstrip('/')}/{name}", byte_range=(start, end)).body
