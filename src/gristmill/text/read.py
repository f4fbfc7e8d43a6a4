"""Readers of documents from files.

    JsonlReader     .jsonl .json .ndjson, also .gz and .zst   split by lines
    ParquetReader   .parquet .pq                              split by row groups
    CsvReader       .csv .tsv, also .gz and .zst              streamed
    ArrowReader     .arrow .arrows .ipc .feather              streamed
    TextReader      .txt .text .md, also .gz and .zst         a document per file or per line

Each is a composite of `list_files` and a reading stage. A record that cannot be read goes to quarantine, with its file,
position and bytes; with `on_bad_record="skip"` it is only counted, with "raise" it stops the run. With the first two,
the records around it are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import FileGroupTask
from gristmill.io.formats import format_detection
from gristmill.io.formats.arrow import peek_arrow, read_arrow
from gristmill.io.formats.declared_schema import Schema, SetColumnTypes
from gristmill.io.formats.jsonl import peek_jsonl, read_jsonl
from gristmill.io.formats.line_blocks import MAX_LINE_BYTES
from gristmill.io.formats.pandas_options import types_of_dtype
from gristmill.io.formats.parquet import peek_parquet, read_parquet
from gristmill.io.formats.plain_text import FILE_NAME_COLUMN, TEXT_COLUMN, peek_text, read_text_file, read_text_lines
from gristmill.io.read.composite_reader import CompositeReader
from gristmill.io.read.file_listing import Paths
from gristmill.io.read.file_partitions import BY_LINES, BY_ROW_GROUPS, WHOLE_FILES, FilePartitioningStage
from gristmill.io.read.files_reader import QUARANTINE, SKIP, FilesReader, relative_file_name
from gristmill.io.read.reread import JSONL_FORMAT, PARQUET_FORMAT
from gristmill.io.storage.file_input import FileInput
from gristmill.samples.batch import DocumentBatch

if TYPE_CHECKING:
    from gristmill.io.formats.csv import CsvFormat


class ReaderStage(FilesReader[FileGroupTask, DocumentBatch]):
    """Reads documents from the files of a task, block by block. A format overrides `tables` and `schema`."""

    kind = DocumentBatch


class JsonlReaderStage(ReaderStage):
    """JSON lines. `read_kwargs`: max_line_bytes."""

    name = "read_jsonl"
    unit = "byte"
    options = ("max_line_bytes",)
    reread_format = JSONL_FORMAT

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        return read_jsonl(source, self.fields, self.read_kwargs.get("max_line_bytes", MAX_LINE_BYTES))

    def schema(self, source: FileInput) -> pa.Schema | None:
        return peek_jsonl(source, self.fields, strict=self.on_bad_record != SKIP)


class ParquetReaderStage(ReaderStage):
    """Parquet."""

    name = "read_parquet"
    reread_format = PARQUET_FORMAT

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        return read_parquet(source, self.fields)

    def schema(self, source: FileInput) -> pa.Schema | None:
        return peek_parquet(source, self.fields)


class ArrowReaderStage(ReaderStage):
    """Arrow IPC files and streams, Feather."""

    name = "read_arrow"

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        return read_arrow(source, self.fields)

    def schema(self, source: FileInput) -> pa.Schema | None:
        return peek_arrow(source, self.fields)


class CsvReaderStage(ReaderStage):
    """CSV and TSV. `read_kwargs`: delimiter, quote_char, escape_char, column_names, column_types."""

    name = "read_csv"
    options = ("delimiter", "quote_char", "escape_char", "column_names", "column_types")

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        from gristmill.io.formats.csv import read_csv

        return read_csv(source, self.fields, self._form())

    def schema(self, source: FileInput) -> pa.Schema | None:
        from gristmill.io.formats.csv import peek_csv

        return peek_csv(source, self.fields, self._form())

    def _form(self) -> CsvFormat:
        from gristmill.io.formats.csv import CsvFormat

        return CsvFormat(**{key: value for key, value in self.read_kwargs.items() if key in self.options})


class TextReaderStage(ReaderStage):
    """Plain text, a document per file (with its name in `file_name`) or per line."""

    name = "read_text"
    unit = "byte"
    options = ("max_line_bytes",)

    def __init__(self, per: str = "file", **settings: Any) -> None:
        super().__init__(**settings)
        if per not in ("file", "line"):
            raise ValueError(f"per is {per!r}, must be 'file' or 'line'")
        if self.fields is not None and not set(self.fields) <= {TEXT_COLUMN, FILE_NAME_COLUMN}:
            raise ValueError(
                f"fields is {self.fields!r}: plain text has only {TEXT_COLUMN!r} (and {FILE_NAME_COLUMN!r} per file)"
            )
        self.per = per

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        if self.per == "line":
            yield from super().process(task)
            return
        rows: list[tuple[str, str, int]] = []
        size = 0
        empty = True
        for part in task.parts():
            text = read_text_file(self.source(task, part), self._limit())
            if text is not None:
                rows.append((text, relative_file_name(task, part), task.data.index(part.path)))
                size += len(text)
                empty = False
            if size >= self.blocksize:
                yield self.batch(task, self._files_table(rows), {})
                rows, size = [], 0
        if rows:
            yield self.batch(task, self._files_table(rows), {})
        if empty:
            yield self.empty_batch(task)

    def _files_table(self, rows: Sequence[tuple[str, str, int]]) -> pa.Table:
        """One row per file; its position is that of the file in the partition."""
        columns = dict(zip((TEXT_COLUMN, FILE_NAME_COLUMN, POSITION), map(list, zip(*rows, strict=True)), strict=True))
        return pa.table(columns).select([*(self.fields or (TEXT_COLUMN, FILE_NAME_COLUMN)), POSITION])

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        return read_text_lines(source, self._limit())

    def schema(self, source: FileInput) -> pa.Schema | None:
        return peek_text(source, per_file=self.per == "file")

    def _limit(self) -> int:
        return int(self.read_kwargs.get("max_line_bytes", MAX_LINE_BYTES))


@dataclass(eq=False, repr=False)
class FileReader(CompositeReader[DocumentBatch]):
    """Base of the readers of documents."""

    file_paths: Paths
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    fields: Sequence[str] | None = None
    read_kwargs: Mapping[str, Any] | None = None
    task_type: str = "document"
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None
    schema: Schema | None = None
    """Types of columns, as in `{"id": "string"}`; rows that do not fit go to quarantine."""

    reader: ClassVar[type[ReaderStage]]

    def __post_init__(self) -> None:
        if self.task_type != "document":
            raise ValueError(f"task_type is {self.task_type!r}: this reader returns documents only ('document')")
        given = dict(self.read_kwargs or {})
        types = types_of_dtype(given.get("dtype"))
        if types and self.schema is None:
            self.schema, self.read_kwargs = types, {key: given[key] for key in given if key != "dtype"}
        if given.get("columns") and self.fields is None and self.split_by == BY_ROW_GROUPS:
            self.fields, self.read_kwargs = given["columns"], {key: given[key] for key in given if key != "columns"}
        super().__post_init__()

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        types = [] if self.schema is None else [SetColumnTypes(self.schema)]
        return [*super().decompose(), *types]

    def lister(self) -> FilePartitioningStage:
        stage = super().lister()
        stage.storage_options = {**(self.read_kwargs or {}).get("storage_options", {}), **stage.storage_options}
        return stage

    def reading_stage(self) -> ReaderStage:
        return self.reader(self.fields, self.read_kwargs, self.blocksize, self.on_bad_record)


class JsonlReader(FileReader):
    """Reads JSON lines: one object per line."""

    reader = JsonlReaderStage
    extensions = format_detection.with_compressed_extensions(format_detection.JSONL_EXTENSIONS)
    split_by = BY_LINES


class ParquetReader(FileReader):
    """Reads Parquet files. Several workers may read one large file."""

    reader = ParquetReaderStage
    extensions = format_detection.PARQUET_EXTENSIONS
    split_by = BY_ROW_GROUPS


class CsvReader(FileReader):
    """Reads CSV and TSV files. Values are text, except for read_kwargs={"column_types": {...}}."""

    reader = CsvReaderStage
    extensions = format_detection.with_compressed_extensions(format_detection.CSV_EXTENSIONS)


class ArrowReader(FileReader):
    """Reads Arrow IPC files and streams, and Feather files."""

    reader = ArrowReaderStage
    extensions = format_detection.ARROW_EXTENSIONS


@dataclass(eq=False, repr=False)
class TextReader(FileReader):
    """Reads plain text: a document per file, or per line with `per="line"`."""

    per: str = "file"

    reader = TextReaderStage
    extensions = format_detection.with_compressed_extensions(format_detection.TEXT_EXTENSIONS)

    def lister(self) -> FilePartitioningStage:
        stage = super().lister()
        stage.split_by = BY_LINES if self.per == "line" else WHOLE_FILES
        return stage

    def reading_stage(self) -> ReaderStage:
        return TextReaderStage(
            self.per,
            fields=self.fields,
            read_kwargs=self.read_kwargs,
            blocksize=self.blocksize,
            on_bad_record=self.on_bad_record,
        )
