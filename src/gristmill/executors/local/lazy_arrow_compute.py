"""`pyarrow.compute` for workers: each of its functions is made when it is first asked for.

Arrow makes a wrapper with a signature and parsed documentation for each of some three hundred functions when the module
is loaded, which takes longer than all the rest of starting a worker, and a run uses a dozen of them. Here the module is
told only of those functions that its own code names; the others are made by the module's own means when they are asked
for, and then do as they would have done. A module that is not as expected is loaded as it is.

What is given up: what `help` says of a function's options, which nobody asks a worker. `vars` has what was used.

This is for processes that only serve workers. The driver's `pyarrow` is left alone.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

NAME = "pyarrow.compute"
_DOCS = "pyarrow.vendored.docscrape"
_KEYWORDS = {"and_": "and", "or_": "or"}


def load() -> ModuleType:
    """The module, from now on also for whoever imports it."""
    if NAME not in sys.modules:
        try:
            return _load()
        except Exception:  # noqa: BLE001  what it expects of its own parts is the module's affair
            sys.modules.pop(NAME, None)
    return importlib.import_module(NAME)


def _load() -> ModuleType:
    import pyarrow as pa
    import pyarrow._compute as parts

    spec: Any = importlib.util.find_spec(NAME)
    code = spec.loader.get_code(NAME)
    registry = parts.function_registry()
    brief = _PartialRegistry(registry, set(_names_used(code)))
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    with _attribute_replaced(parts, "function_registry", lambda: brief), _without_docscrape():
        spec.loader.exec_module(module)
    if not brief.asked:
        raise ImportError(NAME)
    vars(module)["function_registry"] = parts.function_registry
    _add_missing_functions(module, registry)
    pa.compute = module
    return module


class _PartialRegistry:
    """A registry that lists few of its functions."""

    def __init__(self, registry: Any, names: set[str]) -> None:
        self.registry, self.names = registry, names
        self.asked = False

    def list_functions(self) -> list[str]:
        self.asked = True
        return [name for name in self.registry.list_functions() if name in self.names]

    def get_function(self, name: str) -> Any:
        return self.registry.get_function(name)


def _names_used(code: CodeType) -> Iterator[str]:
    """What code looks up by name, or may while the module is loaded."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from value.co_names
            yield from (name for inner in value.co_consts if isinstance(inner, CodeType) for name in _names_used(inner))
        elif isinstance(value, str):
            yield value


def _add_missing_functions(module: ModuleType, registry: Any) -> None:
    """Let the module have all functions that it would have."""
    wrap: Callable[[str, Any], Any] = module._wrap_function
    names = vars(module)
    left = set(registry.list_functions()) - names.keys()

    def made(name: str) -> Any:
        """A function. The registry also has those that are only for groups of rows: they are no part of the module."""
        known = _KEYWORDS.get(name, name)
        if known in left:
            function = registry.get_function(known)
            counts_rows = function.kind == "scalar_aggregate" and function.arity == 0
            if function.kind != "hash_aggregate" and not counts_rows:
                shown = next((shown for shown, own in _KEYWORDS.items() if own == known), known)
                names[known] = names[shown] = wrap(shown, function)
                return names[name]
        if name == "__all__":  # somebody imports all there is, and looks into the module itself if it has no such list
            everything()
        raise AttributeError(f"module {NAME!r} has no attribute {name!r}")

    def everything() -> list[str]:
        for name in left - names.keys():
            with contextlib.suppress(AttributeError):
                made(name)
        return sorted(names)

    names["__getattr__"], names["__dir__"] = made, everything


@contextlib.contextmanager
def _without_docscrape() -> Iterator[None]:
    """Loading the parser takes as long as loading the functions."""
    if _DOCS in sys.modules:
        yield
        return
    sys.modules[_DOCS] = nothing = ModuleType(_DOCS)
    vars(nothing)["NumpyDocString"] = lambda _: {"Parameters": []}
    try:
        yield
    finally:
        del sys.modules[_DOCS]


@contextlib.contextmanager
def _attribute_replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, kept)
