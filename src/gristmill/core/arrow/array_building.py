"""Build Arrow columns from Python values without importing pandas.

`pyarrow.array` and `pyarrow.scalar` import pandas where it is installed, to check for pandas objects, which costs every
process more than 0.5 s. The common types are built from buffers here instead; others go to pyarrow.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

_STRING, _INT, _UINT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.uint64(), pa.float64(), pa.bool_()
_BINARY = pa.large_binary()
_CODES = {_INT: "q", _UINT: "Q", _FLOAT: "d"}
_LARGEST = 2**31 - 1


def make_array(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    """An array from values of one type; None is null. An integer that does not fit raises OverflowError."""
    listed = values if isinstance(values, list) else list(values)
    present = [value is not None for value in listed]
    missing = len(listed) - sum(present)
    validity = pa.py_buffer(_bits(present)) if missing else None
    if kind == _STRING:
        return _strings(listed, validity, missing)
    if kind == _BINARY:
        return _binaries(listed, validity, missing)
    if kind in _CODES:
        return _numbers(_CODES[kind], kind, listed, validity, missing)
    if kind == _BOOL:
        bits = pa.py_buffer(_bits([bool(value) for value in listed]))
        return pa.Array.from_buffers(kind, len(listed), [validity, bits], missing)
    return pa.array(listed, kind)


def literal(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A scalar for Arrow's compute functions, which would make one from a Python value by way of pandas."""
    return make_array([value], kind)[0]


def _strings(values: Sequence[str | None], validity: pa.Buffer | None, missing: int) -> pa.Array:
    raw = [b"" if value is None else value.encode() for value in values]
    ends = list(accumulate(map(len, raw), initial=0))
    small = ends[-1] <= _LARGEST
    offsets = pa.py_buffer(array("i" if small else "q", ends).tobytes())
    kind = _STRING if small else pa.large_string()
    return pa.Array.from_buffers(kind, len(values), [validity, offsets, pa.py_buffer(b"".join(raw))], missing)


def _binaries(values: Sequence[bytes | None], validity: pa.Buffer | None, missing: int) -> pa.Array:
    raw = [b"" if value is None else value for value in values]
    offsets = pa.py_buffer(array("q", accumulate(map(len, raw), initial=0)).tobytes())
    return pa.Array.from_buffers(_BINARY, len(values), [validity, offsets, pa.py_buffer(b"".join(raw))], missing)


def _numbers(code: str, kind: pa.DataType, values: Sequence[Any], validity: pa.Buffer | None, missing: int) -> pa.Array:
    filled = [0 if value is None else value for value in values] if missing else values
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(array(code, filled).tobytes())], missing)


def _bits(flags: Sequence[bool]) -> bytes:
    """Flags as a bitmap, first flag in the lowest bit."""
    if not flags:
        return b""
    digits = "".join(["1" if flag else "0" for flag in reversed(flags)])
    return int(digits, 2).to_bytes((len(flags) + 7) // 8, "little")


def as_one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array. Arrow would load pandas to make an empty one."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_string(column.type) and column.nbytes > 2**30:  # the offsets of one array of all might overflow
        column = column.cast(pa.large_string())
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)
