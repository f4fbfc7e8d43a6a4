"""Chooses the rows to keep, from the links between near rows.

Rows are visited in the order of their rank. A row that is near a row that was kept before it is dropped, and all others
are kept. So no two kept rows are near each other, as far as they were compared, and each dropped row has a partner that
is kept and near: clusters are not transitive.

Costs memory: one worker holds about 300 bytes for each row that has a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.stage import Columns
from gristmill.core.stage_roles import ReportingRole
from gristmill.dedup.clusters.cluster_table import CLUSTER, ID, PARTNER, SIMILARITY
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, from_numbers, numbers
from gristmill.io.exchange.keyed_stage import KeyedStage, ReducePartition, ReducePartitionToColumns
from gristmill.io.exchange.verdict_stage import KEEP, ROW, TASK

CELL, NODE, VECTOR, RANK, LINKS = "__cell__", "__node__", "__vector__", "__rank__", "__links__"
MEMBER = {NODE: pa.int64(), RANK: pa.binary(), ID: pa.string(), TASK: pa.string(), ROW: pa.int64()}
"""The columns that describe a row."""

SAMPLE_TRUTH = -1
"""The cell number of sample pairs, by which recall is measured."""

ESTIMATED = "estimated_recall"
MIN_SAMPLE_PAIRS, POOR_RECALL = 20, 0.9
"""A run warns if it drops a smaller share of the sampled rows that it should drop, given so many of them at least."""

VECTORISED_PASSES = 16
"""Passes over all rows at once, before the remaining ones are visited one by one."""


def pack_links(owner: Numbers, others: Numbers, scores: Numbers, rows: int) -> pa.Array:
    """The links of each row as bytes, 16 for each link: the number of the other row, and the similarity."""
    order = np.argsort(owner, kind="stable")
    data = np.stack([others[order], scores[order].view(np.int64)], axis=1)
    ends = np.append(0, np.cumsum(np.bincount(owner, minlength=rows))) * 16
    return pa.Array.from_buffers(
        pa.large_binary(), rows, [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(np.ascontiguousarray(data))]
    )


def unpack_links(column: pa.Array) -> tuple[Numbers, Numbers, Numbers]:
    """All links of a column: the position of the row, the number of the other row, and the similarity."""
    array = column.cast(pa.large_binary())
    if not len(array):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    found = np.frombuffer(data or b"", np.int64)[ends[0] // 8 : ends[-1] // 8].reshape(-1, 2)
    return np.repeat(np.arange(len(array)), np.diff(ends) // 16), found[:, 0], found[:, 1].copy().view(np.float64)


def kept_in_order(count: int, u: Numbers, v: Numbers) -> Numbers:
    """Which of `count` rows are kept, if a row is dropped when it is linked with a kept row before it.

    Vectorised passes decide all rows whose earlier neighbours are decided; long chains are left for the loop below.
    """
    kept, known = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for _ in range(VECTORISED_PASSES):
        waits = np.zeros(count, np.bool_)
        waits[v] = True
        kept |= ~known & ~waits
        known |= kept
        known[v[kept[u]]] = True
        open_ = ~known[v] & ~(known[u] & ~kept[u])
        u, v = u[open_], v[open_]
        if not len(v):
            return kept | ~known
    order = np.lexsort((u, v))
    dropped = set[int]()
    u, v = u[order], v[order]
    starts = np.flatnonzero(np.append(True, v[1:] != v[:-1]))
    kept |= ~known
    for row, mine in zip(v[starts].tolist(), np.split(u, starts[1:]), strict=True):
        if any(other not in dropped for other in mine.tolist()):
            dropped.add(row)
    kept[sorted(dropped)] = False
    return kept


class RemarkingReduce(ReducePartitionToColumns, ReportingRole):
    """Passes the warning of its keyed stage on."""

    def run_warning(self, stats: Any) -> str | None:
        return self.keyed.run_warning(stats)


class GreedySelection(KeyedStage):
    """Visits all rows that have links, by rank, and gives a verdict on each row of a cluster."""

    step_name = "select"
    key: str | Sequence[str] = ()

    def __init__(self, greedy: bool, eps: float) -> None:
        super().__init__()
        self.greedy, self.eps = greedy, eps

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []  # verdicts are no columns of the rows

    def reducer(self) -> ReducePartition:
        return RemarkingReduce(self)

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        members, truth = [], []
        for table in tables:
            pairs = pc.equal(table[CELL], literal(SAMPLE_TRUTH, pa.int64()))
            truth.append(table.filter(pairs).select([NODE, RANK, LINKS]))
            members.append(table.filter(pc.invert(pairs)).select([*MEMBER, LINKS]))
        if not members:
            return
        judged, dropped = self._judged(pa.concat_tables(members))
        self._estimate(pa.concat_tables(truth), dropped)
        if judged.num_rows:
            yield judged

    def _judged(self, table: pa.Table) -> tuple[pa.Table, Numbers]:
        """The verdicts, and the numbers of dropped rows."""
        found = numbers(table[NODE], np.int64)
        _, first, node = np.unique(found, return_index=True, return_inverse=True)
        order = numbers(pc.sort_indices(as_one_array(table[RANK]).take(from_numbers(first))), np.int64)
        members = table.select(list(MEMBER)).take(from_numbers(first[order]))
        position = np.empty(len(order), np.int64)  # of each node in the order of ranks
        position[order] = np.arange(len(order))
        nodes = numbers(members[NODE], np.int64)
        by_node = np.argsort(nodes)
        row, other, scores = unpack_links(as_one_array(table[LINKS]))
        v = position[node[row]]
        u = by_node[np.searchsorted(nodes[by_node], other)]
        kept = kept_in_order(len(nodes), u, v) if self.greedy else ~np.isin(np.arange(len(nodes)), v)
        counts = kept[u] if self.greedy else np.ones(len(u), np.bool_)
        partner, similarity = _partners(len(nodes), u[counts], v[counts], scores[counts], kept)
        self.count("links", len(v))
        return self._table(members, kept, partner, similarity), nodes[~kept]

    def _table(self, members: pa.Table, kept: Numbers, partner: Numbers, similarity: Numbers) -> pa.Table:
        roots = partner.copy()
        while (roots[roots] != roots).any():  # without `greedy` a partner may be dropped too
            roots = roots[roots]
        sizes = np.bincount(roots, minlength=len(roots))
        shown = np.flatnonzero(sizes[roots] > 1)
        self.count("clusters", int((sizes > 1).sum()))
        self.count("largest_cluster", int(sizes.max(initial=0)))
        names, gone = as_one_array(members[ID]), from_numbers(~kept[shown])
        no_partner, unknown = pa.nulls(len(shown), pa.string()), pa.nulls(len(shown), pa.float64())
        rows = members.take(from_numbers(shown))
        return pa.table(
            [
                rows[TASK],
                rows[ROW],
                from_numbers(kept[shown]),
                rows[ID],
                names.take(from_numbers(roots[shown])),
                pc.if_else(gone, names.take(from_numbers(partner[shown])), no_partner),
                pc.if_else(gone, from_numbers(similarity[shown]), unknown),
            ],
            [TASK, ROW, KEEP, ID, CLUSTER, PARTNER, SIMILARITY],
        )

    def _estimate(self, truth: pa.Table, dropped: Numbers) -> None:
        """Count the queries that should be dropped, since they are near a kept row before them, and how many were."""
        queries = numbers(truth[NODE], np.int64)
        _, other, _ = unpack_links(as_one_array(truth[LINKS]))
        position = np.empty(len(queries), np.int64)
        position[numbers(pc.sort_indices(truth[RANK]), np.int64)] = np.arange(len(queries))
        itself = queries == other
        own = {int(node): int(at) for node, at in zip(queries[itself], position[itself], strict=True)}
        dropped_nodes = set(dropped.tolist())
        to_drop = {
            query
            for query, row, at in zip(queries.tolist(), other.tolist(), position.tolist(), strict=True)
            if query != row and at < own.get(query, -1) and not (self.greedy and row in dropped_nodes)
        }
        right, missed = len(dropped_nodes & set(own)), len(to_drop - dropped_nodes)
        if right + missed:
            self.count("sample_rows", right + missed)
            self.count("sample_rows_dropped", right)
            self.count(ESTIMATED, round(right / (right + missed), 4))

    def run_warning(self, stats: Any) -> str | None:
        counts = stats.counts
        if counts.get("sample_rows", 0) < MIN_SAMPLE_PAIRS or counts.get(ESTIMATED, 1.0) >= POOR_RECALL:
            return None
        return (
            f"stage {self.name!r}: only about {counts[ESTIMATED]:.0%} of the sampled rows within eps={self.eps} of a "
            "kept row were found. Use fewer clusters (n_clusters), or compare more rows with neighbouring clusters "
            "(larger n_probe or border)"
        )


def _partners(count: int, u: Numbers, v: Numbers, scores: Numbers, kept: Numbers) -> tuple[Numbers, Numbers]:
    """The most similar linked row of each dropped row, and their similarity; kept rows are their own partners."""
    partner, similarity = np.arange(count), np.ones(count)
    order = np.lexsort((u, -scores, v))
    first = order[np.append(True, v[order][1:] != v[order][:-1])[: len(order)]]
    first = first[~kept[v[first]]]
    partner[v[first]], similarity[v[first]] = u[first], scores[first]
    return partner, np.minimum(similarity, 1.0)
