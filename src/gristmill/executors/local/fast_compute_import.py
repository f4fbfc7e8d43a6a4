"""Loads `pyarrow.compute` in workers with each function created when it is first used.

Importing the module creates a wrapper with a signature and parsed documentation for each of about three hundred
functions. That takes 0.06 s of CPU instead of 0.013 s, the largest part of starting a worker, and a run uses a dozen of
them. Here, the module gets only those functions that its own code uses; the others are created on demand by the
module's own means. If the module is not built as expected, it is imported as usual.

What is given up: the options in `help` of a function; `vars` shows only what was used.

Only for processes that serve workers. The driver's `pyarrow` is not touched.
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
    """Load the module into `sys.modules`, and return it."""
    if NAME not in sys.modules:
        try:
            return _load()
        except Exception:  # noqa: BLE001  another version may be built differently
            sys.modules.pop(NAME, None)
    return importlib.import_module(NAME)


def _load() -> ModuleType:
    import pyarrow as pa
    import pyarrow._compute as parts

    spec: Any = importlib.util.find_spec(NAME)
    code = spec.loader.get_code(NAME)
    registry = parts.function_registry()
    partial = _PartialRegistry(registry, set(_names_used(code)))
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    with _attribute_replaced(parts, "function_registry", lambda: partial), _without_docscrape():
        spec.loader.exec_module(module)
    if not partial.asked:
        raise ImportError(NAME)
    vars(module)["function_registry"] = parts.function_registry
    _add_missing_functions(module, registry)
    pa.compute = module
    return module


class _PartialRegistry:
    """A function registry that lists only some of its functions."""

    def __init__(self, registry: Any, names: set[str]) -> None:
        self.registry, self.names = registry, names
        self.asked = False

    def list_functions(self) -> list[str]:
        self.asked = True
        return [name for name in self.registry.list_functions() if name in self.names]

    def get_function(self, name: str) -> Any:
        return self.registry.get_function(name)


def _names_used(code: CodeType) -> Iterator[str]:
    """Names that the code of the module may look up while it is loaded."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from value.co_names
            yield from (name for inner in value.co_consts if isinstance(inner, CodeType) for name in _names_used(inner))
        elif isinstance(value, str):
            yield value


def _add_missing_functions(module: ModuleType, registry: Any) -> None:
    """Create the remaining functions of the module on demand."""
    wrap: Callable[[str, Any], Any] = module._wrap_function
    names = vars(module)
    missing = set(registry.list_functions()) - names.keys()

    def get_function(name: str) -> Any:
        """Create a function, except those for groups of rows, which are not part of the module."""
        known = _KEYWORDS.get(name, name)
        if known in missing:
            function = registry.get_function(known)
            counts_rows = function.kind == "scalar_aggregate" and function.arity == 0
            if function.kind != "hash_aggregate" and not counts_rows:
                public = next((public for public, own in _KEYWORDS.items() if own == known), known)
                names[known] = names[public] = wrap(public, function)
                return names[name]
        if name == "__all__":  # `import *` reads the module itself if there is no such list
            add_all()
        raise AttributeError(f"module {NAME!r} has no attribute {name!r}")

    def add_all() -> list[str]:
        for name in missing - names.keys():
            with contextlib.suppress(AttributeError):
                get_function(name)
        return sorted(names)

    names["__getattr__"], names["__dir__"] = get_function, add_all


@contextlib.contextmanager
def _without_docscrape() -> Iterator[None]:
    """Replace the parser of docstrings, which takes as long to import as the functions."""
    if _DOCS in sys.modules:
        yield
        return
    sys.modules[_DOCS] = stub = ModuleType(_DOCS)
    vars(stub)["NumpyDocString"] = lambda _: {"Parameters": []}
    try:
        yield
    finally:
        del sys.modules[_DOCS]


@contextlib.contextmanager
def _attribute_replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)
