"""Clusters of similar rows, and which row of each cluster is kept.

Clusters are the connected components of the similar pairs. One row of a cluster is kept. Each other row names a
partner: the kept row, if the two were compared, or else the row it is most similar to. So each dropped row is similar
to some row of its cluster, though perhaps not to the one that is kept.

One worker does this if the rows, without their texts, fit into its memory; it reads the pairs in blocks, twice.
Otherwise all workers do it in rounds (`clustering_rounds.py`), with the same verdicts.

Costs time if the rows do not fit: each round passes all pairs through two exchanges.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.errors import AccountingError
from gristmill.core.stage import ProcessingStage, share_report
from gristmill.core.stage_roles import PlanningRole
from gristmill.core.task import id_sort_key
from gristmill.dedup.clusters.cluster_table import CLUSTER, ID, PARTNER, SIMILARITY, SNAPSHOT
from gristmill.dedup.clusters.connected_components import IncrementalComponents
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, from_numbers, numbers
from gristmill.dedup.fuzzy.candidate_pairs import NONE
from gristmill.dedup.fuzzy.clustering_rounds import ChoosePartners, ClusteringRounds, SortedReduce, WholeGraphPart
from gristmill.dedup.fuzzy.exchange_rows import LINK, NODE, ORDER, RANK, TRUTH, by_node, select_kind, unpack
from gristmill.dedup.signatures.lsh import choose_bands, format_s_curve
from gristmill.dedup.signatures.search_quality import ClusterCounters, summarise_counts
from gristmill.io.exchange.exchange import CommitShuffleFiles, PartitionTask, WriteShuffleFiles, partition_batch
from gristmill.io.exchange.keyed_stage import ReducePartition
from gristmill.io.exchange.verdict_stage import KEEP, ROW, TASK

LINKS_AT_ONCE, ROWS_AT_ONCE = 2**18, 2**17
"""Pairs that are read at a time, and rows of a batch of verdicts."""

ESTIMATED = "estimated_recall"
MIN_SAMPLE_PAIRS, POOR_RECALL = 20, 0.9
"""A run warns if it finds a smaller share of the similar pairs of its sample, given so many pairs at least."""


class ClusterVerdicts(ChoosePartners):
    """Makes clusters of all pairs, and gives a verdict on each row of a cluster."""

    step_name = "clusters"
    plan_warning: str | None = None
    """A warning that plans show, such as a low recall at the threshold."""

    def __init__(self, verify: str, threshold: float, bands: int, rows: int) -> None:
        super().__init__(ClusterCounters(threshold, bands, rows), scored=verify != NONE)
        self.threshold, self.bands, self.rows = threshold, bands, rows

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        rounds = ClusteringRounds(self.name, self.num_partitions, self.memory_gb)
        links = rounds.links
        return [
            WriteShuffleFiles(links, f"{self.name}_write"),
            CommitShuffleFiles(links, f"{self.name}_commit"),
            *rounds.stages(),
            rounds.verdict_partitions(f"{self.name}_partitions"),
            self.reducer(),
        ]

    def reducer(self) -> ReducePartition:
        return ClusterVerdictReduce(self)

    def displayed_counts(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        return summarise_counts(counts)

    def run_warning(self, stats: Any) -> str | None:
        counts = stats.counts
        if counts.get("sample_pairs", 0) < MIN_SAMPLE_PAIRS or counts.get(ESTIMATED, 1.0) >= POOR_RECALL:
            return None
        chosen = (self.bands, self.rows) == choose_bands(self.threshold, verified=self.scored)
        return (
            f"stage {self.name!r}: {self.bands} bands of {self.rows} minhashes found only about "
            f"{counts[ESTIMATED]:.0%} of the sampled pairs with a similarity of {self.threshold} or more. Use more "
            "bands (num_bands) or fewer minhashes per band (minhashes_per_band)"
            + ("" if chosen else ", or leave out both parameters to have them chosen by the threshold")
        )

    # -- in memory -------------------------------------------------------------------------------------------

    def verdicts_in_memory(
        self, others: Iterable[Iterable[pa.Table]], links: Callable[[], Iterable[pa.Table]]
    ) -> Iterator[pa.Table]:
        """Verdicts on all rows. `others` are the rows, by partition; `links` reads all pairs, and is called twice."""
        known, nodes, truth = _rows(others)
        joining = IncrementalComponents(len(nodes))
        for one, other, _ in _links(links(), nodes):
            half = one < other  # each pair is there in both directions
            joining.add(one[half], other[half])
        if not known.num_columns:  # no rows at all
            return
        order, keepers = self._keepers(known, joining.roots)
        self._estimate_all(nodes, joining.roots, keepers, truth)
        del joining
        best = BestPartners(keepers)
        for one, other, score in _links(links(), nodes):
            best.add(one, other, score)
        for start in range(0, len(order), ROWS_AT_ONCE):
            yield self._table(known, order[start : start + ROWS_AT_ONCE], keepers, best)

    def _keepers(self, members: pa.Table, cluster: Numbers) -> tuple[Numbers, Numbers]:
        """Rows sorted by cluster, the best of each first; and for each row the one that its cluster keeps."""
        ranks = pc.fill_null(as_one_array(members[RANK]), literal(-np.inf, pa.float64()))
        order = np.lexsort(
            (_input_positions(members), -numbers(ranks), cluster)
        )  # of equal ranks, the first of the input
        first = np.append(True, cluster[order][1:] != cluster[order][:-1])[: len(order)]
        sizes = np.diff(np.append(np.flatnonzero(first), len(order)))
        keepers = np.empty(len(cluster), np.int64)
        keepers[order] = np.repeat(order[first], sizes)
        self.counters.count_sizes(self, sizes)
        return order, keepers

    def _estimate_all(self, nodes: Numbers, cluster: Numbers, keepers: Numbers, truth: Numbers) -> None:
        """Count how many pairs of the sample are in one cluster, and how many consist of a kept and a dropped row."""
        there, places = np.ones(len(truth), np.bool_), []
        for side in (0, 1):
            place = np.minimum(np.searchsorted(nodes, truth[:, side]), max(len(nodes) - 1, 0))
            there &= nodes[place] == truth[:, side] if len(nodes) else False
            places.append(place)
        same, kept = np.zeros(len(truth), np.bool_), np.zeros(len(truth), np.bool_)
        one, other = places[0][there], places[1][there]
        same[there], kept[there] = cluster[one] == cluster[other], (keepers[one] == other) & (one != other)
        self.counters.count_sample_pairs(self, truth[:, 2].view(np.float64), truth[:, 0] < truth[:, 1], same, kept)

    def _table(self, members: pa.Table, order: Numbers, keepers: Numbers, best: BestPartners) -> pa.Table:
        """The verdicts on the rows `order`."""
        names, rows = as_one_array(members[ID]), members.take(from_numbers(order))
        partners = from_numbers(best.partners[order])
        kept = from_numbers(keepers[order] == order)
        score = from_numbers(best.scores[order])
        unknown = pa.nulls(len(order), pa.float64())
        verdicts = pa.table(
            [
                rows[TASK],
                rows[ROW],
                kept,
                rows[ID],
                names.take(from_numbers(keepers[order])),
                pc.if_else(kept, pa.nulls(len(order), pa.string()), names.take(partners)),
                pc.if_else(kept, unknown, score) if self.scored else unknown,
            ],
            [TASK, ROW, KEEP, ID, CLUSTER, PARTNER, SIMILARITY],
        )
        if SNAPSHOT not in rows.column_names:
            return verdicts
        snapshots = pc.if_else(kept, literal(None, pa.string()), members[SNAPSHOT].take(partners))
        is_new = pc.is_null(rows[SNAPSHOT])  # rows of an index get no verdict
        return verdicts.append_column(SNAPSHOT, snapshots).filter(is_new)


class ClusterVerdictReduce(SortedReduce, PlanningRole):
    """Gives verdicts on all rows at once, or on one partition after the rounds."""

    def plan_notes(self) -> Sequence[str]:
        assert isinstance(self.keyed, ClusterVerdicts)
        return format_s_curve(self.keyed.bands, self.keyed.rows, self.keyed.threshold).splitlines()

    def check(self) -> None:
        super().check()
        assert isinstance(self.keyed, ClusterVerdicts)
        if self.keyed.plan_warning:
            warnings.warn(self.keyed.plan_warning, RuntimeWarning, stacklevel=2)

    def process(self, task: PartitionTask) -> Iterator[Batch]:
        if not isinstance(task, WholeGraphPart):
            yield from super().process(task)
            return
        assert isinstance(self.keyed, ClusterVerdicts)
        share_report(self, self.keyed)
        start = 0
        for table in self.keyed.verdicts_in_memory((part.pieces() for part in task.others), task.pieces):
            yield partition_batch(task, table, start)
            start += table.num_rows
        if not start:
            yield partition_batch(task, pa.table({}), 0)


def _rows(partitions: Iterable[Iterable[pa.Table]]) -> tuple[pa.Table, Numbers, Numbers]:
    """All rows, sorted by number; their numbers; and the pairs of the sample."""
    parts = [_rows_of(pieces) for pieces in partitions]
    members = [rows for rows, _ in parts if rows is not None]
    known, nodes = by_node(pa.concat_tables(members)) if members else (pa.table({}), np.zeros(0, np.int64))
    return known, nodes, np.concatenate([np.zeros((0, 3), np.int64), *(truth for _, truth in parts)])


def _rows_of(pieces: Iterable[pa.Table]) -> tuple[pa.Table | None, Numbers]:
    """The rows and sample pairs of one partition, which has all copies of a row. Copies, so that blocks are freed."""
    tables = list(filter(len, pieces))
    if not tables:
        return None, np.zeros((0, 3), np.int64)
    table = pa.concat_tables(tables)
    snapshot = [SNAPSHOT] if SNAPSHOT in table.column_names else []
    rows = table.filter(pc.is_valid(table[NODE])).select([NODE, RANK, ORDER, ID, TASK, ROW, *snapshot])
    return by_node(rows)[0], unpack(select_kind(table, TRUTH), 3).copy()


def _links(tables: Iterable[pa.Table], nodes: Numbers) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Pairs, up to `LINKS_AT_ONCE` at a time: the positions of both rows in `nodes`, and their similarity."""
    held, missing = list[Numbers](), LINKS_AT_ONCE
    for table in tables:
        pairs = unpack(select_kind(table, LINK), 3)
        while len(pairs) >= missing:
            yield _with_positions(np.concatenate([*held, pairs[:missing]]), nodes)
            held, pairs, missing = [], pairs[missing:], LINKS_AT_ONCE
        held.append(pairs)
        missing -= len(pairs)
    if missing < LINKS_AT_ONCE:
        yield _with_positions(np.concatenate(held), nodes)


