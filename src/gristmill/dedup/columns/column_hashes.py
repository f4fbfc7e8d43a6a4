"""Hashes of columns (XXH3, 128 bits), the same on every machine.

They are stored in indexes (`dedup_index.FORMAT`), in Bloom filters (their magic bytes) and in shuffle files
(`hash_partitioning.LAYOUT_VERSION`). If the hash changes, all three must change too, or duplicates are missed.

Gives up security: two texts with the same hash can be made on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.native_kernels import kernels
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, as_bytes, from_numbers, validity

HASH_TYPE = pa.binary(16)


def hash128(column: Column, seed: int = 0) -> pa.FixedSizeBinaryArray:
    """The hash of each row of a column of strings or binary, 16 bytes; null for null."""
    array = as_bytes(column)
    return pa.Array.from_buffers(HASH_TYPE, len(array), [validity(array), pa.py_buffer(_hashes(array, seed))])


def hash64(column: Column, seed: int = 0) -> pa.UInt64Array:
    """The first half of `hash128`, as a number. The chance that two of 100 million texts collide is 1 in 3,700."""
    array = as_bytes(column)
    return from_numbers(_halves(array, seed)[:, 0], validity(array))


def hash_columns(columns: Sequence[Column], seed: int = 0) -> pa.FixedSizeBinaryArray:
    """One hash of the values of several columns. Null is a value of its own; if all values are null, so is the hash."""
    if len(columns) == 1:
        return hash128(columns[0], seed)
    arrays = [as_bytes(column) for column in columns]
    rows = len(arrays[0])
    parts = np.zeros((rows, len(arrays), 3), np.uint64)
    for position, array in enumerate(arrays):
        parts[:, position, 0] = _present(array)
        parts[:, position, 1:] = _halves(array, seed)
    joined = np.ascontiguousarray(parts, "<u8").reshape(rows, len(arrays) * 3)
    ends = np.arange(rows + 1, dtype=np.int64) * joined.shape[1] * 8
    data = pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(joined)])
    has_value = parts[:, :, 0].any(axis=1)
    valid = None if has_value.all() else pa.py_buffer(np.packbits(has_value, bitorder="little"))
    return pa.Array.from_buffers(HASH_TYPE, rows, [valid, pa.py_buffer(_hashes(data, seed))])


def _hashes(array: pa.Array, seed: int) -> bytes:
    if kernels is not None:
        found: bytes = kernels.hash128(array, seed)
        return found
    from gristmill.dedup.columns import kernel_reference as reference

    raw = [value.encode() if isinstance(value, str) else value for value in array.to_pylist()]
    return b"".join(bytes(16) if value is None else reference.xxh3(value, seed) for value in raw)


def _halves(array: pa.Array, seed: int) -> Numbers:
    return np.frombuffer(_hashes(array, seed), "<u8").reshape(-1, 2)


def _present(array: pa.Array) -> Numbers:
    bits = validity(array)
    if bits is None:
        return np.ones(len(array), np.uint64)
    return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[: len(array)].astype(np.uint64)
