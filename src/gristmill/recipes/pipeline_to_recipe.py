"""From a pipeline back to a recipe.

A stage's parameters are read from its attributes of the same names, which is how constructors keep them; what
equals the default is left out. The settings of `with_` are found by building the stage again and comparing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import GristmillError, RecipeError
from gristmill.core.function_stage import FunctionStage
from gristmill.core.resources import Resources
from gristmill.core.stage import SETTINGS, CompositeStage, ProcessingStage
from gristmill.models.plain_parameters import PlainParameters
from gristmill.recipes.recipe import Recipe
from gristmill.recipes.recipe_file import StageSpec
from gristmill.recipes.stage_builder import build_stage
from gristmill.recipes.stage_catalogue import Parameter, kind_of, name_in_recipe, parameters_of

if TYPE_CHECKING:
    from gristmill.core.executor import Executor
    from gristmill.core.pipeline import Pipeline


def recipe_of(pipeline: Pipeline, executor: Executor | None = None) -> Recipe:
    """The recipe of a pipeline. Raises a RecipeError that names a stage which YAML cannot express."""
    place = f"pipeline {pipeline.name!r}"
    stages = [_stage(stage, f"{place}, stage {number}") for number, stage in enumerate(pipeline.stages, 1)]
    form = None
    if executor is not None:
        name = type(executor).__name__
        form = StageSpec(target=name, params=_params(type(executor), executor, f"{place}, executor ({name})"))
    return Recipe(pipeline.name, pipeline.description, stages, form, place)


def _stage(stage: ProcessingStage[Any, Any], place: str) -> StageSpec:
    place = f"{place} ({stage.name})"
    if isinstance(stage, FunctionStage):
        raise RecipeError(
            f"{place} is a function, which cannot be written to YAML: "
            "write it as a subclass of ProcessingStage in a module"
        )
    form = StageSpec(target=_name(type(stage), place), params=_params(type(stage), stage, place))
    try:
        plain = build_stage(form, place)
    except GristmillError as error:
        raise RecipeError(f"{place} cannot be built again from its attributes: {error}") from error
    form.settings = _substage_settings(stage, place) if isinstance(stage, CompositeStage) else _settings(stage, plain)
    return form


def _name(cls: type, place: str) -> str:
    """How a recipe names the class, if it can be found again under that name."""
    name = name_in_recipe(cls)
    home, colon, qualname = name.partition(":")
    if colon:
        found = None if home == "__main__" else getattr(importlib.import_module(home), qualname, None)
        if found is not cls:
            raise RecipeError(f"{place}: {qualname} cannot be imported from {home}: move it to the top of a module")
    return name


def _params(cls: type, thing: object, place: str) -> dict[str, Any]:
    params = {}
    for name, parameter in parameters_of(cls).items():
        if not hasattr(thing, name):
            raise RecipeError(f"{place} does not keep its parameter {name!r} as an attribute: set self.{name}")
        value = getattr(thing, name)
        if not parameter.required and (value is parameter.default or value == parameter.default):
            continue
        plain = _plain(value, f"{place}, {name}", parameter)
        if parameter.required or plain != _plain_default(parameter):
            params[name] = plain
    return params


def _plain_default(parameter: Parameter) -> Any:
    default = parameter.default
    return list(default) if isinstance(default, tuple) else default


def _plain(value: Any, place: str, parameter: Parameter | None = None) -> Any:
    """The value in the form that a recipe has it."""
    if value is None or isinstance(value, bool | int | float | str):
        return float(value) if isinstance(value, float) else value  # YAML takes no subclasses
    if isinstance(value, PurePath | Resources):
        return str(value) if isinstance(value, PurePath) else _resource_settings(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, place) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, place, parameter) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner, place) for inner in value), key=str)
    if isinstance(value, PlainParameters) or kind_of(type(value)):
        return _object(value, place, parameter)
    what = f"the function {getattr(value, '__name__', '')!r}" if callable(value) else f"a {type(value).__name__}"
    raise RecipeError(f"{place} is {what}, which cannot be written to YAML")


def _object(value: Any, place: str, parameter: Parameter | None) -> Any:
    """A stage, filter or modifier, or what is nothing but its parameters."""
    if isinstance(value, PlainParameters):
        return _params(type(value), value, place)
    if isinstance(value, ProcessingStage):
        return _stage(value, place).to_yaml()
    name, params = _name(type(value), place), _params(type(value), value, place)
    bare = not params and parameter is not None and parameter.typed and not parameter.takes(name)
    return name if bare else {name: params}


def _resource_settings(resources: Resources) -> dict[str, float]:
    usual = asdict(Resources())
    return {key: value for key, value in asdict(resources).items() if value != usual[key]} or {"cpus": resources.cpus}


def _settings(stage: ProcessingStage[Any, Any], plain: ProcessingStage[Any, Any]) -> dict[str, Any]:
    return {
        key: _plain(getattr(stage, key), f"stage {stage.name!r}, {key}")
        for key in SETTINGS
        if getattr(stage, key) != getattr(plain, key) and not callable(getattr(stage, key))
    }


def _substage_settings(stage: CompositeStage[Any, Any], place: str) -> dict[str, Any]:
    """The settings of sub-stages, as one mapping; a sub-stage that was renamed keeps its first name as the key."""
    merged: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    for changes in stage.__dict__.get("_changes", []):
        for name, change in changes.items():
            first = renamed.get(name, name)
            merged.setdefault(first, {}).update(_plain(change, f"{place}, {name}"))
            if "name" in change:
                renamed[change["name"]] = first
    return merged
