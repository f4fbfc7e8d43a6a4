"""Live progress of a run on a terminal: a table of stages at the bottom, redrawn a few times a second.

A scroll region of the terminal keeps the panel apart from everything that is printed above it, by this process, its
workers or C libraries. Columns that do not fit the width are left out, the least important first.

Gives up: cleaning up after kill -9, which leaves the scroll region behind; the command `reset` removes it.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gristmill.core.executor import Observer
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.observe.progress_lines import bottleneck_line, print_notice, total_line
from gristmill.observe.run_snapshot import ProgressTracker, RunSnapshot, StageProgress, merge_by_group

if TYPE_CHECKING:
    from rich.table import Table

    from gristmill.core.executor import Progress
    from gristmill.core.plan.planner import Plan
    from gristmill.observe.run_snapshot import PoolSnapshot

REDRAW_S = 0.2
_GOOD_NAME, _LEAST_NAME = 32, 14
_OPTIONAL_COLUMNS = ("queue", "workers", "rows in", "rows/s", "dropped")
"""Columns that go when there is no room, the first first."""

_STYLES = {"errors": "yellow", "queue": "dim", "workers": "dim"}

_SAVE, _RESTORE, _DOWN, _CLEAR = "\x1b7", "\x1b8", "\x1bD", "\x1b[2K"


class LiveProgress(Observer):
    """A panel at the bottom of the terminal. It goes when the run ends."""

    def __init__(self) -> None:
        self._panel = TerminalPanel()
        self._due = 0.0
        self._tracker = ProgressTracker()

    def noticed(self, message: str) -> None:
        print_notice(message)

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


# -- the table ---------------------------------------------------------------------------------------------


@fast_dataclass(frozen=True, slots=True)
class _TableCells:
    """Names of stages, and a column of texts for each title."""

    names: list[str]
    columns: dict[str, list[str]]

    def width(self, title: str) -> int:
        return max(map(len, [title, *self.columns[title]]))

    @property
    def others(self) -> int:
        """What the columns beside the names take, each with two spaces before it."""
        return sum(self.width(title) + 2 for title in self.columns)


def render_panel(snapshot: RunSnapshot, totals: Sequence[str], width: int, most: int = 1000) -> list[str]:
    """The panel's lines, none wider than `width`, at most `most`: a header, stages, and `totals`."""
    from rich.console import Console
    from rich.text import Text

    totals = [total for total in totals if total] if most > 3 else totals[:1]
    lines_wanted = [
        line for line in snapshot.stages if line.group is not None or line.rows_in or line.kept
    ]  # not who lists files
    lines = _lines_that_fit(lines_wanted, max(most - len(totals) - 1, 0))
    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    with console.capture() as captured:
        if lines:
            console.print(_table(_fit_to_width(lines, snapshot, width), width))
        for total in totals:
            console.print(Text(total, style="bold"), no_wrap=True, overflow="ellipsis")
    return captured.get().splitlines()


def _lines_that_fit(lines: list[StageProgress], room: int) -> list[StageProgress]:
    """All stages, or groups of them, or the last groups."""
    if len(lines) > room:
        lines = merge_by_group(lines)
    hidden = len(lines) - room
    if hidden <= 0:
        return lines
    return [StageProgress(f"… {hidden + 1} earlier groups"), *lines[hidden + 1 :]] if room > 1 else []


def _fit_to_width(lines: Sequence[StageProgress], snapshot: RunSnapshot, width: int) -> _TableCells:
    """With as much as there is room for: all of it, shorter names and numbers, fewer columns."""
    grid = _grid(lines, snapshot, "{:,.0f}".format)
    longest = max(map(len, grid.names))
    if grid.others + min(longest, _GOOD_NAME) <= width:
        return grid
    grid = _grid(lines, snapshot, compact_number)
    for title in _OPTIONAL_COLUMNS:
        if grid.others + min(longest, _LEAST_NAME) <= width:
            break
        grid.columns.pop(title, None)
    return grid


