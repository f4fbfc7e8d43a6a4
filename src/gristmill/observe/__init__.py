"""What is shown of a run while it runs, and how its counts read.

The names below are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.observe.events import Events
    from gristmill.observe.live_progress import LiveProgress
    from gristmill.observe.progress import PlainProgress, Several, default_progress
    from gristmill.observe.prometheus import MetricsEndpoint
    from gristmill.observe.traces import Traces

_HOME = {
    "Events": "events",
    "LiveProgress": "live_progress",
    "MetricsEndpoint": "prometheus",
    "PlainProgress": "progress",
    "Several": "progress",
    "Traces": "traces",
    "default_progress": "progress",
}

__all__ = ["Events", "LiveProgress", "MetricsEndpoint", "PlainProgress", "Several", "Traces", "default_progress"]

__getattr__, __dir__ = lazy(__name__, _HOME)
