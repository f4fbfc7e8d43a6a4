"""Compile a pipeline into a plan. Nothing runs, and no cluster is needed.

    decompose   replace composite stages by their parts
    check       inputs exist, columns and task types fit between neighbours, settings are valid
    fuse        neighbours with compatible resources become one group, run by one worker
    cut         start a new group after a user-defined source and where tasks are gathered by source; start a new
                segment where a source stage lists the output of the stages before it (an exchange)

The plan holds copies of the stages, so neither planning nor running changes the user's objects.
"""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gristmill.core.batch import Batch
from gristmill.core.errors import ColumnError, PlanError, shorten
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.function_stage import task_types
from gristmill.core.plan.column_checks import check_sampled_columns
from gristmill.core.plan.single_row_task import row_by_row
from gristmill.core.records.rejected_rows import RejectedRowRecorder
from gristmill.core.resources import Resources
from gristmill.core.stage import (
    CompositeStage,
    ProcessingStage,
    SourceStage,
    check_settings,
    implements,
    worker_count,
)
from gristmill.core.stage_roles import CommitRole, GatherRole, PlanningRole, WriterRole, output_directory_of
from gristmill.core.task import Lineage, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@fast_dataclass(frozen=True)
class Group:
    """Stages that run in one worker, and what that worker needs."""

    index: int
    stages: tuple[ProcessingStage[Any, Any], ...]
    memory_gb: float = 0.0
    """A lower bound for the worker's memory, which may exceed that of any single stage."""

    @property
    def name(self) -> str:
        return " + ".join(stage.name for stage in self.stages)

    @property
    def gather(self) -> bool:
        return self.gather_position == 0

    @cached_property
    def gather_position(self) -> int | None:
        """The position of the stage that waits for all tasks of a source; None if there is none."""
        return next((position for position, stage in enumerate(self.stages) if isinstance(stage, GatherRole)), None)

    @property
    def resources(self) -> Resources:
        needs = [stage.resources for stage in self.stages]
        return Resources(
            cpus=max(need.cpus for need in needs),
            gpus=max(need.gpus for need in needs),
            gpu_memory_gb=max(need.gpu_memory_gb for need in needs),
            memory_gb=max(self.memory_gb, *(need.memory_gb for need in needs)),
        )

    @property
    def num_workers(self) -> int | None:
        return worker_count(self.stages[0])

    @property
    def batch_size(self) -> int:
        return max(stage.batch_size for stage in self.stages)

    @property
    def max_tasks_per_worker(self) -> int | None:
        limits = [stage.max_tasks_per_worker for stage in self.stages if stage.max_tasks_per_worker]
        return min(limits, default=None)


@fast_dataclass(frozen=True)
class Plan:
    """What will run: a source in the driver (or none), then groups of fused stages."""

    name: str
    source: SourceStage[Any] | None
    groups: tuple[Group, ...]
    tasks_are_sources: bool = False
    """The first stage is a user-defined source: each task that it returns is a source of its own."""
    rejects: ProcessingStage[Any, Any] | None = None
    scores: ProcessingStage[Any, Any] | None = None
    """Stages that write rejected rows and scores. The last group commits both and is not on the path to the output."""
    names: tuple[str, ...] = ()
    """Unique names of the stages, used for the score columns."""
    number: int = 0
    next_segment: Plan | None = None
    """The segment that starts when this one has finished."""
    user_stages: tuple[ProcessingStage[Any, Any], ...] = ()
    """The stages as the user wrote them, with composites intact; used only to print the plan."""

    @property
    def segments(self) -> tuple[Plan, ...]:
        """This segment and those after it; an executor runs one at a time."""
        return (self, *(self.next_segment.segments if self.next_segment else ()))

    @property
    def all_stages(self) -> tuple[ProcessingStage[Any, Any], ...]:
        """The stages of all segments."""
        return tuple(stage for segment in self.segments for stage in segment.stages)

    @property
    def main_groups(self) -> tuple[Group, ...]:
        """The groups from input to output."""
        return self.groups[:-1] if self.has_side_outputs else self.groups

    @property
    def has_side_outputs(self) -> bool:
        """Whether rejected rows or scores are written beside the output."""
        return self.rejects is not None or self.scores is not None

    @property
    def commit(self) -> CommitRole | None:
        """The last stage, if it commits its output."""
        last = self.stages[-1]
        return last if isinstance(last, CommitRole) else None

    @property
    def durable(self) -> bool:
        """Whether the last stage commits its output."""
        return self.commit is not None

    @property
    def stages(self) -> tuple[ProcessingStage[Any, Any], ...]:
        head = (self.source,) if self.source else ()
        return head + tuple(stage for group in self.main_groups for stage in group.stages)

    @property
    def side_output_commits(self) -> tuple[CommitRole, ...]:
        """The stages that commit rejected rows and scores, if any."""
        stages = self.groups[-1].stages if self.has_side_outputs else ()
        return tuple(stage for stage in stages if isinstance(stage, CommitRole))

    def side_output_recorder(self, group: Group) -> RejectedRowRecorder | None:
        """The recorder of a group's rejected rows and scores; None if neither was requested."""
        if not self.has_side_outputs or group.index >= len(self.main_groups):
            return None
        first = sum(len(before.stages) for before in self.groups[: group.index])
        suffix = f"-{self.number + 1}" if self.number else ""
        start = first + (self.source is not None)
        names = self.names[start : start + len(group.stages)]
        if self.scores is None:
            return RejectedRowRecorder(self.rejects, first, suffix)
        from gristmill.core.records.row_scores import ScoreRecorder

        score_recorder = ScoreRecorder(self.scores, names, self.stages, first, self.number + 1)
        return RejectedRowRecorder(self.rejects, first, suffix, score_recorder)

    def __str__(self) -> str:
        return self.describe()

    def describe(self, verbose: bool = False) -> str:
        """One line per stage; `verbose` shows the parts of composite stages, by group and segment, instead."""
        from gristmill.core.plan.plan_text import plan_text, verbose_plan_text

        return verbose_plan_text(self) if verbose else plan_text(self)


