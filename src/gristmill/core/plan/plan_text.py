"""Format a plan as text: one line per stage that the user wrote, or everything that will run.

The short form shows a stage's class and its non-default parameters, read from attributes with the names of the
constructor's parameters. Mappings, data and values that look like secrets are omitted, and long values are truncated;
the recipe has them in full.
"""

from __future__ import annotations

import inspect
import types
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from gristmill.core.function_stage import FunctionStage
from gristmill.core.resources import Resources
from gristmill.core.secret_values import Secret, hide_in_urls, is_secret_name
from gristmill.core.stage_roles import GatherRole, PlanningRole

if TYPE_CHECKING:
    from gristmill.core.plan.planner import Plan
    from gristmill.core.stage import ProcessingStage

MAX_VALUE_CHARS = 60
MAX_LIST_ITEMS = 3


def plan_text(plan: Plan) -> str:
    """One line per stage of the pipeline, and the totals."""
    stages = plan.user_stages
    if not stages:  # a segment by itself
        return verbose_plan_text(plan)
    lines = [f"{plan.name}: {_plural(len(stages), 'stage')}"]
    names = [type(stage).__name__ if not isinstance(stage, FunctionStage) else stage.name for stage in stages]
    width = max(len(name) for name in names)
    for number, (name, stage) in enumerate(zip(names, stages, strict=True), 1):
        lines.append(f"  {number:>2}  {name:<{width}}  {_stage_details(stage)}".rstrip())
    return "\n".join([*lines, f"runs as {_totals(plan)}"])


def verbose_plan_text(plan: Plan) -> str:
    """The parts of composite stages, in the groups and segments in which they run."""
    lines = [f"{plan.name}: {_totals(plan)}"]
    for segment in plan.segments:
        lines += [f"segment {segment.number + 1}"] if plan.next_segment else []
        lines += _segment_lines(segment)
    return "\n".join(lines)


def _totals(plan: Plan) -> str:
    groups = sum(len(segment.main_groups) for segment in plan.segments)
    segments = f" in {len(plan.segments)} segments" if plan.next_segment else ""
    return f"{_plural(len(plan.all_stages), 'step')} in {_plural(groups, 'group')}{segments}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _stage_details(stage: ProcessingStage[Any, Any]) -> str:
    """Parameters, or columns if there are none to show; then time limit and resources if they are not the defaults."""
    details = [] if isinstance(stage, FunctionStage) else _parameters(stage)
    details = details or _columns(stage)
    if stage.timeout_s:
        details.append(f"timeout_s={stage.timeout_s:g}")
    if stage.resources != Resources():
        details.append(str(stage.resources))
    return ", ".join(details)


def _parameters(thing: object) -> list[str]:
    """The first parameter if it is required, and `name=value` of the others that are not at their defaults."""
    shown: list[str] = []
    for name, parameter in inspect.signature(type(thing)).parameters.items():
        value = getattr(thing, name, parameter.default)
        secret = isinstance(value, str | bytes | int | float | list | tuple) and is_secret_name(name)
        if (secret and not isinstance(value, Secret)) or value is parameter.default:
            continue
        text = _value_text(value)
        if text and parameter.default is parameter.empty and not shown:
            shown.append(text)
        elif text and text != _value_text(parameter.default):
            shown.append(f"{name}={text}")
    return shown


def _value_text(value: Any) -> str:
    """The value as in a recipe; empty for values that do not fit on a line."""
    if isinstance(value, Secret):
        return value.reference
    if value is None or isinstance(value, bool | int | float | str | PurePath):
        text = f"{value}"
    elif isinstance(value, list | tuple):
        items = [_value_text(item) for item in value[:MAX_LIST_ITEMS]]
        more = f", and {len(value) - MAX_LIST_ITEMS} more" if len(value) > MAX_LIST_ITEMS else ""
        return f"[{', '.join(items)}{more}]" if all(items) else ""
    elif isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        text = value.__name__
    elif type(value).__module__ == "builtins" or isinstance(value, Resources):
        return ""
    else:
        parameters = ", ".join(_parameters(value))
        return f"{type(value).__name__}({parameters})" if parameters else type(value).__name__
    text = hide_in_urls(" ".join(text.split()))
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"


def _segment_lines(segment: Plan) -> list[str]:
    lines = [f"  driver   {segment.source.name}"] if segment.source else []
    for group in segment.main_groups:
        workers = f", {group.num_workers} workers" if group.num_workers else ""
        lines.append(f"  group {group.index}  ({group.resources}{workers})")
        for stage in group.stages:
            notes = stage.plan_notes() if isinstance(stage, PlanningRole) else ()
            lines += [f"             {_step_line(stage)}", *(f"               {note}" for note in notes)]
    return lines


def _step_line(stage: ProcessingStage[Any, Any]) -> str:
    notes = _columns(stage)
    notes += ["gathers each source"] if isinstance(stage, GatherRole) else []
    notes += [f"batches of {stage.batch_size}"] if stage.batch_size > 1 else []
    notes += [f"{stage.timeout_s:g} s at most"] if stage.timeout_s else []
    return f"{stage.name:<28} {'; '.join(notes)}".rstrip()


def _columns(stage: ProcessingStage[Any, Any]) -> list[str]:
    needs, gives = stage.inputs()[1], stage.outputs()[1]
    notes = [f"needs {', '.join(needs)}"] if needs else []
    return notes + ([f"gives {', '.join(gives)}"] if gives else [])
