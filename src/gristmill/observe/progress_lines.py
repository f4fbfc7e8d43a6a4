"""Progress of a run while it is running, for people.

On a terminal: a line per stage and a total, redrawn a few times a second. Elsewhere: one line per ten seconds.
GRISTMILL_PROGRESS=off|plain|live chooses. What only a terminal needs is in `live_progress.py`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from gristmill.core.errors import GristmillError, did_you_mean
from gristmill.core.executor import Observer, Progress, SilentObserver
from gristmill.core.result import count_noun
from gristmill.observe.run_snapshot import ProgressTracker, RunSnapshot

if TYPE_CHECKING:
    from gristmill.core.plan.planner import Plan

PLAIN_EVERY_S = 10.0


def default_progress(every_s: float = PLAIN_EVERY_S) -> Observer:
    """Live on a terminal, one line per ten seconds (or `every_s`) elsewhere, or what GRISTMILL_PROGRESS says."""
    plain = partial(PlainProgress, every_s)
    modes: dict[str, Callable[[], Observer]] = {"off": SilentObserver, "plain": plain, "live": _live}
    mode = os.environ.get("GRISTMILL_PROGRESS") or ("live" if _on_terminal() else "plain")
    if mode not in modes:
        hint = did_you_mean(mode, modes)
        raise GristmillError(f"GRISTMILL_PROGRESS={mode} is not valid: use off, plain or live.{hint}")
    return modes[mode]()


def _live() -> Observer:
    from gristmill.observe.live_progress import LiveProgress

    return LiveProgress()


def _on_terminal() -> bool:
    with contextlib.suppress(ValueError, AttributeError):  # standard error may be closed, or missing
        return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return False


def print_notice(message: str) -> None:
    """One line on standard error, unless that is closed."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"gristmill: {message}\n")
        sys.stderr.flush()


class PlainProgress(Observer):
    """A line per ten seconds; a short run prints nothing."""

    def __init__(self, every_s: float = PLAIN_EVERY_S) -> None:
        self.every_s = every_s
        self._due = 0.0
        self._tracker = ProgressTracker()

    def noticed(self, message: str) -> None:
        print_notice(message)

    def started(self, plan: Plan) -> None:
        self._tracker = ProgressTracker(plan)
        self._due = time.monotonic() + self.every_s

    def progressed(self, progress: Progress) -> None:
        self._tracker.update(progress)
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self.every_s
        print_notice(plain_line(self._tracker.snapshot()))

    def finished(self, progress: Progress) -> None: ...


class Several(Observer):
    """Tells more than one observer of a run: `observer=Several(default_progress(), MetricsEndpoint(9464))`."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def noticed(self, message: str) -> None:
        for observer in self.observers:
            observer.noticed(message)

    def started(self, plan: Plan) -> None:
        for observer in self.observers:
            observer.started(plan)

    def progressed(self, progress: Progress) -> None:
        for observer in self.observers:
            observer.progressed(progress)

    def finished(self, progress: Progress) -> None:
        with contextlib.ExitStack() as stack:  # each is told, also when another one fails
            for observer in self.observers:
                stack.callback(observer.finished, progress)


def plain_line(snapshot: RunSnapshot) -> str:
    """Everything in one line."""
    failed = f", {snapshot.quarantined:,} quarantined" if snapshot.quarantined else ""
    line = f"{count_noun(snapshot.rows_in, 'row')} in, {snapshot.rows_out:,} out{failed}; {total_line(snapshot)}"
    return f"{line}; {bottleneck_line(snapshot)}" if snapshot.bottleneck else line


def total_line(snapshot: RunSnapshot) -> str:
    """Sources done of those seen, time, time left, and how fast it goes."""
    more = "" if snapshot.listing_done else "+"
    what = "source" if snapshot.sources_seen == 1 and snapshot.listing_done else "sources"
    parts = [f"segment {snapshot.segment + 1} of {snapshot.segments}"] if snapshot.segments > 1 else []
    parts += [f"{snapshot.sources_done:,} of {snapshot.sources_seen:,}{more} {what}", format_clock(snapshot.seconds)]
    if snapshot.seconds_left is not None:
        parts.append(f"{format_clock(snapshot.seconds_left)} left{' in this segment' if snapshot.segments > 1 else ''}")
    if snapshot.rate:
        parts.append(f"{snapshot.rate:,.0f} rows/s")
    return ", ".join(parts)


def bottleneck_line(snapshot: RunSnapshot) -> str:
    return str(snapshot.bottleneck or "")


def format_clock(seconds: float) -> str:
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60:02}:{rest % 60:02}"
