"""Read the texts of a batch, whatever type their column has, and replace some of them.

A column that mixes text with other values holds JSON. Values that are not text are read as null, so they are never
duplicates, and are left unchanged.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.hash_partitioning import required_column
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import is_json, is_text, json_array, table_to_rows
from gristmill.core.errors import ColumnError, printable
from gristmill.core.stage import ProcessingStage
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, from_numbers


def texts_of(stage: ProcessingStage[Any, Any] | str, table: pa.Table, field: str) -> pa.Array:
    """A column as strings; null where there is no text."""
    if field not in table.column_names and not isinstance(stage, str) and field in stage._planned.columns:
        return pa.nulls(table.num_rows, pa.string())  # a block of JSON in which no row has it
    column = as_one_array(required_column(table, field))
    kind = column.type
    if is_json(kind):
        values = (row[field] for row in table_to_rows(table.select([field])))
        return make_array([value if isinstance(value, str) else None for value in values], pa.string())
    if pa.types.is_dictionary(kind) and is_text(kind.value_type):
        return column.cast(kind.value_type)
    if not is_text(kind) and not pa.types.is_null(kind):
        name = stage if isinstance(stage, str) else stage.name
        raise ColumnError(
            f"stage {name!r} needs text in column {field!r}, which holds {printable(kind)}: choose a column of text"
        )
    return column.cast(pa.string()) if pa.types.is_null(kind) else column


def with_texts(table: pa.Table, field: str, texts: pa.Array, changed: Numbers) -> pa.Table:
    """The table with the texts of some rows, those in the mask `changed`, replaced."""
    if not changed.any():
        return table
    column = as_one_array(table.column(field))
    if is_json(column.type):
        values = [row[field] for row in table_to_rows(table.select([field]))]
        triples = zip(values, texts.to_pylist(), changed.tolist(), strict=True)
        new: Any = json_array([text if given else value for value, text, given in triples], column.type)
    else:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        mask = from_numbers(changed)
        new = pc.replace_with_mask(column.cast(kind), mask, texts.cast(kind).filter(mask))
    return table.set_column(table.column_names.index(field), field, new)
