"""Tell the rows of a batch apart, also where several of them come from one row of the input.

A row is known by its file and the position there. A stage may make several rows of one, as clips of a film: a batch
class whose rows have names for that says so (`Batch.part_column`), and they are told apart by these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, is_text

if TYPE_CHECKING:
    from gristmill.core.batch import Batch

_NO_PART, _SEPARATOR = literal("", pa.string()), literal("/", pa.string())


def part_values(table: pa.Table, part_column: str | None) -> pa.Array | None:
    """The name that each row has as a part of what was read at its position; None if no row is a part."""
    if part_column is None or part_column not in table.column_names:
        return None
    column = table.column(part_column)
    if column.null_count == len(column) or not is_text(column.type):
        return None
    return as_one_array(column.cast(pa.string()))


def row_keys(positions: Any, parts: pa.Array | None) -> pa.Array:
    """What rows of one file are told apart by: the position, or with it the name of the part."""
    positions = as_one_array(positions)
    if parts is None:
        return positions
    return pc.binary_join_element_wise(positions.cast(pa.string()), pc.fill_null(parts, _NO_PART), _SEPARATOR)


def repeated_keys(keys: pa.Array) -> pa.BooleanArray | None:
    """Which keys occur several times; None if none does."""
    if pc.count_distinct(keys).as_py() == len(keys):
        return None
    counted = pc.value_counts(keys)
    several = counted.field("values").filter(pc.greater(counted.field("counts"), literal(1, pa.int64())))
    return pc.is_in(keys, value_set=several)


def missing_rows(batch: Batch, outputs: Sequence[Batch]) -> tuple[pa.BooleanArray, pa.BooleanArray | None]:
    """Which rows of a batch are missing from what a stage made of it, and which of its parts were divided once more
    (None: none was). A row that was divided into parts is not missing."""
    positions = as_one_array(batch.data.column(POSITION))
    kept = _joined([output.data.column(POSITION) for output in outputs], pa.int64())
    there = pc.is_in(positions, value_set=kept)
    parts = part_values(batch.data, type(batch).part_column)
    given = [part_values(output.data, type(output).part_column) for output in outputs]
    if parts is None or all(one is None for one in given):
        return pc.invert(there), None
    keys = row_keys(positions, parts)
    made = [
        row_keys(output.data.column(POSITION), pa.nulls(output.num_items, pa.string()) if one is None else one)
        for output, one in zip(outputs, given, strict=True)
    ]
    kept_keys = _joined([pa.chunked_array([one]) for one in made], pa.string())
    found = pc.is_in(keys, value_set=kept_keys)
    new = as_one_array(kept).filter(pc.invert(pc.is_in(as_one_array(kept_keys), value_set=keys)))
    lost = pc.invert(found)
    divided = pc.and_(lost, pc.is_in(positions, value_set=new))
    again = pc.and_(divided, pc.is_valid(parts))
    return pc.and_(lost, pc.invert(divided)), again if again.true_count else None


def _joined(columns: Sequence[pa.ChunkedArray], kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], kind)
