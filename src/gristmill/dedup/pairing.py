"""Pairs of texts that may be alike, and whether they are: three rounds over exchanges (`rows.py`).

    Pairs      texts that share a band are candidates; pairs go to where each of the two texts is
    Senders    what is known of the first text of a pair goes on to the second
    Compare    pairs that are similar enough stay

If many texts share a band they are paired with the first of them and with their neighbours, not each with each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.compute import pc
from gristmill.core.stage import Columns
from gristmill.dedup.columns import Numbers, from_numbers, numbers, whole
from gristmill.dedup.index_fuzzy import known_pairs
from gristmill.dedup.index_join import SNAPSHOT, Known, KnownPartitions, Match
from gristmill.dedup.minhash import Shingling
from gristmill.dedup.quality import jaccard, sample_pairs
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
    SAMPLE,
    TEXT,
    TRUTH,
    WANTED,
    by_bucket,
    by_node,
    distinct_rows,
    keys_of,
    of_kind,
    pack,
    pack_links,
    table_of,
    unpack,
    without_body,
)  # fmt: skip
from gristmill.dedup.sketch import buckets_of, entry_pairs, set_jaccard, signature_jaccard
from gristmill.io.exchange import Exchange
from gristmill.io.keyed import DeclaredReduce, KeyedStage, Reduce
from gristmill.io.partitions import Part, Partitions, batch_of, sort_bytes

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

    def reducer(self) -> Reduce:
        return AtOnce(self)


class AtOnce(DeclaredReduce):
    """Gives a round the whole of a partition, unsorted, if it fits into memory, and else bucket by bucket."""

    def remark(self, stats: Any) -> str | None:
        return self.keyed.remark(stats)

    def process(self, task: Part) -> Iterator[Batch]:
        if not self.keyed.columns or sum(run.nbytes for run in task.data) > sort_bytes(self.keyed.memory_gb):
            yield from super().process(task)
            return
        self.keyed.__dict__["_aside"] = self.__dict__.get("_aside")
        pieces = [piece for piece in task.pieces() if piece.num_rows]
        made = self.keyed.process_groups(pa.concat_tables(pieces)) if pieces else pa.table({})
        yield batch_of(task, made, 0)


class Pairs(Step):
    """Pairs the texts of each band, and tells both of each pair."""

    def process_groups(self, table: pa.Table) -> pa.Table:
        """What is known of texts, as it is, and pairs."""
        new, known = _entries(of_kind(table, BAND))
        held, count, asked = [np.zeros((0, 2), np.int64)], 0, [of_kind(table, TEXT).select(list(COLUMNS))]
        for number in sorted(new):
            found = _paired(new.pop(number), known.get(number, []))
            held.append(found)
            count += len(found)
            if count >= HELD_PAIRS:
                asked.append(_asked(np.concatenate(held)))
                held, count = [], 0
        asked += [_asked(np.concatenate(held))] if held else []
        return pa.concat_tables([*asked, self._truth(of_kind(table, SAMPLE))])

    def _truth(self, sample: pa.Table) -> pa.Table:
        self.count("sample_documents", sample.num_rows)
        return pack_links(TRUTH, *sample_pairs(numbers(sample[OTHER]), numbers(sample[NODE]), whole(sample[BODY])))


Entries = dict[int, list[memoryview]]


def _entries(bands: pa.Table) -> tuple[Entries, Entries]:
    """The entries of each bucket: those that are new, and those of an index."""
    found: tuple[Entries, Entries] = {}, {}
    parts = [bands]
    if SNAPSHOT in bands.column_names:
        known = pc.is_valid(bands[SNAPSHOT])
        parts = [bands.filter(pc.invert(known)), bands.filter(known)]
    for part, entries in zip(parts, found, strict=False):
        for number, some in by_bucket(part):
            entries.setdefault(number, []).append(some)
    return found


def _paired(new: Sequence[memoryview], known: Sequence[memoryview]) -> Numbers:
    """Pairs of the entries of a bucket; those of an index come first, and are not paired with each other."""
    entries = b"".join(new)
    found = entry_pairs(entries, ALL_PAIRS)
    return np.concatenate([found, known_pairs(b"".join(known), entries, ALL_PAIRS)]) if known else found


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
        kept = texts.filter(from_numbers(wanted)).select(sent.column_names)
        return pa.concat_tables([kept, sent, of_kind(table, TRUTH).select(sent.column_names)])


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
        links = pack_links(LINK, numbers(pairs[NODE]), numbers(pairs[OTHER]), found[alike])
        members, nodes = by_node(pa.concat_tables([without_body(pairs), without_body(others)]))
        members = members.set_column(members.column_names.index(KEY), KEY, keys_of(buckets_of(nodes)))
        return pa.concat_tables([members, links, of_kind(table, TRUTH)], promote_options="default")

    def _similarity(self, one: pa.Array, other: pa.Array) -> Numbers:
        if self.verify == NONE:
            return np.ones(len(one))
        if self.verify == SIGNATURE:
            return signature_jaccard(one, other)
        if self.how.unit == "words":
            return set_jaccard(one, other)
        return numbers(jaccard(one.cast(pa.string()), other.cast(pa.string()), self.how))
