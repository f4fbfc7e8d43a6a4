"""The duplicates of a row, with their text as it was read.

Rows are named in the cluster table by file and place, and are then read from the input; or by the data's own ids, and
are then looked for among the kept and dropped rows.

Gives up: members of a cluster beyond the first few, and ids that are not found within two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import GristmillError
from gristmill.core.records.rejected_rows import FILE, PLACE
from gristmill.core.records.run_directory import LedgerEntry
from gristmill.core.task import digest
from gristmill.io.formats.format_detection import extension_of, reader_for_extension
from gristmill.io.read.file_listing import list_files
from gristmill.io.storage.file_input import ignore
from gristmill.view.data.row_access import READABLE, FileRowAccess, RowAccess
from gristmill.view.data.row_sets import RunOrDataset
from gristmill.view.pages.cell_values import python_rows

FOLDER = "clusters"
FIELDS = ("id", "cluster", "kept", "similarity")
MAX_MEMBERS = 6
SEARCH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """A row of a cluster; `values` is None if it could not be found."""

    id: str
    kept: bool
    similarity: float | None
    values: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class DuplicateCluster:
    """The others that a row was found to be the same as: how many, and the first of them, the kept one first."""

    size: int
    others: tuple[ClusterMember, ...]


def row_id(values: Mapping[str, Any]) -> str | None:
    """The name of a dropped row: that of its file and its place there."""
    file, place = values.get(FILE), values.get(PLACE)
    return None if file is None or place is None else f"{digest([str(file)])}_{place}"


def cluster_of(library: RunOrDataset, values: Mapping[str, Any], id_fields: Iterable[str]) -> DuplicateCluster | None:
    """The cluster that a row belongs to; None if it has no duplicates."""
    tables = _tables(library)
    if not tables:
        return None
    names = [row_id(values), *(str(values[name]) for name in id_fields if values.get(name) is not None)]
    known = make_array([name for name in names if name], pa.string())
    mine = _rows(tables, "id", known)
    if not mine:
        return None
    own = {row["id"] for row in mine}
    cluster = make_array([mine[0]["cluster"]], pa.string())
    members = [row for row in _rows(tables, "cluster", cluster) if row["id"] not in own]
    members.sort(key=lambda row: (not row["kept"], -(row["similarity"] or 0), row["id"]))
    found = _member_rows(library, [row["id"] for row in members[:MAX_MEMBERS]], list(id_fields))
    others = [
        ClusterMember(row["id"], row["kept"], row["similarity"], found.get(row["id"])) for row in members[:MAX_MEMBERS]
    ]
    return DuplicateCluster(len(members) + 1, tuple(others))


def _tables(library: RunOrDataset) -> list[FileRowAccess]:
    if library.records_store is None:
        return []
    try:
        files = list_files(f"{library.records_store.url}/{FOLDER}", [".parquet"], library.storage_options)
    except GristmillError:  # there was no deduplication
        return []
    return [FileRowAccess(file.path, file.size or 0, library.storage_options) for file in files]


def _rows(tables: Sequence[FileRowAccess], column: str, wanted: pa.Array) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for source in tables:
        for block in source.blocks(FIELDS, ignore):
            assert block.table is not None
            found += block.table.filter(pc.is_in(block.table.column(column), value_set=wanted)).to_pylist()
    return found


def _member_rows(library: RunOrDataset, ids: Sequence[str], id_fields: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Rows by their names in the cluster table."""
    origins = _input_files_by_hash(library)
    found: dict[str, Mapping[str, Any]] = {}
    for name in ids:
        file, _, place = name.rpartition("_")
        if file in origins and place.isdigit():
            table = origins[file].rows_at([int(place)])
            found |= {name: python_rows(table)[0]} if table.num_rows else {}
    left = [name for name in ids if name not in found]
    return found | (_search(library, left, id_fields) if left and id_fields else {})


def _input_files_by_hash(library: RunOrDataset) -> dict[str, FileRowAccess]:
    """The input files of a run, by the hash of the name that readers give each: its path, or the end of it."""
    assert library.records_store is not None
    found: dict[str, FileRowAccess] = {}
    for path in {file for line in library.records_store.lines("ledger") for file in LedgerEntry.of(line).files}:
        if path in library.may_open and reader_for_extension(extension_of(path)) in READABLE:
            source, parts = FileRowAccess(path, 0, library.storage_options), path.split("/")
            found |= {digest(["/".join(parts[start:])]): source for start in range(len(parts))}
    return found


def _search(library: RunOrDataset, ids: Sequence[str], id_fields: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    until = time.monotonic() + SEARCH_SECONDS
    found: dict[str, Mapping[str, Any]] = {}
    for row_set in library.row_sets().values():
        for source in row_set.sources:
            for name in id_fields:
                found |= _search_in(source, name, [one for one in ids if one not in found], until)
            if time.monotonic() > until or len(found) == len(ids):
                return found
    return found


def _search_in(source: RowAccess, name: str, ids: Sequence[str], until: float) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    wanted = make_array(ids, pa.string())
    for block in source.blocks([name], ignore):
        if time.monotonic() > until or len(found) == len(ids):
            break
        column = block.table.column(name) if block.table is not None else None
        if column is None or pa.types.is_nested(column.type) or pa.types.is_null(column.type):
            continue
        there = pc.fill_null(pc.is_in(column.cast(pa.string()), value_set=wanted), literal(False, pa.bool_()))
        if pc.any(there).as_py():
            assert block.table is not None
            rows = python_rows(source.rows_at(block.table.filter(there).column(POSITION).to_pylist()))
            found |= {str(row[name]): row for row in rows}
    return found
