"""Send rows along several branches, each with its own stages and writer, in one pass.

The plan stays linear: the stages of all branches are in it one after the other, and tasks of other branches bypass them
(`Lineage.branch`, `PlannedStage.branch`), so that counts, quarantine, rejected rows and retries work as for any stage.
One stage commits all branches: a source is done, and entered in the ledger, when all its branches are committed.

A branch cannot have stages that gather, other than its writer. Where a stage of a branch has workers of its own, tasks
of the other branches are sent through them too, which costs traffic.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, is_json, table_to_rows
from gristmill.core.batch import Batch
from gristmill.core.errors import ColumnError, did_you_mean, shorten
from gristmill.core.plan.planner import decompose
from gristmill.core.stage import CompositeStage, ProcessingStage, SourceStage
from gristmill.core.stage_roles import CommitStage, GatherRole, output_directory_of
from gristmill.core.task import GatherTask, WrittenFile, WrittenFiles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.core.stage import Columns

Stage = ProcessingStage[Any, Any]
Branch = Stage | Sequence[Stage]
OTHERWISE = "otherwise"
_NOWHERE = -1


class Route(CompositeStage[Batch, WrittenFiles]):
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
        self._branches = {str(name): _stages(str(name), branch) for name, branch in to.items()}
        if otherwise is not None:
            self._branches[OTHERWISE] = _stages(OTHERWISE, otherwise)
        if thresholds is not None:
            self._check_thresholds(list(thresholds))
        self._check_places()

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

    def _check_places(self) -> None:
        places: dict[str, str] = {}
        for name, stages in self._branches.items():
            for place in filter(None, map(output_directory_of, stages)):
                if other := places.get(place.rstrip("/")):
                    raise ValueError(
                        f"Route: branches {other!r} and {name!r} both write to {place}: give each its own directory"
                    )
                places[place.rstrip("/")] = name

    def decompose(self) -> list[Stage]:
        parts: list[Stage] = [ChooseBranch(self.by, list(self.to), self.otherwise is not None, self.thresholds)]
        commits: dict[str, CommitStage] = {}
        for name, stages in self._branches.items():
            *before, commit = map(copy.copy, stages)
            assert isinstance(commit, CommitStage)
            commits[name] = commit
            for stage in before:
                stage.name = f"{name}/{stage.name}"
                inner = stage._planned.branch
                stage._planned = replace(stage._planned, branch=f"{name}/{inner}" if inner else name)
            parts += before
        return [*parts, CommitBranches(commits)]


def _stages(name: str, branch: Branch) -> list[Stage]:
    """The stages of a branch, with a writer's commit as the last."""
    given = [branch] if isinstance(branch, ProcessingStage) else branch
    if not name or "/" in name:
        raise ValueError(f"Route: a branch cannot be called {name!r}: its name must be some text without a slash")
    if not isinstance(given, list | tuple) or not all(isinstance(stage, ProcessingStage) for stage in given):
        raise TypeError(
            f"Route: branch {name!r} is {given!r}, must be a writer, or a list of stages that ends with one"
        )
    stages = decompose(given)
    if not stages or not isinstance(stages[-1], CommitStage):
        raise ValueError(f"Route: branch {name!r} must end with a writer, such as JsonlWriter('out/{name}')")
    for stage in stages[:-1]:
        if isinstance(stage, GatherRole | SourceStage):
            what = "lists input" if isinstance(stage, SourceStage) else "gathers whole sources"
            raise ValueError(  # noqa: TRY004  it is a stage, in the wrong place
                f"Route: stage {stage.name!r} of branch {name!r} {what}: put it before the Route"
            )
    return stages


class ChooseBranch(ProcessingStage[Batch, Batch]):
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
            self._along(task.keep(pc.equal(chosen, literal(number, pa.int64()))), name)
            for number, name in enumerate(names)
        ]

    @staticmethod
    def _along(batch: Batch, name: str) -> Batch:
        branch = f"{batch.lineage.branch}/{name}" if batch.lineage.branch else name
        return batch.named(replace(batch.lineage, branch=branch))

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


class CommitBranches(CommitStage):
    """Commits what the writers of all branches have written for one source."""

    name = "commit_branches"

    def __init__(self, commits: Mapping[str, CommitStage]) -> None:
        super().__init__()
        self.commits = dict(commits)

    def check(self) -> None:
        for commit in self.commits.values():
            commit.check()

    def prepare_run(self, memory: dict[str, Any]) -> None:
        for name, commit in self.commits.items():
            commit.prepare_run(memory.setdefault(name, {}))

    def process(self, task: GatherTask) -> WrittenFiles:
        parts: dict[str, list[Any]] = {name: [] for name in self.commits}
        for fragment in task.data:
            name, _, rest = fragment.lineage.branch.partition("/")
            parts[name].append(fragment.named(replace(fragment.lineage, branch=rest)))
        outputs: dict[str, Any] = {
            name: self.commits[name].process(GatherTask(fragments).named(task.lineage))
            for name, fragments in parts.items()
            if fragments
        }
        return WrittenFiles(
            [path for output in outputs.values() for path in output.data],
            rows=sum(output.rows for output in outputs.values()),
            written=tuple(file for name, output in outputs.items() for file in _with_branch(name, output)),
            dataset_name=task.data[0].dataset_name if task.data else "",
            metadata=dict(task.data[0].metadata) if task.data else {},
        )

    def has_files(self, files: Sequence[WrittenFile]) -> bool:
        return all(commit.has_files(_files_of_branch(name, files)) for name, commit in self.commits.items())

    def discard_files(self, files: Sequence[WrittenFile]) -> None:
        for name, commit in self.commits.items():
            commit.discard_files(_files_of_branch(name, files))

    def records_directory(self) -> tuple[str, Mapping[str, Any]] | None:
        return next(iter(self.commits.values())).records_directory()

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> Sequence[WrittenFiles] | None:
        everything = list(outputs)
        files_now: list[list[WrittenFile]] = [[] for _ in everything]
        for name, commit in self.commits.items():
            own = [(number, _of_branch(name, output)) for number, output in enumerate(everything)]
            present = [(number, output) for number, output in own if output.written]
            given = [output for _, output in present]
            for (number, _), output in zip(present, commit.complete(given, info) or given, strict=True):
                files_now[number] += _with_branch(name, output)
        return [output.with_written(tuple(files)) for output, files in zip(everything, files_now, strict=True)]


def _with_branch(name: str, output: WrittenFiles) -> list[WrittenFile]:
    """The files of a branch, with its name, and with the rows that it has of the source unless branches of it have."""
    inner = any(file.branch for file in output.written)
    return [
        replace(file, branch=f"{name}/{file.branch}", rows=file.rows)
        if inner
        else replace(file, branch=name, rows=0 if number else output.rows)
        for number, file in enumerate(output.written)
    ]


def _of_branch(name: str, output: WrittenFiles) -> WrittenFiles:
    """What a source has written on a branch, as its commit knows it."""
    files = _files_of_branch(name, output.written)
    part = WrittenFiles([file.path for file in files], rows=sum(file.rows for file in files), written=files)
    return part.named(output.lineage)


def _files_of_branch(name: str, files: Sequence[WrittenFile]) -> tuple[WrittenFile, ...]:
    """Those of the files that belong to a branch, as its commit knows them."""
    return tuple(
        replace(file, branch=file.branch.partition("/")[2]) for file in files if file.branch.partition("/")[0] == name
    )
