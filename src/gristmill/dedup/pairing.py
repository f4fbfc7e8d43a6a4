"""Pairs of texts that may be alike, and whether they are: three rounds over exchanges (`rows.py`).

    Pairs      texts that share a band are candidates; pairs go to where each of the two texts is
    Senders    what is known of the first text of a pair goes on to the second
    Compare    pairs that are similar enough stay

If many texts share a band they are paired with the first of them and with their neighbours, not each with each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from gristmill.core.compute import pc
from gristmill.core.stage import Columns
from gristmill.dedup.columns import Numbers, flags, from_numbers, numbers, whole
from gristmill.dedup.index_fuzzy import known_pairs
from gristmill.dedup.index_join import SNAPSHOT, Known, KnownPartitions, Match
from gristmill.dedup.minhash import Shingling
from gristmill.dedup.quality import jaccard
from gristmill.dedup.rows import (
    ABOUT,
    BAND,
    BODY,
    COLUMNS,
    KEY,
    LINK,
    NODE,
    OTHER,
    PAIR,
    TEXT,
    WANTED,
    body_bytes,
    by_node,
    distinct_rows,
    of_kind,
    pack,
    table_of,
    unpack,
    without_body,
)  # fmt: skip
from gristmill.dedup.sketch import buckets_of, entry_pairs, set_jaccard, signature_jaccard
from gristmill.io.exchange import Exchange
from gristmill.io.keyed import KeyedStage
from gristmill.io.partitions import Partitions

ALL_PAIRS = 8
"""Up to so many texts of a band are compared each with each."""

HELD_PAIRS = 2**20
"""So many pairs are held before they are sent on: most are found in several bands."""

NONE, SIGNATURE, EXACT = VERIFY = ("none", "signature", "exact")


class Step(KeyedStage):
    """A round. What it gives is for the next round alone. `match` says how texts of indexes that are `known` join."""

    key: str | Sequence[str] = KEY
    known: Known | None = None
    match: Match | None = None

    def lister(self, exchange: Exchange, name: str) -> Partitions:
        if self.known is None or self.match is None:
            return super().lister(exchange, name)
        return KnownPartitions(exchange, name, self.known, self.match)

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [KEY]


class Pairs(Step):
    """Pairs the texts of each band, and tells both of each pair."""

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        held, count = [], 0
        for found in self._found(tables):
            if isinstance(found, pa.Table):
                yield found
                continue
            held.append(found)
            count += len(found)
            if count >= HELD_PAIRS:
                yield _asked(np.concatenate(held))
                held, count = [], 0
        if held:
            yield _asked(np.concatenate(held))

    def _found(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table | Numbers]:
        """What is known of texts, as it is, and pairs."""
        bucket, waiting, known = b"", list[memoryview](), list[memoryview]()
        for table in tables:
            yield of_kind(table, TEXT).select(list(COLUMNS))
            for key, entries, is_known in _by_bucket(of_kind(table, BAND)):
                if key != bucket:
                    yield from _paired(waiting, known)
                    bucket, waiting, known = key, [], []
                (known if is_known else waiting).append(entries)
        yield from _paired(waiting, known)


def _by_bucket(bands: pa.Table) -> Iterator[tuple[bytes, memoryview, bool]]:
    """The entries of each bucket, and whether they are of an index; rows are in the order of buckets."""
    keys = whole(bands[KEY]).to_pylist()
    known = flags(pc.is_valid(bands[SNAPSHOT])) if SNAPSHOT in bands.column_names else np.zeros(len(keys), np.bool_)
    for start, key in enumerate(keys):
        yield key, body_bytes(bands.slice(start, 1)), bool(known[start])


def _paired(waiting: Sequence[memoryview], known: Sequence[memoryview]) -> Iterator[Numbers]:
    """Pairs of the entries of a bucket; those of an index come first, and are not paired with each other."""
    if waiting:
        new = b"".join(waiting)
        yield entry_pairs(new, ALL_PAIRS)
        if known:
            yield known_pairs(b"".join(known), new, ALL_PAIRS)


def _asked(pairs: Numbers) -> pa.Table:
    pairs = distinct_rows(pairs)
    return pa.concat_tables([pack(PAIR, buckets_of(pairs[:, 0]), pairs), pack(WANTED, buckets_of(pairs[:, 1]), pairs)])


class Senders(Step):
    """Sends what is known of the first text of each pair to the second, and keeps of the others what is asked for."""

    def process_groups(self, table: pa.Table) -> pa.Table:
        texts, nodes = by_node(of_kind(table, TEXT))
        wanted = np.isin(nodes, unpack(of_kind(table, WANTED), 2)[:, 1])
        pairs = distinct_rows(unpack(of_kind(table, PAIR), 2))
        self.count("candidate_pairs", len(pairs))
        about = texts.take(from_numbers(np.searchsorted(nodes, pairs[:, 0])))
        sent = table_of(
            PAIR,
            buckets_of(pairs[:, 1]),
            **{NODE: from_numbers(pairs[:, 0]), OTHER: from_numbers(pairs[:, 1])},
            **{name: about[name] for name in ABOUT},
        )
        if self.known is not None:
            sent = sent.append_column(SNAPSHOT, about[SNAPSHOT])
        return pa.concat_tables([texts.filter(from_numbers(wanted)).select(sent.column_names), sent])


class Compare(Step):
    """Compares the texts of each pair. Of those that are alike gives both, and the pair."""

    def __init__(self, verify: str, least: float, how: Shingling) -> None:
        super().__init__()
        self.verify, self.least, self.how = verify, least, how

    def process_groups(self, table: pa.Table) -> pa.Table:
        texts, nodes = by_node(of_kind(table, TEXT))
        pairs = of_kind(table, PAIR)
        others = texts.take(from_numbers(np.searchsorted(nodes, numbers(pairs[OTHER]))))
        found = self._similarity(whole(pairs[BODY]), whole(others[BODY]))
        alike = found >= self.least
        self.count("pairs_compared", len(found))
        self.count("pairs_alike", int(alike.sum()))
        kept = from_numbers(alike)
        pairs, others = pairs.filter(kept), others.filter(kept)
        links = np.stack([numbers(pairs[NODE]), numbers(pairs[OTHER]), found[alike].view(np.int64)], axis=1)
        members, _ = by_node(pa.concat_tables([without_body(pairs), without_body(others)]))
        found = pack(LINK, np.zeros(len(links), np.int64), links)
        return pa.concat_tables([members, found], promote_options="default")

    def _similarity(self, one: pa.Array, other: pa.Array) -> Numbers:
        if self.verify == NONE:
            return np.ones(len(one))
        if self.verify == SIGNATURE:
            return signature_jaccard(one, other)
        if self.how.unit == "words":
            return set_jaccard(one, other)
        return numbers(jaccard(one.cast(pa.string()), other.cast(pa.string()), self.how))
