"""The partitions of an exchange, as the next segment reads them: in the order of the sources, or sorted.

What is given up: after an exchange a row is known by its partition and its place there, no longer by its file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from gristmill.core.arrow.hash_partitioning import consecutive_integers
from gristmill.core.arrow.table_conversion import POSITION, conform_to_schema
from gristmill.core.batch import Batch
from gristmill.core.errors import AccountingError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import Columns, ProcessingStage, SourceStage
from gristmill.core.stage_roles import RecordsLocation, RunStateRole, WholeInputRole
from gristmill.core.task import Task, WrittenFiles, digest
from gristmill.io.exchange.external_sort import sort_tables
from gristmill.io.exchange.shuffle_files import SPOOL_PARTITION, ShuffleFileIndex, read_index, read_shuffle_block
from gristmill.io.write.commit import Fragment, joint_schema

if TYPE_CHECKING:
    from gristmill.io.exchange.exchange import Exchange
    from gristmill.io.storage.output_directory import OutputDirectory

PARTITION_BLOCK_BYTES = 8 * 2**20
"""What a partition is read in."""

DEFAULT_SORT_BYTES = 128 * 2**20
"""What is sorted in memory, unless told otherwise; larger partitions are sorted on disk."""


def sort_memory_bytes(memory_gb: float | None) -> int:
    """How much a worker may sort in memory, if it may have so much in all: to sort takes three times what is sorted."""
    if memory_gb is None:
        return DEFAULT_SORT_BYTES
    if isinstance(memory_gb, bool) or not isinstance(memory_gb, int | float) or memory_gb <= 0:
        raise ValueError(f"memory_gb is {memory_gb!r}, must be a number above 0, or None")
    return max(int(memory_gb * 2**30) // 4, 1)


@fast_dataclass
class ShuffleFileListing:
    """What an exchange holds: files in the order of the sources, and where in them the runs of each partition are."""

    target: OutputDirectory
    sources: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    origins: list[tuple[str, ...]] = field(default_factory=list)
    """The files that each source stands for, to be named in messages."""
    contents: list[int | None] = field(default_factory=list)
    """A number by which the rows of each source are known again (`Exchange.content`), if it was asked for."""
    stamp: str = ""
    moved_rows_stamp: str = ""
    """A stamp of the rows that moved alone: how those that stay with their sources wait does not change it."""
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    kind: type[Batch] = Batch
    dataset_name: str = ""
    rows: int = 0
    blocks: dict[int, array[int]] = field(default_factory=dict)
    """By partition: number of the file, offset, length, rows, bytes, and so on."""

    @classmethod
    def of(
        cls, target: OutputDirectory, outputs: Iterable[WrittenFiles], see: Callable[[str, ShuffleFileIndex], None]
    ) -> ShuffleFileListing:
        """`see` is told what is in each file."""
        listing = cls(target)
        stamps, moved, about = [], [], []
        for output in sorted(outputs, key=lambda output: output.lineage.sort_key()):
            for file in output.written:
                index = read_index(target, file.path)
                if index.rows != output.rows:
                    raise AccountingError(f"{file.path} holds {index.rows:,} rows, and {output.rows:,} were written")
                listing._add(output, file.path, index)
                see(file.path, index)
                stamps.append(f"{output.lineage.source} {file.checksum}")
                moved.append(f"{output.lineage.source} {index.moved_rows_hash}")
                about.append(index)
        listing.stamp, listing.moved_rows_stamp = digest(stamps, 16), digest(moved, 16)
        if about:
            columns = [Fragment("", rows=0, size=0, schema=i.schema, added=i.added, wide=i.wide) for i in about]
            listing.schema = joint_schema(columns)
            listing.kind, listing.dataset_name = about[0].kind, about[0].dataset_name
        return listing

    def _add(self, output: WrittenFiles, path: str, index: ShuffleFileIndex) -> None:
        number = len(self.paths)
        self.paths.append(path)
        self.sources.append(output.lineage.source)
        self.origins.append(output.lineage.files)
        told = [run.content for run in index.blocks if run.partition == SPOOL_PARTITION]
        self.contents.append(sum(int(number, 16) for number in told) % 2**64 if all(told) else None)
        self.rows += index.rows
        for run in index.blocks:
            self.blocks.setdefault(run.partition, array("q")).extend(
                (number, run.offset, run.length, run.rows, run.nbytes)
            )

    def blocks_of(self, partition: int) -> Iterator[ShuffleBlockSlice]:
        numbers = self.blocks.get(partition, array("q"))
        for start in range(0, len(numbers), 5):
            file, offset, length, rows, nbytes = numbers[start : start + 5]
            yield ShuffleBlockSlice(self.paths[file], offset, length, 0, rows, nbytes)

    def partition_bytes(self, partition: int) -> int:
        return sum(self.blocks.get(partition, array("q"))[4::5])

    def tables(self, partition: int) -> Iterator[pa.Table]:
        for run in self.blocks_of(partition):
            yield read_shuffle_block(self.target, run.path, run.offset, run.length)

    def part(self, name: str, runs: Sequence[ShuffleBlockSlice]) -> PartitionTask:
        """A task for what is in some runs."""
        part = PartitionTask(
            list(runs), rows=sum(run.stop - run.start for run in runs), name=name, stamp=self.stamp, target=self.target
        )
        part.schema, part.kind, part.dataset_name = self.schema, self.kind, self.dataset_name
        return part


class ShuffleBlockSlice(NamedTuple):
    """Some rows of a run."""

    path: str
    offset: int
    length: int
    start: int
    stop: int
    nbytes: int = 0


@fast_dataclass
class PartitionTask(Task[list[ShuffleBlockSlice]]):
    """A partition, or a part of one: where its rows are."""

    rows: int = field(kw_only=True)
    name: str = field(kw_only=True)
    stamp: str = field(kw_only=True)
    target: OutputDirectory = field(kw_only=True, repr=False)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]), kw_only=True, repr=False)
    kind: type[Batch] = field(default=Batch, kw_only=True)

    @property
    def num_items(self) -> int:
        return self.rows

    def key(self) -> str:
        return self.name

    def fingerprint(self) -> str:
        return self.stamp

    def pieces(self) -> Iterator[pa.Table]:
        """The rows, run by run, in the columns of all."""
        found = 0
        for run in self.data:
            table = read_shuffle_block(self.target, run.path, run.offset, run.length).slice(
                run.start, run.stop - run.start
            )
            found += table.num_rows
            yield conform_to_schema(table, self.schema)
        if found != self.rows:
            raise AccountingError(f"partition {self.name} holds {found:,} rows, and should hold {self.rows:,}")


class ListPartitions(SourceStage[PartitionTask], RunStateRole):
    """Lists the partitions of an exchange."""

    continues = True

    def __init__(self, exchange: Exchange, name: str = "list_partitions") -> None:
        super().__init__()
        self.exchange, self.name = exchange, name
        self._segment_name = ""

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        self._segment_name = url.rpartition("/")[2]

    def sources(self) -> Iterator[Sequence[PartitionTask]]:
        listing = self.exchange.listing
        for number in range(self.exchange.partitions):
            yield [listing.part(self.part_name(number), list(listing.blocks_of(number)))]

    def part_name(self, number: int) -> str:
        """A name for a source that no other segment of the run has."""
        return f"segment{self._segment_name}-{number:05}"


class ReadPartition(ProcessingStage[PartitionTask, Batch], WholeInputRole):
    """Reads a partition, in the order of the sources or by the columns of `order`. Columns of `drop` are left out."""

    def __init__(
        self,
        order: Sequence[str] = (),
        descending: bool = False,
        drop: Sequence[str] = (),
        name: str = "read_partition",
    ) -> None:
        super().__init__()
        self.order, self.descending, self.drop, self.name = tuple(order), descending, tuple(drop), name

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def process(self, task: PartitionTask) -> Iterator[Batch]:
        start = 0
        with task.target.scratch() as room:
            pieces = task.pieces()
            for table in tables_of_size(sort_tables(pieces, self.order, DEFAULT_SORT_BYTES, self.descending, room)):
                yield self._batch(task, table, start)
                start += table.num_rows
        if not start:
            yield self._batch(task, task.schema.empty_table(), 0)

    def _batch(self, task: PartitionTask, table: pa.Table, start: int) -> Batch:
        return partition_batch(
            task, table.drop_columns([name for name in self.drop if name in table.column_names]), start
        )


def partition_batch(task: PartitionTask, table: pa.Table, start: int) -> Batch:
    """Rows of a partition, numbered from `start`."""
    table = table.append_column(POSITION, consecutive_integers(table.num_rows, start))
    return task.kind(table, dataset_name=task.dataset_name, metadata={"partition": f"part-{task.name[-5:]}"})


def tables_of_size(pieces: Iterable[pa.Table], most_bytes: int = PARTITION_BLOCK_BYTES) -> Iterator[pa.Table]:
    """The rows in tables of about `most_bytes`."""
    waiting: list[pa.Table] = []
    size = 0
    for piece in pieces:
        rows = max(1, most_bytes * piece.num_rows // max(piece.nbytes, 1))
        for start in range(0, piece.num_rows, rows):
            part = piece.slice(start, rows)
            waiting.append(part)
            size += part.nbytes
            if size >= most_bytes:
                yield pa.concat_tables(waiting).combine_chunks()
                waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()
