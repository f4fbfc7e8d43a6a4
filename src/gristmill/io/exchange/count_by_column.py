"""CountRows: count the rows of each value of some columns.

The rows of each batch are counted by the worker that read them, so only counts go through the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.hash_partitioning import column_or_nulls
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.stage import Columns
from gristmill.io.exchange.exchange import Exchange
from gristmill.io.exchange.external_sort import group_starts, sort_table
from gristmill.io.exchange.keyed_stage import KeyedStage


class CountRows(KeyedStage):
    """Counts the rows of each value of `by`, a column or several; all rows if `by` is empty.

    Returns one row for each value, with the columns of `by` and `count_field`. Null counts as a value.
    """

    def __init__(
        self, by: str | Sequence[str] = (), count_field: str = "count", num_partitions: int | None = None
    ) -> None:
        super().__init__()
        Exchange(num_partitions=num_partitions)  # raises for an invalid number
        self.by, self.key, self.count_field, self.num_partitions = by, by, count_field, num_partitions
        if self.count_field in self.columns:
            raise ValueError(
                f"CountRows: count_field is {count_field!r}, which is a column to count by: choose another name"
            )

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [*self.columns, self.count_field]

    def combine(self, table: pa.Table) -> pa.Table:
        ones = pa.repeat(literal(1, pa.int64()), table.num_rows)
        keys = [column_or_nulls(table, name) for name in self.columns]
        return self.process_groups(sort_table(pa.table([*keys, ones], [*self.columns, self.count_field]), self.columns))

    def process_groups(self, table: pa.Table) -> pa.Table:
        starts = pc.indices_nonzero(group_starts(None, table, self.columns)).cast(pa.int64())
        ends = pa.concat_arrays([starts[1:], make_array([table.num_rows], pa.int64())])
        sums = pc.cumulative_sum(table.column(self.count_field).combine_chunks())
        before = pa.concat_arrays([make_array([0], pa.int64()), sums])
        counts = pc.subtract(before.take(ends), before.take(starts))
        keys = [table.column(name).take(starts) for name in self.columns]
        return pa.table([*keys, counts], [*self.columns, self.count_field])
