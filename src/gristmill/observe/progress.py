"""Progress: what a run tells while it goes on.

On a terminal: a line per stage and a total, redrawn a few times a second. Elsewhere: one line per ten seconds.
GRISTMILL_PROGRESS=off|plain|live chooses.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from gristmill.core.errors import GristmillError, did_you_mean, shorten
from gristmill.core.executor import Observer, PoolProgress, Progress, Silent
from gristmill.core.result import Summary
from gristmill.observe.panel import Panel, terminal_size

if TYPE_CHECKING:
    from rich.table import Table

    from gristmill.core.plan import Plan

REDRAW_S = 0.2
PLAIN_EVERY_S = 10.0


def default_progress(every_s: float = PLAIN_EVERY_S) -> Observer:
    """Live on a terminal, one line per ten seconds (or `every_s`) elsewhere, or what GRISTMILL_PROGRESS says."""
    plain = partial(PlainProgress, every_s)
    modes: dict[str, Callable[[], Observer]] = {"off": Silent, "plain": plain, "live": LiveProgress}
    mode = os.environ.get("GRISTMILL_PROGRESS") or ("live" if _on_terminal() else "plain")
    if mode not in modes:
        raise GristmillError(f"GRISTMILL_PROGRESS={mode}: must be {', '.join(modes)}.{did_you_mean(mode, modes)}")
    return modes[mode]()


def _on_terminal() -> bool:
    with contextlib.suppress(ValueError, AttributeError):  # standard error may be closed, or missing
        return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return False


class PlainProgress:
    """A line per ten seconds; a short run prints nothing."""

    def __init__(self, every_s: float = PLAIN_EVERY_S) -> None:
        self.every_s = every_s
        self._due = 0.0

    def started(self, plan: Plan) -> None:
        self._due = time.monotonic() + self.every_s

    def progressed(self, progress: Progress) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self.every_s
        summary = Summary.of(progress)
        rate = summary.rows_in / progress.seconds if progress.seconds else 0.0
        failed = f", {summary.quarantined:,} quarantined" if summary.quarantined else ""
        rows = f"{summary.rows_in:,} rows in, {summary.rows_out:,} out{failed}, {rate:,.0f} rows/s"
        line = f"gristmill: {rows}; {total_line(progress)}"
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def finished(self, progress: Progress) -> None: ...


class LiveProgress:
    """A panel at the bottom of the terminal. It goes when the run ends."""

    def __init__(self) -> None:
        self._panel = Panel()
        self._due = 0.0

    def started(self, plan: Plan) -> None:
        self._due = time.monotonic() + REDRAW_S  # a run that is over at once shows no panel
        atexit.register(self._panel.close)

    def progressed(self, progress: Progress) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + REDRAW_S
        self._panel.show(draw(progress, terminal_size()[0]))

    def finished(self, progress: Progress) -> None:
        self._panel.close()
        atexit.unregister(self._panel.close)


def draw(progress: Progress, width: int) -> list[str]:
    """The panel's lines, none wider than `width`."""
    import io

    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    with console.capture() as captured:
        console.print(_stage_table(progress))
        console.print(Text(total_line(progress), style="bold"), no_wrap=True, overflow="ellipsis")
    return captured.get().splitlines()


def _stage_table(progress: Progress) -> Table:
    from rich.table import Table
    from rich.text import Text

    summary = Summary.of(progress)
    titles = summary.titles()
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("stage", no_wrap=True)
    for title in (*titles, "rows/s"):
        table.add_column(title, justify="right", no_wrap=True, style="yellow" if title == "quarantined" else "")
    for line in summary.stages:
        rate = (line.rows_in or line.rows_out) / progress.seconds if progress.seconds else 0.0
        table.add_row(Text(line.name), *line.counted()[: len(titles)], f"{rate:,.0f}" if rate else "")
    return table


def total_line(progress: Progress) -> str:
    """Sources done of those seen, time, time left, and the pool that is busiest."""
    more = "" if progress.listing_done else "+"
    parts = [f"{progress.sources_done:,} of {progress.sources_seen:,}{more} sources", clock(progress.seconds)]
    left = time_left(progress)
    if left is not None:
        parts.append(f"{clock(left)} left")
    pool = busiest(progress.pools)
    if pool is not None:
        name = shorten(pool.name.split(" + "), 2)
        parts.append(f"busiest: {name} ({pool.busy} of {pool.workers} workers, {pool.queued:,} waiting)")
    return ", ".join(parts)


def time_left(progress: Progress) -> float | None:
    """By the share of sources that are done, once all are known."""
    if not progress.listing_done or not progress.sources_done:
        return None
    return progress.seconds * (progress.sources_seen - progress.sources_done) / progress.sources_done


def busiest(pools: list[PoolProgress]) -> PoolProgress | None:
    """The pool with the largest share of its workers busy; of equals, the one with most waiting before it."""
    working = [pool for pool in pools if pool.busy]
    return max(working, key=lambda pool: (pool.busy / pool.workers, pool.queued_bytes, pool.queued), default=None)


def clock(seconds: float) -> str:
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60:02}:{rest % 60:02}"
