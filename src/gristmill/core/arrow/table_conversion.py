"""Convert rows to Arrow tables and back.

JSON has no schema: a field may be absent, change its type or be nested. One rule keeps such data lossless and
independent of how a file was cut into blocks: scalars of one type become a native Arrow column; nested values and
mixed types are kept as JSON text of type `arrow.json`. `unify_schemas` applies the rule to tables read separately.
What a writer makes of JSON text is in `settled_types.py`.
"""

from __future__ import annotations

import base64
import math
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

POSITION = "__position__"
"""Reserved column: a record's position in its file (byte offset or row number). Readers add it, writers drop it."""

VERDICT = "__verdict__"
"""Reserved column: whether to keep a row, set by the stage that looks it up for the one that drops it. Columns whose
names begin with it hold details of the verdict, shown with rejected rows."""

JSON: pa.DataType = pa.json_(pa.string())
"""The type of nested values: objects and lists, as JSON text."""

MIXED: pa.DataType = pa.json_(pa.large_string())
"""The type of a column with values of several types, not all of them nested: JSON text too. It differs from `JSON` by
its storage, so that a writer can tell the two apart when the rows that made a column mixed have been dropped."""

MAX_DEPTH = 350
"""How deeply a value may be nested; Python's JSON encoder would overflow the stack beyond it."""

EXACT_FLOAT_LIMIT = 2**53
"""Integers up to this size, of either sign, are exact as 64-bit floats; beyond it, beside floats, they are JSON."""

_NESTED = (dict, list, tuple)
_NATIVE = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_UNMIXED = {bool, str, bytes, date, datetime}  # pyarrow would silently convert some of these to others


class NestedTooDeepError(ValueError):
    """A value is nested more than `MAX_DEPTH` levels."""


def is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.JsonType)


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def rows_to_table(rows: Sequence[Mapping[str, Any]], fields: Iterable[str] | None = None) -> pa.Table:
    """A table with every field of every row, in order of first appearance (or only the `fields`)."""
    names = list(dict.fromkeys(name for row in rows for name in row)) if fields is None else list(fields)
    columns = {name: to_array([row.get(name) for row in rows]) for name in names}
    if not columns:
        return pa.table({})
    return pa.table(columns)


def to_array(values: Sequence[Any]) -> pa.Array:
    """A native column when all values are scalars of one type, else JSON text."""
    kinds = set(map(type, values)) - {type(None)}
    mixed = len(kinds) > 1 and not kinds.isdisjoint(_UNMIXED)
    nested = [issubclass(kind, _NESTED) for kind in kinds]
    if not mixed and not any(nested):
        try:
            return _scalars(values, kinds)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            pass
    return json_array(values, JSON if all(nested) else MIXED)


def _scalars(values: Sequence[Any], kinds: set[type]) -> pa.Array:
    if not kinds:
        return pa.nulls(len(values))
    if len(kinds) == 1 and (native := _NATIVE.get(next(iter(kinds)))) is not None:
        return make_array(values, native)
    return pa.array(values)


def json_array(values: Iterable[Any], kind: pa.DataType = JSON) -> pa.Array:
    texts = [None if value is None else json_text(value) for value in map(whole_number, values)]
    return pa.ExtensionArray.from_storage(kind, make_array(texts, pa.string()).cast(kind.storage_type))


def whole_number(value: Any) -> Any:
    """1.0 as 1: integers of a block may have become floats before the column turned out to be mixed."""
    if not isinstance(value, float) or not math.isfinite(value):
        return None if isinstance(value, float) else value
    keep = abs(value) > EXACT_FLOAT_LIMIT or not value.is_integer() or (value == 0 and math.copysign(1, value) < 0)
    return value if keep else int(value)


def json_text(value: Any) -> str:
    try:
        return orjson.dumps(
            value, default=as_plain_text, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
        ).decode()
    except TypeError:  # integers beyond 64 bits, lone surrogates, keys that are no strings
        import json

        if is_nested_too_deep(value):
            raise NestedTooDeepError(f"a value is nested more than {MAX_DEPTH} levels deep") from None
        return json.dumps(_jsonable(value), ensure_ascii=True, default=as_plain_text, separators=(",", ":"))


def is_nested_too_deep(value: Any) -> bool:
    """Whether a value is nested more than `MAX_DEPTH` levels."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        nested = [item for item in level if isinstance(item, _NESTED)]
        if not nested:
            return False
        level = [inner for item in nested for inner in (item.values() if isinstance(item, dict) else item)]
    return True


def _jsonable(value: Any) -> Any:
    """The value as JSON allows it: keys as strings, NaN and infinity as null."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_plain_text(value: Any) -> str:
    """A value of a type that JSON lacks, as text: bytes in base64, others by `str`."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def table_to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Python rows; JSON columns come back as the objects they hold."""
    if not any(is_json(field.type) for field in table.schema):
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows
    names = table.column_names
    columns = [column_values(column) for column in table.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def column_values(column: pa.ChunkedArray) -> list[Any]:
    """Python values; JSON comes back as the objects that it holds."""
    values: list[Any] = column.to_pylist()
    if is_json(column.type):
        return [None if value is None else parse_json(value) for value in values]
    return values


def parse_json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # numbers beyond what orjson reads
        import json

        return json.loads(text)


def without_views(table: pa.Table) -> pa.Table:
    """View types as plain ones: Arrow cannot filter or take columns of views yet."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.string()))
        elif pa.types.is_binary_view(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.binary()))
    return table


def unify_schemas(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """One schema for tables that were read apart: every field, each of a type that holds all its values."""
    merged: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            seen = merged.get(field.name)
            merged[field.name] = field.type if seen is None else common_type(seen, field.type)
    return pa.schema(list(merged.items()))


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type of a column that has one of these here and the other there: JSON text unless one holds both."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if is_text(left) and is_text(right):
        return pa.large_string()
    numbers = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (left, right)]
    if all(numbers) and pa.uint64() not in (left, right):
        both_int = pa.types.is_integer(left) and pa.types.is_integer(right)
        return pa.int64() if both_int else pa.float64()
    nested = [kind == JSON or pa.types.is_nested(kind) for kind in (left, right)]
    return JSON if all(nested) else MIXED


def conform_to_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns and types of `schema`; what it lacks is null."""
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(nulls(table.num_rows, field.type))
        else:
            columns.append(_convert(table.column(field.name), field.type))
    return pa.table(columns, schema=schema)


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """An array of nulls, also of an extension type."""
    if not isinstance(kind, pa.BaseExtensionType):
        return pa.nulls(count, kind)
    return pa.ExtensionArray.from_storage(kind, pa.nulls(count, kind.storage_type))


def _convert(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if not is_json(kind):
        return column.cast(kind)
    if is_json(column.type):
        chunks = [chunk.storage.cast(kind.storage_type) for chunk in column.chunks]
        return pa.chunked_array([pa.ExtensionArray.from_storage(kind, chunk) for chunk in chunks], type=kind)
    return pa.chunked_array([json_array(column_values(column), kind)], type=kind)


def wide_integer_columns(table: pa.Table) -> frozenset[str]:
    """Integer columns with values that a float cannot hold."""
    names: list[str] = []
    for column, values in zip(table.schema, table.columns, strict=True):
        if column.type in (pa.int64(), pa.uint64()):
            low, high = pc.min_max(values).as_py().values()
            if low is not None and not -EXACT_FLOAT_LIMIT <= low <= high <= EXACT_FLOAT_LIMIT:
                names.append(column.name)
    return frozenset(names)
