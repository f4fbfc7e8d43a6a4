"""Clusters of the pairs that are alike, and which row of each is kept.

A row is in a cluster with each row that it is alike, and with those that these are alike. One row of a cluster is kept,
and each other one names a partner: the row that is kept, where the two were compared, or else the one that it is most
similar to. So each row that is dropped is alike some row of its cluster, though perhaps not the one that is kept.

One worker makes them if what is known of the rows fits into its memory, and reads the pairs bit by bit, twice; else all
workers do, in rounds (`clustering_rounds.py`), with the same verdicts.

What is given up: time, for what does not fit: each round passes all pairs through two exchanges.
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
from gristmill.dedup.clusters.cluster_table import CLUSTER, ID, PARTNER, SIMILARITY
from gristmill.dedup.clusters.connected_components import IncrementalComponents
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, from_numbers, numbers
from gristmill.dedup.fuzzy.candidate_pairs import NONE
from gristmill.dedup.fuzzy.clustering_rounds import ClusteringRounds, WholeGraphPart
from gristmill.dedup.fuzzy.clustering_steps import ChoosePartners, SortedReduce
from gristmill.dedup.fuzzy.exchange_rows import LINK, NODE, ORDER, RANK, TRUTH, by_node, select_kind, unpack
from gristmill.dedup.index.index_lookup import SNAPSHOT
from gristmill.dedup.signatures.lsh import choose_bands, format_s_curve
from gristmill.dedup.signatures.search_quality import ClusterCounters, summarise_counts
from gristmill.io.exchange.exchange import CommitShuffleFiles, PartitionTask, WriteShuffleFiles, partition_batch
from gristmill.io.exchange.keyed_stage import ReducePartition
from gristmill.io.exchange.verdict_stage import KEEP, ROW, TASK

LINKS_AT_ONCE, ROWS_AT_ONCE = 2**18, 2**17
"""Up to so many pairs are looked at together, and there are verdicts on so many rows in one batch."""

ESTIMATED = "estimated_recall"
MIN_SAMPLE_PAIRS, POOR_RECALL = 20, 0.9
"""A run says so if it finds fewer than this share of the pairs of its sample, and there are more than a few."""


class ClusterVerdicts(ChoosePartners):
    """Makes clusters of all pairs, and gives a verdict on each row that is in one."""

    plan_warning: str | None = None
    """What plans warn of."""

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
            f"stage {self.name!r}: of the pairs in a sample that are at least {self.threshold} similar, about "
            f"{counts[ESTIMATED]:.0%} were found with {self.bands} bands of {self.rows}. Give more bands (num_bands), "
            "or fewer minhashes per band (minhashes_per_band)"
            + ("" if chosen else ", or neither: then both are chosen by the threshold")
        )

    # -- in memory -------------------------------------------------------------------------------------------

    def verdicts_in_memory(
        self, others: Iterable[Iterable[pa.Table]], links: Callable[[], Iterable[pa.Table]]
    ) -> Iterator[pa.Table]:
        """Verdicts on all rows: `others` is what is known of them, by partition, and pairs are read twice."""
        known, nodes, truth = _rows(others)
        joining = IncrementalComponents(len(nodes))
        for one, other, _ in _links(links(), nodes):
            half = one < other  # pairs are there both ways
            joining.add(one[half], other[half])
        if not known.num_columns:  # there is nothing at all
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
        """Rows in the order of clusters, the best first, and for each the one that its cluster keeps."""
        ranks = pc.fill_null(as_one_array(members[RANK]), literal(-np.inf, pa.float64()))
        order = np.lexsort((_places(members), -numbers(ranks), cluster))  # of equal ones the least number is first
        first = np.append(True, cluster[order][1:] != cluster[order][:-1])[: len(order)]
        sizes = np.diff(np.append(np.flatnonzero(first), len(order)))
        keepers = np.empty(len(cluster), np.int64)
        keepers[order] = np.repeat(order[first], sizes)
        self.counters.count_sizes(self, sizes)
        return order, keepers

    def _estimate_all(self, nodes: Numbers, cluster: Numbers, keepers: Numbers, truth: Numbers) -> None:
        """Tell how many of the pairs of the sample are in one cluster, and whether what is kept is like what is not."""
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
        """Verdicts on some rows."""
        names, rows = as_one_array(members[ID]), members.take(from_numbers(order))
        partners = from_numbers(best.partners[order])
        kept = from_numbers(keepers[order] == order)
        score = from_numbers(best.scores[order])
        unknown = pa.nulls(len(order), pa.float64())
        found = pa.table(
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
            return found
        theirs = pc.if_else(kept, literal(None, pa.string()), members[SNAPSHOT].take(partners))
        return found.append_column(SNAPSHOT, theirs).filter(pc.is_null(rows[SNAPSHOT]))  # none on what is known


class ClusterVerdictReduce(SortedReduce, PlanningRole):
    """Gives verdicts: on everything at once, or on a partition of what the rounds have found."""

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
    """What is known of all rows, in the order of their numbers, which come with it, and the pairs of the sample."""
    found = [_rows_of(pieces) for pieces in partitions]
    members = [rows for rows, _ in found if rows is not None]
    known, nodes = by_node(pa.concat_tables(members)) if members else (pa.table({}), np.zeros(0, np.int64))
    return known, nodes, np.concatenate([np.zeros((0, 3), np.int64), *(truth for _, truth in found)])


def _rows_of(pieces: Iterable[pa.Table]) -> tuple[pa.Table | None, Numbers]:
    """The same of one partition, where rows that are the same are. Copies: what was read is not held."""
    tables = list(filter(len, pieces))
    if not tables:
        return None, np.zeros((0, 3), np.int64)
    table = pa.concat_tables(tables)
    told = [SNAPSHOT] if SNAPSHOT in table.column_names else []
    rows = table.filter(pc.is_valid(table[NODE])).select([NODE, RANK, ORDER, ID, TASK, ROW, *told])
    return by_node(rows)[0], unpack(select_kind(table, TRUTH), 3).copy()


def _links(tables: Iterable[pa.Table], nodes: Numbers) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Pairs, up to `LINKS_AT_ONCE` at a time: the places of both among the numbers of rows, and how similar they are."""
    held, room = list[Numbers](), LINKS_AT_ONCE
    for table in tables:
        pairs = unpack(select_kind(table, LINK), 3)
        while len(pairs) >= room:
            yield _placed(np.concatenate([*held, pairs[:room]]), nodes)
            held, pairs, room = [], pairs[room:], LINKS_AT_ONCE
        held.append(pairs)
        room -= len(pairs)
    if room < LINKS_AT_ONCE:
        yield _placed(np.concatenate(held), nodes)


