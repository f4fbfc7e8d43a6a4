"""The exchange: one segment of a pipeline writes rows by partition, and the next segment reads the partitions.

    WriteShuffleFiles     each batch becomes a fragment, with its rows grouped by partition
    CommitShuffleFiles    the fragments of a source become one shuffle file (`shuffle_files.py`) in the run directory
    ------------------    end of the segment: the next one begins when all sources are committed
    ListPartitions        lists the partitions, in the driver
    ReadPartition         reads the blocks of one partition from every file, in the order of the sources, or sorted

The `Exchange` decides which partition a row goes to. The number of partitions depends on the pipeline and its input,
never on the number of workers. Rows come out in the order of their sources and of their positions there, so the next
segment does not depend on which worker wrote what, or when.

What is given up: after an exchange a row is identified by its partition and its position there, no longer by its file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain
from typing import Any, BinaryIO, ClassVar, NamedTuple

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
from gristmill.core.batch import SOURCE_FILE, Batch
from gristmill.core.errors import AccountingError, ContractError, GristmillError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import Columns, ProcessingStage, SourceStage, report_of
from gristmill.core.stage_roles import PlanningRole, RecordsLocation, ReportingRole, RunStateRole, WholeInputRole
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
from gristmill.io.storage.output_directory import OutputDirectory, RecordsDirectory
from gristmill.io.write.commit import (
    CommitFiles,
    Fragment,
    OutputFiles,
    OutputFormat,
    WriteFragments,
    columns_to_write,
    joint_schema,
    safe_file_name,
)

PARTITION_BYTES = 32 * 2**20
"""Input bytes per partition, if `num_partitions` is not given."""

LARGE_SHUFFLE_BLOCK_BYTES = 2**16
"""Blocks of at least this average size are copied as they are instead of being merged into larger ones."""

MAX_PARTITIONS = 4096
DEFAULT_PARTITIONS = 16
"""The number of partitions if the size of the input is unknown."""


PARTITION_BLOCK_BYTES = 8 * 2**20
"""The size of the tables in which a partition is read."""

DEFAULT_SORT_BYTES = 128 * 2**20
"""Bytes that are sorted in memory by default; larger partitions are sorted on disk."""


def sort_memory_bytes(memory_gb: float | None) -> int:
    """How many bytes a worker with this much memory can sort: sorting needs about three times the sorted bytes."""
    if memory_gb is None:
        return DEFAULT_SORT_BYTES
    if isinstance(memory_gb, bool) or not isinstance(memory_gb, int | float) or memory_gb <= 0:
        raise ValueError(f"memory_gb is {memory_gb!r}, must be a number above 0, or None")
    return max(int(memory_gb * 2**30) // 4, 1)


class Exchange:
    """Which rows go to which partition, and where they are stored. The stages that write and read them share it.

    Subclasses override `split_batch`, and `columns` and `required_columns` with it, to move something else than rows by
    the hash of their key.
    """

    def __init__(
        self, key: Sequence[str] = (), num_partitions: int | None = None, memory_gb: float | None = None
    ) -> None:
        """`memory_gb` is the memory of a worker: partitions fit into it unless `num_partitions` is given."""
        if num_partitions is not None and (not isinstance(num_partitions, int) or num_partitions < 1):
            raise ValueError(f"num_partitions is {num_partitions!r}, must be a whole number, 1 or more, or None")
        self.key = tuple(key)
        self.num_partitions = num_partitions
        self.partitions, self.layout = num_partitions or 1, LAYOUT_VERSION
        self._partition_bytes = min(PARTITION_BYTES, sort_memory_bytes(memory_gb))
        self.planned: tuple[str, ...] = ()
        """Columns found by the plan: a block that lacks one has nulls there."""
        self._target: OutputDirectory | None = None
        self._listing: ShuffleFileListing | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_listing": None}  # it may be large, and only the driver uses it

    def set_input_bytes(self, nbytes: int | None) -> None:
        """Choose the number of partitions, if it was not given."""
        if self.num_partitions is None:
            wanted = DEFAULT_PARTITIONS if nbytes is None else -(-nbytes // self._partition_bytes)
            self.partitions = min(max(wanted, 1), MAX_PARTITIONS)

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        """The rows of a batch by partition, in their order."""
        table, _ = columns_to_write(batch.data, None)
        return split_by_partition(table, partition_numbers(table, self.key, self.partitions))

    def content_checksum(self, parts: Sequence[tuple[int, pa.Table]]) -> str:
        """A checksum of the rows of a batch, in hexadecimal digits, or "" if none is needed. Checksums of batches can
        be added up to that of all rows, however rows are split into batches."""
        return ""

    def required_columns(self) -> Columns:
        """The columns that a batch must have."""
        return list(self.key)

    def take_counts(self) -> Mapping[str, float]:
        """Counters for the batch that was split last."""
        return {}

    def run_warning(self, stats: Any) -> str | None:
        """A warning for the user, from the counters of the stage that writes."""
        return None

    def columns(self, batch: Batch) -> tuple[pa.Table, frozenset[str]]:
        """The columns that move, also for a batch without rows, and which of them were added by stages."""
        return columns_to_write(batch.data, None)

    @property
    def target(self) -> OutputDirectory:
        assert self._target is not None, "assign_directories is called before a stage runs"
        return self._target

    @property
    def listing(self) -> ShuffleFileListing:
        assert self._listing is not None, "the writing segment ends before its output is read"
        return self._listing

    def list_files(self, outputs: Iterable[WrittenFiles]) -> None:
        """List the shuffle files, once the writing segment has ended."""
        self._listing = listing = ShuffleFileListing.of(self.target, outputs, self.on_file_listed)
        if any(partition >= 0 for partition in listing.blocks):
            empty = pa.table({name: pa.nulls(0) for name in listing.schema.names})  # empty_table() would load pandas
            for name in self.key:  # raises for a key column that no row has
                required_column(empty, name)

    def on_file_listed(self, path: str, index: ShuffleFileIndex) -> None:
        """Called with each shuffle file and its index, in the order of the sources."""


# -- writing -----------------------------------------------------------------------------------------------


class ShuffleFileFormat(OutputFormat):
    """Shuffle files: the fragments of a source become one file, in which the blocks of a partition are adjacent."""

    name = "exchange"
    extension = SHUFFLE_FILE_SUFFIX
    extensions = (SHUFFLE_FILE_SUFFIX,)

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        raise NotImplementedError("fragments are written by WriteShuffleFiles")

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        only_one = len(fragments) == 1 and fragments[0].schema.equals(schema)
        if only_one and parts.adopt_fragment(fragments[0].data):
            return
        target = parts.target
        indexes = [(fragment.data, read_index(target, fragment.data)) for fragment in fragments]
        wide = frozenset[str]().union(*(index.wide for _, index in indexes))
        added = frozenset(name for name in schema.names if all(_is_added(index, name) for _, index in indexes))
        first = indexes[0][1]
        with parts.create() as file:
            writer = ShuffleFileWriter(file, ShuffleFileIndex(schema, added, wide, first.kind, first.dataset_name))
            moved = [block for _, index in indexes for block in index.blocks if block.partition >= 0]
            same = all(index.schema.equals(schema) for _, index in indexes)
            large = same and sum(block.length for block in moved) >= LARGE_SHUFFLE_BLOCK_BYTES * len(moved)
            for partition in sorted({block.partition for _, index in indexes for block in index.blocks}):
                if partition < 0 or large:
                    for path, index in indexes:
                        _copy_blocks(target, path, index, partition, writer)
                else:
                    blocks = (
                        read_partition_blocks(target, path, index, partition, not same) for path, index in indexes
                    )
                    tables = chain.from_iterable(blocks)
                    writer.add(partition, tables if same else (conform_to_schema(table, schema) for table in tables))
            writer.close()


def _is_added(index: ShuffleFileIndex, name: str) -> bool:
    return name in index.added or name not in index.schema.names


def _copy_blocks(
    target: OutputDirectory, path: str, index: ShuffleFileIndex, partition: int, writer: ShuffleFileWriter
) -> None:
    for block in index.blocks:
        if block.partition == partition:
            raw = target.read(path, block.offset, block.length)
            writer.copy_block(partition, raw, block.rows, block.nbytes, block.name, block.content)


class WriteShuffleFiles(WriteFragments, PlanningRole, ReportingRole):
    """Writes the rows of each batch by partition."""

    not_identity: ClassVar[tuple[str, ...]] = ("target",)

    def __init__(self, exchange: Exchange, name: str = "write_exchange") -> None:
        super().__init__(RecordsDirectory("."), ShuffleFileFormat())
        self.exchange, self.name = exchange, name

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], self.exchange.required_columns()

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def check(self) -> None:
        """Nothing to check: it writes to the run directory."""

    def output_directory(self) -> None:
        return None

    def set_input_bytes(self, nbytes: int | None) -> None:
        self.exchange.set_input_bytes(nbytes)

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        self.target = self.exchange._target = RecordsDirectory(url, storage_options)

    def remove_temporary_files(self) -> None:
        self.target.remove_all()

    def run_warning(self, stats: Any) -> str | None:
        return self.exchange.run_warning(stats)

    def process(self, task: Batch) -> Fragment:
        if lost := task.__getstate__()["objects"]:  # those that a pickle keeps; pixels are decoded again elsewhere
            raise ContractError(
                f"stage {self.name!r}: rows with objects in memory ({', '.join(lost)}) cannot be written to shuffle "
                "files: move the stage that creates them after this one"
            )
        self.exchange.planned = self._planned.columns
        task, parts = self._parts(task)
        moved = [part for number, part in parts if number >= 0]
        table, added = self.exchange.columns(task)
        if moved:
            added |= set(moved[0].column_names) - set(table.column_names)
            table = moved[0]
        schema = decoded_schema(table.schema)
        path = self.target.temporary(self._run, safe_file_name(task.lineage.id) or "batch")
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
        """The rows by partition. If that fails, the rows that cause it are put into quarantine."""
        try:
            return task, list(self.exchange.split_batch(task))
        except GristmillError:
            raise
        except Exception:
            if report_of(self).quarantined is None:
                raise
        bad = dict(self._failing_rows(task, 0))
        for row, error in bad.items():
            record = table_to_rows(task.data.slice(row, 1))[0]
            position = record.pop(POSITION, None)
            self.set_aside(error, row=record, file=task.metadata.get(SOURCE_FILE), position=position)
        good = task.keep(make_array([row not in bad for row in range(task.num_items)], pa.bool_()))
        return good, list(self.exchange.split_batch(good.named(task.lineage)))

    def _failing_rows(self, task: Batch, start: int) -> Iterator[tuple[int, Exception]]:
        """Find the rows for which `split_batch` fails by bisecting the batch; each with its error."""
        try:
            list(self.exchange.split_batch(task))
        except GristmillError:
            raise
        except Exception as error:  # noqa: BLE001  one of the rows causes it
            half = task.num_items // 2
            if not half:
                yield start, error
                return
            yield from self._failing_rows(task.slice(0, half), start)
            yield from self._failing_rows(task.slice(half), start + half)


class CommitShuffleFiles(CommitFiles):
    """Joins the fragments of one source into its shuffle file."""

    not_identity: ClassVar[tuple[str, ...]] = ("target",)

    def __init__(self, exchange: Exchange, name: str = "commit_exchange") -> None:
        super().__init__(RecordsDirectory("."), ShuffleFileFormat())
        self.exchange, self.name = exchange, name

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        self.target = RecordsDirectory(url, storage_options)

    def stem(self, task: GatherTask) -> str:
        return safe_file_name(task.lineage.source)

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
        self.exchange.list_files(outputs)
        self.target.remove_stale_files(everything=True)


# -- reading -----------------------------------------------------------------------------------------------


@fast_dataclass
class ShuffleFileListing:
    """The shuffle files of an exchange, in the order of the sources, and where the blocks of each partition are."""

    target: OutputDirectory
    sources: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    origins: list[tuple[str, ...]] = field(default_factory=list)
    """The input files of each source, to be named in messages."""
    contents: list[int | None] = field(default_factory=list)
    """The checksum of the rows of each source (`Exchange.content_checksum`); None if there is none."""
    stamp: str = ""
    moved_rows_stamp: str = ""
    """A stamp of the rows that moved to partitions only. It does not depend on how the spooled rows are stored."""
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    kind: type[Batch] = Batch
    dataset_name: str = ""
    rows: int = 0
    blocks: dict[int, array[int]] = field(default_factory=dict)
    """By partition, five numbers per block: index of the file, offset, length, rows, bytes. Flat, to save memory."""

    @classmethod
    def of(
        cls, target: OutputDirectory, outputs: Iterable[WrittenFiles], on_file: Callable[[str, ShuffleFileIndex], None]
    ) -> ShuffleFileListing:
        """Read the indexes of all files, and call `on_file` with each."""
        listing = cls(target)
        stamps, moved, indexes = [], [], []
        for output in sorted(outputs, key=lambda output: output.lineage.sort_key()):
            for file in output.written:
                index = read_index(target, file.path)
                if index.rows != output.rows:
                    raise AccountingError(f"{file.path} holds {index.rows:,} rows, but {output.rows:,} were written")
                listing._add(output, file.path, index)
                on_file(file.path, index)
                stamps.append(f"{output.lineage.source} {file.checksum}")
                moved.append(f"{output.lineage.source} {index.moved_rows_hash}")
                indexes.append(index)
        listing.stamp, listing.moved_rows_stamp = digest(stamps, 16), digest(moved, 16)
        if indexes:
            columns = [Fragment("", rows=0, size=0, schema=i.schema, added=i.added, wide=i.wide) for i in indexes]
            listing.schema = joint_schema(columns)
            listing.kind, listing.dataset_name = indexes[0].kind, indexes[0].dataset_name
        return listing

    def _add(self, output: WrittenFiles, path: str, index: ShuffleFileIndex) -> None:
        number = len(self.paths)
        self.paths.append(path)
        self.sources.append(output.lineage.source)
        self.origins.append(output.lineage.files)
        checksums = [block.content for block in index.blocks if block.partition == SPOOL_PARTITION]
        self.contents.append(sum(int(digits, 16) for digits in checksums) % 2**64 if all(checksums) else None)
        self.rows += index.rows
        for block in index.blocks:
            self.blocks.setdefault(block.partition, array("q")).extend(
                (number, block.offset, block.length, block.rows, block.nbytes)
            )

    def blocks_of(self, partition: int) -> Iterator[ShuffleBlockSlice]:
        numbers = self.blocks.get(partition, array("q"))
        for start in range(0, len(numbers), 5):
            file, offset, length, rows, nbytes = numbers[start : start + 5]
            yield ShuffleBlockSlice(self.paths[file], offset, length, 0, rows, nbytes)

    def partition_bytes(self, partition: int) -> int:
        return sum(self.blocks.get(partition, array("q"))[4::5])

    def tables(self, partition: int) -> Iterator[pa.Table]:
        for block in self.blocks_of(partition):
            yield read_shuffle_block(self.target, block.path, block.offset, block.length)

    def part(self, name: str, blocks: Sequence[ShuffleBlockSlice]) -> PartitionTask:
        """A task that reads these blocks."""
        rows = sum(block.stop - block.start for block in blocks)
        part = PartitionTask(list(blocks), rows=rows, name=name, stamp=self.stamp, target=self.target)
        part.schema, part.kind, part.dataset_name = self.schema, self.kind, self.dataset_name
        return part


class ShuffleBlockSlice(NamedTuple):
    """Rows `start` to `stop` of a block at an offset of a shuffle file."""

    path: str
    offset: int
    length: int
    start: int
    stop: int
    nbytes: int = 0


@fast_dataclass
class PartitionTask(Task[list[ShuffleBlockSlice]]):
    """A partition, or a part of one: the blocks that hold its rows."""

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
        """The rows, block by block, in the columns of the whole exchange."""
        rows = 0
        for block in self.data:
            table = read_shuffle_block(self.target, block.path, block.offset, block.length)
            table = table.slice(block.start, block.stop - block.start)
            rows += table.num_rows
            yield conform_to_schema(table, self.schema)
        if rows != self.rows:
            raise AccountingError(f"partition {self.name} holds {rows:,} rows instead of {self.rows:,}")


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
        """A name for a source that is unique among all segments of the run."""
        return f"segment{self._segment_name}-{number:05}"


class ReadPartition(ProcessingStage[PartitionTask, Batch], WholeInputRole):
    """Reads a partition, in the order of the sources or sorted by the columns `order`, without the columns `drop`."""

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
        with task.target.scratch() as folder:
            ordered = sort_tables(task.pieces(), self.order, DEFAULT_SORT_BYTES, self.descending, folder)
            for table in tables_of_size(ordered):
                yield self._batch(task, table, start)
                start += table.num_rows
        if not start:
            yield self._batch(task, task.schema.empty_table(), 0)

    def _batch(self, task: PartitionTask, table: pa.Table, start: int) -> Batch:
        return partition_batch(
            task, table.drop_columns([name for name in self.drop if name in table.column_names]), start
        )


def partition_batch(task: PartitionTask, table: pa.Table, start: int) -> Batch:
    """A batch of rows of a partition, numbered from `start` on."""
    table = table.append_column(POSITION, consecutive_integers(table.num_rows, start))
    return task.kind(table, dataset_name=task.dataset_name, metadata={"partition": f"part-{task.name[-5:]}"})


def tables_of_size(pieces: Iterable[pa.Table], most_bytes: int = PARTITION_BLOCK_BYTES) -> Iterator[pa.Table]:
    """Regroup rows into tables of about `most_bytes`."""
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
