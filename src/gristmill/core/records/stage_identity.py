"""Describe what a stage computes as plain data, so that a later run can tell what has changed.

Settings that affect how a stage runs but not its output (workers, batch and block sizes, resources) are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.core.records.value_identity import INCOMPARABLE, KIND, describe_value

if TYPE_CHECKING:
    from gristmill.core.plan.planner import Plan
    from gristmill.core.stage import ProcessingStage


def describe_plan(plan: Plan) -> list[dict[str, Any]]:
    """Each stage of a plan as JSON-compatible data."""
    return [describe_stage(stage) for stage in plan.stages]


def describe_stage(stage: ProcessingStage[Any, Any]) -> dict[str, Any]:
    planned = {"branch": stage._planned.branch, "planned_columns": list(stage._planned.columns)}
    described = {"name": stage.name, **describe_value(stage)}
    return described | {name: value for name, value in planned.items() if value}


def plan_differences(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """The differences between two descriptions of a plan, as sentences."""
    names = [stage["name"] for stage in before], [stage["name"] for stage in after]
    if names[0] != names[1]:
        return [f"the stages were {', '.join(names[0])}, and are now {', '.join(names[1])}"]
    differences = []
    for old, new in zip(before, after, strict=True):
        differences += [f"stage {old['name']!r}: {line}" for line in _changes("", old, new)]
    return differences


def without_code(described: Any) -> Any:
    """A description of a plan without what functions and classes do: what is left is how stages were set."""
    if isinstance(described, list):
        return [without_code(item) for item in described]
    if not isinstance(described, dict):
        return described
    if described.get(KIND) in ("function", "type"):
        return {KIND: described[KIND], "name": described["name"]}
    return {name: without_code(value) for name, value in described.items() if name != "@code"}


def _changes(path: str, old: Any, new: Any) -> list[str]:
    if isinstance(new, dict) and new.get(KIND) == INCOMPARABLE:
        advice = "Make it in setup(), or name it in the stage's not_identity if the output does not depend on it"
        return [f"{path} is a {new['type']}, which cannot be compared with that of an earlier run. {advice}"]
    if isinstance(old, dict) and isinstance(new, dict) and old.get(KIND) == new.get(KIND):
        keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
        return [line for key in keys for line in _changes(f"{path}.{key}".strip("."), old.get(key), new.get(key))]
    owner, _, last = path.rpartition(".")
    if last == "code" and isinstance(old, str) and isinstance(new, str):
        return [f"the code of {owner or 'the stage'} has changed"]
    if last == "digest":
        return [f"{owner} has changed"]
    return [f"{path} was {_short(old)}, and is now {_short(new)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."
