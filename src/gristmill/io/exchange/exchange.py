"""The exchange: rows leave one segment of a pipeline by partition, and the next segment begins with the partitions.

    WriteRuns       each batch becomes a fragment, with its rows by partition
    CommitRuns      the fragments of a source become one file of runs (`shuffle_files.py`), in the run directory
    ------------    here one segment ends: when all sources are through, the next begins
    Partitions      lists the partitions, in the driver
    ReadPartition   reads the runs of one partition from every file, in the order of the sources, or sorted

Which partition a row goes to is up to the `Exchange`. How many there are is fixed by the pipeline and its input, never
by the number of workers. Rows come out in the order of their sources and of their places in them, so what the next
segment sees does not depend on who wrote what, or when.

What is given up: after an exchange a row is known by its partition and its place there, no longer by its file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.hash_partitioning import (
    LAYOUT_VERSION,
    consecutive_integers,
    partition_numbers,
    required_column,
    split_by_partition,
)
from gristmill.core.arrow.table_conversion import POSITION, conform_to_schema, table_to_rows, wide_integer_columns
from gristmill.core.batch import Batch
from gristmill.core.errors import AccountingError, ContractError, GristmillError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import Columns, ProcessingStage, RecordsLocation, SourceStage
from gristmill.core.task import SHUFFLE_FILE_SUFFIX, GatherTask, Task, WrittenFiles, digest
from gristmill.io.exchange.external_sort import sort_tables
from gristmill.io.exchange.shuffle_files import (
    SPOOL_PARTITION,
    ShuffleFileIndex,
    ShuffleFileWriter,
    decoded_schema,
    read_index,
    read_partition_blocks,
    read_shuffle_block,
)
from gristmill.io.storage.output_directory import TEMPORARY_DIRECTORY, OutputDirectory
from gristmill.io.write.commit import (
    CommitFiles,
    Fragment,
    WriteFragments,
    columns_to_write,
    joint_schema,
    safe_file_name,
)

if TYPE_CHECKING:
    from gristmill.io.write.commit import OutputFiles

PARTITION_BYTES = 32 * 2**20
"""Of input, for each partition, if nobody says how many there should be."""

LARGE_SHUFFLE_BLOCK_BYTES = 2**16
"""Runs of this size, as they are, need not be joined to larger ones."""

MAX_PARTITIONS = 4096
DEFAULT_PARTITIONS = 16
"""So many partitions, if it is not known how large the input is."""


class Exchange:
    """What passes from one segment to the next. It is written and read by stages that share it."""

    def __init__(
        self, key: Sequence[str] = (), num_partitions: int | None = None, memory_gb: float | None = None
    ) -> None:
        """`memory_gb` is what a worker may use: partitions are made that small, if nobody says how many there are."""
        if num_partitions is not None and (not isinstance(num_partitions, int) or num_partitions < 1):
            raise ValueError(f"num_partitions is {num_partitions!r}, must be a whole number, 1 or more, or None")
        self.key = tuple(key)
        self.num_partitions = num_partitions
        self.partitions, self.layout = num_partitions or 1, LAYOUT_VERSION
        self._partition_bytes = min(PARTITION_BYTES, sort_memory_bytes(memory_gb))
        self.planned: tuple[str, ...] = ()
        """Columns that the plan has found: a block that lacks one has nulls there."""
        self._target: OutputDirectory | None = None
        self._listing: ShuffleFileListing | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_listing": None}  # it may be large, and is the driver's

    def set_input_bytes(self, nbytes: int | None) -> None:
        """Choose the number of partitions, if nobody has."""
        if self.num_partitions is None:
            wanted = DEFAULT_PARTITIONS if nbytes is None else -(-nbytes // self._partition_bytes)
            self.partitions = min(max(wanted, 1), MAX_PARTITIONS)

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        """The rows of a batch by partition, each part in the order of the rows."""
        table, _ = columns_to_write(batch.data, None)
        return split_by_partition(table, partition_numbers(table, self.key, self.partitions))

    def content_checksum(self, parts: Sequence[tuple[int, pa.Table]]) -> str:
        """A number, in hexadecimal digits, by which the rows of a batch are known again; the sum of all batches is
        that of all rows, however they are cut. Empty if nobody asks for it."""
        return ""

    def required_columns(self) -> Columns:
        """The columns that a batch must have."""
        return list(self.key)

    def take_counts(self) -> Mapping[str, float]:
        """What is worth counting of the batch whose parts were made last."""
        return {}

    def run_warning(self, stats: Any) -> str | None:
        """What the user should know, from the counts of the stage that writes."""
        return None

    def columns(self, batch: Batch) -> tuple[pa.Table, frozenset[str]]:
        """The columns that move, of a batch without rows too, and which of them stages have added."""
        return columns_to_write(batch.data, None)

    @property
    def target(self) -> OutputDirectory:
        assert self._target is not None, "a pipeline is run before its stages are"
        return self._target

    @property
    def listing(self) -> ShuffleFileListing:
        assert self._listing is not None, "a segment is run before what it has written is read"
        return self._listing

    def list_files(self, outputs: Iterable[WrittenFiles]) -> None:
        """The segment that writes is over: look at what there is."""
        self._listing = listing = ShuffleFileListing.of(self.target, outputs, self.on_file_listed)
        for name in self.key if any(partition >= 0 for partition in listing.blocks) else ():
            required_column(
                pa.table({known: pa.nulls(0) for known in listing.schema.names}), name
            )  # no row has it: an error

    def on_file_listed(self, path: str, index: ShuffleFileIndex) -> None:
        """What is in a file, one after the other in the order of the sources."""


# -- writing -----------------------------------------------------------------------------------------------


class ShuffleFileFormat:
    """Fragments are files of runs; those of a source become one, in which the runs of a partition follow each other."""

    name = "exchange"
    extension = SHUFFLE_FILE_SUFFIX
    extensions = (SHUFFLE_FILE_SUFFIX,)
    target_file_size = None

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        raise NotImplementedError  # WriteRuns does

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        same = len(fragments) == 1 and fragments[0].schema.equals(schema)
        if same and parts.adopt_fragment(fragments[0].data):
            return
        target = parts.target
        inside = [(fragment.data, read_index(target, fragment.data)) for fragment in fragments]
        wide = frozenset[str]().union(*(index.wide for _, index in inside))
        added = frozenset(name for name in schema.names if all(_is_added(index, name) for _, index in inside))
        first = inside[0][1]
        with parts.create() as file:
            writer = ShuffleFileWriter(file, ShuffleFileIndex(schema, added, wide, first.kind, first.dataset_name))
            every = [run for _, index in inside for run in index.blocks if run.partition >= 0]
            alike = all(index.schema.equals(schema) for _, index in inside)
            large = alike and sum(run.length for run in every) >= LARGE_SHUFFLE_BLOCK_BYTES * len(every)
            for partition in sorted({run.partition for _, index in inside for run in index.blocks}):
                if partition < 0 or large:
                    for path, index in inside:
                        _copy_blocks(target, path, index, partition, writer)
                else:
                    runs = (read_partition_blocks(target, path, index, partition, not alike) for path, index in inside)
                    tables = chain.from_iterable(runs)
                    writer.add(partition, tables if alike else (conform_to_schema(table, schema) for table in tables))
            writer.close()


def _is_added(index: ShuffleFileIndex, name: str) -> bool:
    return name in index.added or name not in index.schema.names


def _copy_blocks(
    target: OutputDirectory, path: str, index: ShuffleFileIndex, partition: int, writer: ShuffleFileWriter
) -> None:
    for run in index.blocks:
        if run.partition == partition:
            raw = target.read(path, run.offset, run.length)
            writer.copy_block(partition, raw, run.rows, run.nbytes, run.name, run.content)


class WriteShuffleFiles(WriteFragments):
    """Writes the rows of each batch by partition."""

    not_identity: ClassVar[tuple[str, ...]] = ("target",)

    def __init__(self, exchange: Exchange, name: str = "write_exchange") -> None:
        super().__init__(OutputDirectory("."), ShuffleFileFormat())
        self.exchange, self.name = exchange, name

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], self.exchange.required_columns()

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def check(self) -> None:
        """What it writes to is the run's."""

    def output_directory(self) -> None:  # type: ignore[override]
        return None

    def set_input_bytes(self, nbytes: int | None) -> None:
        self.exchange.set_input_bytes(nbytes)

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        self.target = self.exchange._target = OutputDirectory(url, storage_options)

    def remove_temporary_files(self) -> None:
        self.target.remove_all()

    def run_warning(self, stats: Any) -> str | None:
        return self.exchange.run_warning(stats)

    def process(self, task: Batch) -> Fragment:
        if lost := task.__getstate__()["objects"]:  # what would go to another process: pixels are made again there
            raise ContractError(
                f"stage {self.name!r}: rows with objects in memory ({', '.join(lost)}) cannot pass from one "
                "segment to the next: put the stage that makes them after it"
            )
        self.exchange.planned = self.planned_columns
        task, parts = self._parts(task)
        moved = [part for number, part in parts if number >= 0]
        table, added = self.exchange.columns(task)
        if moved:
            added |= set(moved[0].column_names) - set(table.column_names)
            table = moved[0]
        schema = decoded_schema(table.schema)
        path = self.target.file(TEMPORARY_DIRECTORY, self._run, safe_file_name(task.lineage.id) or "batch")
        wide = wide_integer_columns(pa.concat_tables(moved)) if moved else frozenset[str]()
        size, checksum = 0, ""
        if parts:
            with self.target.create(path) as file:
                index = ShuffleFileIndex(schema, added, wide, type(task), task.dataset_name)
                writer = ShuffleFileWriter(file, index)
                for number, part in parts:
                    if number == SPOOL_PARTITION:
                        writer.write_spooled(part, task, self.exchange.content_checksum(parts))
                    else:
                        writer.write(number, [part])
                writer.close()
            size, checksum = file.size, file.checksum
        for name, value in self.exchange.take_counts().items():
            self.count(name, value)
        return Fragment(
            path,
            rows=index.rows if parts else 0,
            size=size,
            checksum=checksum,
            schema=schema,
            added=added,
            wide=wide,
            dataset_name=task.dataset_name,
        )

    def _parts(self, task: Batch) -> tuple[Batch, list[tuple[int, pa.Table]]]:
        """The rows by partition, without those that this fails on, which are set aside."""
        try:
            return task, list(self.exchange.split_batch(task))
        except GristmillError:
            raise
        except Exception:
            if self.__dict__.get("_aside") is None:
                raise
        bad = dict(self._failing_rows(task, 0))
        for row, error in bad.items():
            record = table_to_rows(task.data.slice(row, 1))[0]
            place = record.pop(POSITION, None)
            self.set_aside(error, row=record, file=task.metadata.get("file"), position=place)
        sound = task.keep(make_array([row not in bad for row in range(task.num_items)], pa.bool_()))
        return sound, list(self.exchange.split_batch(sound.named(task.lineage)))

    def _failing_rows(self, task: Batch, start: int) -> Iterator[tuple[int, Exception]]:
        """The rows that have no partition, each with the reason."""
        try:
            list(self.exchange.split_batch(task))
        except GristmillError:
            raise
        except Exception as error:  # noqa: BLE001  one of the rows is at fault
            half = task.num_items // 2
            if not half:
                yield start, error
                return
            yield from self._failing_rows(task.slice(0, half), start)
            yield from self._failing_rows(task.slice(half), start + half)


class CommitShuffleFiles(CommitFiles):
    """Joins the fragments of one source into its file of runs."""

    not_identity: ClassVar[tuple[str, ...]] = ("target",)

    def __init__(self, exchange: Exchange, name: str = "commit_exchange") -> None:
        super().__init__(OutputDirectory("."), ShuffleFileFormat())
        self.exchange, self.name = exchange, name

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        self.target = OutputDirectory(url, storage_options)

    def stem(self, task: GatherTask) -> str:
        return safe_file_name(task.lineage.source)

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
        self.exchange.list_files(outputs)


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


class ListPartitions(SourceStage[PartitionTask]):
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


class ReadPartition(ProcessingStage[PartitionTask, Batch]):
    """Reads a partition, in the order of the sources or by the columns of `order`. Columns of `drop` are left out."""

    indivisible = True

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