def _grid(lines: Sequence[StageProgress], snapshot: RunSnapshot, number: Callable[[float], str]) -> _TableCells:
    def counted(line: StageProgress) -> dict[str, str]:
        took = line.rows_in > 0
        gave = line.kept + line.dropped + line.quarantined > 0
        pools = [snapshot.pools[index] for index in line.pools if index < len(snapshot.pools)]
        return {
            "rows in": number(line.rows_in) if took else "",
            "kept": number(line.kept) if gave else "",
            "dropped": number(line.dropped) if took and gave else "",
            "errors": number(line.quarantined) if line.quarantined else "",
            "rows/s": number(line.rate) if line.rate >= 0.5 else "",
            "workers": _workers(pools),
            "queue": number(sum(pool.queued for pool in pools)) if pools else "",
        }

    rows = [counted(line) for line in lines]
    optional = ("errors", "workers", "queue")
    titles = [title for title in rows[0] if title not in optional or any(row[title] for row in rows)]
    return _TableCells([line.name for line in lines], {title: [row[title] for row in rows] for title in titles})


def _workers(pools: Sequence[PoolSnapshot]) -> str:
    there = sum(pool.workers for pool in pools)
    return f"{sum(pool.busy for pool in pools)}/{there}" if there else ""


def _table(grid: _TableCells, width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 0, 0, 2))
    table.add_column("stage", no_wrap=True, overflow="ellipsis", max_width=max(width - grid.others, 5))
    for title in grid.columns:
        table.add_column(
            title, justify="right", no_wrap=True, style=_STYLES.get(title, ""), min_width=grid.width(title)
        )
    for index, name in enumerate(grid.names):
        table.add_row(Text(name), *(texts[index] for texts in grid.columns.values()))
    return table


def compact_number(number: float) -> str:
    """`950`, `12.3k`, `1.2M`: at most five characters up to a thousand billions."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size * 0.9995:
            return f"{number / size:.1f}{letter}" if number < size * 99.95 else f"{number / size:.0f}{letter}"
    return f"{number:.0f}"


# -- the terminal ------------------------------------------------------------------------------------------


class TerminalPanel:
    """Draws on standard error."""

    def __init__(self) -> None:
        self._rows = 0
        self._height = 0

    def show(self, lines: Sequence[str]) -> None:
        """Replace the panel's lines. The last ones are kept when the terminal is too small for all."""
        rows = terminal_size()[1]
        if rows < 4:
            return
        lines = lines[-max(1, rows // 2) :]
        text = ""
        if (rows, len(lines)) != (self._rows, self._height):
            text = self._leave() + self._enter(rows, len(lines))
        top = rows - len(lines) + 1
        drawn = "".join(f"\x1b[{top + index};1H{_CLEAR}{line}" for index, line in enumerate(lines))
        _write(f"{text}{_SAVE}{drawn}{_RESTORE}")

    def close(self) -> None:
        """Remove the panel. The cursor stays after what was printed last."""
        if self._height:
            _write(self._leave())

    def _enter(self, rows: int, height: int) -> str:
        self._rows, self._height = rows, height
        room = _DOWN * height + f"\x1b[{height}A"  # scrolls what is there up, the cursor with it
        return f"{room}{_SAVE}\x1b[1;{rows - height}r{_RESTORE}"

    def _leave(self) -> str:
        if not self._height:
            return ""
        rows = range(self._rows - self._height + 1, self._rows + 1)
        self._height = 0
        cleared = "".join(f"\x1b[{row};1H{_CLEAR}" for row in rows)
        return f"{_SAVE}\x1b[r{cleared}{_RESTORE}"


def terminal_size() -> tuple[int, int]:
    """Columns and rows."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        size = os.get_terminal_size(sys.stderr.fileno())
        if size.columns and size.lines:
            return size.columns, size.lines
    return shutil.get_terminal_size()


def _write(text: str) -> None:
    """One write, so that nothing of another process comes in between. A terminal that went away is no error."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        try:
            number = sys.stderr.fileno()
        except (OSError, AttributeError):
            sys.stderr.write(text)
            sys.stderr.flush()
        else:
            os.write(number, text.encode())
