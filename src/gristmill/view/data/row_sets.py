"""The row sets that can be viewed: kept, dropped and quarantined rows of a run, or the rows of a dataset.

A run is read as it goes: sources that are done appear, because the ledger names what was written for them.

Gives up: records in quarantine beyond the first 100,000, which are counted but not shown; and output that is no JSON
lines, Parquet, CSV or Arrow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from gristmill.core.arrow.table_conversion import rows_to_table
from gristmill.core.errors import InputError
from gristmill.core.records.quarantine import QuarantinedRecord
from gristmill.core.records.rejected_rows import STAGE
from gristmill.core.records.run_directory import LedgerEntry, Run
from gristmill.core.records.run_location import find_run
from gristmill.core.records.run_record_store import RecordStore
from gristmill.core.task import SHUFFLE_FILE_SUFFIX, WrittenFile
from gristmill.io.formats.format_detection import (
    READER_BY_EXTENSION,
    extension_of,
    reader_for_extension,
    with_compressed_extensions,
)
from gristmill.io.read.file_listing import list_files
from gristmill.io.storage.file_input import file_system
from gristmill.view.data.named_files import NamedFiles
from gristmill.view.data.row_access import READABLE, FileRowAccess, RowAccess, TableRowAccess

ROWS, KEPT, DROPPED, QUARANTINED = "rows", "kept", "dropped", "quarantined"
QUARANTINED_BY = "quarantined_by"
MAX_QUARANTINED = 100_000
FRESH_SECONDS = 1.0


@dataclass(frozen=True)
class RowSet:
    """Rows of one fate. `rows` is None when their number is not known without reading them."""

    name: str
    sources: tuple[RowAccess, ...] = ()
    rows: int | None = None
    note: str = ""

    @property
    def stage_field(self) -> str | None:
        """The column that says which stage a row has met its fate at."""
        return {DROPPED: STAGE, QUARANTINED: QUARANTINED_BY}.get(self.name)

    def source(self, wanted: str) -> RowAccess | None:
        return next((source for source in self.sources if source.id == wanted), None)


@dataclass
class RunOrDataset:
    """A run or a dataset, and its row_sets. They are looked up again after a second or more.

    With `follow_paths`, files are shown wherever the ledger of the run says that they are (`named_files.py`)."""

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    follow_paths: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._row_sets: dict[str, RowSet] = {}
        self._due = 0.0
        self._sources: dict[tuple[str, int], FileRowAccess] = {}
        self.records_store = _records_of(self.url, self.storage_options)
        """Where the records of the run are; None for a dataset without any."""
        self.is_run = (
            self.records_store is not None and self.records_store.url == RecordStore(self.url, self.storage_options).url
        )
        self.may_open = NamedFiles(self.url, self.records_store, self.storage_options, self.follow_paths)
        self.row_sets()

    @property
    def title(self) -> str:
        plan = self.records_store.read("plan.json") if self.records_store else None
        return str(plan.get("name")) if plan and plan.get("name") else self.url.rstrip("/").rpartition("/")[2]

    def row_sets(self) -> dict[str, RowSet]:
        with self._lock:
            began = time.monotonic()
            if not self._row_sets or (self.records_store and began > self._due):
                self._row_sets = {row_set.name: row_set for row_set in self._find_row_sets()}
                took = time.monotonic() - began
                self._due = began + max(FRESH_SECONDS, 20 * took)  # a large run is looked at less often
            return self._row_sets

    def folders_of(self, source: RowAccess) -> tuple[str, str]:
        """The folder of a file with rows, and the folder of the dataset that it belongs to."""
        folder = self.url.rstrip("/")
        if not isinstance(source, FileRowAccess):
            return folder, folder
        beside = source.path.rpartition("/")[0]
        return beside, folder if f"{beside}/".startswith(f"{folder}/") else beside

    def _find_row_sets(self) -> Iterator[RowSet]:
        entries = self._entries()
        if self.is_run:
            last = [
                entry for entry in entries if not any(file.path.endswith(SHUFFLE_FILE_SUFFIX) for file in entry.written)
            ]
            kept = [file for entry in last for file in entry.written]
            yield self._row_set_named(KEPT, kept, sum(entry.rows for entry in last))
        else:
            yield self._dataset()
        if self.records_store is None:
            return
        dropped = [file for entry in entries for file in entry.rejected or ()]
        if dropped or self.is_run:
            row_set = self._row_set_named(DROPPED, dropped, None)
            present = tuple(source for source in row_set.sources if _is_present(source))
            note = (
                row_set.note
                if dropped
                else "Dropped rows were not kept. Run with --rejected (rejected=True) to see them."
            )
            yield RowSet(
                DROPPED,
                present,
                sum(sum(source.groups) for source in present if isinstance(source, FileRowAccess)),
                note,
            )
        yield self._quarantined()

    def _entries(self) -> list[LedgerEntry]:
        """Of each source that is done, what was written last."""
        if self.records_store is None:
            return []
        plan = self.records_store.read("plan.json") or {}
        entries = [LedgerEntry.of(line) for line in self.records_store.lines("ledger")]
        if plan.get("whole"):
            entries = [entry for entry in entries if entry.attempt == plan.get("attempt")]
        return list({entry.source: entry for entry in entries}.values())

    def _row_set_named(self, name: str, files: Sequence[WrittenFile], rows: int | None) -> RowSet:
        """The rows of files that a ledger names, as far as they may be opened."""
        named = {file.path: file.size for file in files}
        known = {path: size for path, size in named.items() if path in self.may_open}
        row_set = self._row_set(name, known.items(), rows)
        if len(known) == len(named):
            return row_set
        note = f"{row_set.note} {self.may_open.note(len(named) - len(known))}".strip()
        return replace(row_set, rows=None, note=note)

    def _row_set(self, name: str, files: Iterable[tuple[str, int]], rows: int | None) -> RowSet:
        named = dict(files)
        shown = [path for path in named if reader_for_extension(extension_of(path)) in READABLE]
        if (
            self.records_store is None or self.records_store.get("metrics.json") is not None
        ):  # else new ones come last: the run goes on
            shown.sort(key=lambda path: path.rpartition(".")[0])
        hidden = len(named) - len(shown)
        note = f"{hidden:,} files are not shown: they are not JSON Lines, Parquet, CSV or Arrow." if hidden else ""
        sources = tuple(self._source(path, named[path]) for path in shown)
        return RowSet(name, sources, rows if not hidden else None, note)

    def _source(self, path: str, size: int) -> FileRowAccess:
        """One object for each file, which remembers what it has seen of it."""
        if (path, size) not in self._sources:
            self._sources[path, size] = FileRowAccess(path, size, self.storage_options)
        return self._sources[path, size]

    def _dataset(self) -> RowSet:
        kinds = tuple(ending for ending, reader in READER_BY_EXTENSION.items() if reader in READABLE)
        if not self._is_folder():  # a file that is named is taken whatever its extension
            kinds = ("",)
        files = list_files(self.url, with_compressed_extensions(kinds), self.storage_options)
        unknown = [file.path for file in files if reader_for_extension(extension_of(file.path)) not in READABLE]
        if unknown:
            raise InputError(f"{unknown[0]} cannot be shown: it is not JSON lines, Parquet, CSV or Arrow")
        return self._row_set(
            KEPT if self.records_store else ROWS, ((file.path, file.size or 0) for file in files), None
        )

    def _is_folder(self) -> bool:
        system, path = file_system(self.url, self.storage_options)
        try:
            return bool(system.info(path)["type"] == "directory")
        except (OSError, KeyError):
            return False

    def _quarantined(self) -> RowSet:
        assert self.records_store is not None
        found = list(islice(Run(self.records_store.url, self.storage_options).quarantined(), MAX_QUARANTINED + 1))
        rows = [_quarantined_row(record) for record in found[:MAX_QUARANTINED]]
        note = f"Only the first {MAX_QUARANTINED:,} are shown." if len(found) > MAX_QUARANTINED else ""
        table = rows_to_table(rows)
        sources = (TableRowAccess("aside", "quarantine", table),) if rows else ()
        return RowSet(QUARANTINED, sources, len(rows), note)


def _records_of(url: str, storage_options: Mapping[str, Any]) -> RecordStore | None:
    """The directory with the records of a run: this one, or the one beside an output."""
    system, path = file_system(url, storage_options)
    try:
        if system.info(path)["type"] != "directory":
            return None
    except OSError:
        return None
    return find_run(url, storage_options)


def _is_present(source: RowAccess) -> bool:
    """Whether a file is there. A run removes the files of a source before it does the source again."""
    try:
        return not isinstance(source, FileRowAccess) or source.groups is not None
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise


def _quarantined_row(record: QuarantinedRecord) -> dict[str, Any]:
    """A record in quarantine as a row: what it held, then what went wrong."""
    held = dict(record.row) if record.row is not None else {"content": record.content}
    described = {
        QUARANTINED_BY: record.stage,
        "quarantined_kind": record.kind,
        "quarantined_error": record.error,
        "quarantined_file": record.file or ", ".join(record.files),
        "quarantined_position": record.position,
        "quarantined_attempts": record.attempts,
        "quarantined_id": record.id,
        "quarantined_traceback": record.traceback,
    }
    return {**held, **described}