def make_plan(
    name: str,
    stages: Sequence[ProcessingStage[Any, Any]],
    initial_tasks: Sequence[Task[Any]] | None = None,
    fuse: bool = True,
    resuming: bool = False,
) -> Plan:
    """Compile a pipeline. Raises a PlanError that names the stage and how to fix it."""
    check_tasks(initial_tasks)
    stages = tuple(stages)
    flat = [copy.copy(stage) for stage in _with_default_source(decompose(stages), initial_tasks)]
    if not flat:
        raise PlanError(f"pipeline {name!r} has no stages: add some with add_stage(...)")
    for stage in flat:
        check_settings(stage)
        if not any(implements(stage, method) for method in ("process", "process_batch")):
            raise PlanError(f"stage {stage.name!r} ({type(stage).__name__}) has no process method: define one")
    source = _source_of(flat, initial_tasks)
    paths = paths_through(flat)
    for path in paths:
        check_types(path)
    for stage in flat:
        # A writer's check rejects a directory that holds output, as that of a resumed run does.
        if not (resuming and isinstance(stage, WriterRole)):
            stage.check()
    check_output_directories(flat)
    for path in paths:
        check_sampled_columns(path, source, initial_tasks)
    size = _input_bytes(source, initial_tasks)
    for stage in flat:
        if isinstance(stage, PlanningRole):
            stage.set_input_bytes(size)
    plan = _segments(name, flat, fuse, tasks_are_sources=source is None and initial_tasks is None)
    return replace(plan, user_stages=stages)


def _with_default_source(stages: list[ProcessingStage[Any, Any]], tasks: object) -> list[ProcessingStage[Any, Any]]:
    """The stages, preceded by the first stage's default source if the pipeline was given no tasks."""
    first = stages[0] if stages and tasks is None else None
    source = first.default_source() if isinstance(first, PlanningRole) else None
    return stages if source is None else [source, *stages]


def _segments(name: str, stages: Sequence[ProcessingStage[Any, Any]], fuse: bool, tasks_are_sources: bool) -> Plan:
    """One plan per run of stages that begins at a source, linked by `next_segment`."""
    starts = [index for index, stage in enumerate(stages) if index == 0 or isinstance(stage, SourceStage)]
    plan: Plan | None = None
    for number, (start, end) in reversed(list(enumerate(pairwise([*starts, len(stages)])))):
        first = stages[start]
        source = first if isinstance(first, SourceStage) else None
        rest = stages[start + 1 : end] if source else stages[start:end]
        if not rest:
            raise PlanError(f"pipeline {name!r} only lists its input: add a reader or another stage after it")
        alone = tasks_are_sources and not number
        plan = Plan(name, source, tuple(_cut(rest, fuse, alone)), alone, number=number, next_segment=plan)
    assert plan is not None
    return plan


def _input_bytes(source: SourceStage[Any] | None, initial_tasks: Sequence[Task[Any]] | None) -> int | None:
    if source is not None:
        return source.input_bytes()
    return None if initial_tasks is None else sum(task.nbytes for task in initial_tasks)


def decompose(stages: Iterable[ProcessingStage[Any, Any]]) -> list[ProcessingStage[Any, Any]]:
    """The stages with every composite replaced by its parts, recursively."""
    flat: list[ProcessingStage[Any, Any]] = []
    for stage in stages:
        if isinstance(stage, CompositeStage):
            parts = stage.stages()
            if not parts:
                raise PlanError(f"composite stage {stage.name!r} decomposes into nothing")
            inner = decompose(parts)
            flat.extend(_folded(inner, stage.name) if stage.folds else inner)
        else:
            flat.append(row_by_row(stage))
    return flat


