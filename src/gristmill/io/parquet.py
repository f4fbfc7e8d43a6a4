"""Parquet: row groups, streamed, so that a row group of any size needs little memory.

A row group that is damaged is one bad record that counts for all of its rows not read yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.columns import make_array
from gristmill.core.errors import InputError
from gristmill.core.table import POSITION
from gristmill.io.input import BadRecord, check_names
from gristmill.io.sniff import wrong_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.io.input import Input, OpenFile

_BUFFER = 4 * 2**20
_MOST_ROWS = 2**16


def read_parquet(source: Input, fields: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Tables of about a block each, with the row number in the POSITION column."""
    with source.open(read_ahead=False) as file:
        try:
            parquet = _open(file)
        except (OSError, pa.ArrowInvalid) as error:
            if file.failure:
                raise
            source.on_bad(BadRecord(0, f"not a Parquet file that can be read: {error}"))
            return
        metadata = parquet.metadata
        chosen = source.part.row_groups
        start = 0
        for group in range(metadata.num_row_groups):
            if chosen is None or group in chosen:
                yield from _read_group(source, file, parquet, group, start, fields)
            start += metadata.row_group(group).num_rows


def _read_group(
    source: Input, file: OpenFile, parquet: Any, group: int, start: int, fields: Sequence[str] | None
) -> Iterator[pa.Table]:
    metadata = parquet.metadata.row_group(group)
    columns = None if fields is None else [name for name in fields if name in parquet.schema_arrow.names]
    row_bytes = max(metadata.total_byte_size // max(metadata.num_rows, 1), 1)
    rows = max(1, min(_MOST_ROWS, source.blocksize // row_bytes))
    done = 0
    try:
        batches = parquet.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False)
        for batch in batches:
            source.on_bytes(batch.nbytes)
            yield with_positions(pa.Table.from_batches([batch]), start + done, fields, source.path)
            done += batch.num_rows
    except (OSError, pa.ArrowInvalid) as error:
        if file.failure:
            raise
        reason = f"row group {group} cannot be read: {error}"
        source.on_bad(BadRecord(start + done, reason, records=metadata.num_rows - done))


def with_positions(table: pa.Table, start: int, fields: Sequence[str] | None, path: str) -> pa.Table:
    """The table with the wanted columns (null where there is none) and the number of each row."""
    check_names(path, table.column_names, fields)
    names = [name for name in (table.column_names if fields is None else fields) if name != POSITION]
    columns = [table.column(name) if name in table.column_names else pa.nulls(table.num_rows) for name in names]
    numbers = make_array(range(start, start + table.num_rows), pa.int64())
    return pa.table([*columns, numbers], names=[*names, POSITION])


def peek_parquet(source: Input, fields: Sequence[str] | None = None) -> pa.Schema | None:
    """The columns, from the footer; None for an empty file. Raises InputError for another format."""
    with source.whole().open(read_ahead=False) as file:
        head = file.read(512)
        if not head:
            return None
        file.seek(0)
        try:
            schema = _open(file).schema_arrow
        except (OSError, pa.ArrowInvalid) as error:
            if file.failure:
                raise
            wrong = wrong_format(source.path, "Parquet", head)
            raise wrong or InputError(f"{source.path} is not a Parquet file that can be read: {error}") from error
    return with_positions(schema.empty_table(), 0, fields, source.path).schema


def row_group_bytes(source: Input) -> list[int]:
    """The size of each row group, uncompressed; empty when the footer cannot be read."""
    with source.open(read_ahead=False) as file:
        try:
            metadata = _open(file).metadata
        except (OSError, pa.ArrowInvalid):
            if file.failure:
                raise
            return []
        return [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]


def _open(file: OpenFile) -> Any:
    import pyarrow.parquet as pq

    # A buffer instead of pre-buffering: whole column chunks are never held.
    return pq.ParquetFile(pa.PythonFile(file, mode="r"), buffer_size=_BUFFER, pre_buffer=False)
