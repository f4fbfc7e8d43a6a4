"""Candidate pairs of similar texts, and their comparison: three rounds over exchanges (`exchange_rows.py`).

    FindCandidatePairs   texts that share a band are paired; each pair goes to the partition of its first text
    SendFirstTexts       the first text of each pair goes to the partition of the second, once for all pairs there
    ComparePairs         pairs that are similar enough stay

The texts themselves (the TEXT rows) lie in the partitions of the spool from the beginning and are not moved:
`SendFirstTexts` and `ComparePairs` read them there.

Gives up some pairs: if many texts share a band, they are paired with the first of them and with their neighbours, not
each with each.
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
from gristmill.dedup.clusters.cluster_table import SNAPSHOT
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
from gristmill.dedup.index.index_lookup import IndexedPart, IndexedPartitions, IndexLookup
from gristmill.dedup.index.stage_indexes import StageIndexes
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
"""Up to this many texts that share a band are all paired with each other."""

HELD_PAIRS = 2**20
"""Pairs held before repetitions are removed and the rest is sent on: most pairs are found in several bands."""

SENT_SHARE = 12
"""Texts to send may take one part in this many of the memory for sorting, since they are held several times over."""

PAIRS_AT_ONCE = 4096
"""Pairs compared at a time, if the comparison copies their texts or signatures."""

NONE, SIGNATURE, EXACT = VERIFY = ("none", "signature", "exact")


class FuzzyRound(KeyedStage):
    """One round of fuzzy deduplication; only the next round reads its output.

    `lookup` says how rows of `indexes` join the rows of a partition.
    """

    key: str | Sequence[str] = KEY
    indexes: StageIndexes | None = None
    lookup: IndexLookup | None = None
    side: ClassVar[int | None] = None
    """Which text of its pairs (0 or 1) is in its partition; it is given the TEXT rows of those."""
    _spool: SpoolExchange | None = None

    def begun(self, first: Exchange) -> None:
        self._spool = first if isinstance(first, SpoolExchange) else None

    def exchange(self) -> Exchange:
        if not self.columns or self._spool is None:
            return super().exchange()
        return SpoolSizedExchange(self.columns, self.num_partitions, self.memory_gb, self._spool)

    def lister(self, exchange: Exchange, name: str) -> ListPartitions:
        spool = self._spool if self.side is not None else None
        if self.indexes is None or self.lookup is None:
            return TextPartitions.of(exchange, name, spool) if spool else super().lister(exchange, name)
        if spool:
            return IndexedTextPartitions(exchange, name, self.indexes, self.lookup, spool)
        return IndexedPartitions(exchange, name, self.indexes, self.lookup)

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [KEY]

    def reducer(self) -> ReducePartition:
        return WholePartitionReduce(self)

    def process_parts(self, table: pa.Table) -> Iterator[pa.Table]:
        """The output for whole groups, in tables that are not all held at once."""
        yield self.process_groups(table)


class SpoolSizedExchange(Exchange):
    """An exchange with as many partitions as the spool, so that pairs arrive where the texts are."""

    def __init__(
        self, key: Sequence[str], num_partitions: int | None, memory_gb: float | None, spool: SpoolExchange
    ) -> None:
        super().__init__(key, num_partitions, memory_gb)
        self._spool = spool

    def set_input_bytes(self, nbytes: int | None) -> None:
        self.partitions = self._spool.partitions


class TextPartitions(ListPartitions):
    """Lists partitions together with their TEXT rows, which lie in the spool."""

    _spool: SpoolExchange

    @classmethod
    def of(cls, exchange: Exchange, name: str, spool: SpoolExchange) -> ListPartitions:
        lister = cls(exchange, name)
        lister._spool = spool
        return lister

    def sources(self) -> Iterator[Sequence[PartitionTask]]:
        spool = self._spool.listing
        for number, parts in enumerate(super().sources()):
            yield [self._with_texts(part, list(self._spool.late_blocks(number)), spool) for part in parts]

    def _with_texts(
        self, part: PartitionTask, texts: list[ShuffleBlockSlice], spool: ShuffleFileListing
    ) -> PartitionTask:
        if not part.data:  # no pair in this partition
            return part
        part.data += texts
        part.rows += sum(run.stop for run in texts)
        part.stamp = digest([part.stamp, spool.stamp], 16)
        return part


class IndexedTextPartitions(IndexedPartitions, TextPartitions):
    """Lists partitions together with their TEXT rows and the rows of indexes that have the same keys."""

    def __init__(
        self, exchange: Exchange, name: str, indexes: StageIndexes, lookup: IndexLookup, spool: SpoolExchange
    ) -> None:
        IndexedPartitions.__init__(self, exchange, name, indexes, lookup)
        self._spool = spool


class WholePartitionReduce(ReducePartitionToColumns, ReportingRole):
    """Gives a round its whole partition at once, unsorted, if that fits into memory, and otherwise bucket by bucket."""

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
        tables, start = list(pieces), 0
        for output in self.keyed.process_parts(pa.concat_tables(tables)) if tables else [pa.table({})]:
            yield partition_batch(task, output, start)
            start += output.num_rows


def _paired_texts(tables: Iterable[pa.Table], side: int) -> Iterator[pa.Table]:
    """The rows of a partition without the texts that are in no pair, which are most of them.

    Relies on the order of blocks: all pairs of a partition come before its texts.
    """
    wanted = [np.zeros(0, np.int64)]
    for table in tables:
        wanted.append(unpack(select_kind(table, PAIR), 2)[:, side])
        texts = numbers(table[KIND]) == TEXT
        if not texts.any():
            yield table
            continue
        wanted = [np.unique(np.concatenate(wanted))]
        yield table.filter(from_numbers(~texts | _is_in(numbers(table[NODE]), wanted[0])))


def _is_in(values: Numbers, ordered: Numbers) -> Numbers:
    """Whether each value is one of some sorted numbers."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    is_in: Numbers = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return is_in