def _with_positions(pairs: Numbers, nodes: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return _positions(pairs[:, 0], nodes), _positions(pairs[:, 1], nodes), pairs[:, 2].view(np.float64)


def _positions(wanted: Numbers, nodes: Numbers) -> Numbers:
    """The position of each wanted number in the sorted `nodes`."""
    positions = np.searchsorted(nodes, wanted)
    lost = nodes[np.minimum(positions, len(nodes) - 1)] != wanted if len(nodes) else np.ones(len(wanted), np.bool_)
    if lost.any():
        raise AccountingError(
            f"{int(lost.sum()):,} of {len(wanted):,} similar pairs name a row that was not sent with them, such as "
            f"number {wanted[lost][0]}; {len(nodes):,} rows were sent"
        )
    return positions


def _input_positions(members: pa.Table) -> Numbers:
    """A number for each row; the numbers are in the order of the input."""
    tasks = as_one_array(members[TASK]).dictionary_encode()
    names, codes = tasks.dictionary.to_pylist(), numbers(tasks.indices.cast(pa.int64()))
    orders = np.zeros(len(names), np.int64)
    orders[codes] = numbers(members[ORDER])
    ranks = sorted(range(len(names)), key=lambda code: (orders[code], id_sort_key(names[code])))
    position = np.empty(len(names), np.int64)
    position[ranks] = np.arange(len(names))
    rows = numbers(members[ROW], np.int64)
    positions: Numbers = position[codes] * (rows.max(initial=0) + 1) + rows
    return positions


class BestPartners:
    """The partner of each row and their similarity: the kept row, if the two were compared, or the most similar."""

    def __init__(self, keepers: Numbers) -> None:
        self.keepers = keepers
        self.partners, self.scores = np.full(len(keepers), -1, np.int64), np.zeros(len(keepers))

    def add(self, one: Numbers, other: Numbers, score: Numbers) -> None:
        """Take more pairs into account, in any order."""
        rows = np.unique(one)
        rows = rows[self.partners[rows] >= 0]
        one = np.concatenate([one, rows])
        other, score = np.concatenate([other, self.partners[rows]]), np.concatenate([score, self.scores[rows]])
        order = np.lexsort((other, -score, self.keepers[one] != other, one))
        first = order[np.append(True, one[order][1:] != one[order][:-1])[: len(order)]]
        self.partners[one[first]], self.scores[one[first]] = other[first], score[first]
