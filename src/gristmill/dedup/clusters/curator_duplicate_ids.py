"""The ids of duplicates in the layout of NeMo Curator: a directory of Parquet files with one column.

A row without an id of its own gets a number, `_curator_dedup_id`: the number of its file times 2**40, plus its position
in the file. `RowNumbers` is the table of the files, kept as JSON beside the ids, so that a later run gives each row the
same number, in blocks of any size.

Gives up: numbers without gaps, which would need the row counts of all files first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.errors import ColumnError, InputError, PlanError, shorten
from gristmill.core.row_sampling import row_ids
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.core.task import FileSlice, digest
from gristmill.dedup.clusters.cluster_table import ID, KEPT, is_table_file
from gristmill.io.read.file_listing import list_files
from gristmill.io.storage.file_input import FileInput
from gristmill.io.storage.output_directory import OutputDirectory

if TYPE_CHECKING:
    from gristmill.core.stage import WorkerMetadata

CURATOR_DEDUP_ID_STR = "_curator_dedup_id"
"""The column with the numbers of rows; the name is the one that NeMo Curator uses."""

NUMBERS_PER_FILE = 2**40
_MAX_FILES = 2**63 // NUMBERS_PER_FILE
_HASH_DIGITS = 16
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class RowNumbers:
    """The first number of each input file, by its name below the input directory."""

    def __init__(self, names: Iterable[str]) -> None:
        self.first = {name: index * NUMBERS_PER_FILE for index, name in enumerate(names)}
        if len(self.first) > _MAX_FILES:
            raise PlanError(f"{len(self.first):,} files are too many to number their rows: give a column, id_field=...")

    def write(self, target: OutputDirectory, name: str) -> str:
        """Write the JSON file; returns its path."""
        target.create_directory()
        ranges = {file: (first, first + NUMBERS_PER_FILE - 1) for file, first in self.first.items()}
        state = {"next_id": len(self.first) * NUMBERS_PER_FILE, "batch_registry": ranges}
        with target.create(target.file(name)) as file:
            file.write(json.dumps(state).encode())
        return target.file(name)

    @classmethod
    def read(cls, path: str, storage_options: Mapping[str, Any] | None = None) -> RowNumbers:
        try:
            list_files(path, [".json"], storage_options or {})  # raises if there is none
            with FileInput(FileSlice(path), dict(storage_options or {})).open() as file:
                registry = json.loads(file.read())["batch_registry"]
            first = {str(name): int(bounds[0]) for name, bounds in registry.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"id_generator_path: {path} is not the JSON file that a deduplication workflow has written"
            ) from error
        if first and all(map(_UUID.fullmatch, first)):
            raise InputError(
                f"id_generator_path: {path} was written by NeMo Curator, which numbers rows by groups of files. Find "
                "the duplicates with Gristmill, or use a column of ids, id_field=..."
            )
        numbers = cls(())
        numbers.first = first
        return numbers

    def check(self, names: Iterable[str], path: str) -> None:
        """Raise an InputError for a file that has no numbers."""
        for name in names:
            if name not in self.first:
                raise InputError(
                    f"{path} has no numbers for {name}. Give the input path with which the duplicates were found, and "
                    "find them again if files have been added"
                )

    def of_batch(self, batch: Batch) -> pa.Array:
        """The number of each row of a batch."""
        owner, positions = row_ids(batch)
        if owner not in self.first:
            raise InputError(f"no numbers for the rows of {owner}: the duplicates were found in other files")
        return pc.add(_checked(positions), literal(self.first[owner], pa.int64()))

    def of_names(self, names: pa.Array) -> pa.Array:
        """The numbers of rows with the names that a cluster table has for rows without ids: hash of file, position."""
        by_hash = {digest([name]): first for name, first in self.first.items()}
        owners = pc.utf8_slice_codeunits(names, 0, _HASH_DIGITS).dictionary_encode()
        first = make_array([by_hash[owner] for owner in owners.dictionary.to_pylist()], pa.int64())
        positions = pc.utf8_slice_codeunits(names, _HASH_DIGITS + 1).cast(pa.int64())
        return pc.add(_checked(positions), first.take(owners.indices))


def _checked(positions: pa.Array) -> pa.Array:
    numbers = positions.cast(pa.int64())
    if len(numbers) and pc.max(numbers).as_py() >= NUMBERS_PER_FILE:
        raise InputError("a file of more than 1 TiB cannot have its rows numbered: give a column of ids, id_field=...")
    return numbers


class NumberRows(ProcessingStage[Batch, Batch]):
    """Adds the column `id_field` with the number that each row had when duplicates were found."""

    name = "number_rows"
    takes_empty = True

    def __init__(
        self,
        id_generator_path: str,
        id_field: str = CURATOR_DEDUP_ID_STR,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.id_generator_path, self.id_field = id_generator_path, id_field
        self.storage_options = dict(storage_options or {})
        self._numbers: RowNumbers | None = None

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.id_field]

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._numbers = RowNumbers.read(self.id_generator_path, self.storage_options)

    def process(self, task: Batch) -> Batch:
        assert self._numbers is not None, "setup is called before process"
        if self.id_field in task.get_columns():
            raise ColumnError(
                f"stage {self.name!r}: the column {self.id_field!r} exists already: leave out id_generator_path to "
                "use its ids, or choose another id_field"
            )
        numbers = self._numbers.of_batch(task) if task.num_items else make_array([], pa.int64())
        return task.with_column(self.id_field, numbers)


def write_duplicate_ids(
    table: OutputDirectory, target: OutputDirectory, column: str, numbers: RowNumbers | None, kind: pa.DataType
) -> None:
    """Write the ids of the dropped rows of a cluster table to a directory: as `numbers`, or as values of `kind`.

    Values that are not of this type, as when only some ids of JSON rows are numbers, are all written as text.
    """
    try:
        _write(table, target, column, numbers, kind)
    except pa.ArrowInvalid:
        _write(table, target, column, numbers, pa.string())


def refuse_other_files(workflow: str, target: OutputDirectory) -> None:
    """Raise a PlanError if the directory has Parquet files of others, which would be read as ids of duplicates."""
    others = [name for name in target.names() if name.endswith(".parquet") and not is_table_file(name)]
    if others:
        raise PlanError(
            f"{workflow}: {target.url} has {shorten(others)}, which would be read as ids of duplicates. Move the files "
            "away, or choose another output_path"
        )


def _write(
    table: OutputDirectory, target: OutputDirectory, column: str, numbers: RowNumbers | None, kind: pa.DataType
) -> None:
    import pyarrow.parquet as pq

    schema = pa.schema([(column, pa.int64() if numbers else kind)])
    target.create_directory()
    written = set()
    for name in filter(is_table_file, table.names()):
        path = target.file(name)
        with target.create(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for names in _dropped(table, name):
                ids = numbers.of_names(names) if numbers else names.cast(kind)
                writer.write_table(pa.Table.from_arrays([ids], schema=schema))
        written.add(name)
    for name in filter(is_table_file, target.names()):
        if name not in written:  # of an earlier run
            target.remove(target.file(name))


def _dropped(table: OutputDirectory, name: str) -> Iterator[pa.Array]:
    import pyarrow.parquet as pq

    with table.open(table.file(name)) as file:
        for batch in pq.ParquetFile(file).iter_batches(columns=[ID, KEPT], use_threads=False):
            yield batch.column(ID).filter(pc.invert(batch.column(KEPT)))
