"""From a pipeline to a plan: decompose, check, fuse, cut. No cluster is needed, and nothing runs.

    decompose   composites become their stages
    check       inputs exist, columns and task types fit between neighbours, settings make sense
    fuse        neighbours with compatible needs become one group, run by one worker
    cut         a new group begins after a user's own source, and where tasks are gathered by source; a new segment
                where a source stage lists what the stages before it have written (an exchange)

The plan holds copies of the stages, so neither planning nor running changes the user's objects.
"""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ColumnError, PlanError, shorten
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.function import task_types
from gristmill.core.plan.column_checks import check_sampled_columns
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
    """What it needs at least, though no stage by itself may need so much."""

    @property
    def name(self) -> str:
        return " + ".join(stage.name for stage in self.stages)

    @property
    def gather(self) -> bool:
        return self.gather_position == 0

    @cached_property
    def gather_position(self) -> int | None:
        """The position of the stage before which all tasks of a source wait for each other; None if there is none."""
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
    """The first stage is the user's own source: each task that leaves it is a source of its own."""
    rejects: ProcessingStage[Any, Any] | None = None
    scores: ProcessingStage[Any, Any] | None = None
    """Write what stages drop, and what they think of rows. The last group commits that, and is no part of the way from
    input to output."""
    names: tuple[str, ...] = ()
    """What the stages are known as among the scores."""
    number: int = 0
    next_segment: Plan | None = None
    """The segment that begins when this one is over."""
    user_stages: tuple[ProcessingStage[Any, Any], ...] = ()
    """The stages of the pipeline as the user wrote them, composites whole; only to print the plan."""

    @property
    def segments(self) -> tuple[Plan, ...]:
        """This plan and those after it: an executor runs one at a time."""
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
        """Whether something is kept beside the output."""
        return self.rejects is not None or self.scores is not None

    @property
    def commit(self) -> CommitRole | None:
        """The last stage, if it puts its output in place for good."""
        last = self.stages[-1]
        return last if isinstance(last, CommitRole) else None

    @property
    def durable(self) -> bool:
        """Whether the last stage puts its output in place for good."""
        return self.commit is not None

    @property
    def stages(self) -> tuple[ProcessingStage[Any, Any], ...]:
        head = (self.source,) if self.source else ()
        return head + tuple(stage for group in self.main_groups for stage in group.stages)

    @property
    def side_output_commits(self) -> tuple[CommitRole, ...]:
        """The stages that commit rejected rows and scores, if they are kept."""
        stages = self.groups[-1].stages if self.has_side_outputs else ()
        return tuple(stage for stage in stages if isinstance(stage, CommitRole))

    def side_output_recorder(self, group: Group) -> RejectedRowRecorder | None:
        """What writes down the rows that the stages of a group drop, or their scores, if somebody asked for them."""
        if not self.has_side_outputs or group.index >= len(self.main_groups):
            return None
        first = sum(len(before.stages) for before in self.groups[: group.index])
        suffix = f"-{self.number + 1}" if self.number else ""
        start = first + (self.source is not None)
        names = self.names[start : start + len(group.stages)]
        if self.scores is None:
            return RejectedRowRecorder(self.rejects, first, suffix)
        from gristmill.core.records.row_scores import ScoreRecorder

        keeper = ScoreRecorder(self.scores, names, self.stages, first, self.number + 1)
        return RejectedRowRecorder(self.rejects, first, suffix, keeper)

    def __str__(self) -> str:
        return self.describe()

    def describe(self, verbose: bool = False) -> str:
        """One line for each stage of the pipeline. `verbose` shows the parts of composite stages instead, in the
        groups and segments in which they run."""
        from gristmill.core.plan.plan_text import plan_text, verbose_plan_text

        return verbose_plan_text(self) if verbose else plan_text(self)


def make_plan(
    name: str,
    stages: Sequence[ProcessingStage[Any, Any]],
    initial_tasks: Sequence[Task[Any]] | None = None,
    fuse: bool = True,
    resuming: bool = False,
) -> Plan:
    """Compile a pipeline. Raises a PlanError that names the stage and the way out."""
    check_tasks(initial_tasks)
    stages = tuple(stages)
    flat = [copy.copy(stage) for stage in _with_default_source(decompose(stages), initial_tasks)]
    if not flat:
        raise PlanError(f"pipeline {name!r} has no stages: add some with add_stage(...)")
    for stage in flat:
        check_settings(stage)
        if not any(implements(stage, method) for method in ("process", "process_batch")):
            raise PlanError(f"stage {stage.name!r} ({type(stage).__name__}) has no process method: write one")
    source = _source_of(flat, initial_tasks)
    ways = paths_through(flat)
    for way in ways:
        check_types(way)
    for stage in flat:
        if not (resuming and isinstance(stage, WriterRole)):  # the output of the run that is resumed may be there
            stage.check()
    check_output_directories(flat)
    for way in ways:
        check_sampled_columns(way, source, initial_tasks)
    size = _input_bytes(source, initial_tasks)
    for stage in flat:
        if isinstance(stage, PlanningRole):
            stage.set_input_bytes(size)
    plan = _segments(name, flat, fuse, tasks_are_sources=source is None and initial_tasks is None)
    return replace(plan, user_stages=stages)


def _with_default_source(stages: list[ProcessingStage[Any, Any]], tasks: object) -> list[ProcessingStage[Any, Any]]:
    """The stages, after the source that the first one brings along if the pipeline was given no tasks."""
    first = stages[0] if stages and tasks is None else None
    source = first.default_source() if isinstance(first, PlanningRole) else None
    return stages if source is None else [source, *stages]


