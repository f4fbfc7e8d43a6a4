"""Filling in a recipe: `--set` changes, then `${variables}`.

A variable that is a whole value keeps its type: `min_words: "${min_words}"` is a number. `${env:NAME}` is an
environment variable, read when the recipe is; its value is a `Secret`, of which records show the reference. `$${x}`
stands for a literal `${x}`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import yaml

from gristmill.core.errors import RecipeError, did_you_mean
from gristmill.core.secret_values import Secret
from gristmill.core.stage import SETTINGS
from gristmill.recipes.recipe_file import RecipeFile
from gristmill.recipes.stage_catalogue import find_entry, is_part, known, takes_any_parameter

_VARIABLE = re.compile(r"\$(\$)?\{((?:env:)?[A-Za-z_][A-Za-z0-9_]*)\}")
ENVIRONMENT = "env:"
_OWN_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Z]\w*")


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`["min_words=30"]` as `{"min_words": 30}`; values are read as YAML."""
    found = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise RecipeError(f"--set {setting}: write --set name=value or --set ClassName.parameter=value")
        try:
            found[key.strip()] = yaml.safe_load(value) if value else ""
        except (yaml.YAMLError, ValueError):
            found[key.strip()] = value
    return found


def fill_variables(form: RecipeFile, changes: Mapping[str, Any], place: str) -> RecipeFile:
    """A copy of the form with the changes made and every variable replaced."""
    filled = form.model_copy(deep=True)
    for key, value in changes.items():
        if "." in key:
            _set_parameter(filled, key, value, place)
        else:
            _set_variable(filled, key, value, place)
    variables = _Variables(filled.vars, place)
    for number, stage in enumerate(filled.stages, 1):
        where = f"{place}, stage {number} ({stage.target})"
        stage.params, stage.settings = variables.fill(stage.params, where), variables.fill(stage.settings, where)
    if filled.executor:
        filled.executor.params = variables.fill(filled.executor.params, f"{place}, executor")
    filled.vars = {}
    return filled


def _set_variable(form: RecipeFile, key: str, value: Any, place: str) -> None:
    used = {name for stage in form.stages for name in _names_in([stage.params, stage.settings])}
    known = sorted({*form.vars, *used})
    if key not in known:
        there = f"Valid names: {', '.join(known)}." if known else "It has none."
        raise RecipeError(
            f"--set {key}=...: {place} has no variable {key!r}.{did_you_mean(key, known)} {there} "
            f"A parameter is set with --set ClassName.{key}=..."
        )
    form.vars[key] = value


def _names_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from (
            match[2] for match in _VARIABLE.finditer(value) if not match[1] and not match[2].startswith(ENVIRONMENT)
        )
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _names_in(inner)


