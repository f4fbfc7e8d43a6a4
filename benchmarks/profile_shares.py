"""What a profile says, in short: the share of samples by the module of Gristmill that was at work, for the page.

A sample belongs to the innermost module of Gristmill on its stack, with all that it calls: kernels in C, Arrow, other
libraries. Imports, and the start and end of interpreters, have shares of their own. py-spy finds a new process some
tenths of a second late, so the inputs are large: what lives shortly is seen too little.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from process_measurement import HERE

RESULT = HERE / "results" / "profiles.json"
MARK = "profiles"
MOST, LEAST = 8, 2.0
TITLES = {
    "copy": "JSON lines, read and written",
    "parquet": "Parquet, read and written",
    "filters": "28 English filters",
    "modifiers": "Six modifiers",
    "language": "Language",
    "exact": "Exact duplicates",
    "fuzzy": "Near duplicates",
    "semantic": "Semantic duplicates",
    "warc": "WARC to text by resiliparse",
    "justext": "WARC to text by justext",
    "trafilatura": "WARC to text by trafilatura",
    "images": "Photographs, read and decoded",
    "resume": "Resume of a finished run over many files",
    "small": "5,000 documents, from start to end",
    "tiny": "Tiny tasks through three pools",
}

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
    for frame in reversed(frames):
        if found := _MODULE.search(frame):
            return f"`{found['path'].replace('/', '.')}`"
    return "start and end of interpreters"


def shares(found: Stacks) -> dict[str, float]:
    """Percent of all samples, the largest first."""
    costs: Counter[str] = Counter()
    for frames, count in found:
        costs[place(frames)] += count
    return {name: round(100 * count / costs.total(), 1) for name, count in costs.most_common(MOST)}


def save(workload: str, found: Stacks, code: str) -> None:
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    known[workload] = {"samples": sum(count for _, count in found), "code": code, "shares": shares(found)}
    RESULT.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def table() -> str:
    """For docs/performance.md."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    lines = ["| Workload | where the time on cores goes | samples | code of |", "|---|---|---|---|"]
    for name, title in TITLES.items():
        one = known.get(name, {})
        parts = [f"{where} {share:.0f} %" for where, share in one.get("shares", {}).items() if share >= LEAST]
        cells = (f"{title} (`{name}`)", ", ".join(parts), f"{one.get('samples', 0):,}", one.get("code", "earlier"))
        lines.append(f"| {' | '.join(cells)} |" if one else f"| {cells[0]} | not measured yet | | |")
    return "\n".join(lines)
