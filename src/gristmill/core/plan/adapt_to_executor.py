"""Adapt a plan to the executor that runs it. The output of the run does not depend on this.

- Stages with `Resources(gpus=0.25, or_cpu=True)` run on CPUs where the executor has no GPU.
- Stages that commit files join the group that wrote them, if the executor schedules calls itself (`fuse_commits`).
- Where an engine needs a worker of every group at once, neighbouring groups are merged until the cores suffice
  (`merge_groups_to_fit`). A merged worker leaves some of its cores idle part of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import PlanError
from gristmill.core.plan.planner import (
    Group,
    Plan,
    absolute_path,
    can_fuse,
    can_share_worker,
    check_output_directories,
    decompose,
    make_plan,
)
from gristmill.core.records.run_location import refuse_records_inside
from gristmill.core.stage import ProcessingStage
from gristmill.core.stage_roles import CommitStage, WriterRole, output_directory_of

if TYPE_CHECKING:
    from gristmill.core.executor import Executor
    from gristmill.core.task import Task

_ROUNDING = 1e-9


def plan_for_executor(
    name: str,
    stages: Iterable[ProcessingStage[Any, Any]],
    executor: Executor,
    tasks: Sequence[Task[Any]] | None = None,
    resuming: bool = False,
    beside: tuple[Any, Any, Any] | None = None,
) -> Plan:
    """The plan as an executor runs it, after checking that it can.

    `beside` holds the writers of rejected rows and of scores, and the stage that commits both.
    """
    stages = tuple(stages)
    plan = make_plan(name, without_optional_gpus(stages, executor), tasks, executor.fuse, resuming)
    plan = replace(plan, user_stages=stages)
    if beside:
        plan = add_side_outputs(plan, *beside)
    for segment in plan.segments:
        executor.check(segment)
    return arrange_groups(plan, executor)  # after check(), which may have waited for nodes to join


def add_side_outputs(plan: Plan, rejects: Any, scores: Any, commit: ProcessingStage[Any, Any]) -> Plan:
    """The plan with a writer of rejected rows, a writer of scores, or both, and the stage that commits them."""
    for writer, option in ((rejects, "rejected"), (scores, "scores")):
        directory = writer.output_directory() if writer else None
        if not directory:
            continue
        refuse_records_inside(option, directory, _written_directories(plan))
        if rejects and scores and absolute_path(rejects.output_directory()) == absolute_path(scores.output_directory()):
            raise PlanError(f"rejected= and scores= are both {directory!r}: choose a directory for each")
        writer.check()
        check_output_directories([*plan.all_stages, writer])
    from gristmill.core.records.row_scores import score_columns, unique_names  # rarely needed, and slow to import

    if scores is not None:
        scores.stages = score_columns(plan.all_stages)
    return _add_to_segments(plan, rejects, scores, commit, tuple(unique_names(stage.name for stage in plan.all_stages)))


def check_record_directories(plan: Plan, run_url: str, report: str = "") -> None:
    """Refuse a run directory or a report in an output, and an output in another one."""
    outputs = _written_directories(plan)
    for option, place in (("run_dir", run_url), ("report", report)):
        if place:
            refuse_records_inside(option, place, outputs)
    roots = list(dict.fromkeys(map(absolute_path, outputs)))
    for output, other in permutations(roots, 2):
        if output.startswith(f"{other}/"):
            raise PlanError(
                f"the output {output} lies in the output {other}, so that reading one would read both: give each its "
                "own directory"
            )


def _written_directories(plan: Plan) -> list[str]:
    writers = [stage for stage in plan.all_stages if isinstance(stage, WriterRole)]
    return [directory for stage in writers if (directory := output_directory_of(stage))]


def _add_to_segments(
    plan: Plan, rejects: Any, scores: Any, commit: ProcessingStage[Any, Any], names: tuple[str, ...]
) -> Plan:
    groups = (*plan.groups, Group(len(plan.groups), (commit,)))
    count = len(plan.stages)
    after = _add_to_segments(plan.next_segment, rejects, scores, commit, names[count:]) if plan.next_segment else None
    return replace(plan, groups=groups, rejects=rejects, scores=scores, names=names[:count], next_segment=after)


def without_optional_gpus(
    stages: Iterable[ProcessingStage[Any, Any]], executor: Executor
) -> Sequence[ProcessingStage[Any, Any]]:
    """The stages; if the executor has no GPU, those with `or_cpu` no longer ask for one."""
    flat = decompose(stages)
    optional = [stage.resources.or_cpu and stage.resources.requires_gpu for stage in flat]
    if not any(optional) or _has_gpu(executor):
        return flat
    return [_on_cpu(stage) if gpu_optional else stage for stage, gpu_optional in zip(flat, optional, strict=True)]


def _has_gpu(executor: Executor) -> bool:
    machine = executor.machine()
    return machine is not None and bool(machine.gpus)


def _on_cpu(stage: ProcessingStage[Any, Any]) -> ProcessingStage[Any, Any]:
    return stage.with_(resources=replace(stage.resources, gpus=0.0, gpu_memory_gb=0.0))


def arrange_groups(plan: Plan, executor: Executor) -> Plan:
    """The plan, with the groups of each segment arranged by the executor."""
    after = arrange_groups(plan.next_segment, executor) if plan.next_segment else None
    return executor.arrange(replace(plan, next_segment=after))


def fuse_commits(plan: Plan) -> Plan:
    """The plan with each commit stage moved into the group that writes the files, so that a source read by one call is
    committed by the same call. Plans with side outputs are left alone: those are committed by a group of their own."""
    if plan.has_side_outputs:
        return plan
    groups: list[Group] = []
    for group in plan.groups:
        before = groups[-1] if groups else None
        alone = before is None or before.gather_position is not None or (plan.tasks_are_sources and len(groups) == 1)
        if before and not alone and _only_commits(group) and _asks_no_more(before, group):
            groups[-1] = replace(before, stages=before.stages + group.stages)
        else:
            groups.append(replace(group, index=len(groups)))
    return replace(plan, groups=tuple(groups))


def _only_commits(group: Group) -> bool:
    return len(group.stages) == 1 and isinstance(group.stages[0], CommitStage)


def _asks_no_more(before: Group, after: Group) -> bool:
    """Whether workers of the first group can run the second without further resources."""
    same = (
        after.batch_size == 1
        and after.max_tasks_per_worker is None
        and after.resources.memory_gb <= before.resources.memory_gb
    )
    return same and can_fuse(before.stages[-1], after.stages[0])


def merge_groups_to_fit(plan: Plan, crowd: Sequence[Group], cpus: float, memory_gb: float = math.inf) -> Plan:
    """The plan with neighbours among `crowd` merged until one worker of each group fits on `cpus` cores.

    A merged worker needs the memory of both, at most `memory_gb`. Neighbours with the most similar CPU needs are merged
    first, since cores that one of the two does not use are idle. Groups that cannot share a worker stay apart.
    """
    groups = list(crowd)
    while sum(_cpus(group) for group in groups) > cpus + _ROUNDING:
        pairs = [at for at in range(len(groups) - 1) if _can_share(groups[at], groups[at + 1], memory_gb)]
        if not pairs:
            break
        at = min(pairs, key=lambda index: _idle(groups[index], groups[index + 1]))
        one, other = groups[at : at + 2]
        groups[at : at + 2] = [Group(at, one.stages + other.stages, _memory_gb(one, other))]
    first, end = (crowd[0].index, crowd[-1].index + 1) if crowd else (0, 0)
    merged = [*plan.groups[:first], *groups, *plan.groups[end:]]
    return replace(plan, groups=tuple(replace(group, index=index) for index, group in enumerate(merged)))


def _cpus(group: Group) -> float:
    return group.resources.cpus * (group.num_workers or 1)


def _memory_gb(before: Group, after: Group) -> float:
    return before.resources.memory_gb + after.resources.memory_gb


def _can_share(before: Group, after: Group, memory_gb: float) -> bool:
    apart = after.gather or not can_share_worker(before.stages[-1], after.stages[0])
    return not apart and _memory_gb(before, after) <= memory_gb


def _idle(before: Group, after: Group) -> tuple[float, float]:
    one, other = before.resources.cpus, after.resources.cpus
    return abs(one - other), max(one, other)
