"""Clusters of the pairs that are alike, and which row of each is kept.

A row is in a cluster with each row that it is alike, and with those that these are alike. One row of a cluster is kept,
and each other one names a partner: the row that is kept, where the two were compared, or else the one that it is most
similar to. So each row that is dropped is alike some row of its cluster, though perhaps not the one that is kept.

One worker makes them in its memory if all pairs and rows fit there; else all workers do, in rounds (`rounds.py`), with
the same verdicts.

What is given up: time, for what does not fit: each round passes all pairs through two exchanges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.columns import literal
from gristmill.core.compute import pc
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import order_key
from gristmill.dedup.clusters import CLUSTER, ID, PARTNER, SIMILARITY
from gristmill.dedup.columns import Numbers, from_numbers, numbers, whole
from gristmill.dedup.components import components
from gristmill.dedup.index_join import SNAPSHOT
from gristmill.dedup.lsh import show_curve
from gristmill.dedup.pairing import NONE
from gristmill.dedup.quality import Told, tallied
from gristmill.dedup.rounds import Rounds, Whole
from gristmill.dedup.rows import LINK, NODE, ORDER, RANK, TRUTH, by_node, of_kind, unpack
from gristmill.dedup.steps import Ordered, Partners
from gristmill.io.exchange import CommitRuns, WriteRuns
from gristmill.io.keyed import Reduce
from gristmill.io.partitions import Part, batch_of
from gristmill.io.verdicts import KEEP, ROW, TASK

ESTIMATED = "estimated_recall"
FEW, POOR = 20, 0.9
"""A run says so if it finds fewer than this share of the pairs of its sample, and there are more than a few."""


class Clusters(Partners):
    """Makes clusters of all pairs, and gives a verdict on each row that is in one."""

    def __init__(self, verify: str, threshold: float, bands: int, rows: int) -> None:
        super().__init__(Told(threshold, bands, rows), scored=verify != NONE)
        self.threshold, self.bands, self.rows = threshold, bands, rows

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        rounds = Rounds(self.name, self.num_partitions, self.memory_gb)
        links = rounds.links
        return [
            WriteRuns(links, f"{self.name}_write"),
            CommitRuns(links, f"{self.name}_commit"),
            *rounds.stages(),
            rounds.last(f"{self.name}_partitions"),
            self.reducer(),
        ]

    def reducer(self) -> Reduce:
        return Judge(self)

    def tally(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        return tallied(counts)

    def remark(self, stats: Any) -> str | None:
        counts = stats.counts
        if counts.get("sample_pairs", 0) < FEW or counts.get(ESTIMATED, 1.0) >= POOR:
            return None
        return (
            f"stage {self.name!r}: of the pairs in a sample that are at least {self.threshold} similar, about "
            f"{counts[ESTIMATED]:.0%} were found with {self.bands} bands of {self.rows}. Give more bands, or fewer "
            "minhashes per band, or neither: then both are chosen by the threshold"
        )

    # -- in memory -------------------------------------------------------------------------------------------

    def at_once(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Verdicts on all rows, from all pairs."""
        members, truth, links = list[pa.Table](), [np.zeros((0, 3), np.int64)], [np.zeros((0, 3), np.int64)]
        for table in tables:
            told = [SNAPSHOT] if SNAPSHOT in table.column_names else []
            members.append(table.filter(pc.is_valid(table[NODE])).select([NODE, RANK, ORDER, ID, TASK, ROW, *told]))
            truth.append(unpack(of_kind(table, TRUTH), 3))
            links.append(unpack(of_kind(table, LINK), 3))
        if not members:
            return
        known, nodes = by_node(pa.concat_tables(members))
        pairs = np.concatenate(links)
        one, other = (np.searchsorted(nodes, pairs[:, side]) for side in (0, 1))
        half = one < other  # pairs are there both ways
        cluster = numbers(components(from_numbers(one[half]), from_numbers(other[half]))["cluster"])
        order, keepers = self._keepers(known, cluster)
        self._estimate_all(nodes, cluster, keepers, np.concatenate(truth))
        if len(pairs):
            partner, similarity = _partners(one, other, pairs[:, 2].view(np.float64), keepers)
            yield self._table(known, order, keepers, partner, similarity)

    def _keepers(self, members: pa.Table, cluster: Numbers) -> tuple[Numbers, Numbers]:
        """Rows in the order of clusters, the best first, and for each the one that its cluster keeps."""
        ranks = pc.fill_null(whole(members[RANK]), literal(-np.inf, pa.float64()))
        order = np.lexsort((_places(members), -numbers(ranks), cluster))
        first = np.append(True, cluster[order][1:] != cluster[order][:-1])[: len(order)]
        sizes = np.diff(np.append(np.flatnonzero(first), len(order)))
        keepers = np.empty(len(cluster), np.int64)
        keepers[order] = np.repeat(order[first], sizes)
        self.told.sizes(self, sizes)
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
        self.told.pairs(self, truth[:, 2].view(np.float64), truth[:, 0] < truth[:, 1], same, kept)

    def _table(
        self, members: pa.Table, order: Numbers, keepers: Numbers, partner: Numbers, similarity: Numbers
    ) -> pa.Table:
        names, rows = whole(members[ID]), members.take(from_numbers(order))
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
                pc.if_else(kept, unknown, score) if self.scored else unknown,
            ],
            [TASK, ROW, KEEP, ID, CLUSTER, PARTNER, SIMILARITY],
        )
        if SNAPSHOT not in rows.column_names:
            return found
        theirs = pc.if_else(kept, literal(None, pa.string()), members[SNAPSHOT].take(from_numbers(partner[order])))
        return found.append_column(SNAPSHOT, theirs).filter(pc.is_null(rows[SNAPSHOT]))  # none on what is known


class Judge(Ordered):
    """Gives verdicts: on everything at once, or on a partition of what the rounds have found."""

    def notes(self) -> Sequence[str]:
        assert isinstance(self.keyed, Clusters)
        return show_curve(self.keyed.bands, self.keyed.rows).splitlines()

    def process(self, task: Part) -> Iterator[Batch]:
        if not isinstance(task, Whole):
            yield from super().process(task)
            return
        assert isinstance(self.keyed, Clusters)
        self.keyed.__dict__["_aside"] = self.__dict__.get("_aside")
        made = list(self.keyed.at_once(piece for piece in task.pieces() if piece.num_rows))
        yield batch_of(task, made[0] if made else pa.table({}), 0)


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
    found: Numbers = place[codes] * (rows.max(initial=0) + 1) + rows
    return found


def _partners(one: Numbers, other: Numbers, score: Numbers, keepers: Numbers) -> tuple[Numbers, Numbers]:
    """For each row the partner, and how similar it is: the one that is kept, if they were compared."""
    order = np.lexsort((other, -score, keepers[one] != other, one))
    first = order[np.append(True, one[order][1:] != one[order][:-1])]
    return other[first], score[first]
