"""Rows of one file, read in blocks, or by position without reading the rest.

A row is known by its source and its position there, as readers give it: a byte offset in JSON lines, a row number in
Parquet.

Gives up: jumping in compressed files, CSV and Arrow, which are read from their beginning to the place wanted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from itertools import accumulate, islice
from typing import Any, Protocol

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, conform_to_schema, unify_schemas, without_views
from gristmill.core.errors import InputError
from gristmill.core.task import FileSlice, digest
from gristmill.io.formats.format_detection import detect_compression, extension_of, reader_for_extension
from gristmill.io.formats.table_validation import invalid_text_records, with_positions, without_bad_records
from gristmill.io.storage.file_input import BadRecord, FileInput, ignore

BLOCK = 2**20
"""Small, so that the first rows are there at once."""

READ_TOGETHER_BYTES = 256 * 2**10
"""Rows of a file that are closer to each other than this are read in one go."""

STEP_ROWS = 1024

READABLE = {"JsonlReader": "jsonl", "ParquetReader": "parquet", "CsvReader": "csv", "ArrowReader": "arrow"}


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows that lie together: from the position `start` up to, but without, `end`. `table` is None if no column was
    asked for and their number is known without it."""

    start: int
    end: int
    rows: int
    table: pa.Table | None


class RowAccess(Protocol):
    """Rows that can be looked at."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def blocks(self, fields: Sequence[str] | None, on_bad: Callable[[BadRecord], None]) -> Iterator[RowBlock]:
        """All rows, with the named columns, or all; null where there is none of the name."""

    def bytes_reached(self, block: RowBlock) -> int:
        """How much of the size has been read when a block has."""

    def rows_between(self, start: int, end: int) -> pa.Table:
        """The rows of a block."""

    def rows_at(self, positions: Sequence[int]) -> pa.Table:
        """The rows at some positions, in the order of the source."""

    def head(self, rows: int) -> pa.Table:
        """The first rows, up to so many."""


@dataclass(frozen=True, slots=True)
class TableRowAccess:
    """Rows in memory."""

    id: str
    name: str
    table: pa.Table

    @property
    def size(self) -> int:
        return int(self.table.nbytes)

    def bytes_reached(self, block: RowBlock) -> int:
        return self.size

    def blocks(self, fields: Sequence[str] | None, on_bad: Callable[[BadRecord], None]) -> Iterator[RowBlock]:
        if self.table.num_rows:
            yield RowBlock(0, self.table.num_rows, self.table.num_rows, _select_columns(self._numbered(), fields))

    def rows_between(self, start: int, end: int) -> pa.Table:
        return self._numbered().slice(start, end - start)

    def rows_at(self, positions: Sequence[int]) -> pa.Table:
        there = [position for position in sorted(positions) if 0 <= position < self.table.num_rows]
        return self._numbered().take(make_array(there, pa.int64()))

    def head(self, rows: int) -> pa.Table:
        return self._numbered().slice(0, rows)

    def _numbered(self) -> pa.Table:
        return self.table.append_column(POSITION, make_array(range(self.table.num_rows), pa.int64()))


def _select_columns(table: pa.Table, fields: Sequence[str] | None) -> pa.Table:
    if fields is None:
        return table
    count = table.num_rows
    columns = {name: table.column(name) if name in table.column_names else pa.nulls(count) for name in fields}
    return pa.table({**columns, POSITION: table.column(POSITION)})


@dataclass(frozen=True)
class FileRowAccess:
    """Rows of a file."""

    path: str
    size: int = 0
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def id(self) -> str:
        return digest([self.path], 6)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @cached_property
    def kind(self) -> str:
        found = READABLE.get(reader_for_extension(extension_of(self.path)) or "")
        if found is None:
            raise InputError(f"{self.path} cannot be shown: it is not JSON lines, Parquet, CSV or Arrow")
        return found

    @cached_property
    def is_seekable(self) -> bool:
        """Whether a place in the file can be read without what is before it."""
        if self.kind == "parquet":
            return True
        if self.kind != "jsonl":
            return False
        with self._input().open() as file:
            return detect_compression(self.path, file.read(64 * 2**10)) is None

    @cached_property
    def _footer(self) -> tuple[list[int], list[str]]:
        import pyarrow.parquet as pq

        with self._input().open(read_ahead=False) as file:
            try:
                parquet = pq.ParquetFile(pa.PythonFile(file, mode="r"), pre_buffer=False)
            except (OSError, pa.ArrowException):
                return [], []
            metadata = parquet.metadata
            rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            return rows, parquet.schema_arrow.names

    @property
    def groups(self) -> list[int]:
        """The number of rows in each row group of a Parquet file; none when it cannot be read."""
        return self._footer[0]

    @property
    def columns(self) -> list[str]:
        """The columns of a Parquet file."""
        return self._footer[1]

    def blocks(self, fields: Sequence[str] | None, on_bad: Callable[[BadRecord], None]) -> Iterator[RowBlock]:
        if self.kind == "parquet" and fields is not None and not fields:
            start = 0
            for rows in self.groups:
                yield RowBlock(start, start + rows, rows, None)
                start += rows
            return
        for table in self._tables(self._input(on_bad=on_bad), fields):
            if table.num_rows:
                places = table.column(POSITION)
                yield RowBlock(places[0].as_py(), places[-1].as_py() + 1, table.num_rows, table)

    def bytes_reached(self, block: RowBlock) -> int:
        if self.kind == "parquet":
            return self.size * block.end // max(sum(self.groups), 1)
        return min(block.end, self.size) if self.is_seekable else 0

    def rows_between(self, start: int, end: int) -> pa.Table:
        return self._between(start, end, lambda table: _rows_between(table, start, end))

    def rows_at(self, positions: Sequence[int]) -> pa.Table:
        wanted = sorted(positions)
        near = list(self._near(wanted)) if self.is_seekable else [wanted]
        return concat_differing(
            [self._between(some[0], some[-1] + 1, partial(_rows_at, make_array(some, pa.int64()))) for some in near]
        )

    def head(self, rows: int) -> pa.Table:
        tables = self._few_rows(0, rows) if self.kind == "parquet" else self._tables(self._input(), None)
        return concat_differing([table.slice(0, rows) for table in islice(tables, 1)])

    def _between(self, start: int, end: int, choose: Callable[[pa.Table], pa.Table]) -> pa.Table:
        found = []
        for table in self._steps(start, end):
            if table.num_rows and table.column(POSITION)[0].as_py() >= end:
                break
            found.append(choose(table))
        return concat_differing(found)

    def _steps(self, start: int, end: int) -> Iterator[pa.Table]:
        """Tables that hold the rows between two positions, and perhaps others."""
        if self.kind == "parquet":
            return self._few_rows(start, end)
        part = FileSlice(self.path)
        if self.is_seekable:
            part = FileSlice(self.path, 0 if start <= 3 else start, end)  # a byte order mark is no row
        return self._tables(self._input(part), None)

    def _few_rows(self, start: int, end: int) -> Iterator[pa.Table]:
        """Rows of Parquet in small steps, so that few are decoded beside those that are wanted."""
        import pyarrow.parquet as pq

        first = 0
        with self._input().open(read_ahead=False) as file:
            parquet = pq.ParquetFile(pa.PythonFile(file, mode="r"), pre_buffer=False, buffer_size=BLOCK)
            for group, rows in enumerate(self.groups):
                if first < end and first + rows > start:
                    yield from self._group(parquet, group, first, end)
                first += rows

    def _group(self, parquet: Any, group: int, first: int, end: int) -> Iterator[pa.Table]:
        for batch in parquet.iter_batches(STEP_ROWS, row_groups=[group], use_threads=False):
            if first >= end:
                return
            numbers = range(first, first + batch.num_rows)
            table = with_positions(pa.Table.from_batches([batch]), numbers, None, self.path)
            yield without_views(without_bad_records(table, invalid_text_records(batch, first)))
            first += batch.num_rows

    def _near(self, positions: Sequence[int]) -> Iterator[list[int]]:
        """Positions, in groups of such as are read in one go: of one row group, or close to each other."""
        ends = list(accumulate(self.groups)) if self.kind == "parquet" else []
        some: list[int] = []
        for position in positions:
            apart = bisect_right(ends, some[-1]) != bisect_right(ends, position) if some and ends else False
            if some and (apart or (not ends and position - some[-1] > READ_TOGETHER_BYTES)):
                yield some
                some = []
            some.append(position)
        if some:
            yield some

    def _input(self, part: FileSlice | None = None, on_bad: Callable[[BadRecord], None] = ignore) -> FileInput:
        return FileInput(part or FileSlice(self.path), self.storage_options, BLOCK, on_bad)

    def _tables(self, source: FileInput, fields: Sequence[str] | None) -> Iterator[pa.Table]:
        return map(
            without_views,
            getattr(import_module(f"gristmill.io.formats.{self.kind}"), f"read_{self.kind}")(source, fields),
        )


def concat_differing(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of several, which may differ in columns and types."""
    some = [table for table in tables if table.num_rows]
    if not some:
        return pa.table({POSITION: pa.nulls(0, pa.int64())})
    schema = unify_schemas([table.schema for table in some])
    return pa.concat_tables([conform_to_schema(table, schema) for table in some])


def _rows_between(table: pa.Table, start: int, end: int) -> pa.Table:
    places = table.column(POSITION)
    low, high = literal(start, pa.int64()), literal(end, pa.int64())
    return table.filter(pc.and_(pc.greater_equal(places, low), pc.less(places, high)))


def _rows_at(values: pa.Array, table: pa.Table) -> pa.Table:
    return table.filter(pc.is_in(table.column(POSITION), value_set=values))
