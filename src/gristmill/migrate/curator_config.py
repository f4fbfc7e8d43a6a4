"""Pipelines from configurations of NeMo Curator: YAML in which `_target_` names classes.

Class paths of both systems are understood. Only classes of Gristmill are made: a configuration from elsewhere runs no
other code. What is given up: interpolation other than `${name}` of the top level.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gristmill.core.errors import RecipeError
from gristmill.core.pipeline import Pipeline
from gristmill.core.resources import Resources
from gristmill.core.stage import ProcessingStage
from gristmill.migrate.name_map import CURATOR, find_name, why_missing

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_MUST_BE_GIVEN = "???"


def create_pipeline_from_yaml(config: Any, **variables: Any) -> Any:
    """The pipeline of `stages`, or the workflow of `workflow`, in a file, a mapping or an OmegaConf configuration.
    `variables` replace values of the top level: `create_pipeline_from_yaml("x.yaml", input_path="in")`."""
    loaded = _read(config) if isinstance(config, str | Path) else config
    if not isinstance(loaded, Mapping) and not hasattr(loaded, "items"):
        raise RecipeError(f"a configuration must be a mapping with 'stages' or 'workflow', not {loaded!r:.80}")
    content = {str(key): value for key, value in loaded.items()} | variables
    kinds = [kind for kind in ("stages", "workflow") if kind in content]
    if len(kinds) != 1:
        there = " and ".join(kinds) or "none"
        raise RecipeError(f"a configuration has either 'stages' or 'workflow', and this one has {there}")
    made = [_made(_filled(one, content), f"{kinds[0]}[{index}]") for index, one in enumerate(content[kinds[0]])]
    if kinds == ["stages"]:
        return Pipeline("yaml_pipeline", content.get("description"), made)
    if len(made) != 1:
        raise RecipeError(f"workflow: give one, not {len(made)}")
    return made[0]


def _read(path: str | Path) -> Any:
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RecipeError(f"{path} cannot be read as YAML: {error}") from error


def _filled(value: Any, variables: Mapping[str, Any]) -> Any:
    """The value with every `${name}` replaced. A variable that is the whole value keeps its type."""
    if hasattr(value, "items"):
        return {str(key): _filled(inner, variables) for key, inner in value.items()}
    if isinstance(value, list | tuple) or type(value).__name__ == "ListConfig":
        return [_filled(inner, variables) for inner in value]
    if not isinstance(value, str):
        return value
    if whole := _VARIABLE.fullmatch(value):
        return _variable(whole[1], variables)
    return _VARIABLE.sub(lambda one: str(_variable(one[1], variables)), value)


def _variable(name: str, variables: Mapping[str, Any]) -> Any:
    value = variables.get(name, _MUST_BE_GIVEN)
    if value == _MUST_BE_GIVEN:
        raise RecipeError(f"{name} must be given: create_pipeline_from_yaml(..., {name}=...)")
    # A variable may be made of others, but not of itself.
    return _filled(value, {**variables, name: _MUST_BE_GIVEN}) if isinstance(value, str) else value


def _made(value: Any, place: str) -> Any:
    if isinstance(value, list):
        return [_made(inner, place) for inner in value]
    if not isinstance(value, dict):
        return value
    if "_target_" not in value:
        return {key: _made(inner, f"{place}.{key}") for key, inner in value.items()}
    module, _, name = str(value["_target_"]).rpartition(".")
    found = find_name(module, name) if module.partition(".")[0] in (CURATOR, "gristmill") else None
    if found is None:
        raise RecipeError(f"{place}: {why_missing(module, name)}")
    arguments = {key: _made(inner, f"{place}.{key}") for key, inner in value.items() if key != "_target_"}
    resources = arguments.pop("resources", None)
    try:
        made = found.load()(**arguments)
        if resources and isinstance(made, ProcessingStage):
            return made.with_(resources=resources if isinstance(resources, Resources) else Resources(**resources))
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{place} ({name}): {error}") from error
    return made
