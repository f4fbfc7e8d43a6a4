"""What is kept beside the output when asked for: rows that stages drop, and what filters think of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import PlanError
from gristmill.core.plan import Group, Plan, absolute, check_places
from gristmill.core.scores import score_columns, unique_names

if TYPE_CHECKING:
    from gristmill.core.stage import ProcessingStage


def keeping(plan: Plan, rejects: Any, scores: Any, commit: ProcessingStage[Any, Any]) -> Plan:
    """The plan with a stage that writes rejected rows, one that writes scores, or both, and one that commits them."""
    taken = [absolute(owned) for stage in plan.everything if (owned := stage.owns())]
    for writer, what in ((rejects, "rejected"), (scores, "scores")):
        place = writer.owns() if writer else None
        if not place:
            continue
        if absolute(place) in taken:
            raise PlanError(f"{what}={place!r} is where the output goes: choose another directory for {what}=")
        if rejects and scores and absolute(rejects.owns()) == absolute(scores.owns()):
            raise PlanError(f"rejected= and scores= are both {place!r}: choose a directory for each")
        writer.check()
        check_places([*plan.everything, writer])
    if scores is not None:
        scores.stages = score_columns(plan.everything)
    return _keeping(plan, rejects, scores, commit, tuple(unique_names(stage.name for stage in plan.everything)))


def _keeping(plan: Plan, rejects: Any, scores: Any, commit: ProcessingStage[Any, Any], names: tuple[str, ...]) -> Plan:
    groups = (*plan.groups, Group(len(plan.groups), (commit,)))
    count = len(plan.stages)
    after = _keeping(plan.after, rejects, scores, commit, names[count:]) if plan.after else None
    return replace(plan, groups=groups, rejects=rejects, scores=scores, names=names[:count], after=after)
