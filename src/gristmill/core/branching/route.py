"""Route: send each row along one of several branches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, is_json, table_to_rows
from gristmill.core.batch import Batch
from gristmill.core.branching.branch_stages import Branch, BranchingStage, SplittingStage
from gristmill.core.errors import ColumnError, did_you_mean, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.core.stage import Columns

OTHERWISE = "otherwise"
_NOWHERE = -1


class Route(BranchingStage):
    """Sends each row along one of several branches, each of which ends with a writer to a directory of its own.

    `to` names the branches: each is a writer, or a list of stages of which the last is one. `by` is a column whose
    value, as text, is the name of the branch; or a function that is given the row as a dict and returns the name. With
    `thresholds`, the column holds numbers: [0.3, 0.7] sends what is below 0.3 along the first branch, what is below 0.7
    along the second, and the rest along the third. Rows without a branch go along `otherwise`; without it, they are set
    aside. A Route is the last stage of a pipeline, or of a branch.
    """

    def __init__(
        self,
        by: str | Callable[[dict[str, Any]], Any],
        to: Mapping[str, Branch],
        otherwise: Branch | None = None,
        thresholds: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.by, self.to, self.otherwise, self.thresholds = by, to, otherwise, thresholds
        if not isinstance(by, str) and not callable(by):
            raise TypeError(f"Route: by is {by!r}, must be a column, or a function of the row")
        if not isinstance(to, Mapping) or not to:
            raise TypeError("Route: to must map names of branches to stages, as in to={'en': JsonlWriter('out/en')}")
        branches = {str(name): branch for name, branch in to.items()}
        self.set_branches(branches if otherwise is None else {**branches, OTHERWISE: otherwise})
        if thresholds is not None:
            self._check_thresholds(list(thresholds))

    def _check_thresholds(self, bounds: list[float]) -> None:
        if not isinstance(self.by, str):
            raise TypeError("Route: thresholds are for a column of numbers, and by is a function")
        rising = bounds and all(low < high for low, high in pairwise(bounds))
        if not rising or not all(math.isfinite(bound) for bound in bounds):
            raise ValueError(f"Route: thresholds is {bounds!r}, must be numbers, each above the one before it")
        if len(self.to) != len(bounds) + 1:
            raise ValueError(
                f"Route: {len(bounds)} thresholds make {len(bounds) + 1} branches, and `to` has {len(self.to)}"
            )

    def splitter(self) -> SplittingStage:
        return ChooseBranch(self.by, list(self.to), self.otherwise is not None, self.thresholds)


class ChooseBranch(SplittingStage):
    """Divides each batch into one for each branch, some of them without rows."""

    name = "Route"
    takes_empty = True

    def __init__(
        self,
        by: str | Callable[[dict[str, Any]], Any],
        names: Sequence[str],
        otherwise: bool = False,
        thresholds: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.by, self.names, self.otherwise = by, [str(name) for name in names], otherwise
        self.thresholds = None if thresholds is None else list(thresholds)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.by] if isinstance(self.by, str) else []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def process(self, task: Batch) -> list[Batch]:
        chosen = self._chosen(task) if task.num_items else make_array([], pa.int64())
        names = list(self.names)
        if self.otherwise:
            chosen = pc.if_else(
                pc.equal(chosen, literal(_NOWHERE, pa.int64())), literal(len(names), pa.int64()), chosen
            )
            names.append(OTHERWISE)
        else:
            self._set_aside(task.keep(pc.equal(chosen, literal(_NOWHERE, pa.int64()))))
        return [
            self.on_branch(task.keep(pc.equal(chosen, literal(number, pa.int64()))), name)
            for number, name in enumerate(names)
        ]

    def _chosen(self, batch: Batch) -> pa.Array:
        """The number of each row's branch."""
        if not isinstance(self.by, str):
            rows = table_to_rows(batch.data.drop_columns([POSITION] if POSITION in batch.data.column_names else []))
            return self._numbers([self.by(row) for row in rows])
        if self.by not in batch.data.column_names:
            there = [name for name in batch.data.column_names if not name.startswith("_")]
            raise ColumnError(
                f"stage {self.name!r} needs column {self.by!r}. There are: {shorten(there, 12) or 'none'}."
                f"{did_you_mean(self.by, there)}"
            )
        column = batch.data.column(self.by).combine_chunks()
        if self.thresholds is not None:
            return self._bucket(column, self.thresholds)
        if is_json(column.type) or pa.types.is_nested(column.type):
            return self._numbers([row[self.by] for row in table_to_rows(batch.data.select([self.by]))])
        values = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        numbers = self._numbers(values.dictionary.to_pylist())
        return numbers.take(values.indices).fill_null(literal(_NOWHERE, pa.int64()))

    def _numbers(self, values: Iterable[Any]) -> pa.Array:
        known = {name: number for number, name in enumerate(self.names)}
        return make_array([_NOWHERE if one is None else known.get(str(one), _NOWHERE) for one in values], pa.int64())

    def _bucket(self, column: pa.Array, thresholds: Sequence[float]) -> pa.Array:
        kind = column.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
            raise ColumnError(f"stage {self.name!r}: thresholds need numbers, and column {self.by!r} holds {kind}")
        scores = column.cast(pa.float64(), safe=False)
        branches = pa.repeat(literal(0, pa.int64()), len(scores))
        for bound in thresholds:
            branches = pc.add(branches, pc.greater_equal(scores, literal(float(bound), pa.float64())).cast(pa.int64()))
        known = pc.and_kleene(pc.is_valid(scores), pc.invert(pc.is_nan(scores))).fill_null(literal(False, pa.bool_()))
        return pc.if_else(known, branches, literal(_NOWHERE, pa.int64()))

    def _set_aside(self, lost: Batch) -> None:
        for row in table_to_rows(lost.data) if lost.num_items else ():
            position = row.pop(POSITION, None)
            value = f"{self.by}={row[self.by]!r}" if isinstance(self.by, str) else "what `by` returns"
            self.set_aside(
                f"there is no branch for {value:.200}: add one to `to`, or give `otherwise`",
                row=row,
                file=lost.metadata.get("file"),
                position=position,
            )
