"""Repartition, Shuffle and Sort: stages that change the order of all rows, or how they are divided into files.

    Repartition   files of a given number of rows or bytes, in the order of the input
    Shuffle       a random order, the same in every run with the same seed
    Sort          sorted by some columns

Each is an exchange (`exchange.py`): all rows are written to the run directory and read again. `Sort` does so twice,
since the key ranges of its partitions are only known when all keys have been seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.hash_partitioning import column_or_nulls, sortable_column, split_by_partition
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import conform_to_schema
from gristmill.core.batch import Batch
from gristmill.core.row_sampling import draw_uniform, row_ids
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import WrittenFiles, digest
from gristmill.io.exchange.exchange import (
    PARTITION_BYTES,
    CommitShuffleFiles,
    Exchange,
    ListPartitions,
    PartitionTask,
    ReadPartition,
    ShuffleBlockSlice,
    ShuffleFileListing,
    WriteShuffleFiles,
)
from gristmill.io.exchange.external_sort import sort_table
from gristmill.io.exchange.shuffle_files import SAMPLE_PARTITION
from gristmill.io.storage.file_input import parse_size
from gristmill.io.write.commit import columns_to_write

ORDER_COLUMN = "__order__"


class Repartition(CompositeStage[Batch, Batch]):
    """Divides all rows into new partitions, in the order of the input: one output file for each.

    Give one of: `rows` per partition, approximate `bytes` per partition, as a number or like "128MB", or
    `num_partitions`.
    """

    folds: ClassVar[bool] = True

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
            WriteShuffleFiles(exchange, "write_repartition"),
            CommitShuffleFiles(exchange, "commit_repartition"),
            ListRowSlices(exchange, self.rows, self._size, self.num_partitions),
            ReadPartition(name=self.name),
        ]


class ListRowSlices(ListPartitions):
    """Lists slices of a given size of all rows of an exchange."""

    def __init__(
        self, exchange: Exchange, rows: int | None = None, size: int | None = None, number: int | None = None
    ) -> None:
        super().__init__(exchange)
        self.rows, self.size, self.number = rows, size, number

    def sources(self) -> Iterator[Sequence[PartitionTask]]:
        listing = self.exchange.listing
        for number, blocks in enumerate(self._slices(listing)):
            yield [listing.part(self.part_name(number), blocks)]

    def _slices(self, listing: ShuffleFileListing) -> Iterator[list[ShuffleBlockSlice]]:
        blocks = list(listing.blocks_of(0))
        total = sum(block.stop for block in blocks)
        rows_of_slice = self._rows_each(total, sum(block.nbytes for block in blocks))
        slices: list[list[ShuffleBlockSlice]] = []
        missing = 0  # rows that the last slice lacks
        for block in blocks:
            start = 0
            while start < block.stop:
                if not missing:
                    slices.append([])
                    missing = rows_of_slice(len(slices) - 1)
                stop = min(block.stop, start + missing)
                slices[-1].append(ShuffleBlockSlice(block.path, block.offset, block.length, start, stop))
                missing -= stop - start
                start = stop
        slices += [[] for _ in range((self.number or 0) - len(slices))]
        return iter(slices)

    def _rows_each(self, total: int, nbytes: int) -> Any:
        """A function that gives the number of rows of a slice by its number."""
        if self.rows:
            return lambda _: self.rows
        if self.size:
            rows = max(1, round(self.size * total / max(nbytes, 1)))
            return lambda _: rows
        count = self.number or 1
        return lambda number: total * (number + 1) // count - total * number // count or 1


class Shuffle(CompositeStage[Batch, Batch]):
    """Puts all rows into a random order, the same in every run with the same seed.

    Rows are sorted by a random number, which depends only on the seed, the file of the row and its position there.
    `num_partitions` is the number of output files, by default about one per 32 MB of input.
    """

    folds: ClassVar[bool] = True

    def __init__(self, seed: int = 0, num_partitions: int | None = None) -> None:
        super().__init__()
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"Shuffle: seed is {seed!r}, must be a whole number, such as 0")
        self.seed, self.num_partitions = seed, num_partitions
        Exchange(num_partitions=num_partitions)  # raises for an invalid number

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        exchange = RandomOrderExchange(self.seed, self.name, self.num_partitions)
        return [
            WriteShuffleFiles(exchange, "write_shuffle"),
            CommitShuffleFiles(exchange, "commit_shuffle"),
            ListPartitions(exchange),
            ReadPartition([ORDER_COLUMN], drop=[ORDER_COLUMN], name=self.name),
        ]


class RandomOrderExchange(Exchange):
    """Rows by a random number, added as `ORDER_COLUMN`."""

    def __init__(self, seed: int, name: str, num_partitions: int | None) -> None:
        super().__init__(num_partitions=num_partitions)
        self.seed, self.name = seed, name

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        owner, numbers = row_ids(batch)
        drawn = draw_uniform(numbers, int(digest([str(self.seed), self.name, owner]), 16))
        table, _ = columns_to_write(batch.data, None)
        share = pc.floor(pc.multiply(drawn, literal(float(self.partitions), pa.float64())))
        return split_by_partition(table.append_column(ORDER_COLUMN, drawn), share.cast(pa.uint64()))


class Sort(CompositeStage[Batch, Batch]):
    """Sorts all rows by some columns. The sort is stable, and nulls come last.

    `by` is a column or several. `num_partitions` is the number of output files, each with a range of keys: by default
    about one per 32 MB of input. All rows of a key are in one file.
    """

    folds: ClassVar[bool] = True

    def __init__(self, by: str | Sequence[str], descending: bool = False, num_partitions: int | None = None) -> None:
        super().__init__()
        self.by, self.descending, self.num_partitions = by, descending, num_partitions
        self._columns = [by] if isinstance(by, str) else list(by)
        if not self._columns:
            raise ValueError("Sort: by is empty: name the column to sort by")
        Exchange(num_partitions=num_partitions)  # raises for an invalid number

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        seen = KeySampleExchange(self._columns, self.descending, self.num_partitions)
        ranges = KeyRangeExchange(seen)
        return [
            WriteShuffleFiles(seen, "write_unsorted"),
            CommitShuffleFiles(seen, "commit_unsorted"),
            ListRowSlices(seen, size=PARTITION_BYTES),
            ReadPartition(name="read_unsorted"),
            WriteShuffleFiles(ranges, "write_ranges"),
            CommitShuffleFiles(ranges, "commit_ranges"),
            ListPartitions(ranges),
            ReadPartition(self._columns, self.descending, name=self.name),
        ]


class KeySampleExchange(Exchange):
    """All rows in one partition, and a random sample of their keys."""

    def __init__(self, key: Sequence[str], descending: bool, num_partitions: int | None) -> None:
        super().__init__(key, num_partitions)
        self.descending = descending
        self._bounds: list[tuple[Any, ...]] = []

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        table, _ = columns_to_write(batch.data, None)
        if not table.num_rows:
            return []
        owner, numbers = row_ids(batch)
        keys = pa.table([column_or_nulls(table, name) for name in self.key], list(self.key))
        keys = keys.append_column(ORDER_COLUMN, draw_uniform(numbers, int(digest(["sort", owner]), 16)))
        return [(0, table), (SAMPLE_PARTITION, _smallest_draws(keys, self.wanted))]

    @property
    def wanted(self) -> int:
        """The sample size that is enough to find ranges with about the same number of rows."""
        return max(256, 16 * self.partitions)

    def list_files(self, outputs: Iterable[WrittenFiles]) -> None:
        super().list_files(outputs)
        if not self.listing.rows:
            return
        kinds = [self.listing.schema.field(name) for name in self.key]
        schema = pa.schema([*kinds, (ORDER_COLUMN, pa.float64())])
        sample = schema.empty_table()
        for table in self.listing.tables(SAMPLE_PARTITION):
            sample = _smallest_draws(pa.concat_tables([sample, conform_to_schema(table, schema)]), self.wanted)
        ordered = sort_table(sample, self.key, self.descending)
        places = sorted({ordered.num_rows * part // self.partitions for part in range(1, self.partitions)})
        self._bounds = list(keys_at(ordered, self.key, places))

    @property
    def bounds(self) -> Sequence[tuple[Any, ...]]:
        return self._bounds


def _smallest_draws(keys: pa.Table, wanted: int) -> pa.Table:
    return sort_table(keys, [ORDER_COLUMN]).slice(0, wanted)


def keys_at(table: pa.Table, names: Sequence[str], places: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    columns = [sortable_column(table.column(name)) for name in names]
    for place in places:
        yield tuple(column[place].as_py() for column in columns)


class KeyRangeExchange(Exchange):
    """Rows by key ranges, computed from the key sample of another exchange."""

    def __init__(self, seen: KeySampleExchange) -> None:
        super().__init__(seen.key, seen.num_partitions)
        self.seen = seen

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        table, _ = columns_to_write(batch.data, None)
        table = sort_table(table, self.key, self.seen.descending)
        start = 0
        for number, bound in enumerate(self.seen.bounds):
            end = bisect_left(range(table.num_rows), True, start, key=partial(self._beyond, table, bound))
            if end > start:
                yield number, table.slice(start, end - start)
            start = end
        if start < table.num_rows:
            yield len(self.seen.bounds), table.slice(start)

    def _beyond(self, table: pa.Table, bound: tuple[Any, ...], row: int) -> bool:
        """Whether a row sorts after a key."""
        mine = next(keys_at(table, self.key, [row]))
        for one, other in zip(mine, bound, strict=True):
            if _rank(one) != _rank(other):
                return _rank(one) > _rank(other)
            if not _rank(one) and one != other:
                return bool(one < other if self.seen.descending else one > other)
        return False


def _rank(value: Any) -> int:
    """The rank of nulls (2) and NaN (1) behind all other values (0)."""
    return 2 if value is None else int(value != value)  # noqa: PLR0124
