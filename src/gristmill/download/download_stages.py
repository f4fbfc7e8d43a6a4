"""The stages that list URLs, download files, read their records and extract rows.

Downloads have their own workers, so they go on while other workers read and extract. A file that cannot be downloaded
is a record in quarantine. If a file cannot be read to its end, the records before the damage are kept and the rest is
one record in quarantine, with its position. Files in `download_dir` are complete and are not downloaded again.

Gives up: noticing that a file has changed at its URL after it was downloaded. Delete it to download it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, table_to_rows, to_array
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import DownloadError, PlanError
from gristmill.core.resources import Resources
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage, SourceStage, WorkerMetadata
from gristmill.core.stage_roles import PlanningRole
from gristmill.core.task import EmptyTask, FileGroupTask, FileSlice, Task
from gristmill.download.downloaders import DocumentDownloader
from gristmill.download.source_interfaces import DocumentExtractor, DocumentIterator, URLGenerator
from gristmill.io.read.file_partitions import FilePartition
from gristmill.io.storage.file_input import BadRecord
from gristmill.samples.batch import DocumentBatch

FILE_NAME = "file_name"

BATCH_BYTES, BATCH_ROWS = 4 * 2**20, 512
"""A batch of records is passed on at either limit. Small, because a record that crashes its worker costs its batch."""


class URLGenerationStage(SourceStage[FileGroupTask]):
    """Lists URLs, each a source of its own. They are listed once, when the pipeline is planned."""

    name = "list_urls"
    not_identity = ("url_generator", "downloader")  # each source has its own identity: its URL

    def __init__(
        self, url_generator: URLGenerator, limit: int | None = None, downloader: DocumentDownloader | None = None
    ) -> None:
        super().__init__()
        self.url_generator, self.limit, self.downloader = url_generator, check_limit("url_limit", limit), downloader
        self._urls: list[str] = []  # a list, so that copies made by the planner share it

    def check(self) -> None:
        if not self.urls():
            raise PlanError(f"stage {self.name!r}: {type(self.url_generator).__name__} returned no URLs")
        if self.downloader is None:
            return
        url_by_path: dict[str, str] = {}
        for url in self.urls():
            other = url_by_path.setdefault(self.downloader.path_of(url), url)
            if other != url:
                raise PlanError(
                    f"stage {self.name!r}: {other} and {url} would both be saved as {self.downloader.path_of(url)}: "
                    f"override _get_output_filename of {type(self.downloader).__name__} to return different names"
                )

    def urls(self) -> Sequence[str]:
        if not self._urls:
            unique = dict.fromkeys(self.url_generator.generate_urls())
            self._urls.extend(islice(unique, self.limit))
        return self._urls

    def keep_shard(self, number: int, count: int) -> Sequence[str]:
        everything = list(self.urls())
        self._urls = everything[number::count]  # not that of the other copies
        return everything

    def sources(self) -> Iterator[Sequence[FileGroupTask]]:
        for url in self.urls():
            task = FilePartition([url], names=(url,))
            name = self.downloader._get_output_filename(url) if self.downloader else url
            task.metadata["partition"] = f"{FilePartition([url], names=(name,)).stem}-{task.key()[:8]}"
            yield [task]


class DocumentDownloadStage(ProcessingStage[FileGroupTask, FileGroupTask]):
    """Downloads the file at each URL, unless it exists."""

    name = "download"
    resources = Resources(cpus=0.5)
    max_retries = 0  # HttpDownloader has retried already
    not_identity = ("downloader",)

    def __init__(self, downloader: DocumentDownloader, iterator: DocumentIterator | None = None) -> None:
        super().__init__()
        self.downloader, self.iterator = downloader, iterator
        self.num_workers = downloader.workers

    def process(self, task: FileGroupTask) -> Iterator[FileGroupTask]:
        for url in task.data:
            path = self.downloader.download(url)
            if not path:
                no_path = DownloadError(url, f"{type(self.downloader).__name__}.download returned no path")
                raise self.downloader.failure or no_path
            self.count("files")
            name = self.downloader._get_output_filename(url)
            metadata = {**task.metadata, SOURCE_FILE: name, "url": url}
            for slices in self._split_file(path):
                yield FilePartition([path], names=(name,), slices=slices, metadata=metadata)

    def _split_file(self, path: str) -> Iterator[tuple[FileSlice, ...] | None]:
        """The parts of the file that workers can read separately, or None for the whole file."""
        parts = self.iterator.parts(path) if self.iterator else ()
        if not parts:
            yield None
        for start, end in parts:
            yield (FileSlice(path, start, end),)


class DocumentIterateStage(ProcessingStage[FileGroupTask, DocumentBatch], PlanningRole):
    """Reads the records of files, in batches of a few megabytes."""

    name = "iterate"

    def __init__(
        self,
        iterator: DocumentIterator,
        record_limit: int | None = None,
        add_filename_column: bool | str = True,
    ) -> None:
        """`record_limit` is the maximum number of records per file; files are then not split among workers."""
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
        if empty:  # a writer creates an output also for a file without records
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
        """Records with their position and the name of their file; those that cannot be read are set aside."""
        records = (
            self.iterator.iterate(part.path)
            if part.end is None
            else self.iterator.iterate_part(part.path, part.start, part.end)
        )
        number, position = 0, part.start
        try:
            for record in islice(records, self.record_limit):
                if isinstance(record, BadRecord):
                    self.set_aside(record.reason, content=record.content, file=name, position=record.position)
                    continue
                position = record.get(POSITION, number)
                number += 1
                yield {**record, **({self.file_column: name} if self.file_column else {}), POSITION: position}
        except (GeneratorExit, DownloadError):
            raise
        except Exception as error:  # noqa: BLE001  the rest is lost, but the records before it are good
            self.set_aside(
                f"{type(error).__name__}: {error} (the rest of the file, after {number:,} records, is lost)",
                content=part.path,
                file=name,
                position=position,
            )


class DocumentExtractStage(ProcessingStage[DocumentBatch, DocumentBatch], PlanningRole):
    """Turns each record into a row with a `DocumentExtractor`. A record that raises, or takes longer than `timeout_s`,
    goes to quarantine."""

    name = "extract"
    timeout_s = 120.0
    max_retries = 1

    def __init__(self, extractor: DocumentExtractor, file_column: str | None = FILE_NAME) -> None:
        super().__init__()
        self.extractor, self.file_column = extractor, file_column

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
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
            position = record.pop(POSITION, None)
            try:
                row = self.extractor.extract(record)
            except Exception as error:  # noqa: BLE001  only this record is bad
                self.set_aside(error, row=record, file=task.metadata.get(SOURCE_FILE), position=position)
                continue
            if row is None:
                continue
            if self.file_column and self.file_column in record:
                row = {**row, self.file_column: record[self.file_column]}
            rows.append({**row, POSITION: position})
        for name, value in self.extractor.take_counts().items():
            self.count(name, value)
        return task.with_data(rows_to_table(rows, list(self.outputs()[1])))


@dataclass(eq=False, repr=False)
class DocumentIterateExtractStage(CompositeStage[FileGroupTask, DocumentBatch]):
    """Reads the records of files and extracts rows. With `max_calls_per_worker` a worker is replaced after so many
    batches."""

    iterator: DocumentIterator
    extractor: DocumentExtractor | None = None
    record_limit: int | None = None
    add_filename_column: bool | str = True
    max_calls_per_worker: int | None = None

    def __post_init__(self) -> None:
        self.decompose()  # raise for wrong parameters now, not when the pipeline is planned

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        iterate = DocumentIterateStage(self.iterator, self.record_limit, self.add_filename_column)
        if self.extractor is None:
            return [iterate]
        extract = DocumentExtractStage(self.extractor, iterate.file_column)
        return [iterate, extract.with_(max_tasks_per_worker=self.max_calls_per_worker)]


@dataclass(eq=False, repr=False)
class DocumentDownloadExtractStage(CompositeStage[EmptyTask, DocumentBatch]):
    """Documents from the web: lists URLs, downloads files, reads their records and extracts rows."""

    url_generator: URLGenerator
    downloader: DocumentDownloader
    iterator: DocumentIterator
    extractor: DocumentExtractor | None = None
    url_limit: int | None = None
    record_limit: int | None = None
    add_filename_column: bool | str = True
    extractor_max_calls_per_worker: int | None = None

    def __post_init__(self) -> None:
        self.decompose()  # raise for wrong parameters now, not when the pipeline is planned

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        splitter = self.iterator if self.record_limit is None else None
        records = DocumentIterateExtractStage(
            self.iterator,
            self.extractor,
            self.record_limit,
            self.add_filename_column,
            self.extractor_max_calls_per_worker,
        )
        return [
            URLGenerationStage(self.url_generator, self.url_limit, self.downloader),
            DocumentDownloadStage(self.downloader, splitter),
            *records.decompose(),
        ]


def check_limit(name: str, limit: int | None) -> int | None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ValueError(f"{name} is {limit!r}, must be a whole number, 1 or more, or None")
    return limit


def rows_to_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> pa.Table:
    """A table of the rows: `columns` first, even if no row has them, and the position last."""
    names = [name for name in dict.fromkeys([*columns, *(name for row in rows for name in row)]) if name != POSITION]
    arrays = [_column([row.get(name) for row in rows]) for name in names]
    positions = make_array([row.get(POSITION) for row in rows], pa.int64())
    return pa.table([*arrays, positions], names=[*names, POSITION])


def _column(values: list[Any]) -> pa.Array:
    if any(isinstance(value, bytes) for value in values) and all(isinstance(value, bytes | None) for value in values):
        return make_array(values, pa.large_binary())
    if values and all(isinstance(value, str) for value in values):
        return _string_array(values)
    return to_array(values)


def _string_array(values: list[str]) -> pa.Array:
    """Lone surrogates, which are not valid Unicode, become U+FFFD."""
    try:
        return make_array(values, pa.string())
    except UnicodeEncodeError:
        return make_array(
            [value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for value in values], pa.string()
        )


def row_bytes(row: Mapping[str, Any]) -> int:
    """The approximate size of a row."""
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in row.values())
