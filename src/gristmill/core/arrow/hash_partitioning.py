"""Assign each row to a partition by a hash of its key.

A value goes to the same partition whatever type its column has in a block: 5, 5.0 and "5" go together, since a column
may be read as integers in one block and as mixed types in another (`table_conversion.py`). The same holds for equal
bytes, fixed-size or not, and text. Bytes of the size of a hash are not hashed again.

Keys that are not hashes are slow: each distinct value passes through Python once per batch.
"""

from __future__ import annotations

import struct
import zlib
from sys import byteorder
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.arrow.table_conversion import is_json, is_text, json_text, table_to_rows
from gristmill.core.errors import ColumnError, did_you_mean, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYOUT_VERSION = 8
"""The version of the partitioned data. Increase it when partitions, hashes, ranks, names or file layout change, so that
a run half partitioned by an older version is not resumed."""

_INT, _UINT, _ENDS = pa.int64(), pa.uint64(), pa.int32()
_FOLD, _ZERO = literal(32, _UINT), literal(0, _UINT)
_HASH_BYTES = (8, 16, 20, 32)
_FIXED = pa.binary(8).id
_FACTORS = [literal(0xBF58476D1CE4E5B9, _UINT), literal(0x94D049BB133111EB, _UINT)]


def partition_numbers(table: pa.Table, columns: Sequence[str], count: int) -> pa.Array:
    """The partition of each row, from 0 to `count - 1`."""
    if count == 1 or not columns or not table.num_rows:  # a batch without rows may lack columns
        return pa.repeat(_ZERO, table.num_rows)
    if len(columns) == 1 and (partitions := _hash_partitions(column_or_nulls(table, columns[0]), count)):
        return partitions
    total = pa.repeat(_ZERO, table.num_rows)
    for name in columns:
        total = _mixed(pc.add(_mixed(total), _hashes(column_or_nulls(table, name))))
    high = pc.shift_right(total, _FOLD)
    return pc.shift_right(pc.multiply(high, literal(count, _UINT)), _FOLD)


def required_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        names = [column for column in table.column_names if not column.startswith("__")]
        raise ColumnError(f"there is no column {name!r}. There are: {shorten(names, 12)}.{did_you_mean(name, names)}")
    return table.column(name)


def column_or_nulls(table: pa.Table, name: str) -> pa.ChunkedArray:
    """A column, or nulls: a block of JSON has no column for a field that none of its rows has."""
    return table.column(name) if name in table.column_names else pa.chunked_array([pa.nulls(table.num_rows)])


def split_by_partition(table: pa.Table, numbers: pa.Array) -> list[tuple[int, pa.Table]]:
    """The rows of each partition, in table order."""
    if not table.num_rows:
        return []
    order, ends = _by_number(numbers)
    if len(ends) > 1:
        moved = [column if _is_same(column) else column.take(order) for column in table.columns]
        table = pa.table(moved, schema=table.schema)
    parts, start = [], 0
    for number, end in ends:
        parts.append((number, table.slice(start, end - start)))
        start = end
    return parts


def _by_number(numbers: pa.Array) -> tuple[pa.Array, list[tuple[int, int]]]:
    """The row indices sorted stably by number; and each distinct number with the end of its range."""
    if kernels is not None and numbers.type == _UINT and not numbers.null_count:
        found = kernels.by_number(numbers.buffers()[1].slice(8 * numbers.offset, 8 * len(numbers)))
        if found is not None:
            return pa.Array.from_buffers(_UINT, len(numbers), [None, pa.py_buffer(found[0])]), found[1]
    order = pc.array_sort_indices(numbers)  # which is stable
    encoded = pc.run_end_encode(numbers.take(order))
    return order, list(zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True))


def constant_column(value: pa.Scalar, count: int) -> pa.Array:
    """A run-end encoded column of one repeated value, stored once; exchanges expand it when it is read."""
    ends = pa.Array.from_buffers(_ENDS, 1, [None, pa.py_buffer(struct.pack("=i", max(count, 1)))])
    kind = pa.run_end_encoded(_ENDS, value.type)
    return pa.Array.from_buffers(kind, count, [None], children=[ends, pa.repeat(value, 1)])  # others load pandas


def consecutive_integers(count: int, start: int = 0) -> pa.Array:
    """Consecutive numbers from `start`, without a Python object for each."""
    return pa.Array.from_buffers(_INT, count, [None, pa.py_buffer(np.arange(start, start + count, dtype=np.int64))])


def _is_same(column: pa.ChunkedArray) -> bool:
    known = pa.types.is_run_end_encoded(column.type)
    return known and column.num_chunks == 1 and len(column.chunk(0).values) == 1


def _mixed(bits: pa.Array) -> pa.Array:
    for factor in _FACTORS:
        bits = pc.multiply(pc.bit_wise_xor(bits, pc.shift_right(bits, _FOLD)), factor)  # overflow is intended
    return pc.bit_wise_xor(bits, pc.shift_right(bits, _FOLD))


def _hash_partitions(column: pa.ChunkedArray, count: int) -> pa.Array | None:
    """As `partition_numbers`, for a key that is one column of hashes; None for other keys."""
    if kernels is None or not is_hash_type(column.type) or column.null_count:
        return None
    hashes = as_one_array(column)
    width = hashes.type.byte_width
    raw = hashes.buffers()[1].slice(width * hashes.offset, width * len(hashes))
    found = kernels.hash_partitions(raw, width, count)
    return pa.Array.from_buffers(_UINT, len(hashes), [None, pa.py_buffer(found)])


def is_hash_type(kind: pa.DataType) -> bool:
    """Whether values are taken for hashes."""
    return kind.id == _FIXED and kind.byte_width in _HASH_BYTES


def _hashes(column: pa.ChunkedArray) -> pa.Array:
    """A number for each value; null has 0."""
    kind = column.type
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if is_hash_type(kind):
        return pc.fill_null(pc.binary_slice(array, 0, 8).view(_UINT), _ZERO)
    plain = array.storage if is_json(kind) else array
    encoded = plain if pa.types.is_dictionary(plain.type) else plain.dictionary_encode()
    values = encoded.dictionary
    if is_json(kind):
        texts = [row["v"] for row in table_to_rows(pa.table([pa.ExtensionArray.from_storage(kind, values)], ["v"]))]
    else:
        texts = values.to_pylist()
    known = make_array(list(map(_number, texts)), _UINT)
    return pc.fill_null(known.take(encoded.indices), _ZERO)


def _number(value: Any) -> int:
    """The number of a value; of bytes that may be a hash, the one that they have in a column of hashes. Others are
    hashed whole: they may begin alike, as addresses do."""
    if isinstance(value, bytes) and len(value) in _HASH_BYTES:
        return int.from_bytes(value[:8], byteorder)
    return zlib.crc32(_canonical(value))


def _canonical(value: Any) -> bytes:
    """The bytes of a value, the same for 5, 5.0 and "5"."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json_text(value).encode()


def sortable_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as Arrow can compare it."""
    if not is_json(column.type):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def can_sort(kind: pa.DataType) -> bool:
    checks = (
        is_text,
        is_json,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_temporal,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_decimal,
        pa.types.is_null,
    )
    return any(check(kind) for check in checks)
