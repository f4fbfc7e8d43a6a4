"""The catalogue: which stages, filters and modifiers a recipe can name, and what parameters they take.

Nothing is registered. What `gristmill` and each modality list in their `__all__` is in the catalogue.
"""

from __future__ import annotations

import collections.abc
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from gristmill.core.errors import MissingDependencyError, RecipeError, did_you_mean
from gristmill.core.stage import ProcessingStage

PACKAGES = ("text", "image", "video", "audio", "interleaved", "math", "synthetic", "dedup", "download")
PART_BASES = {"DocumentFilter": "filter", "DocumentModifier": "modifier", "SampleFilter": "filter"}
"""Base classes of what a stage is given as a parameter, and what people call them."""

_CONFIG = ConfigDict(arbitrary_types_allowed=True, coerce_numbers_to_str=True)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a constructor. `hint` is its type, or None where that cannot be known."""

    name: str
    default: Any
    annotation: str
    hint: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def typed(self) -> bool:
        """Whether the type is known well enough to check values."""
        return self._adapter is not None

    def __str__(self) -> str:
        return f"{self.name} (required)" if self.required else self.name

    def check(self, value: Any) -> Any:
        """The value as the parameter's type has it: a number from "1e-3", a path from 2024. Raises ValueError."""
        if self._adapter is None:
            return value
        try:
            checked = self._adapter.validate_python(value)
        except ValidationError as error:
            raise ValueError(_reason(error)) from None
        return value if isinstance(checked, Iterator) else checked

    def takes(self, value: Any) -> bool:
        """Whether the parameter is known to take the value as it stands."""
        if self._adapter is None:
            return False
        try:
            self._adapter.validate_python(value)
        except ValidationError:
            return False
        return True

    @cached_property
    def _adapter(self) -> TypeAdapter[Any] | None:
        if self.hint in (None, Any, object):
            return None
        try:
            return TypeAdapter(self.hint, config=_CONFIG)
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError):
            return None


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "sequence": "a list",
    "dict": "names with values",
    "mapping": "names with values",
    "path": "a path",
    "none": "null",
}
"""What pydantic's types are called in a recipe."""


def _reason(error: ValidationError) -> str:
    """What would be right: a kind of value, or for other reasons what pydantic says."""
    kinds: dict[str, None] = {}
    for detail in error.errors(include_url=False, include_context=False):
        known = _KINDS.get(detail["type"].partition("_")[0])
        message = detail["msg"]
        kinds[f"must be {known}" if known else message[:1].lower() + message[1:]] = None
        if known == "a list" and isinstance(detail["input"], str):
            kinds[f"as in [{detail['input']}]"] = None
    return "; or ".join(kinds).replace("; or as in", ", as in").replace("; or must be", ", or")


@dataclass(frozen=True)
class Entry:
    """A class that a recipe can name."""

    name: str
    kind: str
    cls: type

    @property
    def doc(self) -> str:
        own = self.cls.__dict__.get("__doc__") or ""
        return "" if own.startswith(f"{self.cls.__name__}(") else inspect.cleandoc(own)

    @property
    def help(self) -> str:
        """The first line of the class's docstring."""
        return self.doc.partition("\n")[0]

    @property
    def parameters(self) -> dict[str, Parameter]:
        return parameters_of(self.cls)


@cache
def catalogue() -> Mapping[str, Entry]:
    """All classes that can be named, by name. Packages and classes whose libraries are missing are left out."""
    entries: dict[str, Entry] = {}
    for module in _modules():
        for name in module.__all__:
            entry = _entry(module, name)
            if entry is not None:
                entries.setdefault(name, entry)
    return types.MappingProxyType(entries)


@cache
def known(name: str) -> Entry | None:
    """What the catalogue has of one name, without loading all the others."""
    found = (_entry(module, name) for module in _modules() if name in module.__all__)
    return next(filter(None, found), None)


@cache
def _modules() -> list[types.ModuleType]:
    homes = ["gristmill", *[f"gristmill.{package}" for package in PACKAGES]]
    return [importlib.import_module(home) for home in homes if importlib.util.find_spec(home) is not None]


def _entry(module: types.ModuleType, name: str) -> Entry | None:
    try:
        cls = getattr(module, name)
    except ImportError:
        return None
    if not isinstance(cls, type) or name in PART_BASES or inspect.isabstract(cls):
        return None
    kind = kind_of(cls)
    return Entry(name, kind, cls) if kind else None


def kind_of(cls: type) -> str | None:
    """reader, writer, stage, filter or modifier; None for a class that a recipe must not build."""
    if cls.__module__ == ProcessingStage.__module__ or "is_base" in vars(cls):  # which do nothing by themselves
        return None
    if issubclass(cls, ProcessingStage):
        return cls._catalogue_kind
    for base in cls.__mro__:
        if base.__name__ in PART_BASES and base.__module__.startswith("gristmill."):
            return PART_BASES[base.__name__]
    return None


