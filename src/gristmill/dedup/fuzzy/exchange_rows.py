"""The rows that fuzzy deduplication sends through exchanges: several kinds in one table, partitioned by `__key__`.

    BAND        entries of one bucket, packed, 16 bytes each: the key of a band and the number of a text
    TEXT        a text: its number, rank, id and place, and its body, which is what it is compared by
    PAIR        pairs `u, v` to compare, packed, 16 bytes each; first in the partition of `u`, then in that of `v`
    SENT_TEXT   a copy of a TEXT row, sent once for all pairs of a partition
    LINK        similar pairs, packed, 24 bytes each: `u, v, similarity` where `u` is, and `v, u, ...` where `v` is
    SAMPLE      a text of the sample by which recall is measured, with its least shingle and its set of shingles
    TRUTH       pairs of the sample, packed like links, with their true similarity

A text is identified by a 64-bit number. The partition key is a bucket, of a band key or of the number of a text. There
are few buckets (`document_sketch.BUCKETS`), so that small records are packed into one row per bucket, not a row each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.native_kernels import kernels
from gristmill.dedup.clusters.cluster_table import ID
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, from_numbers, numbers
from gristmill.dedup.signatures.document_sketch import BUCKETS, buckets_of
from gristmill.io.exchange.verdict_stage import ROW, TASK

KEY, KIND, NODE, OTHER = "__key__", "__kind__", "__node__", "__other__"
BODY, RANK, ORDER = "__body__", "__rank__", "__order__"
BAND, TEXT, PAIR, LINK, SAMPLE, TRUTH, SENT_TEXT = range(7)
COLUMNS = {
    KEY: pa.binary(8),
    KIND: pa.int64(),
    NODE: pa.int64(),
    OTHER: pa.int64(),
    BODY: pa.binary(),
    RANK: pa.float64(),
    ORDER: pa.int64(),
    ID: pa.string(),
    TASK: pa.string(),
    ROW: pa.int64(),
}
TEXT_COLUMNS = (BODY, RANK, ORDER, ID, TASK, ROW)
"""The columns of a TEXT row."""


def keys_of(buckets: Numbers) -> pa.Array:
    """Bucket numbers as keys of 8 bytes."""
    return pa.Array.from_buffers(pa.binary(8), len(buckets), [None, pa.py_buffer(np.ascontiguousarray(buckets, "<u8"))])


def make_rows(kind: int, buckets: Numbers, **columns: Any) -> pa.Table:
    """Rows of one kind, with nulls in the columns that the kind does not use."""
    count = len(buckets)
    given = {
        KEY: keys_of(buckets),
        KIND: from_numbers(np.full(count, kind, np.int64)),
        **columns,
    }
    return pa.table({name: given[name] if name in given else pa.nulls(count, of) for name, of in COLUMNS.items()})


def select_kind(table: pa.Table, kind: int) -> pa.Table:
    """The rows of one kind. A record batch is usually of a single kind, and is then not copied."""
    parts = []
    for batch in table.to_batches():
        mine = numbers(batch[KIND]) == kind
        if mine.any():
            parts.append(batch if mine.all() else batch.filter(from_numbers(mine)))
    return pa.Table.from_batches(parts, table.schema)


def pack(kind: int, buckets: Numbers, records: Numbers) -> pa.Table:
    """Records of 8-byte numbers, packed into a row for each bucket; the order within a bucket is kept."""
    order = np.argsort(buckets.astype(np.uint16), kind="stable")  # numpy sorts 16-bit integers by radix
    ends = np.cumsum(np.bincount(buckets, minlength=BUCKETS))
    return pack_buckets(
        kind, np.ascontiguousarray(records[order]).view(np.uint8).reshape(-1), ends, 8 * records.shape[1]
    )


def pack_links(kind: int, u: Numbers, v: Numbers, similarity: Numbers) -> pa.Table:
    """Pairs with their similarity, each in the partitions of both texts."""
    one, other, score = np.concatenate([u, v]), np.concatenate([v, u]), np.concatenate([similarity, similarity])
    return pack(kind, buckets_of(one), np.stack([one, other, score.view(np.int64)], axis=1))


def pack_buckets(kind: int, data: Any, ends: Numbers, size: int) -> pa.Table:
    """Records of `size` bytes, sorted by bucket, as a row for each bucket; `ends` is where each bucket ends."""
    starts = np.append(0, ends[:-1])
    there = np.flatnonzero(ends > starts)
    offsets = np.ascontiguousarray(np.append(0, ends[there]) * size, np.int32)
    bodies = pa.Array.from_buffers(pa.binary(), len(there), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return make_rows(kind, there, **{BODY: bodies})


def unpack(table: pa.Table, width: int) -> Numbers:
    """The records of all rows as one matrix with `width` columns."""
    data, ends = _bodies(table)
    return np.frombuffer(data[int(ends[0]) : int(ends[-1])], np.int64).reshape(-1, width)


def by_bucket(table: pa.Table) -> Iterator[tuple[int, memoryview]]:
    """The records of each bucket; rows are sorted by bucket."""
    data, ends = _bodies(table)
    buckets = bucket_numbers(table)
    starts = np.flatnonzero(np.append(True, buckets[1:] != buckets[:-1])[: len(buckets)])
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(buckets)], strict=False):
        yield int(buckets[start]), data[int(ends[start]) : int(ends[stop])]


def bucket_numbers(table: pa.Table) -> Numbers:
    """The bucket of each row."""
    keys = as_one_array(table[KEY])
    return np.frombuffer(keys.buffers()[1] or b"", "<u8")[keys.offset : keys.offset + len(keys)]


def _bodies(table: pa.Table) -> tuple[memoryview, Numbers]:
    """The bodies of all rows, none of which is null, and their offsets."""
    bodies = as_one_array(table[BODY])
    if not len(bodies):
        return memoryview(b""), np.zeros(1, np.int32)
    _, ends, data = bodies.buffers()
    return memoryview(data), np.frombuffer(ends, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]


def without_body(table: pa.Table) -> pa.Table:
    at = table.column_names.index(BODY)
    return table.set_column(at, BODY, pa.nulls(table.num_rows, pa.binary()))


def by_node(table: pa.Table) -> tuple[pa.Table, Numbers]:
    """Rows sorted by number, once each; and the numbers."""
    nodes, first = np.unique(numbers(table[NODE]), return_index=True)
    return table.take(from_numbers(first)), nodes


def texts_among(table: pa.Table, wanted: Numbers) -> tuple[pa.Table, Numbers]:
    """The TEXT rows with some numbers, sorted by number, once each; and the numbers."""
    texts = select_kind(table, TEXT)
    every = numbers(texts[NODE])
    rows = np.flatnonzero(np.isin(every, wanted))
    nodes, first = np.unique(every[rows], return_index=True)
    return texts.take(from_numbers(rows[first])), nodes


def distinct_rows(pairs: Numbers) -> Numbers:
    """Pairs, sorted, without repetitions."""
    if kernels is not None:
        return np.frombuffer(kernels.distinct_pairs(np.ascontiguousarray(pairs)), np.int64).reshape(-1, 2)
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    new: Numbers = np.append(True, (pairs[1:] != pairs[:-1]).any(axis=1))[: len(pairs)]
    distinct: Numbers = pairs[new]
    return distinct
