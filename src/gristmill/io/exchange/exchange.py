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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.hash_partitioning import (
    LAYOUT_VERSION,
    partition_numbers,
    required_column,
    split_by_partition,
)
from gristmill.core.arrow.table_conversion import POSITION, conform_to_schema, table_to_rows, wide_integer_columns
from gristmill.core.batch import SOURCE_FILE, Batch
from gristmill.core.errors import ContractError, GristmillError
from gristmill.core.stage import Columns, RecordsLocation
from gristmill.core.task import SHUFFLE_FILE_SUFFIX, GatherTask, WrittenFiles
from gristmill.io.exchange.partitions import ShuffleFileListing, sort_memory_bytes
from gristmill.io.exchange.shuffle_files import (
    SPOOL_PARTITION,
    ShuffleFileIndex,
    ShuffleFileWriter,
    decoded_schema,
    read_index,
    read_partition_blocks,
)
from gristmill.io.storage.output_directory import TEMPORARY_DIRECTORY, OutputDirectory
from gristmill.io.write.commit import (
    CommitFiles,
    Fragment,
    WriteFragments,
    columns_to_write,
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
            self.set_aside(error, row=record, file=task.metadata.get(SOURCE_FILE), position=place)
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
