"""Reads WARC and WET files, plain or gzipped, local or in an object store.

Large .gz files are split at records, so that several workers read them. The position of a row is the offset of its
record in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import EmptyTask, FileSlice
from gristmill.download.download_stages import DocumentExtractStage, DocumentIterateStage
from gristmill.download.source_interfaces import DocumentExtractor, DocumentIterator
from gristmill.download.web.common_crawl_extractor import CommonCrawlHTMLExtractor
from gristmill.download.web.html_extractors import HTMLExtractorAlgorithm
from gristmill.download.web.warc import (
    MAX_RECORD,
    RAW_BYTES_KEPT,
    WarcRecord,
    certain_record_start,
    http_response,
    read_warc,
)
from gristmill.io.read.file_listing import InputFile, Paths
from gristmill.io.read.file_partitions import WHOLE_FILES, FilePartitioningStage
from gristmill.io.storage.file_input import BadRecord, FileInput, file_system
from gristmill.samples.batch import DocumentBatch

PART = 64 * 2**20
"""Bytes of a file that one task reads."""

EXTENSIONS = [".warc", ".warc.gz", ".wet", ".wet.gz", ".warc.wet.gz"]
_COLUMNS = ["url", "warc_id", "source_id", "warc_type", "status", "content_type", "content"]


class CommonCrawlWarcIterator(DocumentIterator):
    """Yields the pages (`response`) and texts (`conversion`) of a WARC or WET file, with status and content type."""

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        record_types: Sequence[str] = ("response", "conversion"),
        max_record_bytes: int = MAX_RECORD,
    ) -> None:
        self.storage_options = dict(storage_options or {})
        self.record_types = list(record_types)
        self.max_record_bytes = max_record_bytes

    def output_columns(self) -> list[str]:
        return list(_COLUMNS)

    def parts(self, file_path: str) -> Sequence[tuple[int, int]]:
        size = self._size(file_path)
        return [(start, min(start + PART, size)) for start in range(0, size, PART)] if size > PART else ()

    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | BadRecord]:
        return self._records(file_path, 0, None)

    def iterate_part(self, file_path: str, start: int, end: int) -> Iterator[dict[str, Any] | BadRecord]:
        return self._records(file_path, start, end)

    def _records(self, path: str, start: int, end: int | None) -> Iterator[dict[str, Any] | BadRecord]:
        source_id = path.rstrip("/").rpartition("/")[2]
        kinds = frozenset(self.record_types)
        with FileInput(FileSlice(path), self.storage_options).open() as file:
            if end is not None:
                size = self._size(path)
                start = certain_record_start(file, start, size)
                end = certain_record_start(file, end, size) if end < size else None
            if end is not None and start >= end:
                return
            for record in read_warc(file, start, end, kinds, self.max_record_bytes):
                yield record if isinstance(record, BadRecord) else self._row(record, source_id)

    def _row(self, record: WarcRecord, source_id: str) -> dict[str, Any] | BadRecord:
        row = {"url": record.url, "warc_id": record.id, "source_id": source_id, "warc_type": record.kind}
        kind, status, content = record.headers.get("content-type", ""), None, record.block
        is_http = kind.lower().startswith("application/http") or record.block.startswith(b"HTTP/")
        if is_http and record.kind in ("response", "revisit"):
            try:
                answer = http_response(record.block, self.max_record_bytes)
            except ValueError as error:
                return BadRecord(record.offset, f"{error} ({record.url})", record.block[:RAW_BYTES_KEPT])
            kind, status, content = answer.headers.get("content-type", ""), answer.status, answer.body
        return {**row, "status": status, "content_type": kind, "content": content, POSITION: record.offset}

    def _size(self, path: str) -> int:
        system, inner = file_system(path, self.storage_options)
        return int(system.info(inner)["size"])


class WarcPartitioningStage(FilePartitioningStage):
    """Lists WARC files and splits large ones."""

    def _parts(self, file: InputFile) -> Iterator[tuple[FileSlice, int]]:
        if file.size is None or file.size <= PART or not file.path.endswith(".gz"):
            yield FileSlice(file.path), file.size or 0
            return
        for start in range(0, file.size, PART):
            yield FileSlice(file.path, start, min(start + PART, file.size)), PART


@dataclass(eq=False, repr=False)
class WarcReader(CompositeStage[EmptyTask, DocumentBatch]):
    """Reads WARC and WET files: the text of pages with an `extractor`, else the raw pages.

    `extractor` is "justext", "resiliparse", "trafilatura", an instance of one of their classes, or a DocumentExtractor.
    """

    file_paths: Paths
    extractor: DocumentExtractor | HTMLExtractorAlgorithm | str | None = None
    extractor_kwargs: Mapping[str, Any] | None = None
    stop_lists: Mapping[str, Iterable[str]] | None = None
    files_per_partition: int | None = None
    record_limit: int | None = None
    add_filename_column: bool | str = True
    record_types: Sequence[str] = ("response", "conversion")
    max_record_bytes: int = MAX_RECORD
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        self.decompose()  # raise for wrong parameters now, not when the pipeline is planned

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        partitioning = FilePartitioningStage if self.record_limit is not None else WarcPartitioningStage
        iterator = CommonCrawlWarcIterator(self.storage_options, self.record_types, self.max_record_bytes)
        iterate = DocumentIterateStage(iterator, self.record_limit, self.add_filename_column).with_(name="read_warc")
        stages: list[ProcessingStage[Any, Any]] = [
            partitioning(
                self.file_paths,
                self.files_per_partition,
                PART,
                self.file_extensions or EXTENSIONS,
                self.storage_options,
                self.limit,
                split_by=WHOLE_FILES,
            ),
            iterate,
        ]
        if self.extractor is not None:
            stages.append(DocumentExtractStage(self._extractor(), iterate.file_column))
        return stages

    def _extractor(self) -> DocumentExtractor:
        if isinstance(self.extractor, DocumentExtractor):
            return self.extractor
        return CommonCrawlHTMLExtractor(self.extractor, self.extractor_kwargs, self.stop_lists)
