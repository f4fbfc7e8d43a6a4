"""Reads the embeddings of a batch as float32 rows of unit length.

Fixed-size and variable lists of any number type are read. Null and rows of zeros, which have no direction, are never
duplicates. NaN, and a length other than `embedding_dim`, raise an error that quarantines the row.

Gives up digits beyond the seventh, and the length of embeddings: only directions are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.hash_partitioning import required_column
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import is_json, table_to_rows
from gristmill.core.errors import ColumnError, printable
from gristmill.core.stage import ProcessingStage
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, from_numbers, numbers


class BadEmbedding(ValueError):
    """A row whose embedding cannot be used."""


def embeddings_of(
    stage: ProcessingStage[Any, Any], table: pa.Table, field: str, dim: int | None
) -> tuple[Numbers, pa.Array]:
    """The rows that have a direction, and their embeddings, scaled to unit length, as bytes of float32."""
    if field not in table.column_names and field in stage._planned.columns:
        return np.zeros(0, np.int64), pa.nulls(0, pa.binary())  # a block of JSON in which no row has it
    column = as_one_array(required_column(table, field))
    if is_json(column.type):  # lists of one length here and none there, or of mixed numbers
        values = [row[field] for row in table_to_rows(table.select([field]))]
        column = _from_rows(field, values)
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(0, np.int64), pa.nulls(0, pa.binary())
    if not _is_list(kind) or not _is_number(kind.value_type):
        raise ColumnError(
            f"stage {stage.name!r} needs lists of numbers in column {field!r}, which holds {printable(kind)}: "
            "set embedding_field to the column with the embeddings"
        )
    rows = numbers(pc.indices_nonzero(column.is_valid()), np.int64)
    column = column.drop_null()
    lengths = numbers(pc.list_value_length(column), np.int64)
    _check_lengths(lengths, dim)
    flat = column.flatten().cast(pa.float32(), safe=False)
    if flat.null_count:
        flat = pc.fill_null(flat, literal(float("nan"), pa.float64()).cast(pa.float32()))
    return _unit(rows, lengths, numbers(flat, np.float32))


def _unit(rows: Numbers, lengths: Numbers, flat: Numbers) -> tuple[Numbers, pa.Array]:
    found, parts = [], []
    ends = np.cumsum(lengths)
    for length in np.unique(lengths[lengths > 0]).tolist():
        mine = np.flatnonzero(lengths == length)
        matrix = flat.reshape(-1, length) if len(mine) == len(rows) else _gathered(flat, ends[mine] - length, length)
        wide = np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64)
        if not np.isfinite(wide).all() and np.isfinite(matrix).all():
            raise BadEmbedding("the embedding has numbers that are too large to compare: scale them down")
        if not np.isfinite(wide).all():
            raise BadEmbedding("the embedding contains NaN, infinity or null")
        there = wide > 0
        unit = (matrix[there] / np.sqrt(wide[there])[:, None]).astype(np.float32)
        found.append(rows[mine[there]])
        parts.append(as_bytes_column(unit))
    if not found:
        return np.zeros(0, np.int64), pa.nulls(0, pa.binary())
    if len(found) == 1:
        return found[0], parts[0]
    order = np.argsort(np.concatenate(found), kind="stable")
    return np.concatenate(found)[order], pa.concat_arrays(parts).take(from_numbers(order))


def _gathered(flat: Numbers, starts: Numbers, length: int) -> Numbers:
    found: Numbers = flat[starts[:, None] + np.arange(length)]
    return found


def _check_lengths(lengths: Numbers, dim: int | None) -> None:
    if dim is not None and (lengths != dim).any():
        other = lengths[lengths != dim][0]
        raise BadEmbedding(f"the embedding has {other} numbers, but embedding_dim is {dim}")


def _from_rows(field: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.list_(pa.float64()))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise BadEmbedding(f"column {field!r} is not a list of numbers in this row: {error}") from error


def _is_list(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _is_number(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_floating, pa.types.is_integer, pa.types.is_null))


# -- in exchanges --------------------------------------------------------------------------------------------


def as_bytes_column(matrix: Numbers) -> pa.Array:
    """The rows of a float32 matrix as a binary column."""
    width = 4 * matrix.shape[1]
    offsets = np.arange(len(matrix) + 1, dtype=np.int64) * width
    kind, offsets = (pa.binary(), offsets.astype(np.int32)) if offsets[-1] < 2**31 else (pa.large_binary(), offsets)
    data = np.ascontiguousarray(matrix, np.float32)
    return pa.Array.from_buffers(kind, len(matrix), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def matrix_of(column: pa.Array | pa.ChunkedArray, dim: int) -> Numbers:
    """The float32 matrix of a binary column. Raises ColumnError if a row has another length than `dim`."""
    array = as_one_array(column)
    if not len(array):
        return np.zeros((0, dim), np.float32)
    _, offsets, data = array.buffers()
    large = pa.types.is_large_binary(array.type)
    ends = np.frombuffer(offsets, np.int64 if large else np.int32)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(ends)
    if (lengths != 4 * dim).any():
        other = int(lengths[lengths != 4 * dim][0]) // 4
        raise ColumnError(
            f"there are embeddings of {dim} numbers and of {other}: set embedding_dim to the right length, and the "
            "other rows go to quarantine"
        )
    return np.frombuffer(data, np.float32, len(array) * dim, int(ends[0])).reshape(-1, dim)
