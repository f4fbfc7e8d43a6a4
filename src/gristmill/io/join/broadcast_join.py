"""Broadcast join: each worker reads the small other side once, and looks up the keys of rows in it.

Rows keep their files and their order, and no exchange is needed.

What is given up: each worker holds the other side in memory, plus about 150 bytes per key. Records of the other side
that cannot be read are not quarantined: they stop the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.hash_partitioning import column_or_nulls
from gristmill.core.arrow.table_conversion import POSITION, VERDICT, conform_to_schema, wide_integer_columns
from gristmill.core.batch import SOURCE_FILE, Batch
from gristmill.core.stage import Columns, ProcessingStage, WorkerMetadata
from gristmill.core.stage_roles import PlanningRole
from gristmill.core.task import FileGroupTask, digest
from gristmill.io.join.key_matching import (
    JOINS_ADDING_COLUMNS,
    NumpyArray,
    as_key,
    keep_mask,
    key_type,
    row_pairs,
    row_sizes,
    take_or_null,
    with_columns,
)
from gristmill.io.join.other_side import OtherSide
from gristmill.io.write.commit import Fragment, joint_schema


class BroadcastTable:
    """The other side in memory: its rows sorted by key, and a dict of its keys."""

    def __init__(self, other: OtherSide, tasks: Sequence[FileGroupTask]) -> None:
        tables = list(other.reader.tables(tasks))
        blocks = [Fragment("", rows=0, size=0, schema=one.schema, wide=wide_integer_columns(one)) for one in tables]
        table = pa.concat_tables([conform_to_schema(one, joint_schema(blocks)) for one in tables])
        other.check([name for name in table.column_names if name != POSITION])
        keys, taken = other.columns(table)
        taken = with_known_types(taken, other.added())
        self.kinds = dict(zip(other.keys.values(), (key.type for key in keys), strict=True))
        known: dict[Any, int] = {}
        codes = np.asarray(
            [-1 if key is None else known.setdefault(key, len(known)) for key in comparable_keys(keys)], np.int64
        )
        order = np.argsort(codes, kind="stable")
        order = order[np.searchsorted(codes[order], 0) :]
        self.known = known
        self.counts = np.bincount(codes[order], minlength=len(known))
        self.starts = np.cumsum(self.counts) - self.counts
        self.rows = take_or_null(taken, order) if taken.num_columns else taken
        self.sizes = row_sizes(self.rows) if taken.num_columns else np.zeros(len(order), np.int64)

    def find(self, keys: Sequence[pa.ChunkedArray]) -> tuple[NumpyArray, NumpyArray]:
        """For each key: the index of its first row, and the number of its rows."""
        codes = np.asarray([self.known.get(key, -1) for key in comparable_keys(keys)], np.int64)
        if not len(self.known):
            return np.zeros(len(codes), np.int64), np.zeros(len(codes), np.int64)
        return np.where(codes >= 0, self.starts[codes], 0), np.where(codes >= 0, self.counts[codes], 0)


def comparable_keys(keys: Sequence[pa.ChunkedArray]) -> Iterator[Any]:
    """Keys as Python values: 5 equals 5.0, and null and NaN are None."""
    columns = [_plain(key).to_pylist() for key in keys]
    if len(columns) == 1:
        return iter(columns[0])
    return (None if None in key else key for key in zip(*columns, strict=True))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    column = as_key(column, key_type(column.type, column.type))
    return column.cast(pa.string()) if pa.types.is_temporal(column.type) else column


def with_known_types(table: pa.Table, known: Mapping[str, pa.DataType]) -> pa.Table:
    """The table with columns that no row has added as nulls of their known types."""
    for name, kind in known.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, kind))
        elif pa.types.is_null(table.schema.field(name).type):
            table = table.set_column(table.column_names.index(name), name, pa.nulls(table.num_rows, kind))
    return table


class BroadcastJoin(ProcessingStage[Batch, Batch], PlanningRole):
    """Looks up the keys of rows in the other side."""

    takes_empty = True

    def __init__(self, other: OtherSide, how: str, name: str) -> None:
        super().__init__()
        self.other, self.how, self.name = other, how, name
        self.stamp = ""
        """A digest of the files of the other side: if they change, a run cannot be resumed."""
        self._tasks: list[FileGroupTask] = []
        self._side: BroadcastTable | None = None

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(self.other.keys)

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def input_files(self) -> Sequence[str]:
        return self.other.reader.listing_stage.input_files()

    def check(self) -> None:
        self.other.inspect_files()
        self._tasks = list(self.other.reader.tasks())
        self.stamp = digest([task.fingerprint() for task in self._tasks])

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._side = BroadcastTable(self.other, self._tasks)

    def teardown(self) -> None:
        self._side = None

    def process(self, task: Batch) -> Iterator[Batch]:
        side = self._side
        assert side is not None, "setup is called before process"
        self.other.check_rows(
            task.data,
            side.kinds,
            side.rows.column_names,
            f" of {task.metadata[SOURCE_FILE]}" if SOURCE_FILE in task.metadata else "",
        )
        starts, counts = side.find([column_or_nulls(task.data, name) for name in self.other.keys])
        self.count("rows_with_partner", int((counts > 0).sum()))
        if self.how not in JOINS_ADDING_COLUMNS or not len(counts) or counts.max() <= 1:
            yield self._with(task, side, np.where(counts > 0, starts, -1))
            return
        for mine, others in row_pairs(starts, counts, row_sizes(task.data), side.sizes):
            yield self._with(task.take(mine.tolist()), side, others)

    def _with(self, batch: Batch, side: BroadcastTable, rows: NumpyArray) -> Batch:
        table = batch.data.append_column(VERDICT, keep_mask(self.how, rows >= 0))
        return batch.with_data(with_columns(table, take_or_null(side.rows, rows)) if side.rows.num_columns else table)
