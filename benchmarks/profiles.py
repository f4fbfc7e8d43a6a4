"""What a profile says, in short: the share of samples by the module of Gristmill and what runs there, for the page.

A sample belongs to the innermost module of Gristmill on its stack; what is on top of it says what runs: a kernel of
ours, Arrow, another library, or Python itself. Imports and what runs before or beside Gristmill are shares of their
own. What py-spy cannot see, such as the kernel of the system at the end of a process, is missing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from measure import HERE

RESULT = HERE / "results" / "profiles.json"
MARK = "profiles"
MOST, LEAST = 6, 2.0
TITLES = {
    "copy": "JSON lines, read and written",
    "filters": "28 English filters",
    "modifiers": "Three modifiers",
    "exact": "Exact duplicates",
    "fuzzy": "Near duplicates",
    "warc": "WARC to text by resiliparse",
    "small": "5,000 documents, two filters",
    "tiny": "Tiny tasks through three pools",
}
MARKS = {"_kernels": "our kernel", "arrow": "Arrow", "numpy": "NumPy", "sre": "regular expressions"}

Stacks = list[tuple[list[str], int]]

_MODULE = re.compile(r"\(gristmill/(?P<path>[\w/]+)\.py:\d+\)$")


def stacks(path: Path) -> Stacks:
    """The stacks of py-spy's raw output, outermost frame first, and how often each was seen."""
    found = []
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        found.append((stack.split(";"), int(count)))
    return found


def innermost(found: Stacks) -> Counter[str]:
    costs: Counter[str] = Counter()
    for frames, count in found:
        costs[frames[-1]] += count
    return costs


def place(frames: list[str]) -> str:
    """To which share a sample belongs."""
    if any("importlib" in frame for frame in frames):
        return "imports"
    for depth in range(len(frames) - 1, -1, -1):
        if found := _MODULE.search(frames[depth]):
            return f"{found['path'].replace('/', '.')}, {_runs(frames[depth + 1 :])}"
    return "outside of Gristmill"


def _runs(above: list[str]) -> str:
    """What runs on top of a module of Gristmill."""
    text = " ".join(above)
    for mark, name in MARKS.items():
        if mark in text:
            return name
    return "Python" if not above or all(".so" not in frame for frame in above) else "libraries"


def shares(found: Stacks) -> dict[str, float]:
    """Percent of all samples, the largest first."""
    costs: Counter[str] = Counter()
    for frames, count in found:
        costs[place(frames)] += count
    return {name: round(100 * count / costs.total(), 1) for name, count in costs.most_common(MOST)}


def save(workload: str, found: Stacks, rate: int) -> None:
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    total = sum(count for _, count in found)
    known[workload] = {"seconds": round(total / rate, 1), "shares": shares(found)}
    RESULT.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def table() -> str:
    """For docs/performance.md."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    lines = ["| Workload | on a core | of which |", "|---|---|---|"]
    for name, title in TITLES.items():
        if one := known.get(name):
            parts = [f"{where} {share:.0f} %" for where, share in one["shares"].items() if share >= LEAST]
            lines.append(f"| {title} (`{name}`) | {one['seconds']:.1f} s | {'; '.join(parts)} |")
    return "\n".join(lines)
