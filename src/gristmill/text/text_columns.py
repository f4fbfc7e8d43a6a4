"""Columns as the stages here need them: text as strings however it is stored, answers checked for their length.

Where a reader cuts a file must not matter. In a block that lacks a column, its rows are null, and in one where it holds
no text, a value is its JSON text: just as if the block had been longer, and other rows had brought the column and the
text along. That holds for columns that the planner has found. A column that it knows nothing of, because a stage does
not say what it gives, must be in every block, and hold text: else a mistyped name would pass for a document without
text. What a function is called with, in `Filter` or `Modify`, is the value as the block holds it: 7 may be 7.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import is_json, is_text, json_array
from gristmill.core.batch import column_cache, stored_rows
from gristmill.core.errors import ColumnError, ContractError, did_you_mean, printable, shorten
from gristmill.core.stage import ProcessingStage
from gristmill.text.document_filter import as_array, python_values
from gristmill.text.statistics import column_statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.batch import Batch
    from gristmill.text.document_filter import DocumentFilter
    from gristmill.text.modifiers.document_modifier import DocumentModifier
    from gristmill.text.statistics.column_statistics import ColumnStatistics

StageOrName: TypeAlias = "ProcessingStage[Any, Any] | str"
"""A stage, which knows the columns that the plan has found for it; or only its name."""


def text_column(stage: StageOrName, table: pa.Table, field: str) -> pa.Array:
    """A column as strings, however it is stored."""
    column = any_column(stage, table, field)
    kind = column.type
    if is_json(kind):  # a column that mixes text with other things: text is text, the rest stays JSON
        values, texts = python_values(column), column.cast(pa.string()).to_pylist()
        pairs = zip(values, texts, strict=True)
        return make_array([value if isinstance(value, str | None) else text for value, text in pairs], pa.string())
    of_text = pa.types.is_dictionary(kind) and (is_text(kind.value_type) or pa.types.is_null(kind.value_type))
    if is_text(kind) or pa.types.is_null(kind) or of_text:
        return column if pa.types.is_string(kind) else column.cast(pa.string())
    if _is_planned(stage, field):
        return json_array(python_values(column)).cast(pa.string())
    raise ColumnError(
        f"stage {_stage_name(stage)!r} needs text in column {field!r}, which holds {printable(kind)}: use another"
    )


def any_column(stage: StageOrName, table: pa.Table, field: str) -> pa.Array:
    """A column of any type."""
    if field in table.column_names:
        return as_array(table.column(field))
    if not table.num_rows:
        return make_array([], pa.string())
    if _is_planned(stage, field):
        return pa.nulls(table.num_rows)
    there = [name for name in table.column_names if not name.startswith("_")]
    raise ColumnError(
        f"stage {_stage_name(stage)!r} needs column {field!r}. There are: {shorten(there, 12) or 'none'}."
        f"{did_you_mean(field, there)} Name the right column in the stage (text_field=..., input_fields=...). If only "
        "some rows have it, say in outputs() of the stage that gives it that it does: the others are null then"
    )


def _is_planned(stage: StageOrName, field: str) -> bool:
    return not isinstance(stage, str) and field in stage.planned_columns


def _stage_name(stage: StageOrName) -> str:
    return stage if isinstance(stage, str) else stage.name


def batch_texts(stage: StageOrName, batch: Batch, field: str) -> pa.Array:
    """A text column of the rows of a batch."""
    texts, rows, _ = _cached_texts(stage, batch, field)
    return texts if rows is None else texts.filter(rows)


def batch_column(stage: StageOrName, batch: Batch, field: str) -> pa.Array:
    """A column of any type of the rows of a batch."""
    table, rows = stored_rows(batch)
    if rows is None or not batch.num_items:
        return any_column(stage, batch.data, field)
    return any_column(stage, table, field).filter(rows)


def batch_statistics(stage: StageOrName, batch: Batch, field: str, names: Sequence[str]) -> ColumnStatistics:
    """Statistics of the text of a batch: counted now, or known since an earlier stage."""
    texts, rows, counts = _cached_texts(stage, batch, field)
    if missing := column_statistics.statistics_to_count(field, names, counts):
        counts = {**counts, **column_statistics.count_column(texts, missing, rows)}
        column_cache(batch)[field] = (texts, counts)
    return {name: counts[name] if rows is None else counts[name].filter(rows) for name in names}


def _cached_texts(
    stage: StageOrName, batch: Batch, field: str
) -> tuple[pa.Array, pa.BooleanArray | None, ColumnStatistics]:
    """A text column of a batch's marked table, which rows of it are in the batch, and what is known of those."""
    table, rows = stored_rows(batch) if batch.num_items else (batch.data, None)
    if field not in column_cache(batch):
        column_cache(batch)[field] = (text_column(stage, table, field), {})
    texts, counts = column_cache(batch)[field]
    return texts, rows, counts


def score_text_column(stage: StageOrName, tool: DocumentFilter, batch: Batch, field: str) -> pa.Array:
    """The scores of a text column: from statistics that filters share, or from the text itself."""
    if (names := tool.statistics()) and not tool.unspaced:
        return check_one_value_per_row(
            tool, "score_counts", tool.score_counts(batch_statistics(stage, batch, field, names)), batch.num_items
        )
    return call_batch_method(tool, "score_batch", batch_texts(stage, batch, field))


def filter_verdicts(tool: DocumentFilter, scores: pa.Array, batch: Batch) -> pa.Array:
    """The verdicts of a filter on the rows of a batch."""
    return check_one_value_per_row(tool, "keep_rows", tool.keep_rows(scores, batch), len(scores))


def call_batch_method(tool: DocumentFilter | DocumentModifier, method: str, column: pa.Array) -> pa.Array:
    """What a batch form returned, if it is one value per row."""
    return check_one_value_per_row(tool, method, getattr(tool, method)(column), len(column))


def check_one_value_per_row(tool: DocumentFilter | DocumentModifier, method: str, answer: Any, rows: int) -> pa.Array:
    if not isinstance(answer, pa.Array | pa.ChunkedArray) or len(answer) != rows:
        got = f"{len(answer)} values" if hasattr(answer, "__len__") else "no values"
        raise ContractError(
            f"{tool.name}.{method} got {rows} rows and returned {got} as {type(answer).__name__}: "
            "return a pyarrow Array with one value per row"
        )
    return as_array(answer)
