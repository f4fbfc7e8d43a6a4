"""Arrange: stages that put all rows of a pipeline in another order, or into other files.

    Repartition   files of so many rows or bytes, in the order of the input
    Shuffle       a random order, the same in every run with the same seed

Each is an exchange (`exchange.py`): all rows pass through the run directory, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.batch import Batch
from gristmill.core.columns import literal
from gristmill.core.sample import draw, row_ids
from gristmill.core.spread import split
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import digest
from gristmill.io.commit import columns_to_write
from gristmill.io.exchange import CommitRuns, Exchange, Listing, Part, Partitions, ReadPartition, Run, WriteRuns
from gristmill.io.input import parse_size

ORDER = "__order__"


class Repartition(CompositeStage[Batch, Batch]):
    """Cuts all rows anew, in the order of the input: one output file for each part.

    Give one of: `rows` in each part, `bytes` in each part, about, as a number or like "128MB", or `num_partitions`.
    """

    def __init__(
        self,
        rows: int | None = None,
        bytes: int | str | None = None,  # noqa: A002
        num_partitions: int | None = None,
    ) -> None:
        super().__init__()
        if sum(value is not None for value in (rows, bytes, num_partitions)) != 1:
            raise ValueError("Repartition: give one of rows, bytes and num_partitions")
        for what, value in (("rows", rows), ("num_partitions", num_partitions)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"Repartition: {what} is {value!r}, must be a whole number, 1 or more")
        self.rows, self.bytes, self.num_partitions = rows, bytes, num_partitions
        self._size = None if bytes is None else parse_size(bytes)

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        exchange = Exchange(num_partitions=1)
        return [
            WriteRuns(exchange, "write_repartition"),
            CommitRuns(exchange, "commit_repartition"),
            Slices(exchange, self.rows, self._size, self.num_partitions),
            ReadPartition(name=self.name),
        ]


class Slices(Partitions):
    """Lists parts of a certain size of all rows of an exchange."""

    def __init__(
        self, exchange: Exchange, rows: int | None = None, size: int | None = None, count: int | None = None
    ) -> None:
        super().__init__(exchange)
        self.rows, self.size, self.count = rows, size, count

    def sources(self) -> Iterator[Sequence[Part]]:
        listing = self.exchange.listing
        for number, runs in enumerate(self._slices(listing)):
            yield [listing.part(self.part_name(number), runs)]

    def _slices(self, listing: Listing) -> Iterator[list[Run]]:
        runs = list(listing.runs_of(0))
        total = sum(run.stop for run in runs)
        each = self._rows_each(total, sum(run.nbytes for run in runs))
        slices: list[list[Run]] = []
        room = 0
        for run in runs:
            start = 0
            while start < run.stop:
                if not room:
                    slices.append([])
                    room = each(len(slices) - 1)
                stop = min(run.stop, start + room)
                slices[-1].append(Run(run.path, run.offset, run.length, start, stop))
                room -= stop - start
                start = stop
        slices += [[] for _ in range((self.count or 0) - len(slices))]
        return iter(slices)

    def _rows_each(self, total: int, nbytes: int) -> Any:
        """How many rows each part has, by its number."""
        if self.rows:
            return lambda _: self.rows
        if self.size:
            rows = max(1, round(self.size * total / max(nbytes, 1)))
            return lambda _: rows
        count = self.count or 1
        return lambda number: total * (number + 1) // count - total * number // count or 1


class Shuffle(CompositeStage[Batch, Batch]):
    """Puts all rows into a random order, the same in every run with the same seed.

    Each row draws a number, which depends on the seed, its file and its place there, and nothing else; rows go by
    their numbers. `num_partitions` is how many output files there are, about one per 32 MB of input unless given.
    """

    def __init__(self, seed: int = 0, num_partitions: int | None = None) -> None:
        super().__init__()
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"Shuffle: seed is {seed!r}, must be a whole number, such as 0")
        self.seed, self.num_partitions = seed, num_partitions
        Exchange(num_partitions=num_partitions)  # a wrong number is an error here

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        exchange = Drawn(self.seed, self.name, self.num_partitions)
        return [
            WriteRuns(exchange, "write_shuffle"),
            CommitRuns(exchange, "commit_shuffle"),
            Partitions(exchange),
            ReadPartition([ORDER], drop=[ORDER], name=self.name),
        ]


class Drawn(Exchange):
    """Rows by a number that each draws."""

    def __init__(self, seed: int, name: str, num_partitions: int | None) -> None:
        super().__init__(num_partitions=num_partitions)
        self.seed, self.name = seed, name

    def parts(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        owner, numbers = row_ids(batch)
        drawn = draw(numbers, int(digest([str(self.seed), self.name, owner]), 16))
        table, _ = columns_to_write(batch.data, None)
        share = pc.floor(pc.multiply(drawn, literal(float(self.partitions), pa.float64())))
        return split(table.append_column(ORDER, drawn), share.cast(pa.uint64()))
