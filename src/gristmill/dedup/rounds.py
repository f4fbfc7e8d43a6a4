"""Clusters that do not fit into the memory of one worker: all workers make them, in rounds over exchanges (`steps.py`).

    large, small   links are drawn together into stars, again and again until nothing changes
    named          each row gets the number of its cluster; what is known of it goes to the rows that it is linked with
    keepers        of the rows of a cluster the best is kept
    partners       of the rows that a row is linked with one is its partner; verdicts

Each exchange is a checkpoint. All is passed by if what there is fits into memory, which the driver sees when the links
are there.

What is given up: room for the links of all rounds, about as many as the logarithm of the largest cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.columns import literal
from gristmill.core.compute import pc
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import digest
from gristmill.dedup.columns import numbers, whole
from gristmill.dedup.pairing import Step
from gristmill.dedup.rows import KEY, NODE, OTHER, keys_of
from gristmill.dedup.sketch import buckets_of
from gristmill.dedup.steps import Keepers, Large, Named, Small
from gristmill.io.exchange import CommitRuns, Exchange, WriteRuns
from gristmill.io.partitions import Part, Partitions, sort_bytes

HELD_BYTES = 512 * 2**20
"""Of links and rows, that are made clusters of in memory, which takes four times as much; unless `memory_gb` says what
there is."""

CHANGED = -3
"""A partition for the news that a round has changed something."""


class Rounds:
    """What the segments share: the exchanges between them, and how far they are."""

    def __init__(self, name: str, num_partitions: int | None, memory_gb: float | None) -> None:
        self.name, self.num_partitions, self.memory_gb = name, num_partitions, memory_gb
        self.links = Links((KEY,), num_partitions, memory_gb)
        self.stars = Stars((KEY,), num_partitions, memory_gb)
        self.chosen = self._exchange()
        self._round = 0

    def _exchange(self) -> Exchange:
        return Exchange((KEY,), self.num_partitions, self.memory_gb)

    @property
    def fits(self) -> bool:
        size = sum(sum(runs[4::5]) for runs in self.links.listing.runs.values())
        return size <= (HELD_BYTES if self.memory_gb is None else sort_bytes(self.memory_gb))

    @property
    def edges(self) -> Exchange:
        return self.stars if self._round else self.links

    @property
    def number(self) -> int:
        return self._round

    def go_on(self) -> bool:
        """Whether there is another round; if so, it begins."""
        if not self.fits and CHANGED in self.stars.listing.runs:
            self._round += 1
            return True
        return False

    def stages(self) -> list[ProcessingStage[Any, Any]]:
        pulled, named = self._exchange(), self._exchange()
        steps: list[tuple[Partitions, Step, Exchange]] = [
            (EdgePartitions(self.links, "edges", self), Large(), pulled),
            (RoundPartitions(pulled, "pulled", self), Small(), self.stars),
            (LabelPartitions(self.links, "labels", self), Named(), named),
            (RoundPartitions(named, "named", self), Keepers(), self.chosen),
        ]
        parts: list[ProcessingStage[Any, Any]] = []
        for lister, step, exchange in steps:
            step.name, step.memory_gb = f"{self.name}_{type(step).__name__.lower()}", self.memory_gb
            lister.name = f"{self.name}_{lister.name}"
            commit: type[CommitRuns] = CommitStars if exchange is self.stars else CommitRuns
            parts += [lister, step.reducer(), WriteRuns(exchange, f"{step.name}_write")]
            parts.append(commit(exchange, f"{step.name}_commit"))
            if isinstance(parts[-1], CommitStars):
                parts[-1].rounds = self
        return parts

    def last(self, name: str) -> Partitions:
        return LastPartitions(self.chosen, name, self)


class Links(Exchange):
    """Pairs and rows, all by their own numbers: rows of a pair come from where the other one is."""

    def parts(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        table = batch.data
        if not table.num_rows:
            return []
        own = keys_of(buckets_of(numbers(pc.fill_null(table[NODE], literal(0, pa.int64())))))
        key = pc.if_else(pc.is_valid(table[NODE]), own, whole(table[KEY]))  # what is packed has no number
        return super().parts(batch.with_data(table.set_column(table.column_names.index(KEY), KEY, key)))


class Stars(Exchange):
    """Edges. One from a row to itself says that something has changed."""

    def parts(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        for number, table in super().parts(batch):
            itself = pc.equal(table[NODE], table[OTHER])
            edges, news = table.filter(pc.invert(itself)), table.filter(itself).slice(0, 1)
            yield from ((where, rows) for where, rows in ((number, edges), (CHANGED, news)) if rows.num_rows)


class CommitStars(CommitRuns):
    """Ends a round. If it has changed something, there is another one."""

    not_identity = ("target", "rounds")
    rounds: Rounds

    def repeats(self) -> int:
        return 2 if self.rounds.go_on() else 0


class RoundPartitions(Partitions):
    """Lists partitions, unless all fits into memory."""

    def __init__(self, exchange: Exchange, name: str, rounds: Rounds) -> None:
        super().__init__(exchange, name)
        self.rounds = rounds

    def sources(self) -> Iterator[Sequence[Part]]:
        return iter(()) if self.rounds.fits else self.parts()

    def parts(self) -> Iterator[Sequence[Part]]:
        return super().sources()

    def part_name(self, number: int) -> str:
        again = f"-round{self.rounds.number + 1}" if self.rounds.number else ""
        return f"segment{self._place}{again}-{number:05}"


class EdgePartitions(RoundPartitions):
    """Lists partitions of links, and in later rounds of stars."""

    def parts(self) -> Iterator[Sequence[Part]]:
        listing = self.rounds.edges.listing
        for number in range(self.exchange.partitions):
            yield [listing.part(self.part_name(number), list(listing.runs_of(number)))]


class LabelPartitions(RoundPartitions):
    """Lists partitions of rows and links, each with the stars of its rows."""

    def parts(self) -> Iterator[Sequence[Part]]:
        links, stars = self.rounds.links.listing, self.rounds.stars.listing
        for number in range(self.exchange.partitions):
            part = links.part(self.part_name(number), [*links.runs_of(number), *stars.runs_of(number)])
            part.stamp = digest([links.stamp, stars.stamp], 16)
            yield [part]


@dataclass
class Whole(Part):
    """All partitions, to be worked on at once."""


class LastPartitions(RoundPartitions):
    """Lists partitions, or everything as one."""

    def sources(self) -> Iterator[Sequence[Part]]:
        if not self.rounds.fits:
            yield from self.parts()
            return
        links = self.rounds.links.listing
        runs = [run for number in range(self.rounds.links.partitions) for run in links.runs_of(number)]
        part = links.part(self.part_name(0), runs)
        yield [Whole(**{entry.name: getattr(part, entry.name) for entry in fields(Part) if entry.init})]
