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
            raise ValueError(
                f"a stage must be one class name with its parameters, and maybe `with`; found {found}. Parameters are "
                "indented below the class name, or written in braces: `- JsonlReader: {file_paths: data}`"
            )
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
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8 (byte {error.start:,}): save it as UTF-8") from error
    except OSError as error:
        raise RecipeError(f"cannot read recipe {path}: {error.strerror or error}") from error
    form = parse_recipe_file(text, str(path))
    form.name = form.name or Path(path).stem
    return form


def parse_recipe_file(text: str, place: str) -> RecipeFile:
    try:
        loader = _Loader(text)
        raw = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        raise RecipeError(_explain_syntax(error, text, place)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError(f"{place} is not valid YAML: {error}") from error
    if raw is None:
        raise RecipeError(f"{place} is empty, and not a recipe. {_FORM}")
    if not isinstance(raw, dict):
        raise RecipeError(f"{place} is not a recipe: it must begin with names such as `stages:`. {_FORM}")
    _check_stages(raw, place)
    try:
        return RecipeFile.model_validate(raw)
    except ValidationError as error:
        raise RecipeError("\n".join(_explain(detail, place) for detail in error.errors())) from None


_FORM = """Write:
stages:
  - JsonlReader: {file_paths: data}
  - JsonlWriter: {path: out}"""


def _check_stages(raw: dict[Any, Any], place: str) -> None:
    """Refuse `stages` that is no list, which is the most frequent mistake."""
    stages = raw.get("stages", ...)
    if stages is ... or (isinstance(stages, list) and stages):
        return
    if isinstance(stages, dict):
        names = list(map(str, stages))
        listed = "\n".join(f"  - {name}: ..." for name in names[:3]) + ("\n  ..." if len(names) > 3 else "")
        raise RecipeError(f"{place}: `stages` must be a list, with `- ` before each stage:\nstages:\n{listed}")
    what = "is empty" if not stages else f"is {stages!r:.80}"
    raise RecipeError(f"{place}: `stages` {what}, and must be a list of stages. {_FORM}")


def _explain_syntax(error: yaml.MarkedYAMLError, text: str, place: str) -> str:
    """One line on what YAML does not allow, and where."""
    mark = error.problem_mark or error.context_mark
    where = f"{place}, line {mark.line + 1}" if mark else place
    lines = text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return f"{where}: indented with a tab, which YAML does not allow: use spaces"
    if error.problem and error.problem.startswith("duplicate key"):
        return f"{where}: {error.problem}: remove one of the two"
    if error.problem == "but found another document":
        return f"{where}: a recipe is one document: remove the line ---"
    reason = error.problem or error.context or "not understood"
    return f"{where}: not valid YAML: {reason}. Check quotes, brackets and indentation:\n{line.rstrip():.100}"


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
    kind = {"string_type": "text", "dict_type": "names with values, as in {a: 1}"}.get(detail["type"])
    reason = f"must be {kind}, not {detail['input']!r:.80}" if kind else f"{message[:1].lower()}{message[1:]}"
    return f"{place}: {'.'.join(map(str, where))} {reason}"
