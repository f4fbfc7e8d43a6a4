"""What the Parquet, Arrow and CSV readers share: row positions, and validation of decoded tables.

Arrow validates little of what it reads. Text in a Parquet file may not be UTF-8, and the offsets in a damaged Arrow
file may point anywhere, so that the first stage to use a value would fail, or crash the process. Validation takes up to
1 ms per MB of text, less for ASCII.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, without_views
from gristmill.io.formats.line_blocks import MAX_LINE_BYTES
from gristmill.io.storage.file_input import MAX_RAW_BYTES, BadRecord, check_column_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DAMAGE_ERRORS = (OSError, pa.ArrowException, UnicodeDecodeError)
"""What Arrow raises for a damaged file. An absurd size raises ArrowMemoryError."""


def with_positions(table: pa.Table, numbers: Sequence[int], fields: Sequence[str] | None, path: str) -> pa.Table:
    """The table with the requested columns (nulls for one that is missing) and the number of each row."""
    check_column_names(path, table.column_names, fields)
    names = [name for name in (table.column_names if fields is None else fields) if name != POSITION]
    there = dict(zip(table.column_names, table.columns, strict=True))
    columns = [there[name] if name in there else pa.nulls(table.num_rows) for name in names]
    return pa.table([*columns, make_array(numbers, pa.int64())], names=[*names, POSITION])


def without_bad_records(table: pa.Table, bad: Sequence[BadRecord]) -> pa.Table:
    """The table without the rows that are bad records."""
    if not bad:
        return table
    lost = {record.position for record in bad}
    table = without_views(table)  # Arrow cannot filter those
    return table.filter(make_array([number not in lost for number in table.column(POSITION).to_pylist()], pa.bool_()))


def invalid_text_records(batch: pa.RecordBatch, start: int) -> list[BadRecord]:
    """The rows of a batch with text that is not UTF-8, or longer than a line may be. Raises ArrowInvalid if the batch
    is otherwise invalid."""
    bad: dict[int, BadRecord] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        array = column.storage if isinstance(column, pa.ExtensionArray) else column
        for row in _too_long(array):
            why = f"column {name!r} has a text of more than {MAX_LINE_BYTES:,} bytes"
            bad.setdefault(row, BadRecord(start + row, why, _bytes_of(array[row])))
        for row in _not_utf8(array):
            bad.setdefault(row, BadRecord(start + row, f"column {name!r} is not valid UTF-8", _bytes_of(array[row])))
    return [bad[row] for row in sorted(bad)]


def _too_long(array: pa.Array) -> Iterator[int]:
    """The rows with a text that libraries cannot be trusted with: they reserve many times its size, and crash."""
    if isinstance(array, pa.StringArray | pa.LargeStringArray | pa.StringViewArray) and array.nbytes > MAX_LINE_BYTES:
        lengths = pc.binary_length(array.cast(pa.large_string()))
        yield from pc.indices_nonzero(pc.greater(lengths, literal(MAX_LINE_BYTES, pa.int64()))).to_pylist()


def _not_utf8(array: pa.Array) -> Iterator[int]:
    kind = array.type
    try:
        # Full validation would refuse times and decimals out of range, which can be read.
        array.validate(full=not (pa.types.is_temporal(kind) or pa.types.is_decimal(kind)))
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
    else:
        return
    for row, value in enumerate(array):
        try:
            value.as_py()
        except UnicodeDecodeError:
            yield row


def _bytes_of(value: Any) -> bytes:
    return bytes(value.as_buffer()[:MAX_RAW_BYTES]) if hasattr(value, "as_buffer") else b""
