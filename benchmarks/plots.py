"""The ratios of results/*.json as one picture: how many times the CPU seconds of Gristmill others need for the same.

    python benchmarks/plots.py [RESULTS]       writes RESULTS/ratios.svg

A bar for each system, on a logarithmic scale, with a whisker from the smallest to the largest round. Systems that need
less than Gristmill are drawn to the left of the line.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dedup_tables
from measure import HERE

RESULTS = HERE / "results"
RATIO = "_cpu_ratio"
WORKLOADS = {
    "filters": "28 English filters",
    "modifiers": "Six modifiers",
    "language": "Language",
    "exact": "Exact duplicates",
    "large_exact": "Exact duplicates",
    "fuzzy": "Near duplicates",
    "large_fuzzy": "Near duplicates",
    "tags": "Tags of Gopher and C4",
    "warc": "WARC to text",
    "image": "Images: read, decode, resize",
    "semantic": "Semantic duplicates",
}
KEYS = {"times_webdataset": "webdataset_cpu_ratio"}
"""Ratios that have other names than SYSTEM_cpu_ratio in the results."""
KEYS |= {f"{name}_ratio": f"curator_{name}_cpu_ratio" for name in ("resiliparse", "justext", "trafilatura")}
SYSTEMS = {
    "executor": "NeMo Curator on Ray Data",
    "loop": "NeMo Curator, plain loop",
    "curator_resiliparse": "NeMo Curator, resiliparse",
    "curator_justext": "NeMo Curator, justext",
    "curator_trafilatura": "NeMo Curator, trafilatura",
    "brute": "brute force",
    "webdataset": "webdataset with Pillow",
    **dedup_tables.TITLES,
}
LEFT, RIGHT, ROW, HEAD = 250, 640, 22, 30


@dataclass(frozen=True)
class Bar:
    """One system beside Gristmill."""

    workload: str
    system: str
    ratio: dict[str, float]


def bars(figures: dict[str, Any]) -> Iterator[Bar]:
    for name, title in WORKLOADS.items():
        found = figures.get(name, {})
        size = f", {found['documents']:,} documents" if "documents" in found else ""
        megabytes = found.get("megabytes", found.get("pages_mb"))
        size = f", {megabytes} MB" if megabytes and not size else size
        for key, value in found.items():
            system = KEYS.get(key, key).removesuffix(RATIO)
            if KEYS.get(key, key).endswith(RATIO) and system in SYSTEMS and system != "same":
                yield Bar(title + size, SYSTEMS[system], value)


def draw(all_bars: list[Bar]) -> str:
    """The picture."""
    most = max((bar.ratio["max"] for bar in all_bars), default=10.0)
    least = min((bar.ratio["min"] for bar in all_bars), default=1.0)
    low, high = math.log10(min(least, 0.5)), math.log10(max(most, 10.0))
    scale = (RIGHT - LEFT) / (high - low)

    def x(value: float) -> float:
        return LEFT + (math.log10(value) - low) * scale

    parts, top, last = [], HEAD, ""
    for bar in all_bars:
        if bar.workload != last:
            parts.append(f'<text x="8" y="{top + 16}" font-weight="bold">{bar.workload}</text>')
            top, last = top + ROW, bar.workload
        begin, end = sorted((x(1.0), x(bar.ratio["median"])))
        colour = "#2b7a4b" if bar.ratio["median"] >= 1 else "#b5562f"
        middle = top + ROW / 2
        parts += [
            f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{bar.system}</text>',
            f'<rect x="{begin:.1f}" y="{top + 4}" width="{max(end - begin, 1):.1f}" height="14" fill="{colour}"/>',
            f'<path d="M{x(bar.ratio["min"]):.1f} {middle}H{x(bar.ratio["max"]):.1f}" stroke="#222"/>',
            f'<text x="{max(end, x(bar.ratio["max"])) + 6:.1f}" y="{middle + 4}">{bar.ratio["median"]:.3g}x</text>',
        ]
        top += ROW
    ticks = [value for value in (0.1, 1, 10, 100, 1000) if low <= math.log10(value) <= high]
    lines = [f'<path d="M{x(value):.1f} {HEAD}V{top}" stroke="{"#222" if value == 1 else "#ccc"}"/>' for value in ticks]
    marks = [f'<text x="{x(value):.1f}" y="{top + 16}" text-anchor="middle">{value:g}x</text>' for value in ticks]
    height, width = top + 28, RIGHT + 70
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        '<text x="8" y="20" font-size="14">CPU seconds of others, for each CPU second of Gristmill</text>'
    )
    return "".join([head, *lines, *parts, *marks, "</svg>\n"])


def all_bars(folder: Path = RESULTS) -> list[Bar]:
    """What all results of a folder say."""
    figures: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        figures |= json.loads(path.read_text()).get("figures", {})
    return list(bars(figures))


def write(folder: Path = RESULTS) -> Path:
    picture = folder / "ratios.svg"
    picture.write_text(draw(all_bars(folder)))
    return picture


if __name__ == "__main__":
    print(write(*map(Path, sys.argv[1:])))
