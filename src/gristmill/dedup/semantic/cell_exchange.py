"""The two rounds of semantic deduplication that move embeddings: assign rows to cells, and compare the rows of a cell.

A row that goes to several cells is written for each of them. A cell that does not fit into memory is sorted on disk,
and its rows are compared as they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.batch import Batch
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import Columns, share_report
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, from_numbers, numbers
from gristmill.dedup.semantic.cell_comparison import SLACK, CellLinks, best_links, near_pairs, short_form
from gristmill.dedup.semantic.embedding_columns import matrix_of
from gristmill.dedup.semantic.greedy_selection import CELL, LINKS, MEMBER, NODE, RANK, SAMPLE_TRUTH, VECTOR, pack_links
from gristmill.dedup.semantic.kmeans import CentroidCells
from gristmill.dedup.semantic.ranking_strategy import HARD, binary_column, float_sort_bytes
from gristmill.io.exchange.exchange import (
    ListPartitions,
    PartitionTask,
    partition_batch,
    sort_memory_bytes,
    tables_of_size,
)
from gristmill.io.exchange.keyed_stage import KeyedStage, ReducePartition, ReducePartitionToColumns

if TYPE_CHECKING:
    from gristmill.dedup.semantic.semantic_stage import CentroidSpool
    from gristmill.io.exchange.exchange import Exchange

NOTED_PER_BLOCK = 64
"""For each query, at most so many near rows of a block are recorded."""

EXCHANGE_COLUMNS = {CELL: pa.int64(), **MEMBER, VECTOR: pa.binary(), LINKS: pa.large_binary()}


@fast_dataclass(frozen=True)
class CellPlan:
    """What the driver computes from a sample when all rows have been read: the cells, the queries, which are rows that
    are compared with all others, and the directions of the short form."""

    cells: CentroidCells
    sample_numbers: Numbers
    queries: Numbers
    short_basis: Numbers


def exchange_table(rows: int, **columns: Any) -> pa.Table:
    """Rows for the next round, with nulls in the columns that are not given."""
    return pa.table(
        {
            name: columns[name].cast(kind) if name in columns else pa.nulls(rows, kind)
            for name, kind in EXCHANGE_COLUMNS.items()
        }
    )


class UnsortedReduce(ReducePartitionToColumns):
    """Gives a round the rows of a partition unsorted, usually all at once."""

    def process(self, task: PartitionTask) -> Iterator[Batch]:
        share_report(self, self.keyed)
        start = 0
        for table in tables_of_size(task.pieces(), sort_memory_bytes(self.keyed.memory_gb)):
            output = self.keyed.process_groups(table)
            yield partition_batch(task, output, start)
            start += output.num_rows
        if not start:
            yield partition_batch(task, exchange_table(0), 0)


class AssignCells(KeyedStage):
    """Sends each row to the cell of its nearest centroid, and to other cells whose border is near."""

    step_name = "assign_cells"

    def __init__(self, key: str, which_to_keep: str | None, metric: str, eps: float) -> None:
        super().__init__()
        self.key, self.which_to_keep, self.metric, self.eps = key, which_to_keep, metric, eps
        self.spool: CentroidSpool | None = None

    def lister(self, exchange: Exchange, name: str) -> ListPartitions:
        self.spool = cast("CentroidSpool", exchange)
        return super().lister(exchange, name)

    def reducer(self) -> ReducePartition:
        return UnsortedReduce(self)

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [CELL]

    def load_plan(self) -> CellPlan:
        assert self.spool is not None
        return self.spool.load()

    def process_groups(self, table: pa.Table) -> pa.Table:
        cells = self.load_plan().cells
        rows = matrix_of(table[VECTOR], cells.centroids.shape[1])
        homes, also, others, start = [], [], [], 0
        for home, row, other in cells.assign(rows):
            homes.append(home)
            also.append(row + start)
            others.append(other)
            start += len(home)
        home = np.concatenate(homes)
        row, cell = np.concatenate(also), np.concatenate(others)
        self.count("rows_compared", len(home))
        self.count("rows_sent_to_other_clusters", len(row))
        known = {name: table[name] for name in (*MEMBER, VECTOR)}
        if self.which_to_keep:
            known[RANK] = self._ranked(rows, cells.centroids, home, as_one_array(table[RANK]))
        at_home = exchange_table(len(home), **known, **{CELL: from_numbers(home)})
        copied = {name: column.take(from_numbers(row)) for name, column in known.items()}
        copies = exchange_table(len(row), **copied, **{CELL: from_numbers(cell)})
        return pa.concat_tables([at_home, copies, self._truth(table, known[RANK], rows)])

    def _ranked(self, rows: Numbers, centroids: Numbers, home: Numbers, ranks: pa.Array) -> pa.Array:
        """Ranks by the distance to the centroid, and then by the given ranks."""
        distances = np.empty(len(rows))
        for start in range(0, len(rows), 4096):
            mine = rows[start : start + 4096].astype(np.float64)
            centre = centroids[home[start : start + 4096]].astype(np.float64)
            if self.metric == "l2":
                distance = np.sqrt(((mine - centre) ** 2).sum(axis=1))
            else:
                lengths = np.sqrt(np.einsum("ij,ij->i", centre, centre))
                distance = 1 - np.einsum("ij,ij->i", mine, centre) / np.maximum(lengths, 1e-30)
            distances[start : start + 4096] = distance
        prefixes = float_sort_bytes(np.round(-distances if self.which_to_keep == HARD else distances, 12))
        return binary_column([head.tobytes() + rest for head, rest in zip(prefixes, ranks.to_pylist(), strict=True)])

    def _truth(self, table: pa.Table, ranks: pa.Array, rows: Numbers) -> pa.Table:
        """Pairs of a query and a row near it, with the rank of the row, to measure recall by."""
        plan, nodes = self.load_plan(), numbers(table[NODE], np.int64)
        asked, basis = plan.sample_numbers, plan.short_basis
        short = (short_form(rows, basis), short_form(plan.queries, basis)) if len(basis) else None
        v, u, scores = near_pairs(rows, plan.queries, 1 - self.eps - SLACK, short=short)
        best = best_links(u, scores, np.zeros(len(u), np.bool_), v, NOTED_PER_BLOCK)  # a query itself is among them
        v, u, scores = v[best], u[best], scores[best]
        links = pack_links(np.arange(len(v)), nodes[v], scores, len(v))
        cell = pa.repeat(literal(SAMPLE_TRUTH, pa.int64()), len(v))
        ranks = as_one_array(ranks).take(from_numbers(v))
        return exchange_table(len(v), **{NODE: from_numbers(asked[u]), RANK: ranks, LINKS: links, CELL: cell})


class CompareCells(KeyedStage):
    """Compares the rows of each cell, and links rows that are near each other."""

    step_name = "compare_cells"
    key: str | Sequence[str] = CELL
    order = (RANK,)

    def __init__(self, assign: AssignCells, eps: float, greedy: bool) -> None:
        super().__init__()
        self.assign, self.eps, self.greedy = assign, eps, greedy

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [CELL]

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        cell: CellLinks | None = None
        about: list[pa.Table] = []
        for table in tables:
            of = numbers(table[CELL], np.int64)
            starts = np.flatnonzero(np.append(True, of[1:] != of[:-1])[: len(of)]).tolist()
            for start, stop in zip(starts, [*starts[1:], len(of)], strict=True):
                part = table.slice(start, stop - start)
                if of[start] == SAMPLE_TRUTH:
                    yield part.drop_columns([VECTOR])
                    continue
                if cell is None or cell.number != of[start]:
                    yield from self._linked(cell, about)
                    most, basis = sort_memory_bytes(self.memory_gb), self.assign.load_plan().short_basis
                    cell = CellLinks(int(of[start]), 1 - self.eps - SLACK, self.greedy, most, basis)
                    about = []
                vectors = as_one_array(part[VECTOR])
                cell.add(matrix_of(vectors, len(vectors[0].as_py()) // 4))
                about.append(part.select([CELL, *MEMBER]))
        yield from self._linked(cell, about)

    def _linked(self, cell: CellLinks | None, about: Sequence[pa.Table]) -> Iterator[pa.Table]:
        """The rows of a cell that have links, each with its links to rows before it."""
        if cell is None:
            return
        self.count("n_clusters")
        self.count("pairs_alike", len(cell.links()[0]))
        u, v, scores = cell.links()
        if not len(u):
            return
        members = pa.concat_tables(about)
        linked, positions = np.unique(np.concatenate([u, v]), return_inverse=True)
        nodes = numbers(members[NODE], np.int64)
        links = pack_links(positions[len(u) :], nodes[u], scores, len(linked))
        yield members.take(from_numbers(linked)).append_column(LINKS, links)
