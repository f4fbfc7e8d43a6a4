"""Texts of rows in a cluster table, from the columns by which they were compared.

Rows are named by file and place, and are then read from there; or by ids of the data's own, and are then looked for
among the rejected rows, and then in the input.

Gives up: ids beyond the first part of either, and an input that is not local, so that a report takes no time that grows
with the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.hash_partitioning import required_column
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import table_to_rows
from gristmill.core.errors import GristmillError
from gristmill.core.task import FileSlice
from gristmill.dedup.columns.arrow_numpy import values_of
from gristmill.io.formats.format_detection import extension_of, reader_for_extension
from gristmill.io.storage.file_input import DEFAULT_BLOCK_BYTES, FileInput, ignore
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.report.cluster_table_listing import SEARCHED_INPUT_BYTES, SEARCHED_REJECTED_BYTES, ComparedColumns
from gristmill.report.whatif import input_row_at
from gristmill.report.why import position_of_row

if TYPE_CHECKING:
    from gristmill.report.run_records import Records

_READERS = {"JsonlReader": "jsonl", "ParquetReader": "parquet", "CsvReader": "csv", "ArrowReader": "arrow"}


def texts_by_id(records: Records, compared: ComparedColumns, ids: Sequence[str]) -> dict[str, str]:
    """The texts of rows by their ids, as far as they are found."""
    rows = _rows_by_position(records, ids) if compared.id_field is None else _rows_by_id(records, compared, ids)
    found = {name: compared.text(row) for name, row in rows}
    return {name: text for name, text in found.items() if text is not None}


def _rows_by_position(records: Records, ids: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in ids:
        place = position_of_row(records, name)
        row = input_row_at(records, *place) if place else None
        if row is not None:
            yield name, row


def _rows_by_id(
    records: Records, compared: ComparedColumns, ids: Sequence[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    assert compared.id_field is not None
    left = dict.fromkeys(name for name in ids if name is not None)
    columns = list(dict.fromkeys([compared.id_field, *compared.fields]))
    for tables, most in (
        (_rejected_tables(records, columns), SEARCHED_REJECTED_BYTES),
        (_input_tables(records, columns), SEARCHED_INPUT_BYTES),
    ):
        searched = 0
        for table in tables:
            if compared.id_field in table.column_names:
                names = values_of(required_column(table, compared.id_field)).cast(pa.string())
                there = pc.is_in(names, value_set=make_array(list(left), pa.string()))
                for name, row in zip(names.filter(there).to_pylist(), table_to_rows(table.filter(there)), strict=True):
                    if name in left and compared.text(row) is not None:
                        del left[name]
                        yield name, row
            searched += table.nbytes
            if not left or searched >= most:
                break


def _rejected_tables(records: Records, columns: Sequence[str]) -> Iterator[pa.Table]:
    for rows in records.rejected or ():
        there = [name for name in columns if name in rows.schema.names]
        for part in rows.get_fragments():
            yield from (pa.table(batch) for batch in part.to_batches(columns=there))


def _input_tables(records: Records, columns: Sequence[str]) -> Iterator[pa.Table]:
    for path in dict.fromkeys(path for entry in records.entries for path in entry["files"]):
        kind = _READERS.get(reader_for_extension(extension_of(path)) or "")
        if kind is None or not OutputDirectory(path).local:
            continue
        read = getattr(import_module(f"gristmill.io.formats.{kind}"), f"read_{kind}")
        try:
            yield from read(FileInput(FileSlice(path), records.options, DEFAULT_BLOCK_BYTES, on_bad=ignore), columns)
        except (OSError, ValueError, GristmillError):  # it is gone, or was read with options of its own
            continue
