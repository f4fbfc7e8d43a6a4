"""Conversion between Arrow columns and numpy arrays, without copies where possible.

Arrays are made from buffers, because `pyarrow.array` would import pandas (see `core/arrow/array_building.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array as as_one_array  # noqa: PLC0414
from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.arrow.table_conversion import is_json, is_text, json_text, table_to_rows
from gristmill.core.errors import ColumnError

Numbers: TypeAlias = np.ndarray[Any, Any]
Column: TypeAlias = pa.Array | pa.ChunkedArray

_TYPES = {np.dtype(kind.to_pandas_dtype()): kind for kind in (pa.int64(), pa.uint64(), pa.int32(), pa.uint32())}
_TYPES |= {np.dtype(np.float64): pa.float64(), np.dtype(np.float32): pa.float32(), np.dtype(np.uint8): pa.uint8()}


def as_text(column: Column) -> pa.Array:
    """A column as one array of strings, for kernels; other types are cast."""
    array = as_one_array(column)
    kind = array.type
    return array if pa.types.is_string(kind) or pa.types.is_large_string(kind) else array.cast(pa.large_string())


def as_bytes(column: Column) -> pa.Array:
    """A column as one array of strings or binary."""
    array = as_one_array(column)
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return array
    if pa.types.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return array.cast(pa.large_binary())
    return as_text(array)


def values_of(column: Column) -> pa.Array:
    """A column as one array of strings or binary; other values become their text.

    A value has the same text whatever type its column has in one block or another: 5 and 5.0 are "5".
    """
    array = as_one_array(column)
    kind = array.type
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return as_bytes(array)
    if pa.types.is_dictionary(kind):
        return values_of(array.dictionary_decode())
    if pa.types.is_floating(kind) or is_json(kind):
        values = [row["value"] for row in table_to_rows(pa.table({"value": array}))]
        return make_array([_text(value) for value in values], pa.string())
    if pa.types.is_nested(kind):
        raise ColumnError(f"values of type {kind} cannot be compared: choose a column of text or numbers")
    return array.cast(pa.large_string())


@contextmanager
def errors_name_column(stage: str, column: str) -> Iterator[None]:
    """Add the names of the stage and the column to errors about values of the column."""
    try:
        yield
    except (ColumnError, pa.ArrowInvalid) as error:
        raise type(error)(f"stage {stage!r}, column {column!r}: {error}") from error


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # JSON has no NaN or infinity
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json_text(value)


def validity(array: pa.Array) -> pa.Buffer | None:
    """The validity bitmap of an array, starting at its first row; None if no row is null."""
    return pc.is_valid(array).buffers()[1] if array.null_count else None


def numbers(column: Column, dtype: Any = None) -> Numbers:
    """A column of numbers as a numpy array; the values of null rows are undefined."""
    array = as_one_array(column)
    if dtype is not None and array.type != _TYPES[np.dtype(dtype)]:
        array = array.cast(_TYPES[np.dtype(dtype)])
    kind = np.dtype(array.type.to_pandas_dtype())
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(0, kind)
    return np.frombuffer(buffer, kind, len(array), array.offset * kind.itemsize)


def from_numbers(values: Numbers, valid: pa.Buffer | None = None) -> pa.Array:
    """A numpy array as an Arrow array; `valid` is its validity bitmap."""
    values = np.ascontiguousarray(values)
    if values.dtype == np.bool_:
        bits = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [valid, pa.py_buffer(bits)])
    return pa.Array.from_buffers(_TYPES[values.dtype], len(values), [valid, pa.py_buffer(values)])


def flags(column: Column) -> Numbers:
    """A column of booleans as a numpy array; null is false."""
    array = as_one_array(column)
    if array.null_count:
        array = pc.fill_null(array, literal(False, pa.bool_()))
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(0, np.bool_)
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(np.bool_)


def key_prefixes(keys: Column) -> Numbers:
    """The first eight bytes of each key, as a 64-bit number."""
    array = as_one_array(keys)
    width = array.type.byte_width
    if not len(array):
        return np.zeros(0, np.uint64)
    raw = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    return np.ascontiguousarray(raw.reshape(-1, width)[:, :8]).view("<u8").reshape(-1)


def repeated_keys(keys: Column) -> pa.Array:
    """Which keys have the same first eight bytes as another one."""
    array = as_one_array(keys)
    if kernels is not None and 0 < len(array) < 2**31:
        width = array.type.byte_width
        bits = kernels.repeated(array.buffers()[1].slice(width * array.offset, width * len(array)), width)
        return pa.Array.from_buffers(pa.bool_(), len(array), [None, pa.py_buffer(bits)])
    ordered = np.sort(key_prefixes(array))
    return keys_among(array, ordered[1:][ordered[1:] == ordered[:-1]])


def keys_among(keys: Column, wanted: Numbers) -> pa.Array:
    """Which keys start with one of `wanted`, sorted prefixes of eight bytes."""
    prefixes = key_prefixes(keys)
    if not len(wanted):
        return from_numbers(np.zeros(len(prefixes), np.bool_))
    positions = np.minimum(np.searchsorted(wanted, prefixes), len(wanted) - 1)
    return from_numbers(wanted[positions] == prefixes)
