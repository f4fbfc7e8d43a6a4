"""Declared types: `schema=` of readers and writers.

A value that has another type is converted if that loses nothing: `12` to `"12"` and back, `3.0` to `3`, JSON to
structs; empty text, as CSV has it for missing numbers, becomes null. A row with a value that cannot be converted goes
to quarantine; with another schema, the next run reads it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, is_text, nulls, table_to_rows
from gristmill.core.arrow.type_widening import convert_column
from gristmill.core.batch import SOURCE_FILE, Batch
from gristmill.core.errors import printable
from gristmill.core.stage import Columns, ProcessingStage

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema: TypeAlias = pa.Schema | Mapping[str, Any]
"""Types by column: an Arrow schema, or a mapping to types, their names, ["a type"] for lists, mappings for structs."""

_MISFIT = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError, OverflowError)


def parse_schema(schema: Schema) -> pa.Schema:
    """An Arrow schema from what users give as `schema=`."""
    if isinstance(schema, pa.Schema):
        return schema
    if not isinstance(schema, Mapping) or not schema:
        raise TypeError(f"schema is {schema!r}, must map columns to types, as in schema={{'id': 'string'}}")
    return pa.schema([(str(name), _parse_type(str(name), kind)) for name, kind in schema.items()])


def _parse_type(name: str, kind: Any) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    if isinstance(kind, Mapping) and kind:
        return pa.struct([(str(key), _parse_type(f"{name}.{key}", item)) for key, item in kind.items()])
    if isinstance(kind, list | tuple) and len(kind) == 1:
        return pa.list_(_parse_type(name, kind[0]))
    try:
        return pa.type_for_alias(kind)
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f"schema: the type of {name!r} is {kind!r}, must be the name of an Arrow type ('string', 'int64', "
            "'float64', 'bool', 'timestamp[ms]'), ['string'] for a list of strings, or {'a': 'int64'} for a struct"
        ) from None


class SetColumnTypes(ProcessingStage[Batch, Batch]):
    """Converts columns to the types of a schema. Rows with values that do not fit go to quarantine."""

    name = "set_types"
    takes_empty = True

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self._schema = parse_schema(schema)
        self.types = {field.name: str(field.type) for field in self._schema}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], {field.name: field.type for field in self._schema}

    def process(self, task: Batch) -> Batch:
        columns: dict[str, pa.Array] = {}
        misfits: dict[int, str] = {}
        for field in self._schema:
            if field.name not in task.data.column_names:
                columns[field.name] = nulls(task.num_items, field.type)
            elif task.data.column(field.name).type != field.type:
                array = as_one_array(task.data.column(field.name))
                columns[field.name], bad = fit_column(array, field.type)
                for row in bad:
                    misfits.setdefault(row, field.name)
        if misfits:
            task, columns = self._without(task, columns, misfits)
        for name, column in columns.items():
            task = task.with_column(name, column)
        return task

    def _without(
        self, task: Batch, columns: Mapping[str, pa.Array], misfits: Mapping[int, str]
    ) -> tuple[Batch, dict[str, pa.Array]]:
        """The batch and its new columns without the misfits, which are set aside."""
        rows = sorted(misfits)
        lost = task.take(rows)
        for number, row in zip(rows, table_to_rows(lost.data), strict=True):
            name = misfits[number]
            self.set_aside(
                f"column {name!r} holds {printable(repr(row[name]), 80)}, which cannot be converted to "
                f"{self.types[name]}, as schema= demands",
                row={key: value for key, value in row.items() if key != POSITION},
                file=task.metadata.get(SOURCE_FILE),
                position=row.get(POSITION),
            )
        fits = make_array([row not in misfits for row in range(task.num_items)], pa.bool_())
        kept = task.keep(fits)
        return kept.with_data(kept.data), {name: column.filter(fits) for name, column in columns.items()}


def fit_column(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """The values as another type, and the rows of those that cannot be converted without loss, null in the column."""
    if is_text(array.type) and not is_text(kind):
        array = pc.if_else(pc.equal(array, literal("", array.type)), nulls(1, array.type)[0], array)
    parts = list(_fitting_parts(array, kind, 0))
    bad = [start for start, part in parts if part is None]
    arrays = [nulls(1, kind) if part is None else part for _, part in parts]
    return (pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]), bad


def _fitting_parts(array: pa.Array, kind: pa.DataType, start: int) -> Iterator[tuple[int, pa.Array | None]]:
    """Converted parts of the column with the row that each begins at; None for a single value that does not fit."""
    try:
        yield start, convert_column(array, kind)
    except _MISFIT:
        if len(array) == 1:
            yield start, None
            return
        half = len(array) // 2
        yield from _fitting_parts(array.slice(0, half), kind, start)
        yield from _fitting_parts(array.slice(half), kind, start + half)
