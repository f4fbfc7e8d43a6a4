"""In which order figures are measured: each once, and then again as often as the time allows.

With an end, those that take least are measured again first, so that as many as possible have all of their rounds; what
takes too long has one. Every line tells how long it has taken so far, and about how long it will.
"""

from __future__ import annotations

import math
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from figure_kinds import Figure
from process_measurement import HERE, busy_cores, median, short_message

_LOOK_S = 0.25
"""How long is looked at what others do."""


@dataclass
class Entry:
    """A figure that is to be measured, and what was found so far."""

    kind: str
    name: str
    figure: Figure
    rounds: int = 3
    guess_s: float = 0.0
    """How long a round takes, before it is known."""
    found: list[dict[str, Any]] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    """How many cores others used, just before each round."""
    failed: str | None = None

    @property
    def seconds(self) -> float:
        return max(self.took, default=self.guess_s)

    def measure(self) -> None:
        """A round. A figure that fails has no result, whatever it had before."""
        code()  # as it is now: it may be changed while this goes on
        self.others.append(busy_cores(_LOOK_S))
        began = time.perf_counter()
        try:
            self.found.append(self.figure())
        except Exception as error:  # noqa: BLE001  (whatever it is: the other figures can still be measured)
            traceback.print_exc()
            self.failed = f"{type(error).__name__}: {short_message(error)}"
            self.found.clear()
        self.took.append(time.perf_counter() - began)

    def merged(self) -> dict[str, Any]:
        """All rounds as one result, and what it takes to judge it."""
        judged = {"took_s": round(self.seconds), "others_cores": round(max(self.others), 1), "code": code()}
        return merge(self.found) | judged


@cache
def code() -> str:
    """Which code is measured: the last commit that changed it, with a plus if it was changed since; nothing where git
    does not know it."""
    commands = (("log", "-1", "--format=%h", "--", "src", "kernels"), ("status", "--porcelain", "src", "kernels"))
    try:
        asked = [
            subprocess.run(["git", *one], cwd=HERE.parent, capture_output=True, text=True, check=False)
            for one in commands
        ]
    except OSError:
        return ""
    commit, changed = (one.stdout.strip() for one in asked)
    return f"{commit}+" if commit and changed else commit


def run_all(entries: Sequence[Entry], end: float = math.inf, after: Callable[[Entry], None] | None = None) -> None:
    """Measure all of them, and call `after` after each. Rounds after the first are over by `end`."""
    began = time.perf_counter()
    most = max((entry.rounds for entry in entries), default=0)
    chosen = list(entries)
    for number in range(1, most + 1):
        if number == 2:
            chosen = affordable(entries, end - time.perf_counter())
        for place, entry in enumerate(chosen):
            now = time.perf_counter()
            if entry.failed or entry.rounds < number or (number > 1 and now + entry.seconds > end):
                continue
            left = _left(entries if number == 1 else chosen, chosen[place:], number, end - now)
            count = f"round {number} of {entry.rounds}, figure {place + 1} of {len(chosen)}"
            print(f"[{_clock(now - began)}, about {_clock(left)} left] {entry.kind}: {entry.name}, {count}", flush=True)
            entry.measure()
            print(f"  {entry.name} took {entry.took[-1]:.0f} s", flush=True)
            if after:
                after(entry)


def affordable(entries: Sequence[Entry], seconds: float) -> list[Entry]:
    """Those for all of whose further rounds there is time, beginning with what takes least; in the given order."""
    once: list[str] = []
    several = [entry for entry in entries if entry.rounds > 1 and not entry.failed]
    for entry in sorted(several, key=lambda entry: entry.seconds):
        seconds -= (entry.rounds - 1) * entry.seconds
        if seconds < 0:
            once.append(entry.name)
    if once:
        print(f"once only, since there is no time for more rounds: {', '.join(once)}", flush=True)
    return [entry for entry in several if entry.name not in once]


def _left(all_entries: Sequence[Entry], here: Sequence[Entry], number: int, seconds: float) -> float:
    """How long it will take: the rest of this round, and then as many rounds as there is time for."""
    rest = sum(entry.seconds for entry in here if not entry.failed)
    more = sum(max(0, entry.rounds - number) * entry.seconds for entry in all_entries if not entry.failed)
    return max(rest, min(rest + more, seconds))


def _clock(seconds: float) -> str:
    hours, minutes = int(seconds) // 3600, int(seconds) // 60 % 60
    return f"{hours}:{minutes:02}:{int(seconds) % 60:02}" if hours else f"{minutes}:{int(seconds) % 60:02}"


def merge(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rounds of one figure as one: the median, the smallest and the largest of each number."""
    merged: dict[str, Any] = {"rounds": len(results)}
    for name in dict.fromkeys(name for result in results for name in result):
        found = [result[name] for result in results if name in result]  # what failed in one round is not in it
        if isinstance(found[0], dict):
            values = [one["median"] for one in found]
            merged[name] = {"median": round(median(values), 4), "min": min(values), "max": max(values)}
        elif isinstance(found[0], list):
            merged[name] = list(dict.fromkeys(one for some in found for one in some))
        else:
            merged[name] = found[0] if all(one == found[0] for one in found) else found
    return merged