def is_part(cls: type) -> bool:
    """Whether the class is a filter or modifier: an object that a stage is given."""
    return kind_of(cls) in PART_BASES.values()


def find_entry(name: str, place: str, wanted: str = "stage") -> Entry:
    """The class of a name, from the catalogue or as `package.module:ClassName`."""
    if ":" in name:
        return _find_user_class(name, place)
    entry = known(name)
    if entry is None:
        _raise_import_error(name)
        likely = [other.name for other in catalogue().values() if is_part(other.cls) == (wanted != "stage")]
        near = did_you_mean(name, likely) or did_you_mean(name, catalogue())
        raise RecipeError(
            f"{place}: there is no {wanted} {name!r}.{near} "
            "`gristmill stages` lists them; your own is written package.module:ClassName"
        )
    return entry


def _raise_import_error(name: str) -> None:
    """Raise what keeps a public class from being imported, such as a library that is not installed."""
    for module in _modules():
        if name in module.__all__ and name not in PART_BASES:
            getattr(module, name)


def _find_user_class(name: str, place: str) -> Entry:
    home, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in home.split(".")):
        raise RecipeError(f"{place}: {name!r} is not a class name: write your own class as package.module:ClassName")
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        raise RecipeError(f"{place}: {name!r}: {error}. Is its directory on the Python path?") from error
    except MissingDependencyError:
        raise
    except Exception as error:  # whatever the user's module raises
        raise RecipeError(
            f"{place}: {name!r}: module {home!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    try:
        cls = getattr(module, attribute)
    except AttributeError:
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise RecipeError(
            f"{place}: module {home!r} has no class {attribute!r}.{did_you_mean(attribute, classes)}"
        ) from None
    kind = kind_of(cls) if isinstance(cls, type) else None
    if kind is None:
        raise RecipeError(f"{place}: {name!r} must be a subclass of ProcessingStage, {' or '.join(PART_BASES)}")
    return Entry(name, kind, cls)


def name_in_recipe(cls: type) -> str:
    """How a recipe names the class."""
    entry = known(cls.__name__)
    if entry is not None and entry.cls is cls:
        return cls.__name__
    return f"{cls.__module__}:{cls.__qualname__}"


@cache
def parameters_of(cls: type) -> dict[str, Parameter]:
    """What the constructor of a class takes by name."""
    found = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            note = parameter.annotation
            hint = None if note is parameter.empty else _resolve(cls, note)
            found[name] = Parameter(name, parameter.default, _shown(note, hint), hint)
    return found


def _shown(note: Any, hint: Any) -> str:
    """An annotation for people: an alias as what it stands for."""
    if note is inspect.Parameter.empty:
        return ""
    alias = isinstance(note, str) and note.isidentifier() and not isinstance(hint, type) and hint is not None
    text = inspect.formatannotation(hint) if alias or not isinstance(note, str) else note
    return text.replace("collections.abc.", "").replace("typing.", "")


def takes_any_parameter(cls: type) -> bool:
    """Whether the constructor takes parameters of any name (`**kwargs`)."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(cls).parameters.values())


def _resolve(cls: type, note: Any) -> Any:
    """The type behind an annotation, also when it is a string whose names are imported for type checkers only."""
    holder = types.SimpleNamespace(__annotations__={"value": note})
    abstract = {name: getattr(collections.abc, name) for name in collections.abc.__all__}
    space = {**vars(typing), **abstract, "os": os, "pathlib": pathlib, **getattr(cls.__init__, "__globals__", {})}  # type: ignore[misc]
    package = sys.modules.get(".".join(cls.__module__.split(".")[:2]))  # where its public names are
    for name in re.findall(r"[A-Za-z_]\w*", note) if isinstance(note, str) else ():
        if name not in space and hasattr(package, name):
            space[name] = getattr(package, name)
        if isinstance(space.get(name), str):  # an alias that is a string itself
            space[name] = _resolve(cls, space[name])
    try:
        return typing.get_type_hints(holder, space)["value"]
    except (NameError, TypeError, AttributeError, SyntaxError):
        return None


def schema() -> list[dict[str, Any]]:
    """The catalogue as plain data: name, kind, help, doc and parameters with their defaults."""
    return [
        {
            "name": entry.name,
            "kind": entry.kind,
            "help": entry.help,
            "doc": entry.doc,
            "parameters": [
                {"name": one.name, "type": one.annotation, "required": one.required}
                | ({} if one.required else {"default": one.default})
                for one in entry.parameters.values()
            ],
        }
        for entry in catalogue().values()
    ]
