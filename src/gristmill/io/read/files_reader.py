"""FilesReader: the base class of all file readers. Parts of files in, batches out, bad records into quarantine.

A file is read block by block, so memory does not depend on its size. A reader of a new format provides `tables`,
`schema` and `kind`; everything else has a default.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.batch import SOURCE_FILE, Batch
from gristmill.core.errors import BadRecordError, InputError, did_you_mean
from gristmill.core.secret_values import hide_in_urls
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.core.stage_roles import PlanningRole
from gristmill.core.task import FileGroupTask, FileSlice, Task
from gristmill.io.formats.line_blocks import line_number
from gristmill.io.formats.pandas_options import without_read_options
from gristmill.io.read.file_partitions import FilePartition
from gristmill.io.read.reread import BlockOrigin, LineRange, note_origin
from gristmill.io.storage.file_input import BadRecord, FileInput, block_bytes

QUARANTINE, RAISE, SKIP = ON_BAD_RECORD = ("quarantine", "raise", "skip")

Files = TypeVar("Files", bound=FileGroupTask)
Rows = TypeVar("Rows", bound=Batch)


class FilesReader(ProcessingStage[Files, Rows], PlanningRole):
    """Reads the files of a task, block by block. A format provides `tables` and `schema`, a modality `kind`."""

    kind: ClassVar[type[Batch]]
    """The class of the batches."""

    unit: ClassVar[str] = "row"
    """What positions of bad records count: "row", or "byte" for formats that are split by lines."""

    options: ClassVar[tuple[str, ...]] = ()
    """The keys that `read_kwargs` may have besides `storage_options`."""

    reread_format: ClassVar[str] = ""
    """`JSONL_FORMAT` or `PARQUET_FORMAT` if parts of files can be read a second time cheaply (`io/read/reread.py`)."""

    def __init__(
        self,
        fields: Sequence[str] | None = None,
        read_kwargs: Mapping[str, Any] | None = None,
        blocksize: int | str | None = None,
        on_bad_record: str = QUARANTINE,
    ) -> None:
        super().__init__()
        if on_bad_record not in ON_BAD_RECORD:
            raise ValueError(f"on_bad_record is {on_bad_record!r}, must be 'quarantine', 'raise' or 'skip'")
        if isinstance(fields, str):
            raise TypeError(f"fields is the text {fields!r}, must be a list of names: [{fields!r}]")
        self.fields = None if fields is None else list(fields)
        known = ("storage_options", *self.options)
        self.read_kwargs = without_read_options(self.name, read_kwargs or {}, known)
        self.blocksize = block_bytes(blocksize)
        self.on_bad_record = on_bad_record
        for key in self.read_kwargs:
            if key not in known:
                raise ValueError(
                    f"stage {self.name!r}: read_kwargs has no {key!r}.{did_you_mean(key, known)} "
                    f"There are: {', '.join(known)}"
                )

    @abstractmethod
    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        """The rows of one part of a file, in tables of about `source.blocksize` bytes, each with a POSITION column. Bad
        records are passed to `source.on_bad`."""

    @abstractmethod
    def schema(self, source: FileInput) -> pa.Schema | None:
        """The columns that `tables` will return, from the beginning of the file; None if unknown. Raises an InputError
        for a file of another format."""

    def outputs(self) -> tuple[list[str], Columns]:
        return [], list(self.fields or [])

    def process(self, task: Files) -> Iterator[Rows]:
        empty = True
        for part in task.parts():
            origin = self._origin(task, part)
            lines: list[LineRange] = []
            source = replace(self.source(task, part), on_lines=partial(_note_lines, lines))
            for block, table in enumerate(self.tables(source)):
                empty = False
                batch = self.batch(task, table, {SOURCE_FILE: relative_file_name(task, part)})
                if origin:
                    note_origin(batch, replace(origin, block=block), lines[-1] if lines else None)
                lines.clear()
                yield batch
        if empty:
            yield self.empty_batch(task)

    def _origin(self, task: FileGroupTask, part: FileSlice) -> BlockOrigin | None:
        source = self.source(task, part)
        if not self.reread_format or source.storage_options or (self.unit == "byte" and part.end is None):
            return None
        options = {key: value for key, value in self.read_kwargs.items() if key in self.options}
        return BlockOrigin(self.reread_format, part, self.blocksize, self.fields, options)

    def empty_batch(self, task: FileGroupTask) -> Rows:
        """A batch without rows, so that a writer learns of a source that has none."""
        return self.batch(task, pa.table({POSITION: pa.nulls(0, pa.int64())}), {})

    def peek_columns(self, sample: Task[Any]) -> Mapping[str, pa.DataType] | None:
        if not isinstance(sample, FileGroupTask) or not sample.data:
            return None
        try:
            schema = self.schema(self.source(sample, sample.parts()[0]))
        except InputError as error:
            raise InputError(f"stage {self.name!r}: {error}") from error
        except OSError:  # reported when the file is read
            return None
        return None if schema is None else dict(zip(schema.names, schema.types, strict=True))

    def source(self, task: FileGroupTask, part: FileSlice) -> FileInput:
        options = {**self.read_kwargs.get("storage_options", {}), **task.storage_options}
        source = FileInput(part, options, self.blocksize, on_bytes=partial(self.count, "bytes_read"))
        return replace(source, on_bad=partial(self._bad, source, relative_file_name(task, part)))

    def batch(self, task: FileGroupTask, table: pa.Table, metadata: Mapping[str, Any]) -> Rows:
        batch: Any = self.kind(table, dataset_name=task.dataset_name, metadata={**task.metadata, **metadata})
        rows: Rows = batch
        return rows

    def _bad(self, source: FileInput, file: str, record: BadRecord) -> None:
        if self.on_bad_record == SKIP:
            self.count("bad_records", record.records)
            return
        if self.on_bad_record == QUARANTINE:
            with suppress(BadRecordError):  # raised in a run with on_error="raise", which has no quarantine
                self.set_aside(
                    record.reason,
                    content=record.content,
                    file=file,
                    position=record.position,
                    records=record.records,
                )
                return
        # Lines are counted only for a fatal error: for each of many bad records it would take quadratic time.
        number = line_number(source, record.position) if self.unit == "byte" else None
        where = f"line {number:,} (byte {record.position:,})" if number else f"{self.unit} {record.position:,}"
        shown = f": {record.raw[:80]!r}" if record.raw else ""
        raise BadRecordError(
            f"{source.path}, {where}: {record.reason}{shown}. To put such records into quarantine and continue, use "
            'on_bad_record="quarantine" and on_error="quarantine", the defaults; to count and skip them, '
            'use on_bad_record="skip"'
        )


def _note_lines(lines: list[LineRange], *line_range: Any) -> None:
    lines.append(LineRange(*line_range))


def relative_file_name(task: FileGroupTask, part: FileSlice) -> str:
    """The path of a file below the directory that was read."""
    return task.name_of(part.path) if isinstance(task, FilePartition) else hide_in_urls(part.path)
