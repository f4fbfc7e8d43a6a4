"""The stages of a source: list what there is, fetch it, read records, extract.

Fetching has workers of its own, so it goes on while others read and extract. A file that cannot be fetched is a record
in quarantine. So is the rest of a file that cannot be read on, with the place; records before it are kept. Files
that are in `download_dir` are whole and are not fetched again.

What is given up: knowing that a file has changed at its address, once it was fetched. Remove it to have it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import DownloadError, PlanError
from gristmill.core.resources import Resources
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage, SourceStage, WorkerMetadata
from gristmill.core.stage_roles import PlanningRole
from gristmill.core.task import EmptyTask, FileGroupTask, FileSlice, Task
from gristmill.download.interfaces import DocumentDownloader, DocumentExtractor, DocumentIterator, URLGenerator
from gristmill.download.record_tables import row_bytes, rows_to_table
from gristmill.io.read.file_partitions import FilePartition
from gristmill.io.storage.file_input import BadRecord
from gristmill.samples.batch import DocumentBatch

FILE_NAME = "file_name"

BATCH_BYTES, BATCH_ROWS = 4 * 2**20, 512
"""A batch of records is passed on when it has so many: as much as one worker should lose by one bad record."""


class URLGenerationStage(SourceStage[FileGroupTask]):
    """Lists addresses, each a source of its own. They are listed once, when the pipeline is planned."""

    name = "list_urls"
    not_identity = ("url_generator", "downloader")  # sources have identities of their own

    def __init__(
        self, url_generator: URLGenerator, limit: int | None = None, downloader: DocumentDownloader | None = None
    ) -> None:
        super().__init__()
        self.url_generator, self.limit, self.downloader = url_generator, check_limit("url_limit", limit), downloader
        self._urls: list[str] = []  # shared by the copies that planners make

    def check(self) -> None:
        if not self.urls():
            raise PlanError(f"stage {self.name!r}: {type(self.url_generator).__name__} gives no address at all")
        if self.downloader is None:
            return
        taken: dict[str, str] = {}
        for url in self.urls():
            other = taken.setdefault(self.downloader.path_of(url), url)
            if other != url:
                raise PlanError(
                    f"stage {self.name!r}: {other} and {url} would both be {self.downloader.path_of(url)}: write a "
                    f"_get_output_filename for {type(self.downloader).__name__} that tells them apart"
                )

    def urls(self) -> Sequence[str]:
        if not self._urls:
            found = dict.fromkeys(self.url_generator.generate_urls())
            self._urls.extend(islice(found, self.limit))
        return self._urls

    def sources(self) -> Iterator[Sequence[FileGroupTask]]:
        for url in self.urls():
            task = FilePartition([url], names=(url,))
            name = self.downloader._get_output_filename(url) if self.downloader else url
            task.metadata["partition"] = f"{FilePartition([url], names=(name,)).stem}-{task.key()[:8]}"
            yield [task]


class DocumentDownloadStage(ProcessingStage[FileGroupTask, FileGroupTask]):
    """Fetches the file at each address, unless it is there."""

    name = "download"
    resources = Resources(cpus=0.5)
    max_retries = 0  # a downloader that cares has tried several times already
    not_identity = ("downloader",)

    def __init__(self, downloader: DocumentDownloader, iterator: DocumentIterator | None = None) -> None:
        super().__init__()
        self.downloader, self.iterator = downloader, iterator
        self.num_workers = downloader.workers

    def process(self, task: FileGroupTask) -> Iterator[FileGroupTask]:
        for url in task.data:
            path = self.downloader.download(url)
            if not path:
                raise DownloadError(url, f"{type(self.downloader).__name__} could not fetch it")
            self.count("files")
            name = self.downloader._get_output_filename(url)
            metadata = {**task.metadata, SOURCE_FILE: name, "url": url}
            for slices in self._split_file(path):
                yield FilePartition([path], names=(name,), slices=slices, metadata=metadata)

    def _split_file(self, path: str) -> Iterator[tuple[FileSlice, ...] | None]:
        """The parts that several workers can work on, or the file as one."""
        parts = self.iterator.parts(path) if self.iterator else ()
        if not parts:
            yield None
        for start, end in parts:
            yield (FileSlice(path, start, end),)


class DocumentIterateStage(ProcessingStage[FileGroupTask, DocumentBatch], PlanningRole):
    """Reads the records of files, and passes them on in batches of a few megabytes."""

    name = "iterate"

    def __init__(
        self,
        iterator: DocumentIterator,
        record_limit: int | None = None,
        add_filename_column: bool | str = True,
    ) -> None:
        """`record_limit` is the most records of a file, and keeps a file from being shared out."""
        super().__init__()
        self.iterator, self.record_limit = iterator, check_limit("record_limit", record_limit)
        self.add_filename_column = add_filename_column

    @property
    def file_column(self) -> str | None:
        if isinstance(self.add_filename_column, str):
            return self.add_filename_column
        return FILE_NAME if self.add_filename_column else None

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [*self.iterator.output_columns(), *([self.file_column] if self.file_column else [])]

    def peek_columns(self, sample: Task[Any]) -> Mapping[str, Any] | None:
        return dict.fromkeys(self.outputs()[1]) if self.iterator.output_columns() else None

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        empty = True
        for part in task.parts():
            name = task.name_of(part.path) if isinstance(task, FilePartition) else part.path
            metadata = {**task.metadata, SOURCE_FILE: name}
            for rows in self._batches(part, name):
                empty = False
                yield DocumentBatch(rows_to_table(rows), dataset_name=task.dataset_name, metadata=metadata)
        if empty:  # a writer wants to know of a file that gives nothing
            yield DocumentBatch(
                pa.table({POSITION: make_array([], pa.int64())}), dataset_name=task.dataset_name, metadata=task.metadata
            )

    def _batches(self, part: FileSlice, name: str) -> Iterator[list[dict[str, Any]]]:
        rows: list[dict[str, Any]] = []
        size = 0
        for row in self._rows(part, name):
            rows.append(row)
            size += row_bytes(row)
            if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
                yield rows
                rows, size = [], 0
        if rows:
            yield rows

    def _rows(self, part: FileSlice, name: str) -> Iterator[dict[str, Any]]:
        """Records with their place and the name of their file; those that cannot be read are set aside."""
        whole = part.end is None
        steps = (
            self.iterator.iterate(part.path)
            if whole
            else self.iterator.iterate_part(part.path, part.start, part.end or 0)
        )
        number, place = 0, part.start
        try:
            for record in islice(steps, self.record_limit):
                if isinstance(record, BadRecord):
                    self.set_aside(record.reason, content=record.content, file=name, position=record.position)
                    continue
                place = record.get(POSITION, number)
                number += 1
                yield {**record, **({self.file_column: name} if self.file_column else {}), POSITION: place}
        except (GeneratorExit, DownloadError):
            raise
        except Exception as error:  # noqa: BLE001  what follows cannot be read, and what came before is good
            self.set_aside(
                f"{type(error).__name__}: {error} (the rest of the file, after {number:,} records)",
                content=part.path,
                file=name,
                position=place,
            )


class DocumentExtractStage(ProcessingStage[DocumentBatch, DocumentBatch], PlanningRole):
    """Makes of each record what is wanted of it. A record that this fails on goes to quarantine, also one that it does
    not come back from within `timeout_s`."""

    name = "extract"
    timeout_s = 120.0
    max_retries = 1

    def __init__(self, extractor: DocumentExtractor, file_column: str | None = FILE_NAME) -> None:
        super().__init__()
        self.extractor, self.file_column = extractor, file_column

    def setup(self, worker_metadata: WorkerMetadata) -> None:
        self.extractor.setup()

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], self.extractor.input_columns()

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [*self.extractor.output_columns(), *([self.file_column] if self.file_column else [])]

    def peek_columns(self, sample: Task[Any]) -> Mapping[str, Any] | None:
        return dict.fromkeys(self.outputs()[1]) if self.extractor.output_columns() else None

    def process(self, task: DocumentBatch) -> DocumentBatch:
        rows = []
        for record in table_to_rows(task.data):
            place = record.pop(POSITION, None)
            try:
                row = self.extractor.extract(record)
            except Exception as error:  # noqa: BLE001  of this record; the others are good
                self.set_aside(error, row=record, file=task.metadata.get(SOURCE_FILE), position=place)
                continue
            if row is None:
                continue
            if self.file_column and self.file_column in record:
                row = {**row, self.file_column: record[self.file_column]}
            rows.append({**row, POSITION: place})
        for name, value in self.extractor.take_counts().items():
            self.count(name, value)
        return task.with_data(rows_to_table(rows, list(self.outputs()[1])))


@dataclass(eq=False, repr=False)
class DocumentDownloadExtractStage(CompositeStage[EmptyTask, DocumentBatch]):
    """Documents from the web: lists addresses, fetches files, reads their records, extracts what is wanted."""

    url_generator: URLGenerator
    downloader: DocumentDownloader
    iterator: DocumentIterator
    extractor: DocumentExtractor | None = None
    url_limit: int | None = None
    record_limit: int | None = None
    add_filename_column: bool | str = True
    extractor_max_calls_per_worker: int | None = None

    def __post_init__(self) -> None:
        self.decompose()  # wrong parameters are errors here

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        shared = self.iterator if self.record_limit is None else None
        iterate = DocumentIterateStage(self.iterator, self.record_limit, self.add_filename_column)
        stages: list[ProcessingStage[Any, Any]] = [
            URLGenerationStage(self.url_generator, self.url_limit, self.downloader),
            DocumentDownloadStage(self.downloader, shared),
            iterate,
        ]
        if self.extractor is not None:
            extract = DocumentExtractStage(self.extractor, iterate.file_column)
            stages.append(extract.with_(max_tasks_per_worker=self.extractor_max_calls_per_worker))
        return stages


def check_limit(name: str, limit: int | None) -> int | None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ValueError(f"{name} is {limit!r}, must be a whole number, 1 or more, or None")
    return limit
