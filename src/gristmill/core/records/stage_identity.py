"""Describe what a stage computes as plain data, so that a later run can tell what has changed.

Settings that affect how a stage runs but not its output (workers, batch and block sizes, resources) and private
attributes are omitted. Code counts: a changed lambda is a changed stage.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from gristmill.core.stage import SETTINGS
from gristmill.core.task import digest

if TYPE_CHECKING:
    from gristmill.core.plan.planner import Plan
    from gristmill.core.stage import ProcessingStage

_NOT_IDENTITY = {*SETTINGS, "blocksize", "storage_options", "limit", "memory_gb"}
SECRET_NAME = re.compile(r"key$|token|secret|password|credential", re.IGNORECASE)
_DEEPEST = 6


def describe_plan(plan: Plan) -> list[dict[str, Any]]:
    """Each stage of a plan as JSON-compatible data."""
    return [describe_stage(stage) for stage in plan.stages]


def describe_stage(stage: ProcessingStage[Any, Any]) -> dict[str, Any]:
    left_out = _NOT_IDENTITY | set(stage.not_identity)
    planned = {"branch": stage._planned.branch, "planned_columns": list(stage._planned.columns)}
    described = {"name": stage.name, **_object(stage, left_out, 0)}
    return described | {name: value for name, value in planned.items() if value}


def identity_hash(described: Any) -> str:
    return digest([orjson.dumps(described, option=orjson.OPT_SORT_KEYS).decode()], 16)


def describe_value(value: Any, depth: int = 0) -> Any:
    """A value as plain data, the same in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, int) or abs(value) < 2**53 else str(value)
    if isinstance(value, bytes):
        return digest([value.hex()])
    if depth > _DEEPEST:
        return type(value).__qualname__
    if isinstance(value, Mapping | set | frozenset | list | tuple):
        return _collection(value, depth)
    return _code_or_object(value, depth)


def _collection(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {str(key): describe_value(item, depth + 1) for key, item in value.items()}
    items = [describe_value(item, depth + 1) for item in value]
    return sorted(items, key=repr) if isinstance(value, set | frozenset) else items


def _code_or_object(value: Any, depth: int) -> Any:
    if isinstance(value, types.FunctionType):
        return {"function": f"{value.__module__}.{value.__qualname__}", "code": _code(value.__code__)}
    if isinstance(value, type):
        return class_name(value)
    if isinstance(value, types.BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, re.Pattern):
        return {"pattern": str(value.pattern), "flags": value.flags}
    return _object(value, _NOT_IDENTITY, depth)


def _object(value: Any, left_out: Iterable[str], depth: int) -> dict[str, Any]:
    kind: type = type(value)
    fields = getattr(value, "__dict__", {})  # objects with slots have none
    described = {
        name: digest([repr(item)]) if SECRET_NAME.search(name) else describe_value(item, depth + 1)
        for name, item in fields.items()
        if not name.startswith("_") and name not in left_out
    }
    return {"class": class_name(kind), **described}


def class_name(kind: type) -> str:
    """The name of a class in a plan: `gristmill.text.WordCountFilter` if its package or `gristmill` exports it, so that
    a run can still be resumed after the class has moved to another module; else its module and name."""
    root, _, rest = kind.__module__.partition(".")
    for package in (f"{root}.{rest.partition('.')[0]}", root) if root == "gristmill" else ():
        module = sys.modules.get(package)
        exported = getattr(module, "__all__", ())  # of a module, which may have none
        if kind.__qualname__ in exported and getattr(module, kind.__qualname__) is kind:
            return f"{package}.{kind.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def _code(code: types.CodeType) -> str:
    parts = [code.co_code.hex(), repr(code.co_names)]
    parts += [_code(item) if isinstance(item, types.CodeType) else repr(item) for item in code.co_consts]
    return digest(parts)


def plan_differences(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """The differences between two descriptions of a plan, as sentences."""
    names = [stage["name"] for stage in before], [stage["name"] for stage in after]
    if names[0] != names[1]:
        return [f"the stages were {', '.join(names[0])}, and are now {', '.join(names[1])}"]
    differences = []
    for old, new in zip(before, after, strict=True):
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                differences += [f"stage {old['name']!r}: {line}" for line in _changes(key, old.get(key), new.get(key))]
    return differences


def _changes(path: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
        return [line for key in keys for line in _changes(f"{path}.{key}", old.get(key), new.get(key))]
    return [f"{path} was {_short(old)}, and is now {_short(new)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."