def _placed(pairs: Numbers, nodes: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return _place(pairs[:, 0], nodes), _place(pairs[:, 1], nodes), pairs[:, 2].view(np.float64)


def _place(wanted: Numbers, nodes: Numbers) -> Numbers:
    places = np.searchsorted(nodes, wanted)
    lost = nodes[np.minimum(places, len(nodes) - 1)] != wanted if len(nodes) else np.ones(len(wanted), np.bool_)
    if lost.any():
        raise AccountingError(
            f"of {len(wanted):,} pairs that are alike {int(lost.sum()):,} name a row of which nothing is known, like "
            f"number {wanted[lost][0]}; {len(nodes):,} rows are known"
        )
    return places


def _places(members: pa.Table) -> Numbers:
    """A number for each row by which they are in the order of the input."""
    tasks = as_one_array(members[TASK]).dictionary_encode()
    names, codes = tasks.dictionary.to_pylist(), numbers(tasks.indices.cast(pa.int64()))
    orders = np.zeros(len(names), np.int64)
    orders[codes] = numbers(members[ORDER])
    ranks = sorted(range(len(names)), key=lambda code: (orders[code], id_sort_key(names[code])))
    place = np.empty(len(names), np.int64)
    place[ranks] = np.arange(len(names))
    rows = numbers(members[ROW], np.int64)
    found: Numbers = place[codes] * (rows.max(initial=0) + 1) + rows
    return found


class BestPartners:
    """For each row the partner, and how similar it is: the one that is kept, if they were compared."""

    def __init__(self, keepers: Numbers) -> None:
        self.keepers = keepers
        self.partners, self.scores = np.full(len(keepers), -1, np.int64), np.zeros(len(keepers))

    def add(self, one: Numbers, other: Numbers, score: Numbers) -> None:
        """Look at some more pairs, in any order."""
        rows = np.unique(one)
        rows = rows[self.partners[rows] >= 0]
        one = np.concatenate([one, rows])
        other, score = np.concatenate([other, self.partners[rows]]), np.concatenate([score, self.scores[rows]])
        order = np.lexsort((other, -score, self.keepers[one] != other, one))
        first = order[np.append(True, one[order][1:] != one[order][:-1])[: len(order)]]
        self.partners[one[first]], self.scores[one[first]] = other[first], score[first]
