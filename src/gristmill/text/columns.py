"""Columns as the stages here need them: text as strings however it is stored, answers checked for their length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.columns import literal, make_array
from gristmill.core.errors import ColumnError, ContractError, did_you_mean, printable, shorten
from gristmill.core.table import is_json, is_text
from gristmill.text.filters import as_array, values_of

if TYPE_CHECKING:
    from gristmill.text.filters import DocumentFilter
    from gristmill.text.modifiers import DocumentModifier


def text_column(stage: str, table: pa.Table, field: str) -> pa.Array:
    """A column as strings, however it is stored."""
    column = any_column(stage, table, field)
    kind = column.type
    if is_json(kind):  # a column that mixes text with other things: text is text, the rest stays JSON
        values, texts = values_of(column), column.cast(pa.string()).to_pylist()
        pairs = zip(values, texts, strict=True)
        return make_array([value if isinstance(value, str | None) else text for value, text in pairs], pa.string())
    of_text = pa.types.is_dictionary(kind) and (is_text(kind.value_type) or pa.types.is_null(kind.value_type))
    if not (is_text(kind) or pa.types.is_null(kind) or of_text):
        raise ColumnError(f"stage {stage!r} needs text in column {field!r}, which holds {printable(kind)}: use another")
    return column if pa.types.is_string(kind) else column.cast(pa.string())


def any_column(stage: str, table: pa.Table, field: str) -> pa.Array:
    """A column of any type."""
    if field in table.column_names:
        return as_array(table.column(field))
    if not table.num_rows:
        return make_array([], pa.string())
    there = [name for name in table.column_names if not name.startswith("_")]
    raise ColumnError(
        f"stage {stage!r} needs column {field!r}. There are: {shorten(there, 12) or 'none'}."
        f"{did_you_mean(field, there)} Name the right column in the stage (text_field=..., input_fields=...)"
    )


def with_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """The table with a column added, or replaced where it stands."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def answered(tool: DocumentFilter | DocumentModifier, method: str, column: pa.Array) -> pa.Array:
    """What a batch form returned, if it is one value per row."""
    answer = getattr(tool, method)(column)
    if not isinstance(answer, pa.Array | pa.ChunkedArray) or len(answer) != len(column):
        got = f"{len(answer)} values" if hasattr(answer, "__len__") else "no values"
        raise ContractError(
            f"{tool.name}.{method} got {len(column)} rows and returned {got} as {type(answer).__name__}: "
            "return a pyarrow Array with one value per row"
        )
    return as_array(answer)


def in_place(values: pa.Array, alive: pa.Array) -> pa.Array:
    """The values of the rows that are alive, each in its row; null in the others."""
    if len(values) == len(alive):
        return values
    positions = pc.subtract(pc.cumulative_sum(alive.cast(pa.int64())), literal(1, pa.int64()))
    return values.take(pc.if_else(alive, positions, literal(None, pa.int64())))
