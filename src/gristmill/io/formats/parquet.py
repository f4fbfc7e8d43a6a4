"""Read Parquet: row groups are streamed, so that a row group of any size needs little memory.

A damaged row group is one bad record that counts for all of its rows not read yet. How many these are does not depend
on `blocksize`: row groups are decoded in steps of a fixed size.
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
from gristmill.io.storage.file_input import DEFAULT_BLOCK_BYTES, BadRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.io.storage.file_input import FileInput, OpenFile

_BUFFER = 4 * 2**20
_MOST_ROWS = 2**16


def read_parquet(source: FileInput, fields: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Tables of about a block each, with the row number in the POSITION column."""
    with source.open(read_ahead=False) as file:
        try:
            parquet = _open(file)
        except DAMAGE_ERRORS as error:
            if file.failure:
                raise
            source.on_bad(BadRecord(0, f"unreadable Parquet file: {error}"))
            return
        metadata = parquet.metadata
        chosen = source.part.row_groups
        start = 0
        for group in range(metadata.num_row_groups):
            if chosen is None or group in chosen:
                yield from _read_group(source, file, parquet, group, start, fields)
            start += metadata.row_group(group).num_rows


def _read_group(
    source: FileInput, file: OpenFile, parquet: Any, group: int, start: int, fields: Sequence[str] | None
) -> Iterator[pa.Table]:
    metadata = parquet.metadata.row_group(group)
    row_bytes = max(metadata.total_byte_size // max(metadata.num_rows, 1), 1)
    step, rows = (max(1, min(_MOST_ROWS, size // row_bytes)) for size in (DEFAULT_BLOCK_BYTES, source.blocksize))
    waiting: list[pa.Table] = []
    done = 0
    failure = None
    try:
        for batch in _batches(parquet, group, step, fields):
            source.on_bytes(batch.nbytes)
            bad = invalid_text_records(batch, start + done)
            for record in bad:
                source.on_bad(record)
            numbers = range(start + done, start + done + batch.num_rows)
            table = with_positions(pa.Table.from_batches([batch]), numbers, fields, source.path)
            waiting.append(without_bad_records(table, bad))
            done += batch.num_rows
            if len(waiting) * step >= rows:
                yield from _cut(waiting, rows)
                waiting = []
    except DAMAGE_ERRORS as error:
        if file.failure:
            raise
        failure = f"row group {group} cannot be read: {error}"
    yield from _cut(waiting, rows)
    if failure:
        source.on_bad(BadRecord(start + done, failure, records=max(metadata.num_rows - done, 1)))


def _batches(parquet: Any, group: int, rows: int, fields: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    columns = None if fields is None else [name for name in fields if name in parquet.schema_arrow.names]
    batches: Iterator[pa.RecordBatch] = parquet.iter_batches(
        batch_size=rows, row_groups=[group], columns=columns, use_threads=False
    )
    return batches


def _cut(tables: Sequence[pa.Table], rows: int) -> Iterator[pa.Table]:
    if tables:
        table = pa.concat_tables(tables)
        for offset in range(0, table.num_rows, rows):
            yield table.slice(offset, rows)


def peek_parquet(source: FileInput, fields: Sequence[str] | None = None) -> pa.Schema | None:
    """The columns, from the footer; None for an empty or damaged file. Raises InputError for another format."""
    with source.whole().open(read_ahead=False) as file:
        head = file.read(512)
        if not head:
            return None
        file.seek(0)
        try:
            schema = _open(file).schema_arrow
            return with_positions(schema.empty_table(), [], fields, source.path).schema
        except DAMAGE_ERRORS as error:
            if file.failure:
                raise
            if wrong := unreadable_file_error(source.path, "Parquet", "ParquetReader", head, error):
                raise wrong from error
            return None


def row_group_bytes(source: FileInput) -> list[int]:
    """The uncompressed size of each row group; empty if the footer cannot be read."""
    with source.open(read_ahead=False) as file:
        try:
            metadata = _open(file).metadata
        except DAMAGE_ERRORS:
            if file.failure:
                raise
            return []
        return [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]


def _open(file: OpenFile) -> Any:
    import pyarrow.parquet as pq

    # A read buffer instead of pre-buffering, which would hold whole column chunks in memory.
    return pq.ParquetFile(pa.PythonFile(file, mode="r"), buffer_size=_BUFFER, pre_buffer=False)
