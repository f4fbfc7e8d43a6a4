"""Packages whose names are loaded when first used, so that an import stays quick."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_SPIN = "OPENBLAS_THREAD_TIMEOUT"


def lazy(package: str, home: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package. `home` says in which of its modules each name lives."""

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _sparing():
            value = getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return load, names


@contextmanager
def _sparing() -> Iterator[None]:
    """While modules are loaded there is nothing to collect. And if numpy is among them, its threads for linear algebra
    wait asleep: by default each first keeps a core busy for some hundredths of a second, though few programs that run
    a pipeline have anything for them to do."""
    collects, first = gc.isenabled(), "numpy" not in sys.modules and _SPIN not in os.environ
    gc.disable()
    if first:
        os.environ[_SPIN] = "10"  # 2 ** 10 cycles of the processor
    try:
        yield
    finally:
        if first:
            os.environ.pop(_SPIN, None)
        if collects:
            if not gc.get_freeze_count():  # what was loaded stays, so it counts as old, and no garbage is sought in it
                gc.freeze()
                gc.unfreeze()
            gc.enable()
