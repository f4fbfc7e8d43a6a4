"""The C extension, where it could be built; None where not. What it does, Python does too, only slower."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

kernels: Any = None
with suppress(ImportError):
    kernels = importlib.import_module("gristmill._kernels")
