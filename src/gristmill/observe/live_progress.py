"""Live progress of a run on a terminal, redrawn a few times a second."""

from __future__ import annotations

import atexit
import time
from typing import TYPE_CHECKING

from gristmill.observe.live_table import render_panel
from gristmill.observe.progress import bottleneck_line, total_line
from gristmill.observe.run_snapshot import ProgressTracker
from gristmill.observe.terminal_panel import TerminalPanel, terminal_size

if TYPE_CHECKING:
    from gristmill.core.executor import Progress
    from gristmill.core.plan.planner import Plan

REDRAW_S = 0.2


class LiveProgress:
    """A panel at the bottom of the terminal. It goes when the run ends."""

    def __init__(self) -> None:
        self._panel = TerminalPanel()
        self._due = 0.0
        self._tracker = ProgressTracker()

    def started(self, plan: Plan) -> None:
        self._tracker = ProgressTracker(plan)
        self._due = time.monotonic() + REDRAW_S  # a run that is over at once shows no panel
        atexit.register(self._panel.close)

    def progressed(self, progress: Progress) -> None:
        self._tracker.update(progress)
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + REDRAW_S
        width, rows = terminal_size()
        snapshot = self._tracker.snapshot()
        self._panel.show(
            render_panel(snapshot, [total_line(snapshot), bottleneck_line(snapshot)], width, max(rows // 2, 1))
        )

    def finished(self, progress: Progress) -> None:
        self._panel.close()
        atexit.unregister(self._panel.close)
