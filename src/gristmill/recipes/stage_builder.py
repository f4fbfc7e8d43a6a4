"""Build stages from the names and parameters of a recipe. Every error names its place in the recipe."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import GristmillError, MissingDependencyError, RecipeError, did_you_mean
from gristmill.core.resources import Resources
from gristmill.core.secret_values import HIDDEN, Secret, is_secret_name
from gristmill.core.stage import ProcessingStage
from gristmill.recipes.recipe_file import StageSpec
from gristmill.recipes.stage_catalogue import Entry, Parameter, catalogue, find_entry, is_part, takes_any_parameter
from gristmill.recipes.variables import part_named_by, stage_named_by

if TYPE_CHECKING:
    from gristmill.core.executor import Executor


def build_stage(form: StageSpec, place: str) -> ProcessingStage[Any, Any]:
    """The stage that an entry of a recipe stands for."""
    entry = find_entry(form.target, place)
    place = f"{place} ({form.target})"
    if is_part(entry.cls):
        wrap = "ScoreFilter: {filter_obj: ...}" if entry.kind == "filter" else "Modify: {modifier_fn: ...}"
        raise RecipeError(f"{place}: a {entry.kind} is not a stage: write {wrap.replace('...', form.target)}")
    stage: ProcessingStage[Any, Any] = _build(entry, form.params, place)
    if not form.settings:
        return stage
    settings = _settings(form.settings, place)
    try:
        return stage.with_(**settings)
    except (TypeError, ValueError, GristmillError) as error:
        raise RecipeError(f"{place}, with: {error}") from error


def _build(entry: Entry, params: Mapping[str, Any], place: str) -> Any:
    known = entry.parameters
    _check_names(entry, params, place)
    values = {
        name: _value(known[name], value, place) if name in known else build_value(value, place)
        for name, value in params.items()
    }
    try:
        return entry.cls(**values)
    except MissingDependencyError:
        raise
    except (TypeError, ValueError, GristmillError) as error:
        raise RecipeError(f"{place}: {error}") from error


def _check_names(entry: Entry, params: Mapping[str, Any], place: str) -> None:
    known = entry.parameters
    listed = f"Parameters: {', '.join(map(str, known.values())) or 'none'}"
    for name in params:
        if name not in known and not takes_any_parameter(entry.cls):
            raise RecipeError(f"{place}: there is no parameter {name!r}.{did_you_mean(name, known)} {listed}")
    missing = [name for name, parameter in known.items() if parameter.required and name not in params]
    if missing:
        raise RecipeError(f"{place}: {' and '.join(map(repr, missing))} must be given. {listed}")


def _value(parameter: Parameter, value: Any, place: str) -> Any:
    """A parameter's value: plain when the parameter takes it so, else with named classes built."""
    if isinstance(value, dict) or not parameter.takes(value):
        made = build_value(value, f"{place}, {parameter.name}")
        _check_misspelled_class(parameter, made, place)
        value = made
    try:
        return _with_secrets(value, parameter.check(value))
    except ValueError as error:
        shown = HIDDEN if is_secret_name(parameter.name) else repr(value)
        raise RecipeError(f"{place}: {parameter.name} is {shown}: {error}") from None


def _with_secrets(value: Any, checked: Any) -> Any:
    """The checked value, in which the secrets of the value are still marked as such."""
    if isinstance(value, Secret) and isinstance(checked, str):
        return value
    if isinstance(value, dict) and isinstance(checked, dict):
        return {key: _with_secrets(value.get(key), inner) for key, inner in checked.items()}
    if isinstance(value, list) and isinstance(checked, list) and len(value) == len(checked):
        return [_with_secrets(*pair) for pair in zip(value, checked, strict=True)]
    return checked


def build_value(value: Any, place: str) -> Any:
    """The value with every `{ClassName: {...}}` built, and every `ClassName` of a filter or modifier."""
    named = part_named_by(value)
    if named:
        entry = find_entry(named[0], place, "filter or modifier")
        return _build(entry, named[1], f"{place} ({named[0]})")
    if stage_named_by(value):
        return build_stage(StageSpec.model_validate(value), place)
    if isinstance(value, dict):
        return {key: build_value(inner, place) for key, inner in value.items()}
    if isinstance(value, list):
        return [build_value(inner, place) for inner in value]
    return value


def _check_misspelled_class(parameter: Parameter, value: Any, place: str) -> None:
    """A class name that was not found is left as it was written; say so, rather than that it has the wrong type."""
    for inner in value if isinstance(value, list) else [value]:
        name = next(iter(inner)) if isinstance(inner, dict) and len(inner) == 1 else inner
        if not isinstance(name, str) or parameter.takes(inner):
            continue
        names = [entry.name for entry in catalogue().values() if is_part(entry.cls)]
        near = did_you_mean(name, names)
        if near or (parameter.typed and re.fullmatch(r"[A-Z]\w+", name)):
            raise RecipeError(f"{place}: {parameter.name}: there is no filter or modifier {name!r}.{near}")


def _settings(settings: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Settings for `with_`, with resources as the object they stand for, also those of sub-stages."""
    made: dict[str, Any] = {}
    for key, value in settings.items():
        if key == "resources" and isinstance(value, dict):
            fields = list(Resources.__dataclass_fields__)
            for name in value:
                if name not in fields:
                    hint = did_you_mean(name, fields)
                    raise RecipeError(f"{place}: resources has no field {name!r}.{hint} Fields: {', '.join(fields)}")
            try:
                made[key] = Resources(**value)
            except ValueError as error:
                raise RecipeError(f"{place}: {error}") from error
        elif isinstance(value, dict) and key != "runtime_env":
            made[key] = _settings(value, place)
        else:
            made[key] = value
    return made


# -- executors -----------------------------------------------------------------------------------------


def executor_names() -> dict[str, str]:
    """The executors of the package: `local` for `LocalExecutor`, and so on."""
    names = [name for name in importlib.import_module("gristmill").__all__ if name.endswith("Executor")]
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", name.removesuffix("Executor")).lower(): name for name in names}


def executor_class(name: str, place: str) -> str:
    """The class name of an executor, from it or its short name."""
    short = executor_names()
    if name in short.values():
        return name
    if name not in short:
        known = [*short, *short.values()]
        raise RecipeError(
            f"{place}: there is no executor {name!r}.{did_you_mean(name, known)} Valid names: {', '.join(short)}"
        )
    return short[name]


def build_executor(name: str, params: Mapping[str, Any], place: str) -> Executor:
    cls = getattr(importlib.import_module("gristmill"), executor_class(name, place))
    executor: Executor = _build(Entry(name, "executor", cls), params, f"{place} ({cls.__name__})")
    return executor
