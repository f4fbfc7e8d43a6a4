"""Convert columns to wider types (`settled_types.py`), without loss.

Arrow casts between most types of scalars. This adds what it lacks: structs get the fields that they do not have, JSON
text is parsed into structs and lists, and any value becomes text. Values go through Python only where types were mixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.settled_types import is_list, json_values
from gristmill.core.arrow.table_conversion import (
    column_values,
    is_json,
    is_text,
    json_array,
    json_text,
    nulls,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_VALUE = "v"


def conform_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns of `schema`, each of its type; what it lacks is null."""
    if table.schema.equals(schema):
        return table
    columns = [
        convert_column(as_one_array(table.column(field.name)), field.type)
        if field.name in table.column_names
        else nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def convert_column(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as a wider type. Raises ArrowInvalid if one does not fit."""
    own = array.type
    if own == kind:
        return array
    if pa.types.is_null(own):
        return nulls(len(array), kind)
    if is_json(kind):
        return _to_json(array, kind)
    if pa.types.is_nested(kind):
        return _to_nested(array, kind)
    texts = not is_text(own) and (is_text(kind) or is_json(own))
    return (_to_text(array) if texts else array).cast(kind)


def _to_nested(array: pa.Array, kind: pa.DataType) -> pa.Array:
    own = array.type
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        return _widen_struct(array, kind)
    if is_list(own) and is_list(kind) and not pa.types.is_fixed_size_list(kind):
        return _widen_list(array, kind)
    if is_json(own) or is_text(own):
        return _parse_json(array.storage if is_json(own) else array, kind)
    return array.cast(kind)


def _widen_struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    own = {field.name: array.field(index) for index, field in enumerate(array.type)}
    if unknown := own.keys() - {field.name for field in kind}:
        raise pa.ArrowInvalid(f"there is no field {min(unknown)!r} in {kind}")
    columns = [
        convert_column(own[field.name], field.type) if field.name in own else nulls(len(array), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())


def _widen_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    make, offset = (pa.LargeListArray, pa.int64()) if pa.types.is_large_list(kind) else (pa.ListArray, pa.int32())
    array = array.cast(make.from_arrays(make_array([0], pa.int64()).cast(offset), array.values[:0]).type)
    first = array.offsets[0].cast(pa.int64())
    starts = pc.subtract(array.offsets.cast(pa.int64()), first).cast(offset)
    used = array.values.slice(first.as_py(), array.offsets[-1].as_py() - first.as_py())
    return make.from_arrays(starts, convert_column(used, kind.value_type), type=kind, mask=array.is_null())


# -- JSON ------------------------------------------------------------------------------------------------------


def _parse_json(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of JSON texts, in Arrow's parser if each has the type that it should have, else in Python."""
    import pyarrow.json as pj

    lines = pc.binary_join_element_wise(
        literal(f'{{"{_VALUE}":', pa.string()),
        pc.fill_null(pc.replace_substring(texts, "\n", " "), literal("null", texts.type)).cast(pa.string()),
        literal("}\n", pa.string()),
        literal("", pa.string()),
    )
    data = _joined(lines)
    schema = pa.schema([(_VALUE, kind)])
    try:
        table = pj.read_json(
            pa.BufferReader(data),
            pj.ReadOptions(use_threads=False, block_size=data.size + 1),
            pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
        return as_one_array(table.column(_VALUE))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        values = iter(json_values(pa.chunked_array([texts.drop_null()])))
        fitted = [fit_value(next(values), kind) if present else None for present in texts.is_valid().to_pylist()]
        return pa.array(fitted, kind)


def _joined(lines: pa.Array) -> pa.Buffer:
    """The bytes of all strings, one after the other."""
    return pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "")[0].as_buffer()


def fit_value(value: Any, kind: pa.DataType) -> Any:
    """A JSON value as Arrow takes it for a type that holds it."""
    if value is None:
        return None
    if is_text(kind):
        return plain_text(value)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        known = {field.name: field.type for field in kind}
        if unknown := [name for name in value if name not in known]:
            raise pa.ArrowInvalid(f"there is no field {unknown[0]!r} in {kind}")
        return {name: fit_value(item, known[name]) for name, item in value.items()}
    if is_list(kind) and isinstance(value, list):
        return [fit_value(item, kind.value_type) for item in value]
    return value


def plain_text(value: Any) -> str:
    """A value as text: strings as they are, others as JSON has them."""
    return value if isinstance(value, str) else json_text(whole_number(value))


# -- text ------------------------------------------------------------------------------------------------------


def _to_text(array: pa.Array) -> pa.Array:
    kind = array.type
    if is_json(kind):
        return _unquoted(array.storage)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return array.cast(pa.string())
    values = column_values(pa.chunked_array([array]))
    if pa.types.is_nested(kind):
        return make_array([None if value is None else _sorted_json(value) for value in values], pa.string())
    return make_array(_texts(values), pa.string())


def _texts(values: Iterable[Any]) -> list[str | None]:
    """Scalars as in JSON, without quotes; NaN and infinity are null, as in JSON."""
    texts: list[str | None] = []
    for value in map(whole_number, values):
        text = None if value is None else plain_text(value)
        texts.append(orjson.loads(text) if text and text.startswith('"') and not isinstance(value, str) else text)
    return texts


def _unquoted(texts: pa.Array) -> pa.Array:
    quoted = pc.starts_with(texts, '"')
    if not pc.any(quoted).as_py():
        return texts.cast(pa.string())
    return make_array(
        [orjson.loads(text) if text and text[0] == '"' else text for text in texts.to_pylist()], pa.string()
    )


def _to_json(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if is_json(array.type):
        return pa.ExtensionArray.from_storage(kind, array.storage.cast(kind.storage_type))
    return json_array(column_values(pa.chunked_array([array])), kind)


def _sorted_json(value: Any) -> str:
    """A nested value as JSON without the fields that are null, which it may have got from the struct, and with its keys
    in order, which may be that of other rows."""
    return json_text(_present(value))


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _present(value[name]) for name in sorted(value) if value[name] is not None}
    return [_present(item) for item in value] if isinstance(value, list) else value
