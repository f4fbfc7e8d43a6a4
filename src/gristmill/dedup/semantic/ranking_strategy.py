"""Ranks of rows as bytes that sort in the order in which rows are preferred.

Bytes sort the same in every cell and every partition. The last bytes are the position in the input, so no two rows are
equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.hash_partitioning import required_column
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import is_text
from gristmill.core.batch import Batch
from gristmill.core.errors import ColumnError, printable
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import id_sort_key
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, flags, numbers

HARD, EASY, RANDOM = WHICH_TO_KEEP = ("hard", "easy", "random")


@dataclass(frozen=True)
class RankingStrategy:
    """Keeps the first of similar rows when they are sorted by the columns `metadata_cols`.

    `ascending` is for all columns, or a list with one value for each. Null comes last, and of equal rows the first of
    the input is kept. With strategy="random" columns are ignored, and the order depends only on `random_seed`.
    """

    metadata_cols: Sequence[str] = ()
    ascending: bool | Sequence[bool] = True
    strategy: str = "sort"
    random_seed: int = 42

    def __post_init__(self) -> None:
        if self.strategy not in ("sort", "random"):
            raise ValueError(f"RankingStrategy: strategy is {self.strategy!r}, must be 'sort' or 'random'")
        if isinstance(self.metadata_cols, str):
            raise TypeError(f"RankingStrategy: metadata_cols must be a list, as in [{self.metadata_cols!r}]")
        if self.strategy == "sort" and not self.metadata_cols:
            raise ValueError("RankingStrategy: name the columns to rank by, metadata_cols=[...]")
        if not isinstance(self.ascending, bool) and len(self.ascending) != len(self.metadata_cols):
            raise ValueError(f"RankingStrategy: ascending={self.ascending!r} must be one value, or one for each column")

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """The columns, and whether each is ascending."""
        up = [self.ascending] * len(self.metadata_cols) if isinstance(self.ascending, bool) else self.ascending
        return list(zip(self.metadata_cols, up, strict=True)) if self.strategy == "sort" else []


def column_sort_bytes(
    stage: ProcessingStage[Any, Any], table: pa.Table, columns: Sequence[tuple[str, bool]]
) -> list[bytes]:
    """Bytes for each row that sort in the order of the columns."""
    keys = [b""] * table.num_rows
    for name, ascending in columns:
        column = as_one_array(required_column(table, name))
        kind = column.type
        if is_text(kind):
            made = [_text(value, ascending) for value in column.to_pylist()]
        elif pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise ColumnError(
                f"stage {stage.name!r} cannot rank by column {name!r}, which holds {printable(kind)}: choose a "
                "column of numbers, times or text"
            )
        else:
            if pa.types.is_temporal(kind):
                column = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
            made = number_sort_bytes(column, ascending)
        keys = [key + more for key, more in zip(keys, made, strict=True)]
    return keys


def number_sort_bytes(column: pa.Array, ascending: bool = True) -> list[bytes]:
    """Nine bytes for each number; null and NaN are last in both directions."""
    valid = flags(column.is_valid())
    values = numbers(pc.fill_null(column.cast(pa.float64(), safe=False), literal(0.0, pa.float64())))
    last = ~valid | np.isnan(values)
    ranks = np.zeros((len(values), 9), np.uint8)
    ranks[:, 0] = last
    ranks[:, 1:] = float_sort_bytes(np.where(last, 0.0, values if ascending else -values))
    return _rows(ranks)


def float_sort_bytes(values: Numbers) -> Numbers:
    """Eight bytes for each float64 that sort in the order of the numbers."""
    bits = np.ascontiguousarray(values + 0.0, np.float64).view(np.uint64)  # makes -0.0 equal to 0.0
    high = np.uint64(1 << 63)
    return big_endian(np.where(bits & high, ~bits, bits | high))


def big_endian(values: Numbers) -> Numbers:
    return np.ascontiguousarray(values, ">u8").view(np.uint8).reshape(-1, 8)


def _rows(matrix: Numbers) -> list[bytes]:
    data, width = matrix.tobytes(), matrix.shape[1]
    return [data[start : start + width] for start in range(0, len(data), width)]


def _text(value: str | None, ascending: bool) -> bytes:
    if value is None:
        return b"\x01"
    raw = value.encode("utf-8", "surrogatepass").replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    return b"\x00" + (raw if ascending else bytes(255 - byte for byte in raw))


def binary_column(values: Sequence[bytes]) -> pa.Array:
    """A column of bytes, made from buffers because `pyarrow.array` would import pandas."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def position_bytes(batch: Batch) -> tuple[bytes, Numbers]:
    """The position of rows in the input: bytes for the batch, and eight bytes for each row."""
    parts = [part for _, part in id_sort_key(batch.lineage.id)]
    text = ".".join(f"{part:012d}" if isinstance(part, int) else part for part in [batch.lineage.order, *parts])
    return text.encode() + b"\x00", big_endian(np.arange(batch.num_items, dtype=np.uint64))
