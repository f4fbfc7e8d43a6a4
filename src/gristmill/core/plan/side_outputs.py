"""What is kept beside the output when asked for: rows that stages drop, and what filters think of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import PlanError
from gristmill.core.plan.planner import Group, Plan, absolute_path, check_output_directories
from gristmill.core.records.row_scores import score_columns, unique_names

if TYPE_CHECKING:
    from gristmill.core.stage import ProcessingStage


def add_side_outputs(plan: Plan, rejects: Any, scores: Any, commit: ProcessingStage[Any, Any]) -> Plan:
    """The plan with a stage that writes rejected rows, one that writes scores, or both, and one that commits them."""
    taken = [absolute_path(owned) for stage in plan.all_stages if (owned := stage.output_directory())]
    for writer, what in ((rejects, "rejected"), (scores, "scores")):
        place = writer.output_directory() if writer else None
        if not place:
            continue
        if absolute_path(place) in taken:
            raise PlanError(f"{what}={place!r} is where the output goes: choose another directory for {what}=")
        if rejects and scores and absolute_path(rejects.output_directory()) == absolute_path(scores.output_directory()):
            raise PlanError(f"rejected= and scores= are both {place!r}: choose a directory for each")
        writer.check()
        check_output_directories([*plan.all_stages, writer])
    if scores is not None:
        scores.stages = score_columns(plan.all_stages)
    return _add_to_segments(plan, rejects, scores, commit, tuple(unique_names(stage.name for stage in plan.all_stages)))


def _add_to_segments(
    plan: Plan, rejects: Any, scores: Any, commit: ProcessingStage[Any, Any], names: tuple[str, ...]
) -> Plan:
    groups = (*plan.groups, Group(len(plan.groups), (commit,)))
    count = len(plan.stages)
    after = _add_to_segments(plan.next_segment, rejects, scores, commit, names[count:]) if plan.next_segment else None
    return replace(plan, groups=groups, rejects=rejects, scores=scores, names=names[:count], next_segment=after)
