"""Hashes of 128 bits, by which equal texts are found: the odds that two of a trillion texts share one are 1 to 10^14.

The definition is BLAKE2b of the bytes of the text, in UTF-8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa

from gristmill.core.compute import pc

WIDTH = 16
HASH: pa.DataType = pa.binary(WIDTH)


def hash128(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The hash of each text; null for null."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    arrays = [_hashes(chunk) for chunk in chunks]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, HASH)


def _hashes(texts: pa.Array) -> pa.Array:
    count, missing = len(texts), texts.null_count
    packed = pa.py_buffer(b"".join(hashlib.blake2b(text, digest_size=WIDTH).digest() for text in _bytes_of(texts)))
    validity = pc.is_valid(texts).buffers()[1] if missing else None
    return pa.Array.from_buffers(HASH, count, [validity, packed], missing)


def _bytes_of(texts: pa.Array) -> Iterator[memoryview]:
    """The bytes of each text, where they lie; nothing for null."""
    large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    _, offsets, data = texts.buffers()
    if not len(texts):
        return
    ends = memoryview(offsets).cast("q" if large else "i")[texts.offset : texts.offset + len(texts) + 1]
    raw = memoryview(data if data is not None else b"")
    for start, end in pairwise(ends):
        yield raw[start:end]
