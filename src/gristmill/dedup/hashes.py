"""Hashes of 128 bits, by which equal texts are found: the odds that two of a trillion texts share one are 1 to 10^14.

The definition is BLAKE2b of the bytes of the text, in UTF-8.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.columns import make_array

if TYPE_CHECKING:
    from collections.abc import Iterable

WIDTH = 16
HASH: pa.DataType = pa.binary(WIDTH)


def hash128(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The hash of each text; null for null."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    arrays = [_hashes(chunk) for chunk in chunks]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, HASH)


def _hashes(texts: pa.Array) -> pa.Array:
    large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    raw = texts.cast(pa.large_binary() if large else pa.binary()).to_pylist()
    packed = pa.py_buffer(b"".join(_digests(raw)))
    validity = None
    if texts.null_count:
        validity = make_array([value is not None for value in raw], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(HASH, len(raw), [validity, packed], texts.null_count)


def _digests(raw: Iterable[bytes | None]) -> Iterable[bytes]:
    return (hashlib.blake2b(value or b"", digest_size=WIDTH).digest() for value in raw)
