"""What is shown of a run while it runs, and how its counts read.

The names below are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.observe.events import Events
    from gristmill.observe.metrics import MetricsEndpoint
    from gristmill.observe.progress import LiveProgress, PlainProgress, Several, default_progress
    from gristmill.observe.traces import Traces

_HOME = {
    "Events": "events",
    "LiveProgress": "progress",
    "MetricsEndpoint": "metrics",
    "PlainProgress": "progress",
    "Several": "progress",
    "Traces": "traces",
    "default_progress": "progress",
}

__all__ = ["Events", "LiveProgress", "MetricsEndpoint", "PlainProgress", "Several", "Traces", "default_progress"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gristmill.observe' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gristmill.observe.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
