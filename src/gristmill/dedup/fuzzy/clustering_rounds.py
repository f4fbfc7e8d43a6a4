"""Clusters that do not fit into the memory of one worker: all workers make them, in rounds over exchanges (`clustering_steps.py`).

    large, small   links are drawn together into stars, again and again until nothing changes
    named          each row gets the number of its cluster; what is known of it goes to the rows that it is linked with
    keepers        of the rows of a cluster the best is kept
    partners       of the rows that a row is linked with one is its partner; verdicts

Each exchange is a checkpoint. All is passed by if what is known of the rows fits into memory, however many links there
are: the driver sees that when they are there.

What is given up: room for the links of all rounds, about as many as the logarithm of the largest cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, fields
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.hash_partitioning import partition_numbers, split_by_partition
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import WrittenFiles, digest
from gristmill.dedup.columns.arrow_numpy import as_one_array, numbers
from gristmill.dedup.fuzzy.candidate_pairs import FuzzyRound
from gristmill.dedup.fuzzy.clustering_steps import ChooseKeepers, LabelClusters, LargeStar, SmallStar
from gristmill.dedup.fuzzy.exchange_rows import KEY, KIND, LINK, NODE, OTHER, keys_of
from gristmill.dedup.signatures.document_sketch import buckets_of
from gristmill.io.exchange.exchange import (
    CommitShuffleFiles,
    Exchange,
    ListPartitions,
    PartitionTask,
    ShuffleBlockSlice,
    WriteShuffleFiles,
    sort_memory_bytes,
)
from gristmill.io.write.commit import columns_to_write

HELD_BYTES = 512 * 2**20
"""Of rows, that are made clusters of in memory, which takes up to twice as much; unless `memory_gb` says what there
is."""

LINK_SHARE = 1 / 8
"""What links and rows are of the input, in bytes, if duplicates are many. Each round costs something for each pair of
partitions, and what does not fit is sorted on disk."""

CHANGED_PARTITION = -3
"""A partition for the news that a round has changed something."""


class ClusteringRounds:
    """What the segments share: the exchanges between them, and how far they are."""

    def __init__(self, name: str, num_partitions: int | None, memory_gb: float | None) -> None:
        self.name, self.num_partitions, self.memory_gb = name, num_partitions, memory_gb
        self.links = LinkExchange((KEY,), num_partitions, memory_gb)
        self.stars = StarExchange((KEY,), num_partitions, memory_gb)
        self.keepers = self._exchange()
        self._round = 0

    def _exchange(self) -> Exchange:
        return ReducedExchange((KEY,), self.num_partitions, self.memory_gb)

    @property
    def fits_in_memory(self) -> bool:
        return self.links.held_bytes <= (
            HELD_BYTES if self.memory_gb is None else 2 * sort_memory_bytes(self.memory_gb)
        )

    @property
    def edges(self) -> Exchange:
        return self.stars if self._round else self.links

    @property
    def round_number(self) -> int:
        return self._round

    def begin_next_round(self) -> bool:
        """Whether there is another round; if so, it begins."""
        if not self.fits_in_memory and CHANGED_PARTITION in self.stars.listing.blocks:
            self._round += 1
            return True
        return False

    def stages(self) -> list[ProcessingStage[Any, Any]]:
        pulled, named = self._exchange(), self._exchange()
        steps: list[tuple[ListPartitions, FuzzyRound, Exchange]] = [
            (EdgePartitions(self.links, "edges", self), LargeStar(), pulled),
            (RoundPartitions(pulled, "pulled", self), SmallStar(), self.stars),
            (LabelPartitions(self.links, "labels", self), LabelClusters(), named),
            (RoundPartitions(named, "named", self), ChooseKeepers(), self.keepers),
        ]
        parts: list[ProcessingStage[Any, Any]] = []
        for lister, step, exchange in steps:
            step.name, step.memory_gb = f"{self.name}_{type(step).__name__.lower()}", self.memory_gb
            lister.name = f"{self.name}_{lister.name}"
            commit: type[CommitShuffleFiles] = CommitStarRound if exchange is self.stars else CommitShuffleFiles
            parts += [lister, step.reducer(), WriteShuffleFiles(exchange, f"{step.name}_write")]
            parts.append(commit(exchange, f"{step.name}_commit"))
            if isinstance(parts[-1], CommitStarRound):
                parts[-1].rounds = self
        return parts

    def verdict_partitions(self, name: str) -> ListPartitions:
        return VerdictPartitions(self.keepers, name, self)


class ReducedExchange(Exchange):
    """One with partitions for a share of the input."""

    def set_input_bytes(self, nbytes: int | None) -> None:
        super().set_input_bytes(None if nbytes is None else int(nbytes * LINK_SHARE))


class LinkExchange(ReducedExchange):
    """Pairs and, apart from them, rows, all by their own numbers: rows of a pair come from where the other one is."""

    _held_bytes: int

    @property
    def held_bytes(self) -> int:
        """The size of all that is no link, once it is listed."""
        return self._held_bytes

    def list_files(self, outputs: Iterable[WrittenFiles]) -> None:
        super().list_files(outputs)
        self._held_bytes = sum(map(self.listing.partition_bytes, range(self.partitions, 2 * self.partitions)))

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        table, _ = columns_to_write(batch.data, None)
        if not table.num_rows:
            return []
        own = keys_of(buckets_of(numbers(pc.fill_null(table[NODE], literal(0, pa.int64())))))
        key = pc.if_else(pc.is_valid(table[NODE]), own, as_one_array(table[KEY]))  # what is packed has no number
        table = table.set_column(table.column_names.index(KEY), KEY, key)
        where = partition_numbers(table, self.key, self.partitions)
        is_link = pc.equal(as_one_array(table[KIND]), literal(LINK, pa.int64()))
        return split_by_partition(
            table, pc.if_else(is_link, where, pc.add(where, literal(self.partitions, where.type)))
        )

    def rows_of(self, partition: int) -> Iterator[ShuffleBlockSlice]:
        """Where that is which is no link: rows, and pairs of the sample."""
        return self.listing.blocks_of(self.partitions + partition)


class StarExchange(ReducedExchange):
    """Edges. One from a row to itself says that something has changed."""

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        for number, table in super().split_batch(batch):
            itself = pc.equal(table[NODE], table[OTHER])
            edges, news = table.filter(pc.invert(itself)), table.filter(itself).slice(0, 1)
            yield from ((where, rows) for where, rows in ((number, edges), (CHANGED_PARTITION, news)) if rows.num_rows)


class CommitStarRound(CommitShuffleFiles):
    """Ends a round. If it has changed something, there is another one."""

    not_identity = ("target", "rounds")
    rounds: ClusteringRounds

    def segments_to_repeat(self) -> int:
        return 2 if self.rounds.begin_next_round() else 0


class RoundPartitions(ListPartitions):
    """Lists partitions, unless all fits into memory."""

    def __init__(self, exchange: Exchange, name: str, rounds: ClusteringRounds) -> None:
        super().__init__(exchange, name)
        self.rounds = rounds

    def sources(self) -> Iterator[Sequence[PartitionTask]]:
        return iter(()) if self.rounds.fits_in_memory else self.parts()

    def parts(self) -> Iterator[Sequence[PartitionTask]]:
        return super().sources()

    def part_name(self, number: int) -> str:
        again = f"-round{self.rounds.round_number + 1}" if self.rounds.round_number else ""
        return f"segment{self._segment_name}{again}-{number:05}"


class EdgePartitions(RoundPartitions):
    """Lists partitions of links, and in later rounds of stars."""

    def parts(self) -> Iterator[Sequence[PartitionTask]]:
        listing = self.rounds.edges.listing
        for number in range(self.exchange.partitions):
            yield [listing.part(self.part_name(number), list(listing.blocks_of(number)))]


class LabelPartitions(RoundPartitions):
    """Lists partitions of rows and links, each with the stars of its rows."""

    def parts(self) -> Iterator[Sequence[PartitionTask]]:
        links, stars = self.rounds.links.listing, self.rounds.stars.listing
        for number in range(self.exchange.partitions):
            runs = [*links.blocks_of(number), *self.rounds.links.rows_of(number), *stars.blocks_of(number)]
            part = links.part(self.part_name(number), runs)
            part.stamp = digest([links.stamp, stars.stamp], 16)
            yield [part]


@fast_dataclass
class WholeGraphPart(PartitionTask):
    """The links of all partitions, to be worked on at once, and what else there is of each partition."""

    others: list[PartitionTask] = field(kw_only=True, repr=False)

    @property
    def num_items(self) -> int:
        return self.rows + sum(part.rows for part in self.others)


class VerdictPartitions(RoundPartitions):
    """Lists partitions, or everything as one."""

    def sources(self) -> Iterator[Sequence[PartitionTask]]:
        if not self.rounds.fits_in_memory:
            yield from self.parts()
            return
        links, every = self.rounds.links, range(self.rounds.links.partitions)
        part = links.listing.part(
            self.part_name(0), [run for number in every for run in links.listing.blocks_of(number)]
        )
        others = [links.listing.part(self.part_name(number), list(links.rows_of(number))) for number in every]
        known = {entry.name: getattr(part, entry.name) for entry in fields(PartitionTask) if entry.init}
        yield [WholeGraphPart(**known, others=others)]
