"""The type of a column for which all rows of an output must agree on one, as in Parquet.

Types found in parts of the data are widened until they hold all values: null becomes any other type, integers become
floats, structs get the fields of all, lists the items of all, and whatever has no other type in common becomes text, in
which strings are as they are and all other values as JSON has them. Widening is commutative and associative, so the
result does not depend on how the data was cut.

JSON text (`JSON` in `table_conversion.py`) stands for nested values whose structure is found when they are written
(`json_structure`). Integers that a float cannot hold, beside floats, become text too: such columns are `wide`.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import EXACT_FLOAT_LIMIT, JSON, MIXED, is_json, is_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TEXT = pa.string()
MAX_FIELDS = 256
"""A struct with more fields than this, counting those of structs in it, is kept as text: its keys are data."""
MAX_NESTING = 32
_FIELDS_IN_A_BLOCK = 10_000
_INT, _FLOAT, _INT_LIMIT = pa.int64(), pa.float64(), 2**63
_UNITS = ("s", "ms", "us", "ns")


def unite_types(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """A type that holds the values of both."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if is_json(left) or is_json(right):
        return _unite_json(left, right)
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        return unite_structs([left, right])
    if is_list(left) and is_list(right):
        return _unite_lists(left, right)
    nested = pa.types.is_nested(left) or pa.types.is_nested(right)
    return _text_for(left, right) if nested else _unite_scalars(left, right)


def _unite_json(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if MIXED in (left, right):
        return _text_for(left, right)
    other = right if left == JSON else left
    return other if pa.types.is_nested(other) else _text_for(left, right)


def _text_for(*kinds: pa.DataType) -> pa.DataType:
    return pa.large_string() if any(is_text(kind) and kind != TEXT for kind in kinds) else TEXT


def unite_structs(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """A struct with the fields of all, in order of first appearance."""
    fields: dict[str, pa.DataType] = {}
    for kind in kinds:
        for field in kind:
            fields[field.name] = unite_types(fields.get(field.name, pa.null()), field.type)
    return pa.struct(list(fields.items()))


def _unite_lists(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    large = any(pa.types.is_large_list(kind) for kind in (left, right))
    items = unite_types(left.value_type, right.value_type)
    return pa.large_list(items) if large else pa.list_(items)


def _unite_scalars(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if is_text(left) and is_text(right):
        return pa.large_string()
    both = (left, right)
    if all(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) for kind in both):
        return pa.large_binary()
    whole = [pa.types.is_integer(kind) for kind in both]
    if all(whole) and pa.uint64() not in both:
        return _INT
    if all(is_whole or pa.types.is_floating(kind) for is_whole, kind in zip(whole, both, strict=True)):
        return TEXT if pa.uint64() in both else _FLOAT
    if all(pa.types.is_timestamp(kind) for kind in both) and left.tz == right.tz:
        return pa.timestamp(max(left.unit, right.unit, key=_UNITS.index), left.tz)
    return _text_for(left, right)


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


# -- the type to write -----------------------------------------------------------------------------------------


def type_to_write(kind: pa.DataType, wide: bool = False) -> pa.DataType:
    """The type of a column in a file, once all types that were found for it are united."""
    if is_json(kind) or (wide and _has_floats(kind)) or _count_fields(kind) > MAX_FIELDS:
        return TEXT
    return _without_empty_structs(kind)


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_floats(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _count_fields(kind: pa.DataType) -> int:
    own = kind.num_fields if pa.types.is_struct(kind) else 0
    return own + sum(_count_fields(kind.field(index).type) for index in range(kind.num_fields))


def _without_empty_structs(kind: pa.DataType) -> pa.DataType:
    """The type with structs that have no fields as text: Parquet has none."""
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return TEXT
        return pa.struct([field.with_type(_without_empty_structs(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_empty_structs(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_empty_structs(kind.value_type)))
    return kind


# -- nested values ---------------------------------------------------------------------------------------------


def json_structure(column: pa.ChunkedArray) -> tuple[pa.DataType, bool]:
    """The type of the values in a column of JSON text, and whether it is wide. `JSON` if there are none."""
    texts = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type).drop_null()
    if column.type == MIXED or not len(texts):
        return column.type, False
    try:
        found = _Structure()
        kind = found.type_of(json_values(texts))
    except ValueError:  # a lone surrogate, a number too large for a float, or far too many fields
        return TEXT, False
    return kind, found.wide


def json_values(texts: pa.ChunkedArray) -> list[Any]:
    """The values of JSON texts, none of which is null. Raises ValueError for what orjson refuses."""
    if pc.any(pc.match_substring_regex(texts, "[0-9]{19}")).as_py():  # orjson rounds integers of more than 64 bits
        import json

        return [json.loads(text) for text in texts.to_pylist()]
    values: list[Any] = orjson.loads(b"[" + ",".join(texts.to_pylist()).encode() + b"]")
    return values


class _Structure:
    """Finds the type of Python values, a column at a time."""

    def __init__(self) -> None:
        self.wide = False
        self._fields = 0

    def type_of(self, values: Sequence[Any], depth: int = 0) -> pa.DataType:
        kinds = set(map(type, values)) - {type(None)}
        if not kinds:
            return pa.null()
        if kinds == {dict}:
            return self._struct(values, depth)
        if kinds == {list}:
            items = list(chain.from_iterable(value for value in values if value is not None))
            return TEXT if depth >= MAX_NESTING else pa.list_(self.type_of(items, depth + 1))
        if kinds <= {int, float}:
            return self._number(values, kinds)
        return pa.bool_() if kinds == {bool} else TEXT

    def _struct(self, values: Sequence[Any], depth: int) -> pa.DataType:
        columns: dict[str, list[Any]] = {}
        for value in values:
            for name, item in value.items() if value is not None else ():
                columns.setdefault(name, []).append(item)
        self._fields += len(columns)
        if self._fields > _FIELDS_IN_A_BLOCK:
            raise ValueError("too many fields")
        if depth >= MAX_NESTING:
            return TEXT
        return pa.struct([(name, self.type_of(column, depth + 1)) for name, column in columns.items()])

    def _number(self, values: Sequence[Any], kinds: set[type]) -> pa.DataType:
        if int in kinds:
            largest = max(abs(value) for value in values if type(value) is int)
            if largest >= _INT_LIMIT:
                return TEXT
            self.wide |= largest > EXACT_FLOAT_LIMIT
        return _FLOAT if float in kinds else _INT
