"""The lines of the progress panel, for any terminal width. Columns that do not fit are left out."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.observe.run_snapshot import RunSnapshot, StageProgress, merge_by_group

if TYPE_CHECKING:
    from rich.table import Table

    from gristmill.observe.run_snapshot import PoolSnapshot

_GOOD_NAME, _LEAST_NAME = 32, 14
_OPTIONAL_COLUMNS = ("queue", "workers", "rows in", "rows/s", "dropped")
"""Columns that go when there is no room, the first first."""

_STYLES = {"errors": "yellow", "queue": "dim", "workers": "dim"}


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
    told = [
        line for line in snapshot.stages if line.group is not None or line.rows_in or line.kept
    ]  # not who lists files
    lines = _lines_that_fit(told, max(most - len(totals) - 1, 0))
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
