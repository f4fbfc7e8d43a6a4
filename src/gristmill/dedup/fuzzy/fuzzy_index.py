"""What an index keeps of texts for fuzzy deduplication, and how it meets the rows of a run (`exchange_rows.py`).

    bands   the entries of a bucket, packed: the key of a band and the number of a text
    texts   the number of a text, what it is compared by, and its id

Numbers of texts are changed by a salt when they are added, since files of two snapshots may have the same names.
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
    """Rows for the index, from the keys of one source."""
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
    """A number by which the texts of some keys are known again, wherever they are: bands alone would not tell those
    apart that are nearly the same."""
    bodies = hash64(select_kind(keys, TEXT)[BODY].drop_null())
    return int(_band_keys(keys).sum()) + int(numbers(bodies).sum())


def _numbered(table: int, rows: pa.Table) -> pa.Table:
    number = from_numbers(np.full(rows.num_rows, table, np.uint8))
    return pa.table([number, rows[BUCKET], rows[NODE], rows[BODY], rows[ID]], [TABLE, KEY, NODE, BODY, ID])


# -- meeting new rows ----------------------------------------------------------------------------------------


def _band_keys(rows: pa.Table) -> Numbers:
    return unpack(select_kind(rows, BAND), 2)[:, 0].view(np.uint64)


def _known_bands(rows: pa.Table, wanted: Numbers) -> pa.Table:
    entries = unpack(rows, 2)
    entries = entries[_are_among(entries[:, 0].view(np.uint64), wanted)]
    return pack(BAND, buckets_of(entries[:, 0]), entries)


def _asked_for(rows: pa.Table) -> Numbers:
    return unpack(select_kind(rows, PAIR), 2)[:, 0].view(np.uint64)


def _known_texts(rows: pa.Table, wanted: Numbers) -> pa.Table:
    """Texts that come before all others."""
    found = rows.filter(from_numbers(_are_among(numbers(rows[NODE]).view(np.uint64), wanted)))
    count = found.num_rows
    about = {name: found[name] for name in (NODE, BODY, ID)}
    about |= {RANK: from_numbers(np.full(count, np.inf)), ORDER: from_numbers(np.full(count, -1))}
    about |= {TASK: pa.repeat(literal("", pa.string()), count), ROW: from_numbers(np.zeros(count, np.int64))}
    return make_rows(TEXT, buckets_of(numbers(found[NODE])), **about)


def _are_among(found: Numbers, wanted: Numbers) -> Numbers:
    """Which numbers are some that are in order."""
    same: Numbers = wanted[np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)] == found
    return same


BAND_LOOKUP = IndexLookup(0, _band_keys, _known_bands)
TEXT_LOOKUP = IndexLookup(1, _asked_for, _known_texts)


def known_pairs(known: bytes, new: bytes, most: int) -> Numbers:
    """Pairs of a number that is known and a new one, whose entries have a key in common, as rows of two; with up to
    `most` known ones for each key."""
    old, fresh = (np.frombuffer(entries, np.int64).reshape(-1, 2) for entries in (known, new))
    old = old[np.lexsort((old[:, 1], old[:, 0]))]
    old = old[np.arange(len(old)) - np.searchsorted(old[:, 0], old[:, 0]) < most]
    start = np.searchsorted(old[:, 0], fresh[:, 0])
    counts = np.searchsorted(old[:, 0], fresh[:, 0], side="right") - start
    places = np.arange(counts.sum()) + np.repeat(start - (np.cumsum(counts) - counts), counts)
    return np.stack([old[places, 1], np.repeat(fresh[:, 1], counts)], axis=1)
