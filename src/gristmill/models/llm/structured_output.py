"""Answers as JSON of a schema: read them, check them, and say what is wrong in words that a model can use.

The checks are those of JSON Schema that matter for answers: types, properties, items, enumerations, numbers, lengths,
patterns, `anyOf`/`oneOf`/`allOf`, and references within the schema. Other keywords are not checked here; the endpoint
may know them. A schema may also be a pydantic model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gristmill.models.llm.llm_request import Message

_FENCE = re.compile(r"^\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*$", re.DOTALL)
_MAX_DEPTH = 50
_KINDS: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


class NotOfSchemaError(ValueError):
    """What is wrong with an answer."""


def schema_of(schema: Any) -> dict[str, Any] | None:
    """A JSON schema from one, or from a pydantic model."""
    if schema is None:
        return None
    made = schema.model_json_schema() if isinstance(schema, type) and hasattr(schema, "model_json_schema") else schema
    if not isinstance(made, Mapping) or not made:
        raise TypeError(f"schema is {schema!r:.100}, must be a JSON schema or a pydantic model")
    return dict(made)


def read_json(text: str, schema: Mapping[str, Any]) -> Any:
    """The value of an answer. Raises a NotOfSchemaError that says what is wrong."""
    fenced = _FENCE.match(text)
    try:
        value = orjson.loads(fenced[1] if fenced else text)
    except ValueError as error:
        raise NotOfSchemaError(f"it is not JSON: {error}") from error
    _Checker(schema).check(value, schema, "the answer", 0)
    return value


def repair_messages(messages: list[Message], raw: str, problem: str) -> list[Message]:
    """The messages that ask for another answer instead of one that is not of the schema."""
    ask = f"This is not the JSON that was asked for: {problem}. Answer again, with nothing but the corrected JSON."
    return [*messages, {"role": "assistant", "content": raw}, {"role": "user", "content": ask}]


class _Checker:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root

    def check(self, value: Any, schema: Any, where: str, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise NotOfSchemaError(f"{where} is nested more than {_MAX_DEPTH} deep")
        if schema is True or not isinstance(schema, Mapping):
            return
        if "$ref" in schema:
            self.check(value, self._referred(str(schema["$ref"])), where, depth + 1)
        self._check_kind(value, schema, where)
        if "enum" in schema and value not in schema["enum"]:
            raise NotOfSchemaError(f"{where} is {value!r:.80}, must be one of {list(schema['enum'])!r:.200}")
        if "const" in schema and value != schema["const"]:
            raise NotOfSchemaError(f"{where} is {value!r:.80}, must be {schema['const']!r}")
        self._check_choices(value, schema, where, depth)
        if isinstance(value, dict):
            self._check_object(value, schema, where, depth)
        elif isinstance(value, list):
            _check_range(len(value), schema, where, "minItems", "maxItems", "items")
            for index, item in enumerate(value):
                self.check(item, schema.get("items", True), f"{where}[{index}]", depth + 1)
        else:
            _check_scalar(value, schema, where)

    def _check_kind(self, value: Any, schema: Mapping[str, Any], where: str) -> None:
        wanted = schema.get("type")
        if wanted is None:
            return
        names = [wanted] if isinstance(wanted, str) else list(wanted)
        if not any(_is_kind(value, name) for name in names):
            raise NotOfSchemaError(f"{where} is {value!r:.80}, must be of type {' or '.join(names)}")

    def _check_object(self, value: dict[str, Any], schema: Mapping[str, Any], where: str, depth: int) -> None:
        properties = schema.get("properties") or {}
        if missing := [name for name in schema.get("required") or () if name not in value]:
            raise NotOfSchemaError(f"{where} has no {', '.join(map(repr, missing))}")
        others = schema.get("additionalProperties", True)
        for name, item in value.items():
            if name in properties:
                self.check(item, properties[name], f"{where}.{name}", depth + 1)
            elif others is False:
                raise NotOfSchemaError(f"{where} has {name!r:.80}, which is not wanted")
            else:
                self.check(item, others, f"{where}.{name}", depth + 1)

    def _check_choices(self, value: Any, schema: Mapping[str, Any], where: str, depth: int) -> None:
        for inner in schema.get("allOf") or ():
            self.check(value, inner, where, depth + 1)
        for name in ("anyOf", "oneOf"):
            choices = schema.get(name)
            if choices and not any(self._fits(value, inner, where, depth) for inner in choices):
                raise NotOfSchemaError(f"{where} is {value!r:.80}, which fits none of the forms that are allowed")

    def _fits(self, value: Any, schema: Any, where: str, depth: int) -> bool:
        try:
            self.check(value, schema, where, depth + 1)
        except NotOfSchemaError:
            return False
        return True

    def _referred(self, reference: str) -> Any:
        found: Any = self.root
        for part in filter(None, reference.removeprefix("#").split("/")):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found


def _is_kind(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS.get(name, (object,)))


def _check_scalar(value: Any, schema: Mapping[str, Any], where: str) -> None:
    if isinstance(value, str):
        _check_range(len(value), schema, where, "minLength", "maxLength", "characters")
        if "pattern" in schema and not re.search(schema["pattern"], value):
            raise NotOfSchemaError(f"{where} is {value!r:.80}, must match {schema['pattern']!r}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_range(value, schema, where, "minimum", "maximum", "")


def _check_range(number: float, schema: Mapping[str, Any], where: str, low: str, high: str, unit: str) -> None:
    bounds: list[tuple[str, Callable[[float], bool], str]] = [
        (low, lambda least: number >= least, "at least"),
        (high, lambda most: number <= most, "at most"),
    ]
    for name, holds, words in bounds:
        if name in schema and not holds(schema[name]):
            has = f"has {number:g} {unit}" if unit else f"is {number:g}"
            raise NotOfSchemaError(f"{where} {has}, must {'have' if unit else 'be'} {words} {schema[name]:g}")
