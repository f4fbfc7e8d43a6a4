"""External sort: sort rows that need not fit into memory.

Rows that fit are sorted in memory. Others are split into files by ranges of the first column, with a separate file for
each value that bounds two ranges: a value that half of the rows share gets its own file, in which the first column need
not be sorted any more. Each file is sorted in the same way. The sort is stable, so the result depends neither on memory
nor on the ranges. Nulls come last, after NaN, in both directions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.hash_partitioning import can_sort, required_column, sortable_column, split_by_partition
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import ColumnError
from gristmill.io.exchange.shuffle_files import table_from_stream, table_to_stream

SORT_RANGES = 8
"""The number of values that bound the ranges."""

_UINT = pa.uint64()


def sort_tables(
    pieces: Iterator[pa.Table],
    order: Sequence[str],
    most_bytes: int,
    descending: bool = False,
    folder: str | None = None,
    wanted: Callable[[pa.Table], pa.Table] | None = None,
) -> Iterator[pa.Table]:
    """Sort the rows of all pieces by the columns `order`. About `most_bytes` are held in memory, the rest in temporary
    files in `folder`. `wanted` may filter rows before they are sorted: all rows with the same value in the first
    column are in one call."""
    if not order:
        yield from pieces
        return
    held: list[pa.Table] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += piece.nbytes
        if size > most_bytes:
            break
    else:
        if held:
            table = pa.concat_tables(held)
            yield sort_table(wanted(table) if wanted else table, order, descending)
        return
    bounds = _bounds(held, order[0])
    with tempfile.TemporaryDirectory(prefix="gristmill-sort-", dir=folder) as directory:
        files = _RangeFiles(Path(directory))
        rest = chain(held, pieces)
        del held, piece
        for table in rest:
            for number, rows in split_by_partition(
                table, _ranges(required_column(table, order[0]), bounds, descending)
            ):
                files.add(number, rows)
        files.close()
        for number in sorted(files.names):
            # Even numbers are ranges between two bounds; the others hold one value, NaN or null.
            is_range = number % 2 == 0 and number < 2 * len(bounds) + 1
            rows, by = files.pieces(number), order if is_range else order[1:]
            yield from sort_tables(rows, by, most_bytes, descending, folder, wanted if is_range else None)


def sort_table(table: pa.Table, order: Sequence[str], descending: bool = False) -> pa.Table:
    """Sort the rows by some columns. The sort is stable."""
    table = table.combine_chunks()
    for name in order:
        if not can_sort(required_column(table, name).type):
            raise ColumnError(f"rows cannot be sorted by column {name!r}, which holds {table.column(name).type}")
    if table.num_rows < 2 or not order:
        return table
    plain = pa.table(
        [sortable_column(table.column(name)) for name in order], [str(index) for index in range(len(order))]
    )
    how = "descending" if descending else "ascending"
    return table.take(pc.sort_indices(plain, sort_keys=[(name, how) for name in plain.column_names]))


def _bounds(held: Sequence[pa.Table], name: str) -> list[pa.Scalar]:
    """Distinct values of a column, ascending, that divide the rows held so far evenly."""
    column = sortable_column(
        required_column(pa.concat_tables([table.select([name]) for table in held]), name)
    ).drop_null()
    if pa.types.is_floating(column.type):
        column = column.filter(pc.invert(pc.is_nan(column)))
    if not len(column):
        return []
    ordered = column.take(pc.sort_indices(column))
    picked = [ordered[(2 * index + 1) * len(ordered) // (2 * SORT_RANGES)] for index in range(SORT_RANGES)]
    return [value for index, value in enumerate(picked) if index == 0 or value != picked[index - 1]]


def _ranges(column: pa.ChunkedArray, bounds: Sequence[pa.Scalar], descending: bool) -> pa.Array:
    """For each row: 2i between bounds i - 1 and i, 2i + 1 at bound i; then NaN, then null."""
    column = sortable_column(column).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    number = pa.repeat(literal(0, _UINT), len(column))
    for bound in bounds:
        below = (pc.less, pc.less_equal) if descending else (pc.greater, pc.greater_equal)
        for beyond in below:
            number = pc.add(number, pc.fill_null(beyond(column, bound), literal(False, pa.bool_())).cast(_UINT))
    last = 2 * len(bounds) + 1
    if pa.types.is_floating(column.type):
        number = pc.if_else(pc.fill_null(pc.is_nan(column), literal(False, pa.bool_())), literal(last, _UINT), number)
    return pc.if_else(column.is_valid(), number, literal(last + 1, _UINT))


class _RangeFiles:
    """Temporary files of Arrow streams, one for each range number."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: dict[int, Path] = {}
        self._open: dict[int, BinaryIO] = {}
        self._sizes: dict[int, list[int]] = {}

    def add(self, number: int, rows: pa.Table) -> None:
        if number not in self.names:
            self.names[number] = self.directory / str(number)
            self._open[number] = open(self.names[number], "wb")  # noqa: SIM115
            self._sizes[number] = []
        raw = table_to_stream(rows)
        self._open[number].write(raw)
        self._sizes[number].append(len(raw))

    def close(self) -> None:
        for file in self._open.values():
            file.close()

    def pieces(self, number: int) -> Iterator[pa.Table]:
        with open(self.names[number], "rb") as file:
            for size in self._sizes[number]:
                yield table_from_stream(file.read(size))
        self.names[number].unlink()


