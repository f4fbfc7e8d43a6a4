"""Progress of a run while it runs: terminal output, events, metrics and traces.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.observe.events import Events as Events
    from gristmill.observe.live_progress import LiveProgress as LiveProgress
    from gristmill.observe.progress_lines import PlainProgress as PlainProgress
    from gristmill.observe.progress_lines import Several as Several
    from gristmill.observe.progress_lines import default_progress as default_progress
    from gristmill.observe.prometheus import MetricsEndpoint as MetricsEndpoint
    from gristmill.observe.traces import Traces as Traces
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