class FindCandidatePairs(FuzzyRound):
    """Pairs the texts that share a band, and sends each pair to the partition of its first text."""

    step_name = "candidates"

    def process_groups(self, table: pa.Table) -> pa.Table:
        new, known = _entries(select_kind(table, BAND))
        held, count, packed = [np.zeros((0, 2), np.int64)], 0, list[pa.Table]()
        for bucket in sorted(new):
            pairs = _bucket_pairs(new.pop(bucket), known.get(bucket, []))
            held.append(pairs)
            count += len(pairs)
            if count >= HELD_PAIRS:
                packed.append(_pack_pairs(np.concatenate(held)))
                held, count = [], 0
        packed += [_pack_pairs(np.concatenate(held))] if held else []
        return pa.concat_tables([*packed, self._sample_pairs(select_kind(table, SAMPLE))])

    def _sample_pairs(self, sample: pa.Table) -> pa.Table:
        """The pairs of the sample with their true similarity, to measure recall by."""
        self.count("sample_documents", sample.num_rows)
        return pack_links(
            TRUTH, *sample_pairs(numbers(sample[OTHER]), numbers(sample[NODE]), as_one_array(sample[BODY]))
        )


BucketEntries = dict[int, list[memoryview]]


def _entries(bands: pa.Table) -> tuple[BucketEntries, BucketEntries]:
    """The entries of each bucket: first those of new rows, then those of an index."""
    by_origin: tuple[BucketEntries, BucketEntries] = {}, {}
    parts = [bands]
    if SNAPSHOT in bands.column_names:
        known = pc.is_valid(bands[SNAPSHOT])
        parts = [bands.filter(pc.invert(known)), bands.filter(known)]
    for part, buckets in zip(parts, by_origin, strict=False):
        for bucket, entries in by_bucket(part):
            buckets.setdefault(bucket, []).append(entries)
    return by_origin


def _bucket_pairs(new: Sequence[memoryview], known: Sequence[memoryview]) -> Numbers:
    """Pairs of the entries of a bucket; entries of an index come first, and are not paired with each other."""
    entries = b"".join(new)
    pairs = entry_pairs(entries, MAX_FULL_PAIRING)
    return np.concatenate([pairs, known_pairs(b"".join(known), entries, MAX_FULL_PAIRING)]) if known else pairs


def _pack_pairs(pairs: Numbers) -> pa.Table:
    """Pairs as rows for the partitions of their first texts."""
    pairs = distinct_rows(pairs)
    return pack(PAIR, buckets_of(pairs[:, 0]), pairs)


