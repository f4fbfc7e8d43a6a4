"""Read Arrow IPC files and streams, and Feather version 2, which is the same as an IPC file.

A damaged batch is one bad record that counts for all its rows. If it cannot be decoded at all, neither its rows nor
what follows is known: reading ends there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.io.formats.format_detection import unreadable_file_error
from gristmill.io.formats.table_validation import (
    DAMAGE_ERRORS,
    invalid_text_records,
    with_positions,
    without_bad_records,
)
from gristmill.io.storage.file_input import BadRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.io.storage.file_input import FileInput, OpenFile


def read_arrow(source: FileInput, fields: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Tables of about a block each, with the row number in the POSITION column."""
    start = 0
    with source.open() as file:
        try:
            for batch in _batches(file):
                yield from _tables(source, batch, start, fields)
                start += batch.num_rows
        except DAMAGE_ERRORS as error:
            if file.failure:
                raise
            source.on_bad(BadRecord(start, f"Arrow data is unreadable from here on: {error}"))


def _tables(source: FileInput, batch: pa.RecordBatch, start: int, fields: Sequence[str] | None) -> Iterator[pa.Table]:
    """The rows of one batch. It is validated first: using a damaged batch may crash the process."""
    try:
        bad = invalid_text_records(batch, start)
    except pa.ArrowInvalid as error:
        source.on_bad(BadRecord(start, f"a damaged batch: {error}", records=batch.num_rows))
        return
    source.on_bytes(batch.nbytes)
    for record in bad:
        source.on_bad(record)
    numbers = range(start, start + batch.num_rows)
    table = without_bad_records(with_positions(pa.Table.from_batches([batch]), numbers, fields, source.path), bad)
    rows = max(1, source.blocksize * table.num_rows // max(table.nbytes, 1))
    for offset in range(0, table.num_rows, rows):
        yield table.slice(offset, rows)


def peek_arrow(source: FileInput, fields: Sequence[str] | None = None) -> pa.Schema | None:
    """The columns, from the schema of the file; None if empty or damaged. Raises InputError for another format."""
    with source.whole().open() as file:
        head = file.read(512)
        if not head:
            return None
        file.seek(0)
        try:
            schema = _open(file, head).schema
            return with_positions(schema.empty_table(), [], fields, source.path).schema
        except DAMAGE_ERRORS as error:
            if file.failure:
                raise
            if wrong := unreadable_file_error(source.path, "an Arrow file", "ArrowReader", head, error):
                raise wrong from error
            return None


def _batches(file: OpenFile) -> Iterator[pa.RecordBatch]:
    head = file.read(8)
    if not head:
        return
    file.seek(0)
    reader = _open(file, head)
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
    else:
        yield from reader


def _open(file: OpenFile, head: bytes) -> Any:
    source = pa.PythonFile(file, mode="r")
    return pa.ipc.open_file(source) if head.startswith(b"ARROW1") else pa.ipc.open_stream(source)
