"""The steps by which clusters are made that do not fit into memory, each on one partition (`clustering_rounds.py`).

Partitions are by the numbers of rows or clusters, and sorted: on disk, if they are many. So there may be any number of
links, rows of a cluster and links of a row. Rows come in blocks; what the next one needs is carried over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.stage_roles import ReportingRole
from gristmill.core.task import id_sort_key
from gristmill.dedup.clusters.cluster_table import CLUSTER, ID, PARTNER, SIMILARITY
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
from gristmill.dedup.index.index_lookup import SNAPSHOT
from gristmill.dedup.signatures.document_sketch import buckets_of
from gristmill.dedup.signatures.search_quality import ClusterCounters, summarise_counts
from gristmill.io.exchange.exchange import PartitionTask, partition_batch, sort_memory_bytes, tables_of_size
from gristmill.io.exchange.external_sort import sort_tables
from gristmill.io.exchange.keyed_stage import ReducePartition, ReducePartitionToColumns
from gristmill.io.exchange.verdict_stage import KEEP, ROW, TASK

STAR_EDGE = -1
"""A kind of rows: an edge of a star. It comes before the others."""

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
    """Rows of a kind, by `__node__` unless there is another key, with nulls in the columns that it has no use for."""
    count = len(columns[NODE])
    made = {KEY: keys_of(buckets_of(numbers(columns[NODE])))} if KEY not in columns else {}
    made |= {KIND: from_numbers(np.full(count, kind, np.int64)), **columns}
    return pa.table({name: made[name] if name in made else pa.nulls(count, of) for name, of in FACT_COLUMNS.items()})


class SortedRound(FuzzyRound):
    """A step that gets the rows of its partition in the order of some columns."""

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        """The rows that are sorted."""
        return piece

    def rows_to_pass_on(self, piece: pa.Table) -> pa.Table:
        """Rows that are for the next step. A partition is not read for them unless a step has its own."""
        return piece.slice(0, 0)

    def reducer(self) -> ReducePartition:
        return SortedReduce(self)


class SortedReduce(ReducePartitionToColumns, ReportingRole):
    """Sorts a partition, in memory or on disk, and gives it to a step."""

    def run_warning(self, stats: Any) -> str | None:
        return self.keyed.run_warning(stats)

    def displayed_counts(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        return self.keyed.displayed_counts(counts)

    def process(self, task: PartitionTask) -> Iterator[Batch]:
        start = 0
        for table in filter(len, self._tables(task)):
            yield partition_batch(task, table, start)
            start += table.num_rows
        if not start:
            yield partition_batch(task, pa.table({}), 0)

    def _tables(self, task: PartitionTask) -> Iterator[pa.Table]:
        step = self.keyed
        assert isinstance(step, SortedRound)
        with task.target.scratch() as room:
            if type(step).rows_to_pass_on is not SortedRound.rows_to_pass_on:
                yield from map(step.rows_to_pass_on, _larger(task))
            pieces = filter(len, map(step.rows_to_sort, _larger(task)))
            order = sort_tables(pieces, step.order, sort_memory_bytes(step.memory_gb), folder=room)
            yield from step.process_sorted(tables_of_size(order))


def _larger(task: PartitionTask) -> Iterator[pa.Table]:
    """The rows of a partition. Most runs are small, and a look at each would take longer than at their rows."""
    return tables_of_size(filter(len, task.pieces()))


def _edges(table: pa.Table) -> pa.Table:
    """Edges of links, or of stars as they are."""
    if KIND not in table.column_names:
        return table.select([NODE, OTHER])
    links = unpack(select_kind(table, LINK), 3)
    return pa.table([from_numbers(links[:, 0]), from_numbers(links[:, 1])], [NODE, OTHER])


def _pairs(u: Any, v: Any) -> pa.Table:
    return pa.table([u, v], ["u", "v"])


class LargeStar(SortedRound):
    """Links each larger neighbour of a row to the least of the row and its neighbours."""

    order = (NODE, OTHER)

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        return _edges(piece)

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        least: pa.Table | None = None
        changed = 0
        for block in tables:
            table = block if least is None else pa.concat_tables([least, block]).combine_chunks()
            found, new = self.star(_pairs(table[NODE], table[OTHER]))
            changed += new
            yield from self.edge_tables(found)
            nodes = numbers(table[NODE])
            least = table.slice(int(np.searchsorted(nodes, nodes[-1])), 1)  # its row may have more neighbours
        if changed:
            yield _edge_rows(np.zeros(1, np.int64), np.zeros(1, np.int64))

    def star(self, pairs: pa.Table) -> tuple[pa.Table, int]:
        return large_star(pairs)

    def edge_tables(self, found: pa.Table) -> Iterator[pa.Table]:
        yield _edge_rows(numbers(found["u"]), numbers(found["v"]))


class SmallStar(LargeStar):
    """Links each smaller neighbour of a row, and the row, to the least of them; both ways, for the next round."""

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        return piece.select([NODE, OTHER])

    def star(self, pairs: pa.Table) -> tuple[pa.Table, int]:
        news = pc.sum(pc.equal(pairs["u"], pairs["v"]).cast(pa.int64())).as_py()
        found, changed = small_star(pairs)
        return found, changed + int(news or 0)

    def edge_tables(self, found: pa.Table) -> Iterator[pa.Table]:
        u, v = numbers(found["u"]), numbers(found["v"])
        yield _edge_rows(np.concatenate([u, v]), np.concatenate([v, u]))


def _edge_rows(u: Numbers, v: Numbers) -> pa.Table:
    return pa.table([keys_of(buckets_of(u)), from_numbers(u), from_numbers(v)], [KEY, NODE, OTHER])


class LabelClusters(SortedRound):
    """Gives each row the number of its cluster, and tells the rows that it is linked with who it is."""

    order = (NODE, KIND, OTHER)

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        texts = piece.filter(pc.and_(pc.is_valid(piece[KIND]), pc.is_valid(piece[NODE])))  # what is packed has none
        kinds = pc.fill_null(piece[KIND], literal(STAR_EDGE, pa.int64()))  # stars have none
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
            carried = table.take(_known([label[-1], about[-1]]))

    @staticmethod
    def _member(table: pa.Table, rows: Numbers, roots: Numbers) -> pa.Table:
        found = table.take(from_numbers(rows))
        told = {name: found[name] for name in (NODE, RANK, ORDER, ID, TASK, ROW, SNAPSHOT)}
        return fact_rows(TEXT, **told, **{ROOT: from_numbers(roots), KEY: keys_of(buckets_of(roots))})

    @staticmethod
    def _link(table: pa.Table, rows: Numbers, about: Numbers) -> pa.Table:
        found, mine = table.take(from_numbers(rows)), table.take(from_numbers(about[rows]))
        told = {NODE: found[OTHER], OTHER: found[NODE], RANK: found[RANK]}
        return fact_rows(LINK, **told, **{ID: mine[ID], SNAPSHOT: mine[SNAPSHOT]})

    @staticmethod
    def _truth(table: pa.Table, rows: Numbers, roots: Numbers, known: Numbers) -> pa.Table:
        found = table.take(from_numbers(rows))
        root = pc.if_else(from_numbers(known), from_numbers(roots), literal(None, pa.int64()))
        return fact_rows(TRUTH, **{NODE: found[OTHER], OTHER: found[NODE], RANK: found[RANK], ROOT: root})


def _scored(kind: int, links: Numbers) -> pa.Table:
    ends = {NODE: from_numbers(links[:, 0]), OTHER: from_numbers(links[:, 1])}
    return fact_rows(kind, **ends, **{RANK: from_numbers(links[:, 2].view(np.float64))})


def _groups(nodes: Numbers) -> tuple[Numbers, Numbers]:
    """Where each group of equal numbers begins, and which group each is in."""
    new = np.append(True, nodes[1:] != nodes[:-1])[: len(nodes)]
    return np.flatnonzero(new), np.cumsum(new) - 1


def _first(wanted: Numbers, starts: Numbers) -> Numbers:
    """The first place in each group that is wanted, or -1."""
    found: Numbers = np.minimum.reduceat(np.where(wanted, np.arange(len(wanted)), len(wanted)), starts)
    return np.where(found < len(wanted), found, -1)


def _known(places: Sequence[int]) -> pa.Array:
    return from_numbers(np.array([place for place in places if place >= 0], np.int64))


class ChooseKeepers(SortedRound):
    """Finds the row that each cluster keeps, and tells all of its rows."""

    order = (ROOT, BEST, ORDER, PLACE, ROW, NODE)  # rows of an index have the same place

    def rows_to_pass_on(self, piece: pa.Table) -> pa.Table:
        return piece.filter(pc.not_equal(piece[KIND], literal(TEXT, pa.int64()))).select(list(FACT_COLUMNS))

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        texts = select_kind(piece, TEXT)
        best = pc.fill_null(pc.negate(texts[RANK]), literal(np.inf, pa.float64()))
        return texts.append_column(BEST, best).append_column(PLACE, _places(as_one_array(texts[TASK])))

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        keeper: pa.Table | None = None
        told, size, largest = ClusterCounters(), 0, 0
        for block in tables:
            table = block if keeper is None else pa.concat_tables([keeper, block]).combine_chunks()
            carried = table.num_rows - block.num_rows
            starts, group = _groups(numbers(table[ROOT]))
            firsts = table.take(from_numbers(starts[group][carried:]))
            about = {name: block[name] for name in (NODE, ROOT, ID, TASK, ROW, SNAPSHOT)}
            yield fact_rows(TEXT, **about, **{OTHER: firsts[NODE], CLUSTER: firsts[ID]})
            sizes = np.diff(np.append(starts, table.num_rows))
            sizes[0] += size - carried
            told.count_sizes(self, sizes[:-1], largest=False)
            size, largest = int(sizes[-1]), max(largest, int(sizes.max()))
            keeper = table.slice(int(starts[-1]), 1)
        if size:
            told.count_sizes(self, np.array([size]), largest=False)
            told.count_largest(self, largest)

    def displayed_counts(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        return summarise_counts(counts)


def _places(tasks: pa.Array) -> pa.Array:
    """Where each batch stands in the input, as text that sorts so."""
    encoded = tasks.dictionary_encode()
    return make_array([_place(task) for task in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)


def _place(task: str) -> str:
    return ".".join(f"{part:020d}" if isinstance(part, int) else part for _, part in id_sort_key(task))


class ChoosePartners(SortedRound):
    """Finds the partner of each row that is dropped, and gives verdicts."""

    order = (NODE, KIND, BEST, OTHER)

    def __init__(self, told: ClusterCounters, scored: bool) -> None:
        super().__init__()
        self.counters, self.scored = told, scored

    def rows_to_sort(self, piece: pa.Table) -> pa.Table:
        return piece.append_column(BEST, pc.negate(piece[RANK]))

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        carried: pa.Table | None = None
        for block in tables:
            table = block if carried is None else pa.concat_tables([carried, block]).combine_chunks()
            group, about, best = self._look(table)
            self._estimate(table, np.arange(table.num_rows) >= table.num_rows - block.num_rows, group, about)
            yield self._verdicts(table, about[:-1], best[:-1])
            carried = table.take(_known([about[-1], best[-1]]))
        if carried is not None and carried.num_rows:
            _, about, best = self._look(carried)
            yield self._verdicts(carried, about, best)

    @staticmethod
    def _look(table: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
        """The groups, and of each the place of what is known of its row, and of the best link."""
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
        there = about >= 0
        rows, links = table.take(from_numbers(about[there])), table.take(from_numbers(best[there]))
        kept = pc.equal(rows[NODE], rows[OTHER])
        nobody, unknown = literal(None, pa.string()), literal(None, pa.float64())
        found = pa.table(
            [
                rows[TASK],
                rows[ROW],
                kept,
                rows[ID],
                rows[CLUSTER],
                pc.if_else(kept, nobody, links[ID]),
                pc.if_else(kept, unknown, links[RANK]) if self.scored else pa.nulls(len(kept), pa.float64()),
            ],
            [TASK, ROW, KEEP, ID, CLUSTER, PARTNER, SIMILARITY],
        )
        if self.known is None:
            return found
        theirs = pc.if_else(kept, nobody, links[SNAPSHOT])
        return found.append_column(SNAPSHOT, theirs).filter(pc.is_null(rows[SNAPSHOT]))