class SendFirstTexts(FuzzyRound):
    """Sends the first text of each pair to the partition of the second: once, for all pairs there."""

    step_name = "send_texts"
    side = 0

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for groups in whole_groups(tables, self.columns, PARTITION_BLOCK_BYTES):
            yield from self.process_parts(groups)

    def process_parts(self, table: pa.Table) -> Iterator[pa.Table]:
        """The rows to send, in several tables if the texts would take too much memory: each is for some partitions."""
        pairs = distinct_rows(unpack(select_kind(table, PAIR), 2))
        self.count("candidate_pairs", len(pairs))
        buckets = buckets_of(pairs[:, 1])
        target = self._partitions()[buckets]
        first = np.cumsum(np.append(0, np.diff(pairs[:, 0]) != 0)[: len(pairs)])  # pairs are sorted by their first text
        _, once = np.unique(first * (target.max(initial=0) + 1) + target, return_index=True)
        texts, nodes = texts_among(table, pairs[:, 0])
        truth = select_kind(table, TRUTH)
        size, limit = len(once) * texts.nbytes // max(len(nodes), 1), sort_memory_bytes(self.memory_gb) // SENT_SHARE
        turns = min(1 + size // (limit + 1), int(target.max(initial=0)) + 1)
        for turn in range(turns):
            to_send, in_turn = once[target[once] % turns == turn], target % turns == turn
            firsts = texts.take(from_numbers(np.searchsorted(nodes, pairs[to_send, 0])))
            sent = make_rows(SENT_TEXT, buckets[to_send], **{name: firsts[name] for name in (NODE, *TEXT_COLUMNS)})
            if self.indexes is not None:
                sent = sent.append_column(SNAPSHOT, firsts[SNAPSHOT])
            rows = [sent, pack(PAIR, buckets[in_turn], pairs[in_turn]), truth.select(sent.column_names)]
            yield pa.concat_tables(rows, promote_options="default")
            truth = truth.slice(0, 0)  # sent with the first table

    def _partitions(self) -> Numbers:
        """The partition of each bucket."""
        buckets = np.arange(BUCKETS)
        if self._spool is None:
            return buckets
        keys = pa.table([keys_of(buckets)], [KEY])
        return numbers(partition_numbers(keys, [KEY], self._spool.partitions)).astype(np.int64)


class ComparePairs(FuzzyRound):
    """Compares the texts of each pair; outputs the pairs that are similar enough, and both of their texts."""

    step_name = "compare"
    side = 1

    def __init__(self, verify: str, min_similarity: float, shingling: Shingling) -> None:
        super().__init__()
        self.verify, self.min_similarity, self.shingling = verify, min_similarity, shingling

    def reducer(self) -> ReducePartition:
        return MultiPassReduce(self)

    def process_groups(self, table: pa.Table) -> pa.Table:
        pairs = distinct_rows(unpack(select_kind(table, PAIR), 2))
        firsts = select_kind(table, SENT_TEXT)  # not reordered: they may be most of the partition
        first_nodes, places = np.unique(numbers(firsts[NODE]), return_index=True)
        texts, nodes = texts_among(table, pairs[:, 1])
        one, other = places[np.searchsorted(first_nodes, pairs[:, 0])], np.searchsorted(nodes, pairs[:, 1])
        similarity = self._similarities(as_one_array(firsts[BODY]), texts[BODY], one, other)
        alike = similarity >= self.min_similarity
        self.count("pairs_compared", len(similarity))
        self.count("pairs_alike", int(alike.sum()))
        both = [
            without_body(side).take(from_numbers(np.unique(rows[alike])))
            for side, rows in ((firsts, one), (texts, other))
        ]
        members, _ = by_node(pa.concat_tables(both))
        links = pack_links(LINK, pairs[alike, 0], pairs[alike, 1], similarity[alike])
        return pa.concat_tables([members, links, select_kind(table, TRUTH)], promote_options="default")

    def _similarities(self, ones: Column, others: Column, one: Numbers, other: Numbers) -> Numbers:
        """The similarity of pairs of texts: the rows `one` of the column `ones`, and the rows `other` of `others`."""
        if self.verify == NONE:
            return np.ones(len(one))
        if self.verify == EXACT and self.shingling.unit == "words":
            return set_jaccard(ones, others, one, other)
        similarities = [np.zeros(0)]
        for start in range(0, len(one), PAIRS_AT_ONCE):
            part = slice(start, start + PAIRS_AT_ONCE)
            left, right = (
                as_one_array(side.take(from_numbers(rows[part]))) for side, rows in ((ones, one), (others, other))
            )
            similarities.append(self._similarity(left, right))
        return np.concatenate(similarities)

    def _similarity(self, one: pa.Array, other: pa.Array) -> Numbers:
        if self.verify == SIGNATURE:
            return signature_jaccard(one, other)
        return numbers(jaccard(one.cast(pa.string()), other.cast(pa.string()), self.shingling))


class MultiPassReduce(WholePartitionReduce):
    """Reads a partition that does not fit into memory several times, each time for the pairs of some buckets.

    It cannot be cut by bucket as others are, since a text that was sent once is for pairs in many buckets.
    """

    def process(self, task: PartitionTask) -> Iterator[Batch]:
        turns = min(-(-sum(run.nbytes for run in task.data) // sort_memory_bytes(self.keyed.memory_gb)), BUCKETS)
        if turns <= 1:
            yield from super().process(task)
            return
        share_report(self, self.keyed)
        start = 0
        for turn in range(turns):
            output = self.keyed.process_groups(_rows_of_turn(task, turn, turns))
            yield partition_batch(task, output, start)
            start += output.num_rows


def _rows_of_turn(task: PartitionTask, turn: int, turns: int) -> pa.Table:
    """The pairs of every `turns`-th bucket, and their texts."""
    rows = [
        piece.filter(from_numbers((bucket_numbers(piece) % turns == turn) & (numbers(piece[KIND]) != SENT_TEXT)))
        for piece in task.pieces()
    ]
    wanted = unpack(select_kind(pa.concat_tables(rows), PAIR), 2)[:, 0]
    for piece in task.pieces():
        sent = select_kind(piece, SENT_TEXT)
        rows.append(sent.filter(from_numbers(np.isin(numbers(sent[NODE]), wanted))))
    return pa.concat_tables(rows)
