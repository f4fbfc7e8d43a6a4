"""Clusters that do not fit into the memory of one worker, made by all workers in rounds over exchanges.

    large star, small star   links are drawn together into stars, repeated until nothing changes
    labels                   each row gets the number of its cluster, and its id goes to the rows it is linked with
    keepers                  the best row of each cluster is kept
    partners                 each dropped row gets a partner among the rows it is linked with; verdicts

Each exchange is a checkpoint. If the rows (without links) fit into memory, these segments run without tasks, and one
worker does the clustering (`cluster_verdicts.py`); the driver knows this only when all links have been written.

Partitions are sorted, on disk if they are large, so there may be any number of links and of rows in a cluster.

Costs disk space for the links of every round; the number of rounds grows with the logarithm of the largest cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.hash_partitioning import partition_numbers, split_by_partition
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import ProcessingStage, share_report
from gristmill.core.stage_roles import ReportingRole
from gristmill.core.task import WrittenFiles, digest, id_sort_key
from gristmill.dedup.clusters.cluster_table import CLUSTER, ID, PARTNER, SIMILARITY, SNAPSHOT
from gristmill.dedup.clusters.connected_components import large_star, small_star
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, flags, from_numbers, numbers
from gristmill.dedup.fuzzy.candidate_pairs import FuzzyRound
from gristmill.dedup.fuzzy.exchange_rows import (
    KEY,
    KIND,
    LINK,
    NODE,
    ORDER,
    OTHER,
    RANK,
    TEXT,
    TRUTH,
    keys_of,
    select_kind,
    unpack,
)
from gristmill.dedup.index.index_lookup import part_fields
from gristmill.dedup.signatures.document_sketch import buckets_of
from gristmill.dedup.signatures.search_quality import ClusterCounters, summarise_counts
from gristmill.io.exchange.exchange import (
    CommitShuffleFiles,
    Exchange,
    ListPartitions,
    PartitionTask,
    ShuffleBlockSlice,
    WriteShuffleFiles,
    partition_batch,
    sort_memory_bytes,
    tables_of_size,
)
from gristmill.io.exchange.external_sort import sort_tables
from gristmill.io.exchange.keyed_stage import ReducePartition, ReducePartitionToColumns
from gristmill.io.exchange.verdict_stage import KEEP, ROW, TASK
from gristmill.io.write.commit import columns_to_write

HELD_BYTES = 512 * 2**20
"""Bytes of rows that one worker clusters in memory, if no `memory_gb` is given. It takes up to twice as much."""

LINK_SHARE = 1 / 8
"""The size of links and rows as a share of the input, if there are many duplicates. A larger share would give more
partitions, and each round costs time for each pair of partitions; a partition that is too large is sorted on disk."""

CHANGED_PARTITION = -3
"""A partition that has a row if a round has changed something."""


class ClusteringRounds:
    """The exchanges between the segments, and the number of the round; shared by the stages of all segments."""

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
        """Whether one worker can do the clustering. Known when all links have been written."""
        return self.links.held_bytes <= (
            HELD_BYTES if self.memory_gb is None else 2 * sort_memory_bytes(self.memory_gb)
        )

    @property
    def edges(self) -> Exchange:
        """What the next round starts from: links, and in later rounds stars."""
        return self.stars if self._round else self.links

    @property
    def round_number(self) -> int:
        return self._round

    def begin_next_round(self) -> bool:
        """Whether another round is needed; if so, it begins."""
        if not self.fits_in_memory and CHANGED_PARTITION in self.stars.listing.blocks:
            self._round += 1
            return True
        return False

    def stages(self) -> list[ProcessingStage[Any, Any]]:
        large_stars, labels = self._exchange(), self._exchange()
        steps: list[tuple[type[RoundPartitions], Exchange, SortedRound, Exchange]] = [
            (EdgePartitions, self.links, LargeStar(), large_stars),
            (RoundPartitions, large_stars, SmallStar(), self.stars),
            (LabelPartitions, self.links, LabelClusters(), labels),
            (RoundPartitions, labels, ChooseKeepers(), self.keepers),
        ]
        parts: list[ProcessingStage[Any, Any]] = []
        for lister, read, step, written in steps:
            step.name, step.memory_gb = f"{self.name}_{step.step_name}", self.memory_gb
            name = f"{step.name}_commit"
            parts += [
                lister(read, f"{step.name}_partitions", self),
                step.reducer(),
                WriteShuffleFiles(written, f"{step.name}_write"),
                CommitStarRound(self, name) if written is self.stars else CommitShuffleFiles(written, name),
            ]
        return parts

    def verdict_partitions(self, name: str) -> ListPartitions:
        return VerdictPartitions(self.keepers, name, self)


class ReducedExchange(Exchange):
    """An exchange with partitions for a share of the input (`LINK_SHARE`)."""

    def set_input_bytes(self, nbytes: int | None) -> None:
        super().set_input_bytes(None if nbytes is None else int(nbytes * LINK_SHARE))


class LinkExchange(ReducedExchange):
    """Links in the first half of the partitions and rows in the second, both by the number of their row."""

    _held_bytes: int

    @property
    def held_bytes(self) -> int:
        """The size of everything but links, once all files have been listed."""
        return self._held_bytes

    def list_files(self, outputs: Iterable[WrittenFiles]) -> None:
        super().list_files(outputs)
        self._held_bytes = sum(map(self.listing.partition_bytes, range(self.partitions, 2 * self.partitions)))

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        table, _ = columns_to_write(batch.data, None)
        if not table.num_rows:
            return []
        own = keys_of(buckets_of(numbers(pc.fill_null(table[NODE], literal(0, pa.int64())))))
        key = pc.if_else(pc.is_valid(table[NODE]), own, as_one_array(table[KEY]))  # packed rows have no number
        table = table.set_column(table.column_names.index(KEY), KEY, key)
        where = partition_numbers(table, self.key, self.partitions)
        is_link = pc.equal(as_one_array(table[KIND]), literal(LINK, pa.int64()))
        return split_by_partition(
            table, pc.if_else(is_link, where, pc.add(where, literal(self.partitions, where.type)))
        )

    def rows_of(self, partition: int) -> Iterator[ShuffleBlockSlice]:
        """The blocks of a partition that are not links: rows, and pairs of the sample."""
        return self.listing.blocks_of(self.partitions + partition)


class StarExchange(ReducedExchange):
    """Edges of stars. An edge from a row to itself says that the round has changed something."""

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        for number, table in super().split_batch(batch):
            itself = pc.equal(table[NODE], table[OTHER])
            parts = ((number, table.filter(pc.invert(itself))), (CHANGED_PARTITION, table.filter(itself).slice(0, 1)))
            yield from ((partition, rows) for partition, rows in parts if rows.num_rows)


class CommitStarRound(CommitShuffleFiles):
    """Ends a round, and repeats its two segments if it has changed something."""

    not_identity = ("target", "rounds")

    def __init__(self, rounds: ClusteringRounds, name: str) -> None:
        super().__init__(rounds.stars, name)
        self.rounds = rounds

    def segments_to_repeat(self) -> int:
        return 2 if self.rounds.begin_next_round() else 0


class RoundPartitions(ListPartitions):
    """Lists partitions; none, if one worker does the clustering."""

    def __init__(self, exchange: Exchange, name: str, rounds: ClusteringRounds) -> None:
        super().__init__(exchange, name)
        self.rounds = rounds

    def sources(self) -> Iterator[Sequence[PartitionTask]]:
        return iter(()) if self.rounds.fits_in_memory else self.parts()

    def parts(self) -> Iterator[Sequence[PartitionTask]]:
        return super().sources()

    def part_name(self, number: int) -> str:
        suffix = f"-round{self.rounds.round_number + 1}" if self.rounds.round_number else ""
        return f"segment{self._segment_name}{suffix}-{number:05}"


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
    """The links of all partitions as one task; `others` are the rows and sample pairs of each partition."""

    others: list[PartitionTask] = field(kw_only=True, repr=False)

    @property
    def num_items(self) -> int:
        return self.rows + sum(part.rows for part in self.others)


class VerdictPartitions(RoundPartitions):
    """Lists the partitions after the rounds, or everything as one task if it fits into memory."""

    def sources(self) -> Iterator[Sequence[PartitionTask]]:
        if not self.rounds.fits_in_memory:
            yield from self.parts()
            return
        links, every = self.rounds.links, range(self.rounds.links.partitions)
        part = links.listing.part(
            self.part_name(0), [run for number in every for run in links.listing.blocks_of(number)]
        )
        others = [links.listing.part(self.part_name(number), list(links.rows_of(number))) for number in every]
        yield [WholeGraphPart(**part_fields(part), others=others)]


# -- the steps, each on one sorted partition ------------------------------------------------------------------

STAR_EDGE = -1
"""A kind of row: an edge of a star. It sorts before the kinds of `exchange_rows.py`."""

ROOT, BEST, PLACE = "__root__", "__best__", "__place__"
FACT_COLUMNS = {
    KEY: pa.binary(8),
    KIND: pa.int64(),
    NODE: pa.int64(),
    OTHER: pa.int64(),
    ROOT: pa.int64(),
    RANK: pa.float64(),
    ORDER: pa.int64(),
    ID: pa.string(),
    TASK: pa.string(),
    ROW: pa.int64(),
    CLUSTER: pa.string(),
    SNAPSHOT: pa.string(),
}


def fact_rows(kind: int, **columns: Any) -> pa.Table:
    """Rows of one kind, with nulls in the columns that it does not use; keyed by `__node__` unless a key is given."""
    count = len(columns[NODE])
    given = {KEY: keys_of(buckets_of(numbers(columns[NODE])))} if KEY not in columns else {}
    given |= {KIND: from_numbers(np.full(count, kind, np.int64)), **columns}
    return pa.table({name: given[name] if name in given else pa.nulls(count, of) for name, of in FACT_COLUMNS.items()})


class SortedRound(FuzzyRound):
    """A step that is given the rows of its partition sorted by the columns `order`."""

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        """The rows of a piece that the step sorts."""
        return piece

    def rows_to_pass_on(self, piece: pa.Table) -> pa.Table:
        """The rows that go to the next step as they are. A partition is read for them only if a step overrides this."""
        return piece.slice(0, 0)

    def reducer(self) -> ReducePartition:
        return SortedReduce(self)

    def displayed_counts(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        return counts


class SortedReduce(ReducePartitionToColumns, ReportingRole):
    """Sorts a partition, in memory or on disk, and passes it to a step."""

    def run_warning(self, stats: Any) -> str | None:
        return self.keyed.run_warning(stats)

    def displayed_counts(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        return self.keyed.displayed_counts(counts)

    def process(self, task: PartitionTask) -> Iterator[Batch]:
        share_report(self, self.keyed)
        start = 0
        for table in filter(len, self._tables(task)):
            yield partition_batch(task, table, start)
            start += table.num_rows
        if not start:
            yield partition_batch(task, pa.table({}), 0)

    def _tables(self, task: PartitionTask) -> Iterator[pa.Table]:
        step = self.keyed
        assert isinstance(step, SortedRound)
        with task.target.scratch() as folder:
            if type(step).rows_to_pass_on is not SortedRound.rows_to_pass_on:
                yield from map(step.rows_to_pass_on, _large_pieces(task))
            pieces = filter(len, map(step.rows_to_sort, _large_pieces(task)))
            rows = sort_tables(pieces, step.order, sort_memory_bytes(step.memory_gb), folder=folder)
            yield from step.process_sorted(tables_of_size(rows))


def _large_pieces(task: PartitionTask) -> Iterator[pa.Table]:
    """The rows of a partition in large tables. Most blocks are small, and each table costs more than its rows."""
    return tables_of_size(filter(len, task.pieces()))


def _edges(table: pa.Table) -> pa.Table:
    """The edges of links, or of stars, which are edges already."""
    if KIND not in table.column_names:
        return table.select([NODE, OTHER])
    links = unpack(select_kind(table, LINK), 3)
    return pa.table([from_numbers(links[:, 0]), from_numbers(links[:, 1])], [NODE, OTHER])


class LargeStar(SortedRound):
    """Links each larger neighbour of a row to the least of the row and its neighbours (`connected_components.py`)."""

    step_name = "large_star"
    order = (NODE, OTHER)

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        return _edges(piece)

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        least: pa.Table | None = None
        changed = 0
        for block in tables:
            table = block if least is None else pa.concat_tables([least, block]).combine_chunks()
            edges, new = self.star(pa.table([table[NODE], table[OTHER]], ["u", "v"]))
            changed += new
            yield from self.edge_tables(edges)
            nodes = numbers(table[NODE])
            # The last row may have more neighbours in the next block, and its first edge is the least.
            least = table.slice(int(np.searchsorted(nodes, nodes[-1])), 1)
        if changed:
            yield _edge_rows(np.zeros(1, np.int64), np.zeros(1, np.int64))

    def star(self, pairs: pa.Table) -> tuple[pa.Table, int]:
        return large_star(pairs)

    def edge_tables(self, edges: pa.Table) -> Iterator[pa.Table]:
        yield _edge_rows(numbers(edges["u"]), numbers(edges["v"]))


class SmallStar(LargeStar):
    """Links each smaller neighbour of a row, and the row, to the least of them; both ways, for the next round."""

    step_name = "small_star"

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        return piece.select([NODE, OTHER])

    def star(self, pairs: pa.Table) -> tuple[pa.Table, int]:
        changed_before = pc.sum(pc.equal(pairs["u"], pairs["v"]).cast(pa.int64())).as_py()
        edges, changed = small_star(pairs)
        return edges, changed + int(changed_before or 0)

    def edge_tables(self, edges: pa.Table) -> Iterator[pa.Table]:
        u, v = numbers(edges["u"]), numbers(edges["v"])
        yield _edge_rows(np.concatenate([u, v]), np.concatenate([v, u]))


def _edge_rows(u: Numbers, v: Numbers) -> pa.Table:
    return pa.table([keys_of(buckets_of(u)), from_numbers(u), from_numbers(v)], [KEY, NODE, OTHER])


class LabelClusters(SortedRound):
    """Gives each row the number of its cluster, and sends its id to the rows it is linked with."""

    step_name = "labels"
    order = (NODE, KIND, OTHER)

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        texts = piece.filter(pc.and_(pc.is_valid(piece[KIND]), pc.is_valid(piece[NODE])))  # packed rows have no number
        kinds = pc.fill_null(piece[KIND], literal(STAR_EDGE, pa.int64()))  # edges of stars have no kind
        piece = piece.set_column(piece.column_names.index(KIND), KIND, kinds)
        stars = select_kind(piece, STAR_EDGE)
        about = {
            name: texts[name] for name in (NODE, RANK, ORDER, ID, TASK, ROW, SNAPSHOT) if name in piece.column_names
        }
        return pa.concat_tables(
            [
                fact_rows(STAR_EDGE, **{NODE: stars[NODE], OTHER: stars[OTHER]}),
                fact_rows(TEXT, **about),
                *(_scored(kind, unpack(select_kind(piece, kind), 3)) for kind in (LINK, TRUTH)),
            ]
        )

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        carried: pa.Table | None = None
        for block in tables:
            table = block if carried is None else pa.concat_tables([carried, block]).combine_chunks()
            fresh = np.arange(table.num_rows) >= table.num_rows - block.num_rows
            kinds, others = numbers(table[KIND]), numbers(table[OTHER])
            starts, group = _groups(numbers(table[NODE]))
            label, about = _first(kinds == STAR_EDGE, starts), _first(kinds == TEXT, starts)
            roots = np.where(label >= 0, np.minimum(numbers(table[NODE])[starts], others[label]), 0)
            mine = about[fresh[about] & (about >= 0)]
            yield self._member(table, mine, roots[group[mine]])
            yield self._link(table, np.flatnonzero(fresh & (kinds == LINK)), about[group])
            rows = np.flatnonzero(fresh & (kinds == TRUTH))
            yield self._truth(table, rows, roots[group[rows]], label[group[rows]] >= 0)
            carried = table.take(_existing([label[-1], about[-1]]))

    @staticmethod
    def _member(table: pa.Table, rows: Numbers, roots: Numbers) -> pa.Table:
        """The rows themselves, for the partition of their cluster."""
        members = table.take(from_numbers(rows))
        columns = {name: members[name] for name in (NODE, RANK, ORDER, ID, TASK, ROW, SNAPSHOT)}
        return fact_rows(TEXT, **columns, **{ROOT: from_numbers(roots), KEY: keys_of(buckets_of(roots))})

    @staticmethod
    def _link(table: pa.Table, rows: Numbers, about: Numbers) -> pa.Table:
        """Links for the partition of the other row, with the id of this one."""
        links, mine = table.take(from_numbers(rows)), table.take(from_numbers(about[rows]))
        ends = {NODE: links[OTHER], OTHER: links[NODE], RANK: links[RANK]}
        return fact_rows(LINK, **ends, **{ID: mine[ID], SNAPSHOT: mine[SNAPSHOT]})

    @staticmethod
    def _truth(table: pa.Table, rows: Numbers, roots: Numbers, known: Numbers) -> pa.Table:
        """Pairs of the sample for the partition of the other row, with the cluster of this one."""
        pairs = table.take(from_numbers(rows))
        root = pc.if_else(from_numbers(known), from_numbers(roots), literal(None, pa.int64()))
        return fact_rows(TRUTH, **{NODE: pairs[OTHER], OTHER: pairs[NODE], RANK: pairs[RANK], ROOT: root})


def _scored(kind: int, links: Numbers) -> pa.Table:
    ends = {NODE: from_numbers(links[:, 0]), OTHER: from_numbers(links[:, 1])}
    return fact_rows(kind, **ends, **{RANK: from_numbers(links[:, 2].view(np.float64))})


def _groups(nodes: Numbers) -> tuple[Numbers, Numbers]:
    """Where each group of equal numbers begins, and the group of each number."""
    new = np.append(True, nodes[1:] != nodes[:-1])[: len(nodes)]
    return np.flatnonzero(new), np.cumsum(new) - 1


def _first(wanted: Numbers, starts: Numbers) -> Numbers:
    """The first wanted position of each group, or -1."""
    first: Numbers = np.minimum.reduceat(np.where(wanted, np.arange(len(wanted)), len(wanted)), starts)
    return np.where(first < len(wanted), first, -1)


def _existing(positions: Sequence[int]) -> pa.Array:
    """The positions that `_first` has found."""
    return from_numbers(np.array([position for position in positions if position >= 0], np.int64))


class ChooseKeepers(SortedRound):
    """Finds the row that each cluster keeps, and sends it to all rows of the cluster."""

    step_name = "keepers"
    order = (ROOT, BEST, ORDER, PLACE, ROW, NODE)  # NODE, since rows of an index have equal positions

    def rows_to_pass_on(self, piece: pa.Table) -> pa.Table:
        return piece.filter(pc.not_equal(piece[KIND], literal(TEXT, pa.int64()))).select(list(FACT_COLUMNS))

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        texts = select_kind(piece, TEXT)
        best = pc.fill_null(pc.negate(texts[RANK]), literal(np.inf, pa.float64()))
        return texts.append_column(BEST, best).append_column(PLACE, _sortable_tasks(as_one_array(texts[TASK])))

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        keeper: pa.Table | None = None
        counters, size, largest = ClusterCounters(), 0, 0
        for block in tables:
            table = block if keeper is None else pa.concat_tables([keeper, block]).combine_chunks()
            carried = table.num_rows - block.num_rows
            starts, group = _groups(numbers(table[ROOT]))
            firsts = table.take(from_numbers(starts[group][carried:]))
            about = {name: block[name] for name in (NODE, ROOT, ID, TASK, ROW, SNAPSHOT)}
            yield fact_rows(TEXT, **about, **{OTHER: firsts[NODE], CLUSTER: firsts[ID]})
            sizes = np.diff(np.append(starts, table.num_rows))
            sizes[0] += size - carried
            counters.count_sizes(self, sizes[:-1], largest=False)
            size, largest = int(sizes[-1]), max(largest, int(sizes.max()))
            keeper = table.slice(int(starts[-1]), 1)
        if size:
            counters.count_sizes(self, np.array([size]), largest=False)
            counters.count_largest(self, largest)

    def displayed_counts(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        return summarise_counts(counts)


def _sortable_tasks(tasks: pa.Array) -> pa.Array:
    """The ids of tasks as text that sorts in the order of the input."""
    encoded = tasks.dictionary_encode()
    return make_array([_sortable(task) for task in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)


def _sortable(task: str) -> str:
    return ".".join(f"{part:020d}" if isinstance(part, int) else part for _, part in id_sort_key(task))


class ChoosePartners(SortedRound):
    """Chooses the partner of each dropped row, and gives verdicts."""

    order = (NODE, KIND, BEST, OTHER)

    def __init__(self, counters: ClusterCounters, scored: bool) -> None:
        super().__init__()
        self.counters, self.scored = counters, scored

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        return piece.append_column(BEST, pc.negate(piece[RANK]))

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        carried: pa.Table | None = None
        for block in tables:
            table = block if carried is None else pa.concat_tables([carried, block]).combine_chunks()
            group, about, best = self._look(table)
            self._estimate(table, np.arange(table.num_rows) >= table.num_rows - block.num_rows, group, about)
            yield self._verdicts(table, about[:-1], best[:-1])
            carried = table.take(_existing([about[-1], best[-1]]))
        if carried is not None and carried.num_rows:
            _, about, best = self._look(carried)
            yield self._verdicts(carried, about, best)

    @staticmethod
    def _look(table: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
        """The group of each row of the table; and for each group the positions of its TEXT row and of its best link."""
        kinds, others = numbers(table[KIND]), numbers(table[OTHER])
        starts, group = _groups(numbers(table[NODE]))
        about, link = _first(kinds == TEXT, starts), kinds == LINK
        to_keeper = _first(link & (others == others[about[group]]) & (about[group] >= 0), starts)
        return group, about, np.where(to_keeper >= 0, to_keeper, _first(link, starts))

    def _estimate(self, table: pa.Table, fresh: Numbers, group: Numbers, about: Numbers) -> None:
        rows = np.flatnonzero(fresh & (numbers(table[KIND]) == TRUTH))
        mine = about[group[rows]]
        one, other, roots = numbers(table[NODE])[rows], numbers(table[OTHER])[rows], as_one_array(table[ROOT])
        known = (mine >= 0) & flags(roots.is_valid())[rows]
        root, keeper = numbers(roots), numbers(table[OTHER])[mine]
        same, kept = known & (root[rows] == root[mine]), known & (keeper == other) & (keeper != one)
        self.counters.count_sample_pairs(self, numbers(table[RANK])[rows], one < other, same, kept)

    def _verdicts(self, table: pa.Table, about: Numbers, best: Numbers) -> pa.Table:
        has_text = about >= 0
        rows, links = table.take(from_numbers(about[has_text])), table.take(from_numbers(best[has_text]))
        kept = pc.equal(rows[NODE], rows[OTHER])
        no_partner, unknown = literal(None, pa.string()), literal(None, pa.float64())
        verdicts = pa.table(
            [
                rows[TASK],
                rows[ROW],
                kept,
                rows[ID],
                rows[CLUSTER],
                pc.if_else(kept, no_partner, links[ID]),
                pc.if_else(kept, unknown, links[RANK]) if self.scored else pa.nulls(len(kept), pa.float64()),
            ],
            [TASK, ROW, KEEP, ID, CLUSTER, PARTNER, SIMILARITY],
        )
        if self.indexes is None:
            return verdicts
        snapshots = pc.if_else(kept, no_partner, links[SNAPSHOT])
        return verdicts.append_column(SNAPSHOT, snapshots).filter(pc.is_null(rows[SNAPSHOT]))
