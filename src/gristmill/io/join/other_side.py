"""The other side of a join: its files, the columns taken from it, and their types as far as known before the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.hash_partitioning import column_or_nulls
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import ColumnError, GristmillError, InputError, PlanError, did_you_mean, shorten
from gristmill.core.executor import default_format_stages
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import FileGroupTask
from gristmill.io.formats.format_detection import (
    COMPRESSION_BY_EXTENSION,
    JSONL_EXTENSIONS,
    PARQUET_EXTENSIONS,
    extension_of,
    with_compressed_extensions,
)
from gristmill.io.join.key_matching import key_kind
from gristmill.io.read.file_listing import as_paths, list_files
from gristmill.io.read.file_partitions import FilePartitioningStage
from gristmill.io.read.files_reader import FilesReader

SAMPLED_TASKS = 16
"""Tasks of the other side whose columns are inspected before the run."""

DECOMPRESSION_FACTOR = 4
"""Roughly how much larger compressed files and Parquet are in memory."""


def key_name(number: int) -> str:
    """The name of a key column in the exchange."""
    return f"__key{number}__"


class OtherSideReader:
    """The files of the other side, and their reader."""

    def __init__(self, stage: str, given: Any, storage_options: Mapping[str, Any] | None) -> None:
        self._stage, self._given, self._options = stage, given, storage_options

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_stages"}  # the listing may be large

    @cached_property
    def _stages(self) -> tuple[FilePartitioningStage, FilesReader[Any, Any]]:
        composite = self._given if isinstance(self._given, ProcessingStage) else self._reader_of_paths()
        match composite.stages() if isinstance(composite, CompositeStage) else []:
            case [FilePartitioningStage() as listing, FilesReader() as reading]:
                return listing, reading
        raise TypeError(f"{self._stage}: other is {self._given!r}, must be a path or a reader of files")

    def _reader_of_paths(self) -> Any:
        paths = self._given
        try:
            files = list_files(
                paths, [*with_compressed_extensions(JSONL_EXTENSIONS), *PARQUET_EXTENSIONS], self._options or {}
            )
        except InputError as error:
            raise InputError(f"stage {self._stage!r}, other: {error}") from error
        kinds = {"parquet" if extension_of(file.path) in PARQUET_EXTENSIONS else "jsonl" for file in files}
        if len(kinds) > 1:
            raise PlanError(
                f"stage {self._stage!r}: other has JSON lines and Parquet files: choose one with "
                "other=JsonlReader(...) or other=ParquetReader(...)"
            )
        return default_format_stages(kinds.pop())[0](paths, storage_options=self._options)

    @property
    def listing_stage(self) -> FilePartitioningStage:
        return self._stages[0]

    @property
    def reading_stage(self) -> FilesReader[Any, Any]:
        return self._stages[1]

    @property
    def description(self) -> str:
        """The paths, for messages."""
        given = self._given if not isinstance(self._given, ProcessingStage) else self.listing_stage.file_paths
        return shorten(as_paths(given), 3)

    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size or 0 for file in self.listing_stage.files())

    def bytes(self) -> int:
        """The approximate size in memory. Files of unknown size count as large."""
        return sum(
            2**40 if file.size is None else file.size * (DECOMPRESSION_FACTOR if _is_compressed(file.path) else 1)
            for file in self.listing_stage.files()
        )

    def tasks(self) -> Iterator[FileGroupTask]:
        for tasks in self.listing_stage.sources():
            yield from tasks

    def tables(self, tasks: Iterable[FileGroupTask]) -> Iterator[pa.Table]:
        """All rows. A record that cannot be read is an error."""
        try:
            for task in tasks:
                for batch in self.reading_stage.process(task):
                    yield batch.data
        except GristmillError as error:
            raise InputError(
                f"stage {self._stage!r}, other side: {error}. With broadcast=False, bad records of the other side go "
                "to quarantine"
            ) from error


def _is_compressed(path: str) -> bool:
    extension = extension_of(path)
    return extension in PARQUET_EXTENSIONS or extension.endswith(tuple(COMPRESSION_BY_EXTENSION))


def other_side_reader(stage: str, given: Any, storage_options: Mapping[str, Any] | None) -> OtherSideReader:
    reader = OtherSideReader(stage, given, storage_options)
    if isinstance(given, ProcessingStage):
        if storage_options:
            raise ValueError(f"{stage}: other is a reader, which takes storage_options itself")
        _ = reader.reading_stage  # raises unless it is a reader of files
    elif not as_paths(given):
        raise ValueError(f"{stage}: other is empty: give a path or a reader")
    return reader


class OtherSide:
    """The other side of a join, shared by the stages of the join."""

    def __init__(
        self,
        stage: str,
        reader: OtherSideReader,
        keys: Mapping[str, str],
        columns: Sequence[str] | Mapping[str, str] | None,
        suffix: str,
        adds: bool,
    ) -> None:
        self.keys, self.suffix, self.adds = dict(keys), suffix, adds
        self.taken_columns = _taken_columns(columns, suffix) if adds else {}
        """The columns that are taken, and their new names; None for all."""
        self._stage, self._reader = stage, reader
        self._types: dict[str, pa.DataType] = {}

    @property
    def reader(self) -> OtherSideReader:
        return self._reader

    @property
    def kinds(self) -> Mapping[str, pa.DataType]:
        """The types of its columns, as far as known before the run."""
        return self._types

    # -- before the run --------------------------------------------------------------------------------------

    def inspect_files(self) -> None:
        """Read the columns of the first files, and check that the key and the requested columns are among them."""
        for task in islice(self._reader.tasks(), SAMPLED_TASKS):
            columns = self._reader.reading_stage.peek_columns(task)
            for name, kind in (columns or {}).items():
                if name != POSITION and (name not in self._types or pa.types.is_null(self._types[name])):
                    self._types[name] = kind
        self.check(list(self._types))

    def check(self, known: Sequence[str]) -> None:
        """Raise if a key or requested column is not known. Files without rows pass: their columns are unknown."""
        for name in [*self.keys.values(), *(self.taken_columns or ())] if known else ():
            if name not in known:
                way = "on={'ours': 'theirs'}" if name in self.keys.values() else "columns=[...]"
                raise ColumnError(
                    f"stage {self._stage!r}: {self._reader.description} has no column {name!r}. There are: "
                    f"{shorten(known, 12)}.{did_you_mean(name, known)} Name the right one with {way}"
                )
        for theirs in self.keys.values():
            kind = self._types.get(theirs)
            if kind is not None and not pa.types.is_null(kind):
                self._usable(kind, f"{theirs!r} of {self._reader.description}")
        clash = [name for name in self.added_names() if name in self.keys]
        if clash:
            raise self._clash(clash[0])

    def added_names(self) -> list[str]:
        """The names of the columns that are added to rows, as far as known."""
        return list(self.added())

    def added(self) -> dict[str, pa.DataType]:
        """The columns that are added to rows, with their types: also if no row has a match."""
        if self.taken_columns is None:
            return {name + self.suffix: kind for name, kind in self._types.items() if name not in self.keys.values()}
        return {new: self._types.get(name, pa.null()) for name, new in self.taken_columns.items()}

    # -- rows ------------------------------------------------------------------------------------------------

    def columns(self, table: pa.Table) -> tuple[list[pa.ChunkedArray], pa.Table]:
        """The key columns of rows of the other side, and the columns taken from them, renamed."""
        keys = [column_or_nulls(table, name) for name in self.keys.values()]
        if self.taken_columns is None:
            kept = [name for name in table.column_names if name not in (POSITION, *self.keys.values())]
            return keys, table.select(kept).rename_columns([name + self.suffix for name in kept])
        columns = [column_or_nulls(table, name) for name in self.taken_columns]
        return keys, pa.table(columns, list(self.taken_columns.values()))

    def check_rows(self, table: pa.Table, kinds: Mapping[str, pa.DataType], added: Sequence[str], where: str) -> None:
        """Raise if rows of the pipeline have keys of another kind, or already have a column that would be added."""
        for ours, theirs in self.keys.items():
            if ours in table.column_names:
                self.comparable(ours, table.schema.field(ours).type, kinds.get(theirs), where)
        for name in added:
            if name in table.column_names:
                raise self._clash(name)

    def comparable(self, ours: str, mine: pa.DataType, others: pa.DataType | None, where: str = "") -> None:
        """Raise if keys of two types can never be equal."""
        if pa.types.is_null(mine):
            return
        our_kind = self._usable(mine, f"{ours!r}{where}")
        if others is None or pa.types.is_null(others):
            return
        theirs = self.keys[ours]
        place = f"{theirs!r} of {self._reader.description}"
        their_kind = self._usable(others, place)
        if our_kind != their_kind:
            raise ColumnError(
                f"stage {self._stage!r}: column {ours!r}{where} holds {our_kind} ({mine}), and {place} holds "
                f"{their_kind} ({others}), so keys can never be equal. Convert one of them before the join, in the "
                "files or with a stage of your own"
            )

    def _usable(self, kind: pa.DataType, place: str) -> str:
        name = key_kind(kind)
        if name is None:
            raise ColumnError(
                f"stage {self._stage!r}: column {place} cannot be a key: it holds values of several types, or lists or "
                f"objects ({kind}). Convert them to text or numbers before the join"
            )
        return name

    def _clash(self, name: str) -> ColumnError:
        return ColumnError(
            f"stage {self._stage!r}: rows have a column {name!r} already, and would get another from "
            f"{self._reader.description}: name those to take with columns=[...], or rename them with "
            f"columns={{{name!r}: ...}} or suffix='_other'"
        )


def _taken_columns(columns: Sequence[str] | Mapping[str, str] | None, suffix: str) -> dict[str, str] | None:
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        return {name: new + suffix for name, new in columns.items()}
    return {name: name + suffix for name in columns}
