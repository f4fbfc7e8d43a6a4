"""Arrow: IPC files and streams, and Feather version 2, which is the same as an IPC file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.errors import InputError
from gristmill.io.input import BadRecord
from gristmill.io.parquet import with_positions
from gristmill.io.sniff import wrong_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.io.input import Input, OpenFile


def read_arrow(source: Input, fields: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Tables of about a block each, with the row number in the POSITION column."""
    start = 0
    with source.open() as file:
        try:
            for batch in _batches(file):
                source.on_bytes(batch.nbytes)
                table = pa.Table.from_batches([batch])
                rows = max(1, source.blocksize * table.num_rows // max(table.nbytes, 1))
                for offset in range(0, table.num_rows, rows):
                    yield with_positions(table.slice(offset, rows), start + offset, fields, source.path)
                start += table.num_rows
        except (OSError, pa.ArrowInvalid) as error:
            if file.failure:
                raise
            source.on_bad(BadRecord(start, f"not Arrow data that can be read, from here on: {error}"))


def peek_arrow(source: Input, fields: Sequence[str] | None = None) -> pa.Schema | None:
    """The columns, from the file's schema; None for an empty file. Raises InputError for another format."""
    with source.whole().open() as file:
        head = file.read(512)
        if not head:
            return None
        file.seek(0)
        try:
            schema = _open(file, head).schema
        except (OSError, pa.ArrowInvalid) as error:
            if file.failure:
                raise
            wrong = wrong_format(source.path, "an Arrow file", head)
            raise wrong or InputError(f"{source.path} is not an Arrow file that can be read: {error}") from error
    return with_positions(schema.empty_table(), 0, fields, source.path).schema


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
