"""Sketches: the small part of a document that goes through exchanges to find similar documents.

    entries    a 64-bit key for each band of its signature (`lsh.py`), with the number of the document
    body       what it is compared by: the set of its shingles, in about two bytes each, or one byte of each number of
               its signature

Both are computed in one pass over the texts. The set of shingles is nearly as exact as the text: one shingle in many
thousands collides with another one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, as_one_array, as_text, from_numbers, numbers
from gristmill.dedup.signatures.lsh import band_hashes, bucket_pairs
from gristmill.dedup.signatures.minhash import Shingling, signature_matrix, signatures

NO_BODY, SET_BODY, SIGNATURE_BODY = range(3)

BUCKETS = 1024
"""Entries are partitioned by the upper ten bits of their keys. A bucket is held in memory as a whole, so more buckets
would need less memory for billions of texts; but each is a row of every batch, which costs more than a few entries."""


@fast_dataclass(frozen=True)
class Sketches:
    """The sketches of some texts."""

    present: pa.Array
    """The rows that have a sketch: blank texts have none."""
    entries: bytes
    """A key and the number of a document, 16 bytes each, by bucket; within a bucket in the order of rows and bands."""
    ends: Numbers
    """Where each bucket ends, as a number of entries."""
    bodies: pa.Array
    """The body of each present row; null with `NO_BODY`."""
    leasts: Numbers
    """The least shingle of each present row. Two texts share it with a probability equal to their similarity."""


def sketch(
    column: Column,
    nodes: Numbers,
    shingling: Shingling,
    bands: int,
    rows: int,
    bits: int = 32,
    body: int = SET_BODY,
) -> Sketches:
    """The sketches of texts; `nodes` are their 64-bit numbers."""
    texts, nodes = as_text(column), np.ascontiguousarray(nodes)
    arguments = (shingling.unit, shingling.n, shingling.seed, bands, rows, bits == 64, BUCKETS, body)
    if kernels is not None:
        bitmap, entries, ends, stops, bodies, leasts = kernels.sketch(texts, nodes, *arguments)
    else:
        bitmap, entries, ends, stops, bodies, leasts = _slowly(texts, nodes, shingling, bands, rows, bits, body)
    has_sketch = pa.Array.from_buffers(pa.bool_(), len(texts), [None, pa.py_buffer(bitmap)])
    present = pc.indices_nonzero(has_sketch)
    column_of_bodies = pa.Array.from_buffers(
        pa.large_binary(), len(present), [None, pa.py_buffer(stops), pa.py_buffer(bodies)]
    )
    if body == NO_BODY:
        column_of_bodies = pa.nulls(len(present), pa.large_binary())
    bucket_ends, least_shingles = np.frombuffer(ends, np.int64), np.frombuffer(leasts, np.uint64)
    return Sketches(present, entries, bucket_ends, column_of_bodies.cast(pa.binary()), least_shingles)


def _slowly(
    texts: pa.Array, nodes: Numbers, how: Shingling, bands: int, rows: int, bits: int, body: int
) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes]:
    signed = signatures(texts, how, bands * rows, bits)
    present = numbers(pc.indices_nonzero(signed.is_valid()), np.int64)
    keys = band_hashes(signed, bands, rows)[present].reshape(-1)
    order = np.argsort(buckets_of(keys), kind="stable")
    entries = np.stack([keys[order], np.repeat(nodes[present], bands)[order].view(np.uint64)], axis=1)
    ends = np.cumsum(np.bincount(buckets_of(keys), minlength=BUCKETS)).astype(np.int64)
    if body == SIGNATURE_BODY:
        full = signature_matrix(signed)[present]
        short = (full >> np.uint64(32) if bits == 64 else full) & 0xFF
        bodies = [row.astype(np.uint8).tobytes() for row in short]
    elif body == SET_BODY:
        bodies = [reference.set_code(how.shingles(texts[row].as_py())) for row in present.tolist()]
    else:
        bodies = [b""] * len(present)
    leasts = np.array([how.shingles(texts[row].as_py()).min() for row in present.tolist()], np.uint64)
    stops = np.cumsum([0, *map(len, bodies)]).astype(np.int64)
    bitmap = np.packbits(np.isin(np.arange(len(texts)), present), bitorder="little").tobytes()
    return (
        bitmap,
        entries.astype("<u8").tobytes(),
        ends.tobytes(),
        stops.tobytes(),
        b"".join(bodies),
        leasts.tobytes(),
    )


def buckets_of(keys: Numbers) -> Numbers:
    """The bucket of each 64-bit key."""
    return ((keys.view(np.uint64) >> np.uint64(32)) * np.uint64(BUCKETS) >> np.uint64(32)).astype(np.int64)


def entry_pairs(entries: bytes | memoryview, all_up_to: int) -> Numbers:
    """Pairs of numbers that have a key in common, as rows of two, the smaller first. See `bucket_pairs`."""
    if kernels is not None:
        return np.frombuffer(kernels.entry_pairs(entries, all_up_to), np.int64).reshape(-1, 2)
    parsed = np.frombuffer(entries, np.int64).reshape(-1, 2)
    pairs = bucket_pairs(from_numbers(parsed[:, 0].view(np.uint64)), from_numbers(parsed[:, 1]), all_up_to)
    return np.stack([numbers(pairs["u"]), numbers(pairs["v"])], axis=1)


def set_jaccard(
    left: Column, right: Column, left_rows: Numbers | None = None, right_rows: Numbers | None = None
) -> Numbers:
    """The Jaccard similarity of pairs of sets of shingles: `left_rows` of the left column with `right_rows` of the
    right one, by default row by row. 0 where a set is missing."""
    one, other = (
        np.arange(len(side)) if rows is None else np.ascontiguousarray(rows, np.int64)
        for side, rows in ((left, left_rows), (right, right_rows))
    )
    if kernels is not None:
        return np.frombuffer(kernels.set_jaccard(as_one_array(left), one, as_one_array(right), other), np.float64)
    pairs = zip(left.take(from_numbers(one)).to_pylist(), right.take(from_numbers(other)).to_pylist(), strict=True)
    return np.array([reference.set_jaccard(a or b"", b or b"") for a, b in pairs], np.float64)


def signature_jaccard(left: pa.Array, right: pa.Array) -> Numbers:
    """The Jaccard similarity of each row, estimated from the bytes of two signatures."""
    same: Numbers = (_bytes(left) == _bytes(right)).mean(axis=1)
    return np.maximum((same - 1 / 256) / (1 - 1 / 256), 0.0)  # one byte in 256 is equal by chance


def _bytes(bodies: pa.Array) -> Numbers:
    if not len(bodies):
        return np.zeros((0, 1), np.uint8)
    ends = np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    return np.frombuffer(bodies.buffers()[2], np.uint8)[ends[0] : ends[-1]].reshape(len(bodies), -1)
