"""Joining two sides of any size: both go through an exchange by key, and their partitions are merged, sorted by key.

    segment 1    rows of the pipeline go to partitions
    segment 2    rows of the other side, read from its files, go to as many
    segment 3    the partitions of both are sorted together, those of the other side first in each group

A group passes by as a stream: of it only the other side's rows are held, on disk if they are many. So a key may have
any number of rows on either side. Rows come out by key, those of one key in the order of the input, and the partners of
a row in the order in which they are in their files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.hash_partitioning import column_or_nulls, partition_numbers, split_by_partition
from gristmill.core.arrow.table_conversion import conform_to_schema
from gristmill.core.batch import SOURCE_FILE, Batch
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import Columns, ProcessingStage, RecordsLocation, SourceStage
from gristmill.core.task import FileGroupTask, digest
from gristmill.io.exchange.exchange import CommitShuffleFiles, Exchange, WriteShuffleFiles
from gristmill.io.exchange.external_sort import group_starts, sort_table, sort_tables
from gristmill.io.exchange.partitions import (
    ListPartitions,
    PartitionTask,
    partition_batch,
    sort_memory_bytes,
    tables_of_size,
)
from gristmill.io.join.key_matching import as_key, key_type
from gristmill.io.join.merge_join import OTHER_SIDE, OUR_SIDE, SIDE_COLUMN, SortedMerge
from gristmill.io.join.other_side import OtherSide, key_name
from gristmill.io.read.file_partitions import FilePartition
from gristmill.io.write.commit import columns_to_write


def partitioned_join_stages(
    name: str, other: OtherSide, how: str, num_partitions: int | None, memory_gb: float | None
) -> list[ProcessingStage[Any, Any]]:
    """The stages of such a join."""
    ours = OurSideExchange(other, num_partitions, memory_gb)
    others = OtherSideExchange(other, ours)
    return [
        WriteShuffleFiles(ours, f"{name}_write"),
        CommitShuffleFiles(ours, f"{name}_commit"),
        ListOtherFiles(other, f"{name}_list_other"),
        ReadOtherFiles(other, f"{name}_read_other"),
        WriteShuffleFiles(others, f"{name}_write_other"),
        CommitShuffleFiles(others, f"{name}_commit_other"),
        ListJoinPartitions(ours, others, f"{name}_partitions"),
        MergePartition(how, memory_gb, f"{name}_merge"),
    ]


# -- rows go to partitions ---------------------------------------------------------------------------------


class OurSideExchange(Exchange):
    """Rows of the pipeline, by key."""

    def __init__(self, other: OtherSide, num_partitions: int | None, memory_gb: float | None) -> None:
        super().__init__(list(other.keys), num_partitions, memory_gb)
        self.other = other

    def set_input_bytes(self, nbytes: int | None) -> None:
        super().set_input_bytes(None if nbytes is None else nbytes + self.other.reader.size())

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        where = f" of {batch.metadata[SOURCE_FILE]}" if SOURCE_FILE in batch.metadata else ""
        self.other.check_rows(batch.data, self.other.kinds, self.other.added_names(), where)
        table, _ = self.columns(batch)
        return split_by_partition(table, key_partitions(table, self.key, self.partitions))


class OtherSideExchange(Exchange):
    """Rows of the other side, by key, with what is wanted of them. Those without a key have no partner."""

    def __init__(self, other: OtherSide, ours: OurSideExchange) -> None:
        super().__init__([key_name(number) for number in range(len(other.keys))], ours.num_partitions)
        self.other, self.ours = other, ours

    def set_input_bytes(self, nbytes: int | None) -> None:
        self.partitions = self.ours.partitions

    def required_columns(self) -> Columns:
        return []

    def columns(self, batch: Batch) -> tuple[pa.Table, frozenset[str]]:
        keys, taken = self.other.columns(batch.data)
        table = pa.table([*keys, *taken.columns], [*self.key, *taken.column_names])
        return columns_to_write(table, None)[0], frozenset()

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        table, _ = self.columns(batch)
        table = without_nulls(table, self.key)
        if not self.other.adds:  # that there is one is enough
            table = sort_table(table, self.key)
            table = table.filter(group_starts(None, table, self.key))
        return split_by_partition(table, key_partitions(table, self.key, self.partitions))


def key_partitions(table: pa.Table, keys: Sequence[str], partitions: int) -> pa.Array:
    """The partition of each row: the same for keys that are equal, though their types may differ."""
    columns = [column_or_nulls(table, name) for name in keys]
    plain = [as_key(column, key_type(column.type, column.type)) for column in columns]
    return partition_numbers(pa.table(plain, list(keys)), keys, partitions)


@fast_dataclass
class OtherFilePartition(FilePartition):
    """Files of the other side. Those of the pipeline may have the same names."""

    place: str = field(default="", kw_only=True)

    def key(self) -> str:
        return f"{super().key()}-{self.place}"


class ListOtherFiles(SourceStage[FileGroupTask]):
    """Lists the files of the other side."""

    continues = True

    def __init__(self, other: OtherSide, name: str) -> None:
        super().__init__()
        self.other, self.name = other, name
        self._place = ""

    def check(self) -> None:
        self.other.inspect_files()

    def input_files(self) -> Sequence[str]:
        return self.other.reader.listing_stage.input_files()

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        self._place = url.rpartition("/")[2]

    def sources(self) -> Iterator[Sequence[FileGroupTask]]:
        for tasks in self.other.reader.listing_stage.sources():
            yield [self._apart(task) for task in tasks]

    def _apart(self, task: FileGroupTask) -> FileGroupTask:
        told = {entry.name: getattr(task, entry.name) for entry in fields(FilePartition) if entry.init}
        return OtherFilePartition(**told, place=self._place)


class ReadOtherFiles(ProcessingStage[FileGroupTask, Batch]):
    """Reads files of the other side. What the plan looks at are those of the pipeline, which this knows nothing of."""

    def __init__(self, other: OtherSide, name: str) -> None:
        super().__init__()
        self.reading, self.name = other.reader.reading_stage, name

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def take_counts(self) -> dict[str, float]:
        return {**super().take_counts(), **self.reading.take_counts()}

    def process(self, task: FileGroupTask) -> Iterator[Batch]:
        self.reading.__dict__["_aside"] = self.__dict__.get("_aside")  # what it sets aside is set aside here
        yield from self.reading.process(task)


# -- partitions meet ---------------------------------------------------------------------------------------


@fast_dataclass
class JoinPartitionTask(PartitionTask):
    """A partition of rows of the pipeline, and that of the other side with the same keys."""

    others: PartitionTask = field(kw_only=True, repr=False)
    keys: tuple[str, ...] = field(kw_only=True)
    both: pa.Schema = field(kw_only=True, repr=False)
    """The columns of both together: keys, side, ours, and those that are added."""

    def pieces(self) -> Iterator[pa.Table]:
        names = [key_name(number) for number in range(len(self.keys))]
        for piece in self.others.pieces():
            keyed = self._keyed(piece, names, OTHER_SIDE)
            yield without_nulls(keyed, names)
        for piece in super().pieces():
            yield self._keyed(piece, self.keys, OUR_SIDE)

    def _keyed(self, piece: pa.Table, keys: Sequence[str], side: int) -> pa.Table:
        kinds = self.both.types[: len(keys)]
        columns = [as_key(column_or_nulls(piece, name), kind) for name, kind in zip(keys, kinds, strict=True)]
        rest = piece.drop_columns([name for name in piece.column_names if side == OTHER_SIDE and name in keys])
        names = [*self.both.names[: len(keys)], SIDE_COLUMN, *rest.column_names]
        sides = pa.repeat(literal(side, pa.int64()), piece.num_rows)
        return conform_to_schema(pa.table([*columns, sides, *rest.columns], names), self.both)


class ListJoinPartitions(ListPartitions):
    """Lists the partitions of both sides together."""

    def __init__(self, exchange: OurSideExchange, others: OtherSideExchange, name: str) -> None:
        super().__init__(exchange, name)
        self.exchange: OurSideExchange = exchange
        self.others = others

    def sources(self) -> Iterator[Sequence[PartitionTask]]:
        ours, others = self.exchange.listing, self.others.listing
        schema = self._schema(ours.schema, others.schema)
        for number, (part,) in enumerate(super().sources()):
            theirs = others.part(part.name, list(others.blocks_of(number)))
            told = {entry.name: getattr(part, entry.name) for entry in fields(PartitionTask) if entry.init}
            told["stamp"] = digest([part.stamp, theirs.stamp])
            yield [JoinPartitionTask(**told, others=theirs, keys=self.exchange.key, both=schema)]

    def _schema(self, ours: pa.Schema, others: pa.Schema) -> pa.Schema:
        other, keys = self.exchange.other, []
        for number, name in enumerate(self.exchange.key):
            mine, theirs = _column_type(ours, name), _column_type(others, key_name(number))
            other.comparable(name, mine, theirs)
            keys.append((key_name(number), key_type(mine, theirs)))
        added = other.added()
        added |= {entry.name: entry.type for entry in others if entry.name not in self.others.key}
        other.check_rows(ours.empty_table(), {}, list(added), "")
        return pa.schema([*keys, (SIDE_COLUMN, pa.int64()), *ours, *added.items()])


def without_nulls(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows that have all of a key."""
    for name in keys:
        if table.column(name).null_count:
            table = table.filter(table.column(name).is_valid())
    return table


def _column_type(schema: pa.Schema, name: str) -> pa.DataType:
    return schema.field(name).type if name in schema.names else pa.null()


class MergePartition(ProcessingStage[JoinPartitionTask, Batch]):
    """Merges the two partitions, sorted by key."""

    indivisible = True

    def __init__(self, how: str, memory_gb: float | None, name: str) -> None:
        super().__init__()
        self.how, self.memory_gb, self.name = how, memory_gb, name

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def process(self, task: JoinPartitionTask) -> Iterator[Batch]:
        keys = task.both.names[: len(task.keys)]
        ours = list(task.schema.names)
        start = 0
        with task.target.scratch() as room:
            pieces = sort_tables(task.pieces(), [*keys, SIDE_COLUMN], sort_memory_bytes(self.memory_gb), folder=room)
            merge = SortedMerge(self.how, keys, ours, task.both.names[len(keys) + 1 + len(ours) :], room)
            for table in merge.tables(tables_of_size(pieces)):
                yield partition_batch(task, table, start)
                start += table.num_rows
            self.count("rows_with_partner", merge.found)
            if not start:
                yield partition_batch(task, merge.empty_table(task.both.empty_table()), 0)
