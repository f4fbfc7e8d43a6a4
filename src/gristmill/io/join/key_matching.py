"""What both kinds of join share: pairs of matching rows, comparable keys, and dropping rows without a match."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import VERDICT, is_text
from gristmill.core.batch import Batch
from gristmill.core.deciding_stage import DecidingStage, Decision
from gristmill.core.stage import Columns
from gristmill.io.write.parquet_format import array_bytes

if TYPE_CHECKING:
    from gristmill.io.join.other_side import OtherSide

JOIN_TYPES = INNER, LEFT, SEMI, ANTI = ("inner", "left", "semi", "anti")
JOINS_ADDING_COLUMNS = (INNER, LEFT)
"""Joins that add columns, and return a row for each pair."""

MAX_PAIRS = 2**17
"""Pairs that are computed at a time."""

MAX_PAIR_BYTES = 8 * 2**20
"""Bytes of joined rows that are returned at a time."""

NumpyArray: TypeAlias = np.ndarray[Any, Any]
RowPairs: TypeAlias = tuple[NumpyArray, NumpyArray]
"""Indices of rows of our side, and of the matching rows of the other side; -1 for none."""


# -- pairs -------------------------------------------------------------------------------------------------


def row_pairs(starts: NumpyArray, counts: NumpyArray, mine: NumpyArray, others: NumpyArray) -> Iterator[RowPairs]:
    """The pairs of each row with the `counts` rows of the other side from `starts` on, in order. A row without a match
    has one pair with -1. Each item is of about `MAX_PAIR_BYTES`, by the row sizes of both sides (`mine`, `others`)."""
    wide = np.maximum(counts, 1)
    ends = np.cumsum(wide)
    row = 0
    while row < len(wide):
        before = int(ends[row - 1]) if row else 0
        stop = max(int(np.searchsorted(ends, before + MAX_PAIRS, "right")), row + 1)
        left = np.repeat(np.arange(row, stop), wide[row:stop])
        inside = np.arange(len(left)) - np.repeat(ends[row:stop] - wide[row:stop] - before, wide[row:stop])
        right = np.where(counts[left] > 0, starts[left] + inside, -1)
        yield from _cut_pairs(left, right, mine, others)
        row = stop


def _cut_pairs(left: NumpyArray, right: NumpyArray, mine: NumpyArray, others: NumpyArray) -> Iterator[RowPairs]:
    sizes = mine[left] + (np.where(right >= 0, others[right], 0) if len(others) else 0)
    parts = np.cumsum(sizes) // MAX_PAIR_BYTES
    for indices in np.split(np.arange(len(left)), np.flatnonzero(np.diff(parts)) + 1):
        yield left[indices], right[indices]


def row_sizes(table: pa.Table) -> NumpyArray:
    """The bytes of each row."""
    total = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        sizes = [
            to_numpy_array(pc.fill_null(array_bytes(chunk).cast(pa.int64()), literal(0, pa.int64())))
            for chunk in column.chunks
        ]
        total += np.concatenate(sizes) if sizes else 0
    return total


def take_or_null(table: pa.Table, rows: NumpyArray) -> pa.Table:
    """The rows of a table by index; nulls for -1."""
    indices = to_index_array(rows)
    return table.take(pc.if_else(pc.less(indices, literal(0, pa.int64())), literal(None, pa.int64()), indices))


def with_columns(table: pa.Table, more: pa.Table) -> pa.Table:
    for name, column in zip(more.column_names, more.columns, strict=True):
        table = table.append_column(name, column)
    return table


def to_index_array(rows: NumpyArray) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows, np.int64))])


def to_bool_array(values: NumpyArray) -> pa.Array:
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def to_numpy_array(column: pa.Array | pa.ChunkedArray) -> NumpyArray:
    """A column of numbers without nulls."""
    array = column if isinstance(column, pa.Array) else column.combine_chunks()
    kind = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.zeros(0, kind)
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)


# -- keys --------------------------------------------------------------------------------------------------


def key_kind(kind: pa.DataType) -> str | None:
    """The kind of values of a type, in words. Only keys of the same kind can be equal. None if it cannot be a key."""
    if pa.types.is_dictionary(kind):
        return key_kind(kind.value_type)
    if is_text(kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "numbers"
    if pa.types.is_boolean(kind):
        return "true and false"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes"
    return str(kind) if pa.types.is_temporal(kind) or pa.types.is_decimal(kind) else None


def key_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type in which keys of two types of the same kind are compared."""
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (left, right)]
    kinds = [kind for kind in kinds if not pa.types.is_null(kind)]
    if not kinds:
        return pa.null()
    if is_text(kinds[0]):
        return pa.large_string()
    if key_kind(kinds[0]) == "bytes":
        return pa.large_binary()
    if key_kind(kinds[0]) != "numbers" or all(kind == pa.uint64() for kind in kinds):
        return kinds[0]
    return pa.float64() if all(map(pa.types.is_floating, kinds)) else pa.int64()


def as_key(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A key column in another type. Values that no value of that type can equal become null, and so does NaN."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())
        valid = pc.is_finite(column) if pa.types.is_integer(kind) else pc.invert(pc.is_nan(column))
        if pa.types.is_integer(kind):
            inside = pc.less(pc.abs(column), literal(2.0**63, pa.float64()))
            valid = pc.and_(pc.and_(valid, pc.equal(pc.floor(column), column)), inside)
        column = pc.if_else(valid, column, literal(None, pa.float64()))
    elif column.type == pa.uint64() and kind == pa.int64():
        inside = pc.less(column, literal(2**63, pa.uint64()))
        column = pc.if_else(inside, column, literal(None, pa.uint64()))
    return column if column.type == kind else column.cast(kind)


# -- rows --------------------------------------------------------------------------------------------------


class DropUnmatched(DecidingStage[Batch]):
    """Drops the rows that the join does not keep."""

    takes_empty = True

    def __init__(self, other: OtherSide, name: str) -> None:
        super().__init__()
        self.other, self.name = other, name

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], self.other.added_names()

    def decide(self, batch: Batch) -> Decision:
        return Decision(batch.data.column(VERDICT).combine_chunks())

    def apply(self, batch: Batch, decision: Decision) -> Batch:
        kept = batch.keep(decision.keep)
        return kept.with_data(kept.data.drop_columns([VERDICT]))


def keep_mask(how: str, matched: NumpyArray) -> pa.Array:
    """Whether each row is kept, given whether it has a match."""
    keep = {LEFT: np.ones(len(matched), np.bool_), ANTI: ~matched}.get(how, matched)
    return to_bool_array(keep)
