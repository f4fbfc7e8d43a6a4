"""The C extension, or None where it could not be built; slower Python code then does the same."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

kernels: Any = None
with suppress(ImportError):
    kernels = importlib.import_module("gristmill._kernels")