class _Variables:
    """Replaces variables; they may be made of each other."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values, self.place = values, place

    def fill(self, value: Any, where: str, open_: tuple[str, ...] = ()) -> Any:
        if isinstance(value, dict):
            return {key: self.fill(inner, where, open_) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.fill(inner, where, open_) for inner in value]
        if not isinstance(value, str):
            return value
        whole = _VARIABLE.fullmatch(value)
        if whole and not whole[1]:
            return self.look_up(whole[2], where, open_)
        found: list[Secret] = []
        filled = _VARIABLE.sub(lambda match: self._text(match, where, open_, found), value)
        if not found:
            return filled

        def reference(match: re.Match[str]) -> str:
            return match[0] if match[1] else str(escape(self.look_up(match[2], where, open_)))

        return Secret(filled, _VARIABLE.sub(reference, value))

    def _text(self, match: re.Match[str], where: str, open_: tuple[str, ...], found: list[Secret]) -> str:
        if match[1]:
            return match[0][1:]
        value = self.look_up(match[2], where, open_)
        if isinstance(value, dict | list):
            raise RecipeError(f"{where}: ${{{match[2]}}} is {value!r}, which cannot be inserted into text")
        found += [value] if isinstance(value, Secret) else []
        return str(value)

    def look_up(self, name: str, where: str, open_: tuple[str, ...]) -> Any:
        if name.startswith(ENVIRONMENT):
            return _environment_variable(name.removeprefix(ENVIRONMENT), where)
        if name in open_:
            raise RecipeError(f"{self.place}: variable {name!r} refers to itself: {' -> '.join((*open_, name))}")
        value = self.values.get(name)
        if value is None:
            near = "" if name in self.values else did_you_mean(name, self.values)
            state = "has no value" if name in self.values else "is not defined"
            raise RecipeError(
                f"{where}: variable {name!r} {state}.{near} Give it with --set {name}=... or under `vars`"
            )
        return self.fill(value, where, (*open_, name))


def _environment_variable(name: str, where: str) -> Secret:
    value = os.environ.get(name)
    if value is None:
        raise RecipeError(
            f"{where}: the environment variable {name} is not set: set it (export {name}=...) and start again. Secrets "
            "are not saved with a run, so they must be there each time"
        )
    return Secret(value, f"${{{ENVIRONMENT}{name}}}")


def escape(value: Any) -> Any:
    """The value such that filling in gives it back."""
    if isinstance(value, Secret) and value.reference:
        return value.reference
    if isinstance(value, dict):
        return {key: escape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [escape(inner) for inner in value]
    return _VARIABLE.sub(lambda match: "$" + match[0], value) if isinstance(value, str) else value


# -- ClassName.parameter=value ---------------------------------------------------------------------------


def _set_parameter(form: RecipeFile, key: str, value: Any, place: str) -> None:
    target, _, parameter = key.rpartition(".")
    target, _, wanted = target.partition("#")
    found: set[str] = set()
    matches = 0

    def change(name: str, params: dict[str, Any], settings: dict[str, Any] | None) -> None:
        nonlocal matches
        names = {name, name.rpartition(":")[2]} | ({settings["name"]} if settings and "name" in settings else set())
        found.update(names)
        if target not in names:
            return
        matches += 1
        if wanted and wanted != str(matches):
            return
        entry = find_entry(name, place) if name != executor else None
        known = list(entry.parameters) if entry else [parameter]
        if parameter in known or (entry and takes_any_parameter(entry.cls)):
            params[parameter] = value
        elif settings is not None and parameter in SETTINGS:
            settings[parameter] = value
        else:
            raise RecipeError(
                f"--set {key}=...: {name} has no parameter {parameter!r}.{did_you_mean(parameter, known)} "
                f"Valid names: {', '.join(known) or 'none'}"
            )

    executor = form.executor.target if form.executor else None
    for stage in [*form.stages, *([form.executor] if form.executor else [])]:
        change(stage.target, stage.params, stage.settings if stage is not form.executor else None)
        stage.params = _walk_parts(stage.params, change)
    if wanted and matches and not (wanted.isdecimal() and 0 < int(wanted) <= matches):
        raise RecipeError(f"--set {key}=...: {place} has {matches} {target}: use {target}#1 to {target}#{matches}")
    if not matches:
        raise RecipeError(
            f"--set {key}=...: {place} has no {target!r}.{did_you_mean(target, found)} "
            f"Valid names: {', '.join(sorted(found))}"
        )


def _walk_parts(value: Any, change: Callable[[str, dict[str, Any], dict[str, Any] | None], None]) -> Any:
    """Let `change` see the parameters of every filter, modifier and stage inside a value."""
    named = part_named_by(value)
    if named:
        params = dict(named[1])
        change(named[0], params, None)
        return {named[0]: _walk_parts(params, change)} if params or isinstance(value, dict) else value
    if name := stage_named_by(value):
        params, settings = dict(value[name] or {}), dict(value.get("with") or {})
        change(name, params, settings)
        return {name: _walk_parts(params, change)} | ({"with": settings} if settings else {})
    if isinstance(value, dict):
        return {key: _walk_parts(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_walk_parts(inner, change) for inner in value]
    return value


def part_named_by(value: Any) -> tuple[str, dict[str, Any]] | None:
    """The class and parameters, when a value stands for a filter or modifier: `{Name: {...}}` or `Name`."""
    params: Any = {}
    if isinstance(value, dict) and len(value) == 1:
        [(value, params)] = value.items()
        params = {} if params is None else params
    if not isinstance(value, str) or not isinstance(params, dict):
        return None
    entry = known(value)
    if entry is not None:
        return (value, params) if is_part(entry.cls) else None
    return (value, params) if _OWN_CLASS.fullmatch(value) else None


def stage_named_by(value: Any) -> str | None:
    """The class, when a value stands for a stage: `{Name: {...}}`, with settings under `with` if need be."""
    names = [name for name in value if name != "with"] if isinstance(value, dict) else []
    if len(names) != 1 or not isinstance(names[0], str) or not isinstance(value[names[0]], dict | None):
        return None
    entry = known(names[0])
    if entry is None:
        return names[0] if "with" in value and _OWN_CLASS.fullmatch(names[0]) else None
    return None if is_part(entry.cls) else names[0]
