"""Rows of records: dicts with text, bytes and numbers to Arrow columns, without pandas being loaded for the bytes."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, to_array


def rows_to_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> pa.Table:
    """A table of the rows, with `columns` first also when no row has them, and the places last."""
    names = [name for name in dict.fromkeys([*columns, *(name for row in rows for name in row)]) if name != POSITION]
    arrays = [_column([row.get(name) for row in rows]) for name in names]
    places = make_array([row.get(POSITION) for row in rows], pa.int64())
    return pa.table([*arrays, places], names=[*names, POSITION])


def _column(values: list[Any]) -> pa.Array:
    if any(isinstance(value, bytes) for value in values) and all(isinstance(value, bytes | None) for value in values):
        return binary_array(values)
    if values and all(isinstance(value, str) for value in values):
        return _text(values)
    return to_array(values)


def _text(values: list[str]) -> pa.Array:
    """Text; what is no Unicode in it (half of a pair of surrogates) becomes the replacement character."""
    try:
        return make_array(values, pa.string())
    except UnicodeEncodeError:
        return make_array(
            [value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for value in values], pa.string()
        )


def binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """Bytes; None is null."""
    ends = list(accumulate((len(value or b"") for value in values), initial=0))
    present = [value is not None for value in values]
    bits = None if all(present) else make_array(present, pa.bool_()).buffers()[1]
    offsets = pa.py_buffer(array("q", ends).tobytes())
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(pa.large_binary(), len(values), [bits, offsets, data], present.count(False))


def row_bytes(row: Mapping[str, Any]) -> int:
    """About how many bytes a row has."""
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in row.values())
