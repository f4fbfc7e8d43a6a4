"""Packages whose public names are imported on first use, so that importing the package itself is fast.

    if TYPE_CHECKING:
        from gristmill.text.blend import Blend as Blend
    else:
        __getattr__, __dir__, __all__ = lazy(__name__)

The imports under `TYPE_CHECKING` are the only list of a package's public names: type checkers follow them, and `lazy`
reads them from the source. The redundant `as` marks a name as re-exported. Reading the longest list takes about 1 ms.
A package installed without its source files cannot be imported.
"""

from __future__ import annotations

import ast
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_SPIN = "OPENBLAS_THREAD_TIMEOUT"


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of the package whose `__init__.py` calls this."""
    modules = _modules_by_name(package)

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _fast_import():
            value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return load, names, sorted(modules)


def _modules_by_name(package: str) -> dict[str, str]:
    """The module of each public name, from the package's `if TYPE_CHECKING:` block."""
    spec: Any = sys.modules[package].__spec__
    if not spec.origin.endswith(".py"):
        raise ImportError(f"{package} was loaded from {spec.origin} without its source: install {package}/__init__.py")
    return {
        alias.name: str(imported.module)
        for block in ast.parse(spec.loader.get_data(spec.origin)).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for imported in block.body
        if isinstance(imported, ast.ImportFrom)
        for alias in imported.names
        if alias.asname  # without `as`, a name is imported for annotations only
    }


@contextmanager
def _fast_import() -> Iterator[None]:
    """Pauses garbage collection, and makes the OpenBLAS threads of numpy sleep at once when they have no work.

    By default each of those threads first keeps a core busy for some 10 ms, and few pipelines do linear algebra.
    """
    gc_was_enabled = gc.isenabled()
    sets_timeout = "numpy" not in sys.modules and _SPIN not in os.environ
    gc.disable()
    if sets_timeout:
        os.environ[_SPIN] = "10"  # 2 ** 10 processor cycles; read once, when numpy loads OpenBLAS
    try:
        yield
    finally:
        if sets_timeout:
            os.environ.pop(_SPIN, None)
        if gc_was_enabled:
            if not gc.get_freeze_count():
                # Modules live as long as the process: moved to the oldest generation, they are rarely scanned.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