def _folded(parts: Sequence[ProcessingStage[Any, Any]], name: str) -> list[ProcessingStage[Any, Any]]:
    parts = [copy.copy(part) for part in parts]
    for part in parts:
        part._planned = replace(part._planned, part_of=name if part.name != name else "")
    return parts


def paths_through(stages: Sequence[ProcessingStage[Any, Any]]) -> list[list[ProcessingStage[Any, Any]]]:
    """The paths of a row: for each innermost branch, the stages on it or on no branch; without branches, all stages."""
    branches = list(dict.fromkeys(stage._planned.branch for stage in stages))
    innermost = [branch for branch in branches if not any(other.startswith(f"{branch}/") for other in branches)]
    ends = [Lineage(branch=branch) for branch in innermost if branch] or [Lineage()]
    return [[stage for stage in stages if not end.skips_branch(stage._planned.branch)] for end in ends]


def check_tasks(tasks: object) -> None:
    if tasks is None:
        return
    if not isinstance(tasks, list | tuple) or not all(isinstance(task, Task) for task in tasks):
        raise TypeError(f"initial_tasks must be a list of tasks, as in [Task(data=...)], not {tasks!r:.80}")


def check_output_directories(stages: Sequence[ProcessingStage[Any, Any]]) -> None:
    """Refuse a stage that writes into a directory which another one reads: the next run would read that output."""
    readers = [stage for stage in stages if isinstance(stage, PlanningRole)]
    inputs = [absolute_path(path) for stage in readers for path in stage.input_files()]
    for stage in stages:
        directory = output_directory_of(stage)
        root = f"{absolute_path(directory)}/" if directory else ""
        inside = [path for path in inputs if path.startswith(root)] if root else []
        if inside:
            raise PlanError(
                f"stage {stage.name!r} writes to {directory}, which holds the input {shorten(inside)}: "
                "choose an output directory outside the input"
            )


def absolute_path(path: str) -> str:
    # os.path because this runs for every input file, and pathlib is ten times slower.
    return path.rstrip("/") if "://" in path else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111


def _source_of(
    stages: Sequence[ProcessingStage[Any, Any]], initial_tasks: Sequence[Task[Any]] | None
) -> SourceStage[Any] | None:
    for stage in stages[1:]:
        if isinstance(stage, SourceStage) and not stage.continues:
            raise PlanError(f"stage {stage.name!r} lists input, so it must be the first stage of a pipeline")
    first = stages[0]
    if not isinstance(first, SourceStage):
        takes = task_types(first)[0] if initial_tasks is None else None
        if takes is not None and issubclass(takes, Batch):
            raise PlanError(
                f"the pipeline starts with {first.name!r}, which takes rows, and nothing reads any: put a reader "
                "before it, such as JsonlReader('data'), or give initial_tasks"
            )
        return None
    if initial_tasks is not None:
        raise PlanError(
            f"the pipeline starts with {first.name!r}, which lists its own input, and initial_tasks were "
            "given too: remove one of them"
        )
    return first


def check_types(stages: Sequence[ProcessingStage[Any, Any]]) -> None:
    """Each stage must accept the task type that the stage before it returns, where both are annotated."""
    for before, after in pairwise(stages):
        gives, takes = task_types(before)[1], task_types(after)[0]
        if gives is None or takes is None or isinstance(after, GatherRole | SourceStage):
            continue
        if not (issubclass(gives, takes) or issubclass(takes, gives)):
            raise ColumnError(
                f"stage {after.name!r} takes {takes.__name__}, but {before.name!r} before it gives "
                f"{gives.__name__}: add a stage between them that converts one to the other"
            )


def _cut(stages: Sequence[ProcessingStage[Any, Any]], fuse: bool, tasks_are_sources: bool) -> list[Group]:
    runs: list[list[ProcessingStage[Any, Any]]] = [[stages[0]]]
    for index, (before, after) in enumerate(pairwise(stages)):
        # A user-defined source gets a single empty task; its output must be able to spread over all workers.
        alone = tasks_are_sources and index == 0
        if fuse and not alone and not isinstance(after, GatherRole) and can_fuse(before, after):
            runs[-1].append(after)
        else:
            runs.append([after])
    return [Group(index, tuple(run)) for index, run in enumerate(runs)]


def can_fuse(before: ProcessingStage[Any, Any], after: ProcessingStage[Any, Any]) -> bool:
    """Whether two neighbours share a worker on any executor: CPU stages with equal CPU needs, or at most one CPU."""
    same_cpus = before.resources.cpus == after.resources.cpus
    light = max(before.resources.cpus, after.resources.cpus) <= 1
    return (same_cpus or light) and can_share_worker(before, after)


def can_share_worker(before: ProcessingStage[Any, Any], after: ProcessingStage[Any, Any]) -> bool:
    """Whether two neighbours can share a worker at all: CPU stages with the same environment and worker count."""
    if before.resources.requires_gpu or after.resources.requires_gpu:
        return False
    same_environment = (before.runtime_env or None) == (after.runtime_env or None)
    return same_environment and worker_count(before) == worker_count(after)
