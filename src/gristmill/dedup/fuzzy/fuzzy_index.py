"""The tables of a fuzzy index, and how their rows join the rows of a run (`exchange_rows.py`).

    table 0   bands: the entries of a bucket, packed: the key of a band and the number of a text
    table 1   texts: the number of a text, its body, which is what it is compared by, and its id

Numbers of texts are XORed with a salt when they are added: files of two snapshots may have the same names, and so the
same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.dedup.clusters.cluster_table import ID, KEY, TABLE
from gristmill.dedup.columns.arrow_numpy import Numbers, from_numbers, numbers
from gristmill.dedup.columns.column_hashes import hash64
from gristmill.dedup.fuzzy.exchange_rows import (
    BAND,
    BODY,
    NODE,
    ORDER,
    PAIR,
    RANK,
    TEXT,
    make_rows,
    pack,
    select_kind,
    unpack,
)
from gristmill.dedup.fuzzy.exchange_rows import KEY as BUCKET
from gristmill.dedup.index.extend_index import DroppedRows, KeyTables
from gristmill.dedup.index.index_lookup import IndexLookup
from gristmill.dedup.signatures.document_sketch import buckets_of
from gristmill.io.exchange.verdict_stage import ROW, TASK

INDEX_TABLES = (
    pa.schema([(KEY, pa.binary(8)), (BODY, pa.binary())]),
    pa.schema([(KEY, pa.binary(8)), (NODE, pa.int64()), (BODY, pa.binary()), (ID, pa.string())]),
)


def rows_to_add(keys: KeyTables, dropped: DroppedRows, salt: int) -> Iterator[pa.Table]:
    """The rows to add to the index, from the keys of one source."""
    change = np.array([salt], np.uint64).view(np.int64)[0]
    kept = [np.zeros(0, np.int64)]
    for table in keys():
        texts = select_kind(table, TEXT)
        kept.append(numbers(texts[NODE])[dropped.is_kept(texts)])
    nodes = np.unique(np.concatenate(kept))
    for table in keys():
        entries = unpack(select_kind(table, BAND), 2)
        mine = entries[np.isin(entries[:, 1], nodes)]
        salted = np.stack([mine[:, 0], mine[:, 1] ^ change], axis=1)
        yield _numbered(0, pack(BAND, buckets_of(mine[:, 0]), salted))
        texts = select_kind(table, TEXT)
        texts = texts.filter(from_numbers(np.isin(numbers(texts[NODE]), nodes)))
        named = numbers(texts[NODE]) ^ change
        about = {NODE: from_numbers(named), BODY: texts[BODY], ID: texts[ID]}
        yield _numbered(1, make_rows(TEXT, buckets_of(named), **about))


def content_number(keys: pa.Table) -> int:
    """A checksum of the texts of some keys, whatever their order and partitions.

    Bands alone are not enough: texts that are nearly the same share them.
    """
    bodies = hash64(select_kind(keys, TEXT)[BODY].drop_null())
    return int(_band_keys(keys).sum()) + int(numbers(bodies).sum())


def _numbered(table: int, rows: pa.Table) -> pa.Table:
    number = from_numbers(np.full(rows.num_rows, table, np.uint8))
    return pa.table([number, rows[BUCKET], rows[NODE], rows[BODY], rows[ID]], [TABLE, KEY, NODE, BODY, ID])


# -- joining new rows ----------------------------------------------------------------------------------------


def _band_keys(rows: pa.Table) -> Numbers:
    return unpack(select_kind(rows, BAND), 2)[:, 0].view(np.uint64)


def _known_bands(rows: pa.Table, wanted: Numbers) -> pa.Table:
    entries = unpack(rows, 2)
    entries = entries[_are_among(entries[:, 0].view(np.uint64), wanted)]
    return pack(BAND, buckets_of(entries[:, 0]), entries)


def _first_texts(rows: pa.Table) -> Numbers:
    """The numbers of the first texts of all pairs, the only ones that may be of an index."""
    return unpack(select_kind(rows, PAIR), 2)[:, 0].view(np.uint64)


def _known_texts(rows: pa.Table, wanted: Numbers) -> pa.Table:
    """Texts of an index as TEXT rows, with the highest rank: they are kept before any new row."""
    known = rows.filter(from_numbers(_are_among(numbers(rows[NODE]).view(np.uint64), wanted)))
    count = known.num_rows
    about = {name: known[name] for name in (NODE, BODY, ID)}
    about |= {RANK: from_numbers(np.full(count, np.inf)), ORDER: from_numbers(np.full(count, -1))}
    about |= {TASK: pa.repeat(literal("", pa.string()), count), ROW: from_numbers(np.zeros(count, np.int64))}
    return make_rows(TEXT, buckets_of(numbers(known[NODE])), **about)


def _are_among(values: Numbers, wanted: Numbers) -> Numbers:
    """Whether each value is one of some sorted numbers, of which there is at least one."""
    among: Numbers = wanted[np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)] == values
    return among


BAND_LOOKUP = IndexLookup(0, _band_keys, _known_bands)
TEXT_LOOKUP = IndexLookup(1, _first_texts, _known_texts)


def known_pairs(known: bytes, new: bytes, most: int) -> Numbers:
    """Pairs of a text of the index and a new one that have a band key in common, as rows of two; with up to `most`
    texts of the index for each key."""
    old, fresh = (np.frombuffer(entries, np.int64).reshape(-1, 2) for entries in (known, new))
    old = old[np.lexsort((old[:, 1], old[:, 0]))]
    old = old[np.arange(len(old)) - np.searchsorted(old[:, 0], old[:, 0]) < most]
    start = np.searchsorted(old[:, 0], fresh[:, 0])
    counts = np.searchsorted(old[:, 0], fresh[:, 0], side="right") - start
    places = np.arange(counts.sum()) + np.repeat(start - (np.cumsum(counts) - counts), counts)
    return np.stack([old[places, 1], np.repeat(fresh[:, 1], counts)], axis=1)
