"""The other side of a join: its files, which of its columns are wanted, and what is known of them before the run."""

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
"""Files of the other side, whose columns are looked at before the run."""

DECOMPRESSION_FACTOR = 4
"""How much larger compressed files and Parquet are in memory, about."""


def key_name(number: int) -> str:
    """What a column of the key is called while rows are under way."""
    return f"__key{number}__"


class OtherSideReader:
    """The files of the other side, and what reads them."""

    def __init__(self, stage: str, given: Any, storage_options: Mapping[str, Any] | None) -> None:
        self._stage, self._given, self._options = stage, given, storage_options

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_parts"}  # its listing may be large

    @cached_property
    def _parts(self) -> tuple[FilePartitioningStage, FilesReader[Any, Any]]:
        composite = self._given if isinstance(self._given, ProcessingStage) else self._by_name()
        parts = composite.stages() if isinstance(composite, CompositeStage) else []
        if len(parts) != 2 or not isinstance(parts[0], FilePartitioningStage) or not isinstance(parts[1], FilesReader):
            raise TypeError(f"{self._stage}: other is {self._given!r}, must be a path or a reader of files")
        return parts[0], parts[1]

    def _by_name(self) -> Any:
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
                f"stage {self._stage!r}: other has JSON lines and Parquet: say which with other=JsonlReader(...) or "
                "other=ParquetReader(...)"
            )
        return default_format_stages(kinds.pop())[0](paths, storage_options=self._options)

    @property
    def listing_stage(self) -> FilePartitioningStage:
        return self._parts[0]

    @property
    def reading_stage(self) -> FilesReader[Any, Any]:
        return self._parts[1]

    @property
    def description(self) -> str:
        """What to call it in messages."""
        given = self._given if not isinstance(self._given, ProcessingStage) else self.listing_stage.file_paths
        return shorten(as_paths(given), 3)

    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size or 0 for file in self.listing_stage.files())

    def bytes(self) -> int:
        """About how large it is in memory. Files of unknown size are large."""
        return sum(
            2**40 if file.size is None else file.size * (DECOMPRESSION_FACTOR if _is_compressed(file.path) else 1)
            for file in self.listing_stage.files()
        )

    def tasks(self) -> Iterator[FileGroupTask]:
        for tasks in self.listing_stage.sources():
            yield from tasks

    def tables(self, tasks: Iterable[FileGroupTask]) -> Iterator[pa.Table]:
        """All rows. One that cannot be read is an error."""
        try:
            for task in tasks:
                for batch in self.reading_stage.process(task):
                    yield batch.data
        except GristmillError as error:
            raise InputError(
                f"stage {self._stage!r}, other side: {error}. With broadcast=False, records of the other side are set "
                "aside as those of the pipeline are"
            ) from error


def _is_compressed(path: str) -> bool:
    extension = extension_of(path)
    return extension in PARQUET_EXTENSIONS or extension.endswith(tuple(COMPRESSION_BY_EXTENSION))


def other_side_reader(stage: str, given: Any, storage_options: Mapping[str, Any] | None) -> OtherSideReader:
    reader = OtherSideReader(stage, given, storage_options)
    if isinstance(given, ProcessingStage):
        if storage_options:
            raise ValueError(f"{stage}: other is a reader, which takes storage_options itself")
        _ = reader.reading_stage  # one that is no reader of files is an error now
    elif not as_paths(given):
        raise ValueError(f"{stage}: other is empty: give a path or a reader")
    return reader


class OtherSide:
    """The other side, as the stages of a join share it."""

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
        """Columns that are taken, and what they are called then; None: all."""
        self._stage, self._reader = stage, reader
        self._seen: dict[str, pa.DataType] = {}

    @property
    def reader(self) -> OtherSideReader:
        return self._reader

    @property
    def kinds(self) -> Mapping[str, pa.DataType]:
        """Types of its columns, as far as they were seen before the run."""
        return self._seen

    # -- before the run --------------------------------------------------------------------------------------

    def inspect_files(self) -> None:
        """Look at the first files: is the key there, and the columns that are wanted?"""
        for task in islice(self._reader.tasks(), SAMPLED_TASKS):
            found = self._reader.reading_stage.peek_columns(task)
            for name, kind in (found or {}).items():
                if name != POSITION and (name not in self._seen or pa.types.is_null(self._seen[name])):
                    self._seen[name] = kind
        self.check(list(self._seen))

    def check(self, there: Sequence[str]) -> None:
        """Raise if columns are missing; nothing is known of files without rows."""
        for name in [*self.keys.values(), *(self.taken_columns or ())] if there else ():
            if name not in there:
                way = "on={'ours': 'theirs'}" if name in self.keys.values() else "columns=[...]"
                raise ColumnError(
                    f"stage {self._stage!r}: {self._reader.description} has no column {name!r}. There are: "
                    f"{shorten(there, 12)}.{did_you_mean(name, there)} Name the right one with {way}"
                )
        for theirs in self.keys.values():
            kind = self._seen.get(theirs)
            if kind is not None and not pa.types.is_null(kind):
                self._usable(kind, f"{theirs!r} of {self._reader.description}")
        clash = [name for name in self.added_names() if name in self.keys]
        if clash:
            raise self._clash(clash[0])

    def added_names(self) -> list[str]:
        """The columns that rows get, as far as they are known."""
        return list(self.added())

    def added(self) -> dict[str, pa.DataType]:
        """The same, with their types: rows get them also if not one of them has a partner."""
        if self.taken_columns is None:
            return {name + self.suffix: kind for name, kind in self._seen.items() if name not in self.keys.values()}
        return {new: self._seen.get(name, pa.null()) for name, new in self.taken_columns.items()}

    # -- rows ------------------------------------------------------------------------------------------------

    def columns(self, table: pa.Table) -> tuple[list[pa.ChunkedArray], pa.Table]:
        """The keys of rows of the other side, and what is taken of them, under its new names."""
        keys = [column_or_nulls(table, name) for name in self.keys.values()]
        if self.taken_columns is None:
            kept = [name for name in table.column_names if name not in (POSITION, *self.keys.values())]
            return keys, table.select(kept).rename_columns([name + self.suffix for name in kept])
        columns = [column_or_nulls(table, name) for name in self.taken_columns]
        return keys, pa.table(columns, list(self.taken_columns.values()))

    def check_rows(self, table: pa.Table, kinds: Mapping[str, pa.DataType], added: Sequence[str], where: str) -> None:
        """Raise if rows of the pipeline have keys of another kind, or a column that would be added."""
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
        found = self._usable(mine, f"{ours!r}{where}")
        if others is None or pa.types.is_null(others):
            return
        theirs = self.keys[ours]
        place = f"{theirs!r} of {self._reader.description}"
        wanted = self._usable(others, place)
        if found != wanted:
            raise ColumnError(
                f"stage {self._stage!r}: column {ours!r}{where} holds {found} ({mine}), and {place} holds {wanted} "
                f"({others}), so no key of one could ever be one of the other. Turn one of them into the other before "
                "the join, in the files or with a stage of your own"
            )

    def _usable(self, kind: pa.DataType, place: str) -> str:
        found = key_kind(kind)
        if found is None:
            raise ColumnError(
                f"stage {self._stage!r}: column {place} cannot be a key: it holds values of several types, or lists or "
                f"objects ({kind}). Make them text, or numbers, before the join"
            )
        return found

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