def _segments(name: str, stages: Sequence[ProcessingStage[Any, Any]], fuse: bool, tasks_are_sources: bool) -> Plan:
    """A plan for each run of stages that begins at a source."""
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
    """The stages with every composite replaced by what it is made of."""
    flat: list[ProcessingStage[Any, Any]] = []
    for stage in stages:
        if isinstance(stage, CompositeStage):
            parts = stage.stages()
            if not parts:
                raise PlanError(f"composite stage {stage.name!r} decomposes into nothing")
            inner = decompose(parts)
            flat.extend(_folded(inner, stage.name) if stage.folds else inner)
        else:
            flat.append(stage)
    return flat


def _folded(parts: Sequence[ProcessingStage[Any, Any]], name: str) -> list[ProcessingStage[Any, Any]]:
    parts = [copy.copy(part) for part in parts]
    for part in parts:
        part._planned = replace(part._planned, part_of=name if part.name != name else "")
    return parts


def paths_through(stages: Sequence[ProcessingStage[Any, Any]]) -> list[list[ProcessingStage[Any, Any]]]:
    """The stages that a row may pass: all of them, or for each branch those that are on it or on none."""
    branches = list(dict.fromkeys(stage._planned.branch for stage in stages))
    last = [one for one in branches if not any(other.startswith(f"{one}/") for other in branches)]
    ends = [Lineage(branch=one) for one in last if one] or [Lineage()]
    return [[stage for stage in stages if not end.skips_branch(stage._planned.branch)] for end in ends]


def check_tasks(tasks: object) -> None:
    if tasks is None:
        return
    if not isinstance(tasks, list | tuple) or not all(isinstance(task, Task) for task in tasks):
        raise TypeError(f"initial_tasks must be a list of tasks, as in [Task(data=...)], not {tasks!r:.80}")


def check_output_directories(stages: Sequence[ProcessingStage[Any, Any]]) -> None:
    """No stage may write into a directory that another one reads from: the next run would read what this one wrote."""
    readers = [stage for stage in stages if isinstance(stage, PlanningRole)]
    inputs = [absolute_path(path) for stage in readers for path in stage.input_files()]
    for stage in stages:
        directory = output_directory_of(stage)
        root = f"{absolute_path(directory)}/" if directory else ""
        inside = [path for path in inputs if path.startswith(root)] if root else []
        if inside:
            raise PlanError(
                f"stage {stage.name!r} writes to {directory}, which holds the input {shorten(inside)}: "
                "choose another directory for the output, outside of the input"
            )


def absolute_path(path: str) -> str:
    # os.path, since this is asked of every input file, and pathlib takes ten times as long
    return path.rstrip("/") if "://" in path else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111


def _source_of(
    stages: Sequence[ProcessingStage[Any, Any]], initial_tasks: Sequence[Task[Any]] | None
) -> SourceStage[Any] | None:
    for stage in stages[1:]:
        if isinstance(stage, SourceStage) and not stage.continues:
            raise PlanError(f"stage {stage.name!r} lists input, so it must be the first stage of a pipeline")
    first = stages[0]
    if not isinstance(first, SourceStage):
        return None
    if initial_tasks is not None:
        raise PlanError(
            f"the pipeline starts with {first.name!r}, which lists its own input, and initial_tasks were "
            "given too: leave out one of them"
        )
    return first


def check_types(stages: Sequence[ProcessingStage[Any, Any]]) -> None:
    """Each stage must take the type of task that the one before it gives, where both say so."""
    for before, after in pairwise(stages):
        gives, takes = task_types(before)[1], task_types(after)[0]
        if gives is None or takes is None or isinstance(after, GatherRole | SourceStage):
            continue
        if not (issubclass(gives, takes) or issubclass(takes, gives)):
            raise ColumnError(
                f"stage {after.name!r} takes {takes.__name__}, but {before.name!r} before it gives "
                f"{gives.__name__}: put a stage between them that turns one into the other"
            )


def _cut(stages: Sequence[ProcessingStage[Any, Any]], fuse: bool, tasks_are_sources: bool) -> list[Group]:
    runs: list[list[ProcessingStage[Any, Any]]] = [[stages[0]]]
    for index, (before, after) in enumerate(pairwise(stages)):
        alone = tasks_are_sources and index == 0  # one empty task: what it yields must spread over the workers
        if fuse and not alone and not isinstance(after, GatherRole) and can_fuse(before, after):
            runs[-1].append(after)
        else:
            runs.append([after])
    return [Group(index, tuple(run)) for index, run in enumerate(runs)]


def can_fuse(before: ProcessingStage[Any, Any], after: ProcessingStage[Any, Any]) -> bool:
    """Whether two neighbours share a worker wherever they run: light CPU stages, or those of one need."""
    same_cpus = before.resources.cpus == after.resources.cpus
    light = max(before.resources.cpus, after.resources.cpus) <= 1
    return (same_cpus or light) and can_share_worker(before, after)


def can_share_worker(before: ProcessingStage[Any, Any], after: ProcessingStage[Any, Any]) -> bool:
    """Whether two neighbours can share a worker at all: CPU stages of one environment and one pool size."""
    if before.resources.requires_gpu or after.resources.requires_gpu:
        return False
    same_environment = (before.runtime_env or None) == (after.runtime_env or None)
    return same_environment and worker_count(before) == worker_count(after)
