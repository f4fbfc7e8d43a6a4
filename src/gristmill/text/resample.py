"""Resample: repeats or drops rows by the value of a column, the same rows in every run.

A factor of 0.25 keeps a quarter of the rows, 1 keeps all, and 2.5 takes each row twice and half of them a third time.
Which half is drawn as in `Sample`: by the seed, the row's file and its position there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.row_sampling import draw_uniform, row_ids
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import digest
from gristmill.text.text_columns import batch_column, python_values

if TYPE_CHECKING:
    from gristmill.core.stage import Columns

BatchType = TypeVar("BatchType", bound=Batch)


class Resample(ProcessingStage[Batch, Batch]):
    """Takes each row as often as `factors` gives for its value in the column `by`; values are compared as text.

    A factor below 1 drops a share of the rows; one above 1 repeats all rows, and a share of them once more. Rows with
    another value, or none, are taken `otherwise` times. Copies follow each other.
    """

    takes_empty = True

    def __init__(self, by: str, factors: Mapping[str, float], otherwise: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        for name, factor in {**factors, "otherwise": otherwise}.items():
            check_factor("Resample", str(name), factor)
        self.by, self.factors, self.otherwise, self.seed = by, factors, otherwise, seed

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.by]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def process(self, task: Batch) -> Batch:
        if not task.num_items:
            return task
        known = {str(name): float(factor) for name, factor in self.factors.items()}
        other = float(self.otherwise)
        values = python_values(batch_column(self, task, self.by))
        factors = make_array([other if one is None else known.get(str(one), other) for one in values], pa.float64())
        return repeat_rows(task, factors, draw_per_row(task, self.seed, "Resample"))


def check_factor(stage: str, name: str, factor: float) -> None:
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 <= factor < math.inf:
        raise ValueError(f"{stage}: the factor of {name!r} is {factor!r}, must be a number, 0 or more")


def draw_per_row(batch: Batch, seed: int, stage: str) -> pa.Array:
    """A number from 0 to below 1 for each row, which depends only on the seed and the row."""
    owner, numbers = row_ids(batch)
    return draw_uniform(numbers, int(digest([str(seed), stage, owner]), 16))


def repeat_rows(batch: BatchType, factors: pa.Array, numbers: pa.Array) -> BatchType:
    """Each row as often as its factor; its number decides on the fractional part."""
    full_copies = pc.floor(factors)
    once_more = pc.less(numbers, pc.subtract(factors, full_copies))
    copies = pc.add(full_copies.cast(pa.int64()), once_more.cast(pa.int64()))
    if (pc.max(copies).as_py() or 0) <= 1:
        return batch.keep(pc.equal(copies, literal(1, pa.int64())))
    return batch.take([row for row, count in enumerate(copies.to_pylist()) for _ in range(count)])
