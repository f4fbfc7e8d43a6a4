"""The structure of a recipe file, before any class is looked up."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gristmill.core.errors import RecipeError, did_you_mean


class StageSpec(BaseModel):
    """One entry of `stages`: a class, its parameters, and under `with` its settings."""

    target: str
    params: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, raw: Any) -> Any:
        if isinstance(raw, StageSpec) or (isinstance(raw, dict) and "target" in raw):
            return raw
        if isinstance(raw, str):
            return {"target": raw}
        names = [key for key in raw if key != "with"] if isinstance(raw, dict) else []
        if len(names) != 1:
            found = f"the keys {', '.join(map(str, raw))}" if isinstance(raw, dict) and raw else repr(raw)
            raise ValueError(f"a stage must be one class name with its parameters, and maybe `with`; found {found}")
        return {
            "target": str(names[0]),
            "params": _mapping(raw[names[0]], f"parameters of {names[0]}"),
            "settings": _mapping(raw.get("with"), "settings under `with`"),
        }

    def to_yaml(self) -> Any:
        body: dict[str, Any] = {self.target: self.params}
        return body | {"with": self.settings} if self.settings else body


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"the {what} must be written name: value, not {value!r}")  # noqa: TRY004 - for pydantic
    return {str(key): inner for key, inner in value.items()}


class RecipeFile(BaseModel):
    """A whole recipe."""

    model_config = ConfigDict(extra="forbid")

    name: str = ""
    description: str | None = None
    vars: dict[str, Any] = Field(default_factory=dict)
    stages: list[StageSpec] = Field(min_length=1)
    executor: StageSpec | None = None

    @field_validator("vars", mode="before")
    @classmethod
    def _no_vars(cls, raw: Any) -> Any:
        return {} if raw is None else raw


def read_recipe_file(path: str | Path) -> RecipeFile:
    """Read and check a recipe file. Variables are not filled in yet."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read recipe {path}: {error}") from error
    form = parse_recipe_file(text, str(path))
    form.name = form.name or Path(path).stem
    return form


def parse_recipe_file(text: str, place: str) -> RecipeFile:
    try:
        loader = _Loader(text)
        raw = loader.get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError(f"{place} is not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise RecipeError(f"{place} is not a recipe: it must have a list of `stages`")
    try:
        return RecipeFile.model_validate(raw)
    except ValidationError as error:
        raise RecipeError("\n".join(_explain(detail, place) for detail in error.errors())) from None


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses a key that is written twice, and takes no key for true or false."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
            seen.add(key)
            if key_node.tag == "tag:yaml.org,2002:bool":  # `on` is the name of a parameter
                key_node.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def _explain(detail: Any, place: str) -> str:
    where, message = detail["loc"], detail["msg"].removeprefix("Value error, ")
    if where[0] == "stages" and len(where) > 1:
        return f"{place}, stage {where[1] + 1}: {message}"
    key = str(where[0])
    if detail["type"] == "extra_forbidden":
        known = list(RecipeFile.model_fields)
        return f"{place}: there is no {key!r} in a recipe.{did_you_mean(key, known)} Valid names: {', '.join(known)}"
    if detail["type"] == "missing":
        return f"{place}: {key!r} is missing"
    return f"{place}: {'.'.join(map(str, where))}: {message[:1].lower()}{message[1:]}"
