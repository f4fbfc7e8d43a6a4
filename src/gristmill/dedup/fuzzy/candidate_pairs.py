"""Pairs of texts that may be alike, and whether they are: three rounds over exchanges (`exchange_rows.py`).

    Pairs      texts that share a band are candidates; pairs go to where the first of the two texts is
    Senders    what is known of the first text of a pair goes on to where the second is, once for all pairs there
    Compare    pairs that are similar enough stay

What is known of texts was put into the same partitions at the beginning, and is not moved: `SendFirstTexts` and `ComparePairs` read
it there.

If many texts share a band they are paired with the first of them and with their neighbours, not each with each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.hash_partitioning import partition_numbers
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.stage import Columns, share_report
from gristmill.core.stage_roles import ReportingRole
from gristmill.core.task import digest
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, as_one_array, from_numbers, numbers
from gristmill.dedup.fuzzy.exchange_rows import (
    BAND,
    BODY,
    KEY,
    KIND,
    LINK,
    NODE,
    OTHER,
    PAIR,
    SAMPLE,
    SENT_TEXT,
    TEXT,
    TEXT_COLUMNS,
    TRUTH,
    bucket_numbers,
    by_bucket,
    by_node,
    distinct_rows,
    keys_of,
    make_rows,
    pack,
    pack_links,
    select_kind,
    texts_among,
    unpack,
    without_body,
)  # fmt: skip
from gristmill.dedup.fuzzy.fuzzy_index import known_pairs
from gristmill.dedup.index.index_lookup import SNAPSHOT, IndexedPart, IndexedPartitions, IndexLookup, StageIndexes
from gristmill.dedup.signatures.document_sketch import BUCKETS, buckets_of, entry_pairs, set_jaccard, signature_jaccard
from gristmill.dedup.signatures.minhash import Shingling
from gristmill.dedup.signatures.search_quality import jaccard, sample_pairs
from gristmill.io.exchange.exchange import (
    PARTITION_BLOCK_BYTES,
    Exchange,
    ListPartitions,
    PartitionTask,
    ShuffleBlockSlice,
    ShuffleFileListing,
    partition_batch,
    sort_memory_bytes,
    tables_of_size,
)
from gristmill.io.exchange.external_sort import whole_groups
from gristmill.io.exchange.keyed_stage import KeyedStage, ReducePartition, ReducePartitionToColumns
from gristmill.io.exchange.verdict_stage import SpoolExchange

MAX_FULL_PAIRING = 8
"""Up to so many texts of a band are compared each with each."""

HELD_PAIRS = 2**20
"""So many pairs are held before they are sent on: most are found in several bands."""

SENT_SHARE = 12
"""Texts that are sent are held several times over, and may take this part of what is sorted in memory."""

PAIRS_AT_ONCE = 4096
"""So many pairs are compared at a time, where that takes a copy of what they are compared by."""

NONE, SIGNATURE, EXACT = VERIFY = ("none", "signature", "exact")


class FuzzyRound(KeyedStage):
    """A round. What it gives is for the next round alone. `match` says how texts of indexes that are `known` join."""

    key: str | Sequence[str] = KEY
    known: StageIndexes | None = None
    lookup: IndexLookup | None = None
    side: ClassVar[int | None] = None
    """Which text of its pairs is in its partition: it gets what is known of those."""
    _spool: SpoolExchange | None = None

    def begun(self, first: Exchange) -> None:
        self._spool = first if isinstance(first, SpoolExchange) else None

    def exchange(self) -> Exchange:
        if not self.columns or self._spool is None:
            return super().exchange()
        return SpoolSizedExchange(self.columns, self.num_partitions, self.memory_gb, self._spool)

    def lister(self, exchange: Exchange, name: str) -> ListPartitions:
        spool = self._spool if self.side is not None else None
        if self.known is None or self.lookup is None:
            return TextPartitions.of(exchange, name, spool) if spool else super().lister(exchange, name)
        if spool:
            return IndexedTextPartitions(exchange, name, self.known, self.lookup, spool)
        return IndexedPartitions(exchange, name, self.known, self.lookup)

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [KEY]

    def reducer(self) -> ReducePartition:
        return WholePartitionReduce(self)

    def process_parts(self, table: pa.Table) -> Iterator[pa.Table]:
        """What becomes of whole groups, if it need not be held all at a time."""
        yield self.process_groups(table)


class SpoolSizedExchange(Exchange):
    """One with the partitions of the spool."""

    def __init__(
        self, key: Sequence[str], num_partitions: int | None, memory_gb: float | None, spool: SpoolExchange
    ) -> None:
        super().__init__(key, num_partitions, memory_gb)
        self._spool = spool

    def set_input_bytes(self, nbytes: int | None) -> None:
        self.partitions = self._spool.partitions


class TextPartitions(ListPartitions):
    """Lists partitions with what is known of their texts, which waits in the spool."""

    _spool: SpoolExchange

    @classmethod
    def of(cls, exchange: Exchange, name: str, spool: SpoolExchange) -> ListPartitions:
        made = cls(exchange, name)
        made._spool = spool
        return made

    def sources(self) -> Iterator[Sequence[PartitionTask]]:
        spool = self._spool.listing
        for number, parts in enumerate(super().sources()):
            yield [self._with_texts(part, list(self._spool.late_blocks(number)), spool) for part in parts]

    def _with_texts(
        self, part: PartitionTask, texts: list[ShuffleBlockSlice], spool: ShuffleFileListing
    ) -> PartitionTask:
        if not part.data:  # no pair is here
            return part
        part.data += texts
        part.rows += sum(run.stop for run in texts)
        part.stamp = digest([part.stamp, spool.stamp], 16)
        return part


class IndexedTextPartitions(IndexedPartitions, TextPartitions):
    """The same, with what is known of their keys."""

    def __init__(
        self, exchange: Exchange, name: str, known: StageIndexes, match: IndexLookup, spool: SpoolExchange
    ) -> None:
        IndexedPartitions.__init__(self, exchange, name, known, match)
        self._spool = spool


class WholePartitionReduce(ReducePartitionToColumns, ReportingRole):
    """Gives a round the whole of a partition, unsorted, if it fits into memory, and else bucket by bucket."""

    def run_warning(self, stats: Any) -> str | None:
        return self.keyed.run_warning(stats)

    def process(self, task: PartitionTask) -> Iterator[Batch]:
        if not self.keyed.columns or sum(run.nbytes for run in task.data) > sort_memory_bytes(self.keyed.memory_gb):
            yield from super().process(task)
            return
        share_report(self, self.keyed)
        pieces: Iterator[pa.Table] = filter(len, task.pieces())
        assert isinstance(self.keyed, FuzzyRound)
        if self.keyed.side is not None and not isinstance(task, IndexedPart):
            pieces = _paired_texts(tables_of_size(pieces), self.keyed.side)
        held, start = list(pieces), 0
        for made in self.keyed.process_parts(pa.concat_tables(held)) if held else [pa.table({})]:
            yield partition_batch(task, made, start)
            start += made.num_rows


def _paired_texts(tables: Iterable[pa.Table], side: int) -> Iterator[pa.Table]:
    """Rows without the texts that no pair has on a side. Most texts are in none, and pairs come before all texts."""
    asked = [np.zeros(0, np.int64)]
    for table in tables:
        asked.append(unpack(select_kind(table, PAIR), 2)[:, side])
        texts = numbers(table[KIND]) == TEXT
        if not texts.any():
            yield table
            continue
        asked = [np.unique(np.concatenate(asked))]
        yield table.filter(from_numbers(~texts | _is_in(numbers(table[NODE]), asked[0])))


def _is_in(values: Numbers, ordered: Numbers) -> Numbers:
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    found: Numbers = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return found


class FindCandidatePairs(FuzzyRound):
    """Pairs the texts of each band, and tells the first of each pair."""

    def process_groups(self, table: pa.Table) -> pa.Table:
        new, known = _entries(select_kind(table, BAND))
        held, count, asked = [np.zeros((0, 2), np.int64)], 0, list[pa.Table]()
        for number in sorted(new):
            found = _paired(new.pop(number), known.get(number, []))
            held.append(found)
            count += len(found)
            if count >= HELD_PAIRS:
                asked.append(_asked(np.concatenate(held)))
                held, count = [], 0
        asked += [_asked(np.concatenate(held))] if held else []
        return pa.concat_tables([*asked, self._truth(select_kind(table, SAMPLE))])

    def _truth(self, sample: pa.Table) -> pa.Table:
        self.count("sample_documents", sample.num_rows)
        return pack_links(
            TRUTH, *sample_pairs(numbers(sample[OTHER]), numbers(sample[NODE]), as_one_array(sample[BODY]))
        )


BucketEntries = dict[int, list[memoryview]]


def _entries(bands: pa.Table) -> tuple[BucketEntries, BucketEntries]:
    """The entries of each bucket: those that are new, and those of an index."""
    found: tuple[BucketEntries, BucketEntries] = {}, {}
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
    found = entry_pairs(entries, MAX_FULL_PAIRING)
    return np.concatenate([found, known_pairs(b"".join(known), entries, MAX_FULL_PAIRING)]) if known else found


def _asked(pairs: Numbers) -> pa.Table:
    pairs = distinct_rows(pairs)
    return pack(PAIR, buckets_of(pairs[:, 0]), pairs)


class SendFirstTexts(FuzzyRound):
    """Sends what is known of the first text of each pair to the second: to each partition once, for all pairs there."""

    side = 0

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for groups in whole_groups(tables, self.columns, PARTITION_BLOCK_BYTES):
            yield from self.process_parts(groups)

    def process_parts(self, table: pa.Table) -> Iterator[pa.Table]:
        """What goes to some of the partitions, then to others."""
        pairs = distinct_rows(unpack(select_kind(table, PAIR), 2))
        self.count("candidate_pairs", len(pairs))
        buckets = buckets_of(pairs[:, 1])
        there = self._partitions()[buckets]
        which = np.cumsum(np.append(0, np.diff(pairs[:, 0]) != 0)[: len(pairs)])
        _, once = np.unique(which * (there.max(initial=0) + 1) + there, return_index=True)
        texts, nodes = texts_among(table, pairs[:, 0])
        truth = select_kind(table, TRUTH)
        size, most = len(once) * texts.nbytes // max(len(nodes), 1), sort_memory_bytes(self.memory_gb) // SENT_SHARE + 1
        turns = min(1 + size // most, int(there.max(initial=0)) + 1)
        for turn in range(turns):
            mine, some = once[there[once] % turns == turn], there % turns == turn
            firsts = texts.take(from_numbers(np.searchsorted(nodes, pairs[mine, 0])))
            sent = make_rows(SENT_TEXT, buckets[mine], **{name: firsts[name] for name in (NODE, *TEXT_COLUMNS)})
            if self.known is not None:
                sent = sent.append_column(SNAPSHOT, firsts[SNAPSHOT])
            told = [sent, pack(PAIR, buckets[some], pairs[some]), truth.select(sent.column_names)]
            yield pa.concat_tables(told, promote_options="default")
            truth = truth.slice(0, 0)  # it was told

    def _partitions(self) -> Numbers:
        """The partition of each bucket."""
        every = np.arange(BUCKETS)
        if self._spool is None:
            return every
        keys = pa.table([keys_of(every)], [KEY])
        return numbers(partition_numbers(keys, [KEY], self._spool.partitions)).astype(np.int64)


class ComparePairs(FuzzyRound):
    """Compares the texts of each pair. Of those that are alike gives both, and the pair."""

    side = 1

    def __init__(self, verify: str, least: float, how: Shingling) -> None:
        super().__init__()
        self.verify, self.min_similarity, self.shingling = verify, least, how

    def reducer(self) -> ReducePartition:
        return MultiPassReduce(self)

    def process_groups(self, table: pa.Table) -> pa.Table:
        pairs = distinct_rows(unpack(select_kind(table, PAIR), 2))
        firsts = select_kind(table, SENT_TEXT)  # as they lie: they may be most of what there is
        first_nodes, places = np.unique(numbers(firsts[NODE]), return_index=True)
        texts, nodes = texts_among(table, pairs[:, 1])
        one, other = places[np.searchsorted(first_nodes, pairs[:, 0])], np.searchsorted(nodes, pairs[:, 1])
        found = self._similarities(as_one_array(firsts[BODY]), texts[BODY], one, other)
        alike = found >= self.min_similarity
        self.count("pairs_compared", len(found))
        self.count("pairs_alike", int(alike.sum()))
        both = [
            without_body(side).take(from_numbers(np.unique(rows[alike])))
            for side, rows in ((firsts, one), (texts, other))
        ]
        members, _ = by_node(pa.concat_tables(both))
        links = pack_links(LINK, pairs[alike, 0], pairs[alike, 1], found[alike])
        return pa.concat_tables([members, links, select_kind(table, TRUTH)], promote_options="default")

    def _similarities(self, ones: Column, others: Column, one: Numbers, other: Numbers) -> Numbers:
        """How similar the texts of some rows are to those of rows of others."""
        if self.verify == NONE:
            return np.ones(len(one))
        if self.verify == EXACT and self.shingling.unit == "words":
            return set_jaccard(ones, others, one, other)
        found = [np.zeros(0)]
        for start in range(0, len(one), PAIRS_AT_ONCE):
            some = slice(start, start + PAIRS_AT_ONCE)
            left, right = (
                as_one_array(side.take(from_numbers(rows[some]))) for side, rows in ((ones, one), (others, other))
            )
            found.append(self._similarity(left, right))
        return np.concatenate(found)

    def _similarity(self, one: pa.Array, other: pa.Array) -> Numbers:
        if self.verify == SIGNATURE:
            return signature_jaccard(one, other)
        return numbers(jaccard(one.cast(pa.string()), other.cast(pa.string()), self.shingling))


class MultiPassReduce(WholePartitionReduce):
    """Reads a partition that does not fit into memory several times, each time for the pairs of some buckets: what was
    sent once is for pairs of many."""

    def process(self, task: PartitionTask) -> Iterator[Batch]:
        turns = min(-(-sum(run.nbytes for run in task.data) // sort_memory_bytes(self.keyed.memory_gb)), BUCKETS)
        if turns <= 1:
            yield from super().process(task)
            return
        share_report(self, self.keyed)
        start = 0
        for turn in range(turns):
            made = self.keyed.process_groups(_of_turn(task, turn, turns))
            yield partition_batch(task, made, start)
            start += made.num_rows


def _of_turn(task: PartitionTask, turn: int, loop_turns: int) -> pa.Table:
    """The pairs of some buckets, and what is known of their texts."""
    rows = [
        piece.filter(from_numbers((bucket_numbers(piece) % loop_turns == turn) & (numbers(piece[KIND]) != SENT_TEXT)))
        for piece in task.pieces()
    ]
    wanted = unpack(select_kind(pa.concat_tables(rows), PAIR), 2)[:, 0]
    for piece in task.pieces():
        sent = select_kind(piece, SENT_TEXT)
        rows.append(sent.filter(from_numbers(np.isin(numbers(sent[NODE]), wanted))))
    return pa.concat_tables(rows)
