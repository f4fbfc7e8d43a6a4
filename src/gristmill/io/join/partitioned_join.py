"""Partitioned sort-merge join: both sides go through an exchange by key, and their partitions are merged.

    segment 1    rows of the pipeline go to partitions by key
    segment 2    rows of the other side, read from its files, go to as many partitions
    segment 3    the two partitions of a key are sorted together, rows of the other side first in each group

Groups are streamed: only the rows of the other side are held, on disk if there are many. So a key may have any number
of rows on either side. Rows come out by key, rows of one key in the order of the input, and the matches of a row in the
order of their files. The cost is that both sides are written to the run directory once, and sorted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.hash_partitioning import column_or_nulls, partition_numbers, split_by_partition
from gristmill.core.arrow.table_conversion import VERDICT, conform_to_schema
from gristmill.core.batch import SOURCE_FILE, Batch
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import Columns, ProcessingStage, SourceStage, share_report
from gristmill.core.stage_roles import PlanningRole, RecordsLocation, RunStateRole, WholeInputRole
from gristmill.core.task import FileGroupTask, digest
from gristmill.io.exchange.exchange import (
    CommitShuffleFiles,
    Exchange,
    ListPartitions,
    PartitionTask,
    WriteShuffleFiles,
    partition_batch,
    sort_memory_bytes,
    tables_of_size,
)
from gristmill.io.exchange.external_sort import group_starts, sort_table, sort_tables
from gristmill.io.exchange.shuffle_files import table_from_stream, table_to_stream
from gristmill.io.join.key_matching import (
    JOINS_ADDING_COLUMNS,
    NumpyArray,
    as_key,
    keep_mask,
    key_type,
    row_pairs,
    row_sizes,
    take_or_null,
    to_index_array,
    to_numpy_array,
    with_columns,
)
from gristmill.io.join.other_side import OtherSide, key_name
from gristmill.io.read.file_partitions import FilePartition
from gristmill.io.write.commit import columns_to_write

SIDE_COLUMN = "__side__"
OTHER_SIDE, OUR_SIDE = 0, 1

MAX_GROUP_BYTES = 8 * 2**20
"""Rows of the other side with one key are held in memory up to this size, and in a file beyond it."""


def partitioned_join_stages(
    name: str, other: OtherSide, how: str, num_partitions: int | None, memory_gb: float | None
) -> list[ProcessingStage[Any, Any]]:
    """The stages of a partitioned join, without the one that drops rows."""
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


# -- partitioning both sides -------------------------------------------------------------------------------


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
    """Rows of the other side, by key, with the columns to add. Rows with a null key match nothing and are left out."""

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
        if not self.other.adds:  # semi and anti joins need only one row per key
            table = sort_table(table, self.key)
            table = table.filter(group_starts(None, table, self.key))
        return split_by_partition(table, key_partitions(table, self.key, self.partitions))


def key_partitions(table: pa.Table, keys: Sequence[str], partitions: int) -> pa.Array:
    """The partition of each row: the same for equal keys, even if their types differ."""
    columns = [column_or_nulls(table, name) for name in keys]
    plain = [as_key(column, key_type(column.type, column.type)) for column in columns]
    return partition_numbers(pa.table(plain, list(keys)), keys, partitions)


@fast_dataclass
class OtherFilePartition(FilePartition):
    """Files of the other side. The segment name keeps them apart from files of the pipeline with the same names."""

    place: str = field(default="", kw_only=True)

    def key(self) -> str:
        return f"{super().key()}-{self.place}"


class ListOtherFiles(SourceStage[FileGroupTask], PlanningRole, RunStateRole):
    """Lists the files of the other side."""

    continues = True

    def __init__(self, other: OtherSide, name: str) -> None:
        super().__init__()
        self.other, self.name = other, name
        self._segment_name = ""

    def check(self) -> None:
        self.other.inspect_files()

    def input_files(self) -> Sequence[str]:
        return self.other.reader.listing_stage.input_files()

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        self._segment_name = url.rpartition("/")[2]

    def sources(self) -> Iterator[Sequence[FileGroupTask]]:
        for tasks in self.other.reader.listing_stage.sources():
            yield [self._other_partition(task) for task in tasks]

    def _other_partition(self, task: FileGroupTask) -> FileGroupTask:
        values = {entry.name: getattr(task, entry.name) for entry in fields(FilePartition) if entry.init}
        return OtherFilePartition(**values, place=self._segment_name)


class ReadOtherFiles(ProcessingStage[FileGroupTask, Batch]):
    """Reads files of the other side. A wrapper of its reader without `peek_columns`, which the plan would call with
    files of the pipeline."""

    def __init__(self, other: OtherSide, name: str) -> None:
        super().__init__()
        self.reading, self.name = other.reader.reading_stage, name

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def process(self, task: FileGroupTask) -> Iterator[Batch]:
        share_report(self, self.reading)
        yield from self.reading.process(task)


# -- joining partitions ------------------------------------------------------------------------------------


@fast_dataclass
class JoinPartitionTask(PartitionTask):
    """A partition of rows of the pipeline, and the partition of the other side with the same keys."""

    others: PartitionTask = field(kw_only=True, repr=False)
    keys: tuple[str, ...] = field(kw_only=True)
    both: pa.Schema = field(kw_only=True, repr=False)
    """The columns of both sides together: keys, side, our columns, added columns."""

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
            values = {entry.name: getattr(part, entry.name) for entry in fields(PartitionTask) if entry.init}
            values["stamp"] = digest([part.stamp, theirs.stamp])
            yield [JoinPartitionTask(**values, others=theirs, keys=self.exchange.key, both=schema)]

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
    """The rows without a null in a key column."""
    for name in keys:
        if table.column(name).null_count:
            table = table.filter(table.column(name).is_valid())
    return table


def _column_type(schema: pa.Schema, name: str) -> pa.DataType:
    return schema.field(name).type if name in schema.names else pa.null()


class MergePartition(ProcessingStage[JoinPartitionTask, Batch], WholeInputRole):
    """Sorts the two partitions together by key, and merges them."""

    def __init__(self, how: str, memory_gb: float | None, name: str) -> None:
        super().__init__()
        self.how, self.memory_gb, self.name = how, memory_gb, name

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def process(self, task: JoinPartitionTask) -> Iterator[Batch]:
        keys = task.both.names[: len(task.keys)]
        ours = list(task.schema.names)
        start = 0
        with task.target.scratch() as folder:
            pieces = sort_tables(task.pieces(), [*keys, SIDE_COLUMN], sort_memory_bytes(self.memory_gb), folder=folder)
            merge = SortedMerge(self.how, keys, ours, task.both.names[len(keys) + 1 + len(ours) :], folder)
            for table in merge.tables(tables_of_size(pieces)):
                yield partition_batch(task, table, start)
                start += table.num_rows
            self.count("rows_with_partner", merge.matched)
            if not start:
                yield partition_batch(task, merge.empty_table(task.both.empty_table()), 0)


# -- merging -----------------------------------------------------------------------------------------------


class SortedMerge:
    """Joins blocks of rows of both sides, sorted by key, rows of the other side first in each group.

    The rows of the other side of the open group are held, in memory or in a file, and rows of our side are joined as
    they come. The output does not depend on how rows are split into blocks.
    """

    def __init__(
        self, how: str, keys: Sequence[str], ours: Sequence[str], added: Sequence[str], folder: str | None
    ) -> None:
        self.how, self.keys, self.ours, self.added, self.folder = how, list(keys), list(ours), list(added), folder
        self.matched = 0
        """Rows of our side that have a match."""
        self._before: pa.Table | None = None
        self._held: pa.Table | None = None
        self._file: SpilledGroup | None = None

    def tables(self, blocks: Iterable[pa.Table]) -> Iterator[pa.Table]:
        try:
            for block in blocks:
                yield from self._block(block)
        finally:
            self._close_file()

    def empty_table(self, empty: pa.Table) -> pa.Table:
        """The joined columns, without rows."""
        return self._table(empty.select(self.ours), empty, np.zeros(0, np.int64))

    def _block(self, block: pa.Table) -> Iterator[pa.Table]:
        groups = np.cumsum(to_numpy_array(group_starts(self._before, block, self.keys).cast(pa.int8())), dtype=np.int64)
        self._before = block.slice(block.num_rows - 1).select(self.keys)
        side = to_numpy_array(block.column(SIDE_COLUMN))
        others, other_groups = self._of(block.select(self.added or [SIDE_COLUMN]), side == OTHER_SIDE, groups)
        ours, our_groups = self._of(block.select(self.ours), side == OUR_SIDE, groups)
        if self._file is not None:  # group 0 is the group left open by the block before
            more, rows = int((other_groups == 0).sum()), int((our_groups == 0).sum())
            self._file.add(others.slice(0, more))
            yield from self._spilled_pairs(ours.slice(0, rows), self._file)
            others, other_groups = others.slice(more), other_groups[more:]
            ours, our_groups = ours.slice(rows), our_groups[rows:]
        elif self._held is not None:
            other_groups = np.concatenate([np.zeros(self._held.num_rows, np.int64), other_groups])
            others = pa.concat_tables([self._held, others]).combine_chunks()
        yield from self._pairs(ours, our_groups, others, other_groups)
        self._keep_open_group(others, other_groups, int(groups[-1]))

    def _of(self, table: pa.Table, mask: NumpyArray, groups: NumpyArray) -> tuple[pa.Table, NumpyArray]:
        return table.take(to_index_array(np.flatnonzero(mask))), groups[mask]

    def _keep_open_group(self, others: pa.Table, groups: NumpyArray, last: int) -> None:
        """Hold the rows of the other side of the last group, which may continue in the next block."""
        if last and self._file is not None:
            self._close_file()
        if self._file is not None:
            return
        held = others.slice(int(np.searchsorted(groups, last)))
        held = held.slice(0, 1) if self.how not in JOINS_ADDING_COLUMNS else held
        self._held = held
        if held.nbytes > MAX_GROUP_BYTES:
            self._file, self._held = SpilledGroup(self.folder), None
            self._file.add(held)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _pairs(
        self, ours: pa.Table, our_groups: NumpyArray, others: pa.Table, other_groups: NumpyArray
    ) -> Iterator[pa.Table]:
        starts = np.searchsorted(other_groups, our_groups, "left")
        counts = np.searchsorted(other_groups, our_groups, "right") - starts
        self.matched += int((counts > 0).sum())
        if self.how not in JOINS_ADDING_COLUMNS:
            counts = np.minimum(counts, 1)
        for mine, theirs in row_pairs(starts, counts, row_sizes(ours), row_sizes(others)):
            yield self._table(ours.take(to_index_array(mine)), others, theirs)

    def _spilled_pairs(self, ours: pa.Table, held: SpilledGroup) -> Iterator[pa.Table]:
        """The pairs of rows with a group in a file. It is read once for each row, which costs no more than writing the
        pairs."""
        self.matched += ours.num_rows
        sizes = row_sizes(ours)
        for row in range(ours.num_rows):
            for piece in held.pieces():
                count = np.asarray([piece.num_rows])
                for mine, theirs in row_pairs(np.zeros(1, np.int64), count, sizes[row : row + 1], row_sizes(piece)):
                    yield self._table(ours.take(to_index_array(mine + row)), piece, theirs)

    def _table(self, ours: pa.Table, others: pa.Table, rows: NumpyArray) -> pa.Table:
        """Rows of our side, each with the columns of its match."""
        table = ours.append_column(VERDICT, keep_mask(self.how, rows >= 0))
        return with_columns(table, take_or_null(others.select(self.added), rows)) if self.added else table


class SpilledGroup:
    """Rows of one key in a temporary file, which can be read repeatedly."""

    def __init__(self, folder: str | None) -> None:
        self._file = tempfile.TemporaryFile(prefix="gristmill-join-", dir=folder)  # noqa: SIM115
        self._sizes: list[int] = []

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            raw = table_to_stream(rows)
            self._file.write(raw)
            self._sizes.append(len(raw))

    def pieces(self) -> Iterator[pa.Table]:
        self._file.seek(0)
        for size in self._sizes:
            yield table_from_stream(self._file.read(size))

    def close(self) -> None:
        self._file.close()
