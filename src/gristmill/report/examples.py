"""Examples: what rows of a cluster table look like, by the columns that they were compared by.

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

from gristmill.core.columns import make_array
from gristmill.core.compute import pc
from gristmill.core.errors import GristmillError
from gristmill.core.spread import column_of
from gristmill.core.table import table_to_rows
from gristmill.core.task import FileSlice
from gristmill.dedup.columns import values_of
from gristmill.io.input import BLOCK, Input, ignore
from gristmill.io.sniff import extension_of, reader_for
from gristmill.io.target import Target
from gristmill.report.compared import SEARCHED, SEARCHED_INPUT, Compared
from gristmill.report.whatif import row_at
from gristmill.report.why import place_of

if TYPE_CHECKING:
    from gristmill.report.records import Records

_READERS = {"JsonlReader": "jsonl", "ParquetReader": "parquet", "CsvReader": "csv", "ArrowReader": "arrow"}


def texts_of(records: Records, compared: Compared, ids: Sequence[str]) -> dict[str, str]:
    """The texts of rows by their ids, as far as they are found."""
    rows = _by_place(records, ids) if compared.id_field is None else _by_id(records, compared, ids)
    found = {name: compared.text(row) for name, row in rows}
    return {name: text for name, text in found.items() if text is not None}


def _by_place(records: Records, ids: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in ids:
        place = place_of(records, name)
        row = row_at(records, *place) if place else None
        if row is not None:
            yield name, row


def _by_id(records: Records, compared: Compared, ids: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    assert compared.id_field is not None
    left = dict.fromkeys(name for name in ids if name is not None)
    columns = list(dict.fromkeys([compared.id_field, *compared.fields]))
    for tables, most in ((_rejected(records, columns), SEARCHED), (_input(records, columns), SEARCHED_INPUT)):
        searched = 0
        for table in tables:
            if compared.id_field in table.column_names:
                names = values_of(column_of(table, compared.id_field)).cast(pa.string())
                there = pc.is_in(names, value_set=make_array(list(left), pa.string()))
                for name, row in zip(names.filter(there).to_pylist(), table_to_rows(table.filter(there)), strict=True):
                    if name in left and compared.text(row) is not None:
                        del left[name]
                        yield name, row
            searched += table.nbytes
            if not left or searched >= most:
                break


def _rejected(records: Records, columns: Sequence[str]) -> Iterator[pa.Table]:
    for rows in records.rejected or ():
        there = [name for name in columns if name in rows.schema.names]
        for part in rows.get_fragments():
            yield from (pa.table(batch) for batch in part.to_batches(columns=there))


def _input(records: Records, columns: Sequence[str]) -> Iterator[pa.Table]:
    for path in dict.fromkeys(path for entry in records.entries for path in entry["files"]):
        kind = _READERS.get(reader_for(extension_of(path)) or "")
        if kind is None or not Target(path).local:
            continue
        read = getattr(import_module(f"gristmill.io.{kind}"), f"read_{kind}")
        try:
            yield from read(Input(FileSlice(path), records.options, BLOCK, on_bad=ignore), columns)
        except (OSError, ValueError, GristmillError):  # it is gone, or was read with options of its own
            continue