# -- groups ------------------------------------------------------------------------------------------------


def whole_groups(pieces: Iterable[pa.Table], key: Sequence[str], most_bytes: int) -> Iterator[pa.Table]:
    """Regroup rows sorted by `key` into tables of whole groups, each of about `most_bytes` or of one group."""
    waiting: list[pa.Table] = []
    size = 0
    for piece in pieces:
        for block in _blocks(piece, most_bytes):
            cut = last_group_start(waiting[-1] if waiting else None, block, key)
            rest = block
            if cut is not None and size + block.nbytes >= most_bytes:
                done = pa.concat_tables([*waiting, block.slice(0, cut)])
                if done.num_rows:
                    yield done.combine_chunks()
                waiting, size = [], 0
                rest = block.slice(cut)
            waiting.append(rest)
            size += rest.nbytes
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _blocks(table: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    rows = max(1, most_bytes * table.num_rows // max(table.nbytes, 1))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def last_group_start(before: pa.Table | None, table: pa.Table, key: Sequence[str]) -> int | None:
    """The row at which the last group of a sorted table begins; None if it began in the table before."""
    starts = group_starts(before, table, key)
    rows = pc.indices_nonzero(starts)
    return int(rows[-1].as_py()) if len(rows) else None


def group_starts(before: pa.Table | None, table: pa.Table, key: Sequence[str]) -> pa.Array:
    """Whether each row of a sorted table begins a new group. `before` is the table before it, if there is one."""
    count = table.num_rows
    head = table.slice(0, 1) if before is None else before.slice(before.num_rows - 1)
    starts = pa.repeat(literal(False, pa.bool_()), count)
    for name in key:
        mine = table.select([name])
        earlier = pa.concat_tables([head.select([name]), mine.slice(0, max(count - 1, 0))])
        starts = pc.or_(starts, _differ(sortable_column(mine.column(name)), sortable_column(earlier.column(name))))
    if before is None and count:
        first = pc.equal(pc.indices_nonzero(pa.repeat(literal(True, pa.bool_()), count)), literal(0, _UINT))
        starts = pc.or_(starts, first)
    return starts.combine_chunks() if isinstance(starts, pa.ChunkedArray) else starts


def _differ(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether values differ; null equals null, and NaN equals NaN."""
    if pa.types.is_null(left.type):
        return pa.chunked_array([pa.repeat(literal(False, pa.bool_()), len(left))])
    other = pc.not_equal(left, right)
    if pa.types.is_floating(left.type):
        other = pc.and_(other, pc.invert(pc.and_(pc.is_nan(left), pc.is_nan(right))))
    one_null = pc.xor(pc.is_null(left), pc.is_null(right))
    return pc.if_else(pc.or_(pc.is_null(left), pc.is_null(right)), one_null, other)
