"""Clusters of the pairs that are alike, and which row of each is kept.

A row is in a cluster with each row that it is alike, and with those that these are alike. One row of a cluster is kept,
and each other one names a partner: the row that is kept, where the two were compared, or else the one that it is most
similar to. So each row that is dropped is alike some row of its cluster, though perhaps not the one that is kept.

What is given up: clusters are made in the memory of one worker, of about 150 bytes for each row that has a duplicate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.columns import literal
from gristmill.core.compute import pc
from gristmill.core.task import order_key
from gristmill.dedup.clusters import CLUSTER, ID, PARTNER, SIMILARITY
from gristmill.dedup.columns import Numbers, from_numbers, numbers, whole
from gristmill.dedup.components import components, spanning
from gristmill.dedup.index_join import SNAPSHOT
from gristmill.dedup.lsh import probability
from gristmill.dedup.pairing import NONE, Step
from gristmill.dedup.quality import estimated_recall
from gristmill.dedup.rows import LINK, NODE, ORDER, RANK, TRUTH, by_node, of_kind, unpack
from gristmill.io.verdicts import KEEP, ROW, TASK

ESTIMATED = "estimated_recall"
FEW, POOR = 20, 0.9
"""A run says so if it finds fewer than this share of the pairs of its sample, and there are more than a few."""

HELD_LINKS = 2**22
"""When there are so many pairs, those that join nothing new are left out."""

SIZES = (2, 3, 5, 10, 100, 1000)
"""Clusters are counted by size, from each of these on."""


class Clusters(Step):
    """Makes clusters of all pairs, and gives a verdict on each row that is in one."""

    key: str | Sequence[str] = ()

    def __init__(self, verify: str, threshold: float, bands: int, rows: int) -> None:
        super().__init__()
        self.verify, self.threshold, self.bands, self.rows = verify, threshold, bands, rows

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        members, truth, fresh = list[pa.Table](), list[Numbers](), list[Numbers]()
        links = np.zeros((0, 3), np.int64)
        for table in tables:
            told = [SNAPSHOT] if SNAPSHOT in table.column_names else []
            members.append(table.filter(pc.is_valid(table[NODE])).select([NODE, RANK, ORDER, ID, TASK, ROW, *told]))
            truth.append(unpack(of_kind(table, TRUTH), 3))
            fresh.append(unpack(of_kind(table, LINK), 3))
            if sum(map(len, fresh)) > HELD_LINKS + len(links):
                links, fresh = _fewer(np.concatenate([links, *fresh])), []
        if members:
            known, nodes = by_node(pa.concat_tables(members))
            links = np.concatenate([links, *fresh])
            u, v = (np.searchsorted(nodes, links[:, side]) for side in (0, 1))
            cluster = numbers(components(from_numbers(u), from_numbers(v))["cluster"])  # all members are in a pair
            self._estimate(nodes, cluster, np.concatenate(truth))
            if len(links):
                yield self._verdicts(known, cluster, u, v, links[:, 2].view(np.float64))

    def _estimate(self, nodes: Numbers, cluster: Numbers, truth: Numbers) -> None:
        """Tell how many of the pairs of the sample are in one cluster, and how many of them the curve promises."""
        similarity = truth[:, 2].view(np.float64)
        truth, similarity = truth[similarity >= self.threshold], similarity[similarity >= self.threshold]
        if not len(truth):
            return
        places = [np.minimum(np.searchsorted(nodes, truth[:, side]), max(len(nodes) - 1, 0)) for side in (0, 1)]
        found = np.zeros(len(truth), np.bool_)
        if len(nodes):
            there = (nodes[places[0]] == truth[:, 0]) & (nodes[places[1]] == truth[:, 1])
            found = there & (cluster[places[0]] == cluster[places[1]])
        self.count("sample_pairs", len(truth))
        self.count("sample_pairs_found", int(found.sum()))
        self.count(ESTIMATED, round(estimated_recall(similarity, found), 4))
        promised = probability(similarity, self.bands, self.rows)
        self.count("expected_recall", round(estimated_recall(similarity, promised), 4))

    def remark(self, stats: Any) -> str | None:
        counts = stats.counts
        if counts.get("sample_pairs", 0) < FEW or counts.get(ESTIMATED, 1.0) >= POOR:
            return None
        return (
            f"stage {self.name!r}: of the pairs in a sample that are at least {self.threshold} similar, about "
            f"{counts[ESTIMATED]:.0%} were found with {self.bands} bands of {self.rows}. Give more bands, or fewer "
            "minhashes per band, or neither: then both are chosen by the threshold"
        )

    def _verdicts(self, members: pa.Table, cluster: Numbers, u: Numbers, v: Numbers, scores: Numbers) -> pa.Table:
        places = _places(members)
        ranks = pc.fill_null(whole(members[RANK]), literal(-np.inf, pa.float64()))
        order = np.lexsort((places, -numbers(ranks), cluster))
        first = np.append(True, cluster[order][1:] != cluster[order][:-1])
        sizes = np.diff(np.append(np.flatnonzero(first), len(order)))
        keepers = np.empty(len(cluster), np.int64)
        keepers[order] = np.repeat(order[first], sizes)
        self._tell(sizes)
        partner, similarity = _partners(u, v, scores, keepers)
        return self._table(members.take(from_numbers(order)), order, keepers, partner, similarity, members)

    def _table(
        self, rows: pa.Table, order: Numbers, keepers: Numbers, partner: Numbers, similarity: Numbers, members: pa.Table
    ) -> pa.Table:
        names = whole(members[ID])
        kept = from_numbers(keepers[order] == order)
        score = from_numbers(similarity[order])
        unknown = pa.nulls(len(order), pa.float64())
        found = pa.table(
            [
                rows[TASK],
                rows[ROW],
                kept,
                rows[ID],
                names.take(from_numbers(keepers[order])),
                pc.if_else(kept, pa.nulls(len(order), pa.string()), names.take(from_numbers(partner[order]))),
                unknown if self.verify == NONE else pc.if_else(kept, unknown, score),
            ],
            [TASK, ROW, KEEP, ID, CLUSTER, PARTNER, SIMILARITY],
        )
        if SNAPSHOT not in rows.column_names:
            return found
        theirs = pc.if_else(kept, literal(None, pa.string()), members[SNAPSHOT].take(from_numbers(partner[order])))
        return found.append_column(SNAPSHOT, theirs).filter(pc.is_null(rows[SNAPSHOT]))  # none on what is known

    def _tell(self, sizes: Numbers) -> None:
        self.count("clusters", len(sizes))
        self.count("largest_cluster", int(sizes.max()))
        for low, high in zip(SIZES, [*SIZES[1:], np.inf], strict=True):
            there = int(((sizes >= low) & (sizes < high)).sum())
            if there:
                most = "" if high == np.inf else f"_to_{int(high) - 1}"
                self.count(f"clusters_of_{low}{most if int(low) + 1 != high else ''}", there)


def _fewer(links: Numbers) -> Numbers:
    """Pairs that connect the same, the most similar first."""
    links = links[np.argsort(-links[:, 2].view(np.float64), kind="stable")]
    fewer: Numbers = links[spanning(links[:, 0], links[:, 1])]
    return fewer


def _places(members: pa.Table) -> Numbers:
    """A number for each row by which they are in the order of the input."""
    tasks = whole(members[TASK]).dictionary_encode()
    names, codes = tasks.dictionary.to_pylist(), numbers(tasks.indices.cast(pa.int64()))
    orders = np.zeros(len(names), np.int64)
    orders[codes] = numbers(members[ORDER])
    ranks = sorted(range(len(names)), key=lambda code: (orders[code], order_key(names[code])))
    place = np.empty(len(names), np.int64)
    place[ranks] = np.arange(len(names))
    rows = numbers(members[ROW], np.int64)
    found: Numbers = place[codes] * (rows.max() + 1) + rows
    return found


def _partners(u: Numbers, v: Numbers, scores: Numbers, keepers: Numbers) -> tuple[Numbers, Numbers]:
    """For each row the partner, and how similar it is: the one that is kept, if they were compared."""
    one, other, score = np.concatenate([u, v]), np.concatenate([v, u]), np.concatenate([scores, scores])
    order = np.lexsort((other, -score, keepers[one] != other, one))
    first = order[np.append(True, one[order][1:] != one[order][:-1])]
    return other[first], score[first]
