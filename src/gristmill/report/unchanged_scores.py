"""Find out whether a filter with other parameters would give a document the same score.

Two filters are compared, as they were recorded and as they would be: which attributes differ, and whether the methods
that compute scores read one of them. Only the code is looked at: the names that the methods mention, and those of the
methods and properties that they use. What cannot be seen there (an object that is handed on as a whole, attributes that
are looked up by name, a method written in C) counts as reading everything, so the answer is never wrong, but may be
that it is not known.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator, Sequence
from typing import Any

from gristmill.core.deciding_stage import DecidingStage, FilteringStage, FilterStep
from gristmill.core.records.value_identity import describe_value
from gristmill.core.stage import ProcessingStage
from gristmill.text.rule_filter import RuleFilter

SCORING = (
    *("score_document", "score_batch", "score_counts", "score_sample"),
    *("analyser", "statistics", "unspaced", "setup"),
)
MEASURING = ("measure", "measure_batch", "measure_counts", "statistics", "unspaced", "setup")
_BY_NAME = frozenset({"getattr", "vars", "__dict__", "__getattribute__", "locals"})
_LOOKUPS = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "LOAD_SUPER_ATTR")


def comparable_scores(before: ProcessingStage[Any, Any], after: ProcessingStage[Any, Any]) -> dict[str, bool]:
    """By label, whether a stage with other parameters gives all rows the scores that it gave them, and so can be judged
    by those."""
    if isinstance(before, FilteringStage) and isinstance(after, FilteringStage):
        steps = {step.label: step for step in before.filter_steps()}
        given = after.scores_are_given
        return {step.label: _same_scores(steps.get(step.label), step, given) for step in after.filter_steps()}
    if not isinstance(after, DecidingStage) or type(before) is not type(after):
        return {}
    same = _changed_attributes(before, after) <= {*after.limit_parameters}
    return dict.fromkeys(after.rules(), same)


def changed_labels(before: ProcessingStage[Any, Any], after: ProcessingStage[Any, Any]) -> set[str]:
    """The filters of a stage that other parameters change, by label."""
    if not isinstance(before, FilteringStage) or not isinstance(after, FilteringStage):
        return set(after.rules()) if isinstance(after, DecidingStage) else set()
    steps = {step.label: step for step in before.filter_steps()}
    return {
        step.label
        for step in after.filter_steps()
        if step.label not in steps or _told(step) != _told(steps[step.label])
    }


def _told(step: FilterStep) -> Any:
    return describe_value([step.tool, step.field, step.invert])


def _same_scores(before: FilterStep | None, after: FilterStep, given: bool) -> bool:
    if before is None or before.field != after.field or type(before.tool) is not type(after.tool):
        return False
    if given:
        return True
    changed = _changed_attributes(before.tool, after.tool)
    if isinstance(after.tool, RuleFilter) and after.tool.decides_by_rules:
        measured_anew = {name for rule in after.tool.rules() for name in rule.measured_with or ()}
        return not _reads(type(after.tool), MEASURING, changed - measured_anew)
    return not _reads(type(after.tool), SCORING, changed)


def _changed_attributes(before: Any, after: Any) -> set[str]:
    """The attributes of two objects of one class that differ, or of which that cannot be told."""
    mine, other = vars(before), vars(after)
    missing = object()
    return {
        name
        for name in {*mine, *other}
        if mine.get(name, missing) is not other.get(name, missing)
        and describe_value(mine.get(name, missing)) != describe_value(other.get(name, missing))
    }


def _reads(kind: type, methods: Sequence[str], attributes: set[str]) -> bool:
    """Whether methods of a class, and what these use, read one of these attributes."""
    if not attributes:
        return False
    waiting, seen = list(methods), set(methods)
    while waiting:
        for value in _definitions(kind, waiting.pop()):
            for function, is_method in _functions(value):
                names = _names_read(function, is_method)
                if names is None or names & attributes:
                    return True
                more = {name for name in names if name not in seen and name not in _NOT_FOLLOWED}
                seen |= more
                waiting += more
    return False


_NOT_FOLLOWED = frozenset({"__init__", "name", "score_type", "rules"})
"""Of rules, scoring wants to know names and types. What numbers a rule compares is not asked to measure them."""


def _definitions(kind: type, name: str) -> Iterator[Any]:
    """What a class and its bases have under a name: `super()` may reach each of them."""
    for owner in kind.__mro__:
        if name in vars(owner):
            yield vars(owner)[name]


def _functions(value: Any) -> Iterator[tuple[Any, bool]]:
    """The functions behind a member of a class, with whether they are given the object; none for a plain value."""
    if isinstance(value, property):
        yield value.fget, True
    elif isinstance(value, functools.cached_property):
        yield value.func, True
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__, False
    elif callable(value) and not isinstance(value, type):
        yield value, True


def _names_read(function: Any, is_method: bool) -> set[str] | None:
    """The names that a function mentions; None if it may read attributes that it does not mention."""
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, types.FunctionType):
        return None
    owner = function.__code__.co_varnames[:1] if is_method else ()
    found: set[str] = set()
    for code in _codes(function.__code__):
        if owner and (_BY_NAME & {*code.co_names} or _hands_on(code, owner[0])):
            return None
        found |= {*code.co_names}
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _codes(value)


def _hands_on(code: types.CodeType, owner: str) -> bool:
    """Whether the object itself is used for something else than to read an attribute."""
    steps = list(dis.get_instructions(code))
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if owner not in names or not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "STORE_FAST_LOAD_FAST")):
            continue
        looked_up = following is not None and following.opname in _LOOKUPS
        if owner in names[:-1] or not looked_up:
            return True
    return False
