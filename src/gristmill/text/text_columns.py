"""Text columns of a batch: as strings however they are stored, with statistics that stages share.

Where a reader cuts a file into blocks must not change the result. If a block lacks a column, its rows are null there;
if the column holds no text in a block, each value becomes its JSON text. Both are what a longer block would have given,
in which other rows have the column and its text. This holds for columns that the planner knows. A column it does not
know, because a stage does not declare its outputs, must be in every block and hold text; otherwise a mistyped name
would pass for documents without text. Functions in `Filter` and `Modify` get values as the block stores them: 7 may
arrive as 7.0.

A function or tool whose parameter is not annotated as `str` also takes columns that hold no text, as `value_column`
gives them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import is_json, is_text, json_array, table_to_rows
from gristmill.core.batch import column_cache, stored_rows
from gristmill.core.errors import ColumnError, did_you_mean, printable, shorten
from gristmill.core.stage import ProcessingStage
from gristmill.core.stage_roles import MainColumnRole
from gristmill.text.statistics import column_statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.batch import Batch
    from gristmill.core.stage import ProcessingStage
    from gristmill.text.statistics.column_statistics import ColumnStatistics


class TextFieldStage(MainColumnRole):
    """A stage whose `text_field` names the column that it works on."""

    text_field: Any

    @property
    def main_column(self) -> str | None:
        return self.text_field if isinstance(self.text_field, str) else None


Texts: TypeAlias = "pa.Array | pa.ChunkedArray"


def text_column(stage: ProcessingStage[Any, Any], table: pa.Table, field: str) -> pa.Array:
    """A column as strings, however it is stored."""
    column = any_column(stage, table, field)
    kind = column.type
    if is_json(kind):  # a column of mixed types: strings are taken as they are, other values as JSON
        values, texts = python_values(column), column.cast(pa.string()).to_pylist()
        pairs = zip(values, texts, strict=True)
        return make_array([value if isinstance(value, str | None) else text for value, text in pairs], pa.string())
    encodes_text = pa.types.is_dictionary(kind) and (is_text(kind.value_type) or pa.types.is_null(kind.value_type))
    if is_text(kind) or pa.types.is_null(kind) or encodes_text:
        return column if pa.types.is_string(kind) else column.cast(pa.string())
    if _is_planned(stage, field):
        return json_array(python_values(column)).cast(pa.string())
    raise ColumnError(
        f"stage {stage.name!r} needs text in column {field!r}, which holds {printable(kind)}: use another column"
    )


def value_column(stage: ProcessingStage[Any, Any], table: pa.Table, field: str) -> pa.Array:
    """A column for tools that take any value: as strings if it holds text in the input as a whole, else as stored."""
    column = any_column(stage, table, field)
    kind = column.type
    may_be_text = is_text(kind) or is_json(kind) or pa.types.is_null(kind) or pa.types.is_dictionary(kind)
    if may_be_text or (_is_planned(stage, field) and field not in stage._planned.not_text):
        return text_column(stage, table, field)
    return column


def any_column(stage: ProcessingStage[Any, Any], table: pa.Table, field: str) -> pa.Array:
    """A column of any type."""
    if field in table.column_names:
        return as_array(table.column(field))
    if not table.num_rows:
        return make_array([], pa.string())
    if _is_planned(stage, field):
        return pa.nulls(table.num_rows)
    names = [name for name in table.column_names if not name.startswith("_")]
    raise ColumnError(
        f"stage {stage.name!r} needs column {field!r}. There are: {shorten(names, 12) or 'none'}."
        f"{did_you_mean(field, names)} Name the right column in the stage (text_field=..., input_fields=...). If only "
        "some rows have it, declare it in outputs() of the stage that adds it: the other rows are then null"
    )


def _is_planned(stage: ProcessingStage[Any, Any], field: str) -> bool:
    return field in stage._planned.columns


def batch_texts(stage: ProcessingStage[Any, Any], batch: Batch, field: str) -> pa.Array:
    """A text column of a batch, without rows that were dropped before."""
    texts, rows, _ = _cached_texts(stage, batch, field)
    return texts if rows is None else texts.filter(rows)


def batch_column(stage: ProcessingStage[Any, Any], batch: Batch, field: str) -> pa.Array:
    """A column of any type of a batch, without rows that were dropped before."""
    table, rows = stored_rows(batch)
    if rows is None or not batch.num_items:
        return any_column(stage, batch.data, field)
    return any_column(stage, table, field).filter(rows)


def batch_statistics(
    stage: ProcessingStage[Any, Any], batch: Batch, field: str, names: Sequence[str]
) -> ColumnStatistics:
    """Statistics of a text column of a batch. Those that an earlier stage has counted are reused."""
    texts, rows, counts = _cached_texts(stage, batch, field)
    if missing := column_statistics.statistics_to_count(stage, field, names, counts):
        counts = {**counts, **column_statistics.count_column(texts, missing, rows)}
        column_cache(batch)[field] = (texts, counts)
    return {name: counts[name] if rows is None else counts[name].filter(rows) for name in names}


def _cached_texts(
    stage: ProcessingStage[Any, Any], batch: Batch, field: str
) -> tuple[pa.Array, pa.BooleanArray | None, ColumnStatistics]:
    """A text column, a mask of the rows that are still in the batch, and the statistics counted so far.

    Dropped rows are only marked while a chain of filters runs, so that the column and its statistics stay valid.
    """
    table, rows = stored_rows(batch) if batch.num_items else (batch.data, None)
    if field not in column_cache(batch):
        column_cache(batch)[field] = (text_column(stage, table, field), {})
    texts, counts = column_cache(batch)[field]
    return texts, rows, counts


def batch_values(stage: ProcessingStage[Any, Any], batch: Batch, field: str) -> pa.Array:
    """What `value_column` gives for a batch, without rows that were dropped before."""
    table, rows = stored_rows(batch) if batch.num_items else (batch.data, None)
    unplanned = not _is_planned(stage, field) and field in table.column_names and not is_text(table.column(field).type)
    if not unplanned and field not in stage._planned.not_text:
        return batch_texts(stage, batch, field)
    values = value_column(stage, table, field)
    return values if rows is None else values.filter(rows)


def python_values(column: Texts) -> list[Any]:
    """The values of a column as Python objects; a JSON column is parsed."""
    if not is_json(column.type):
        values: list[Any] = column.to_pylist()
        return values
    return [row["value"] for row in table_to_rows(pa.table({"value": column}))]


def as_array(column: Texts) -> pa.Array:
    """The column in one piece."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
