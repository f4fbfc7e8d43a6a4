"""The results as pictures.

python benchmarks/plots.py [RESULTS]       writes RESULTS/ratios.svg, limits.svg and growth.svg

ratios    how many times the CPU seconds of Gristmill others need for the same: a bar for each system, on a
          logarithmic scale, with a whisker from the smallest to the largest round. Systems that need less than
          Gristmill are drawn to the left of the line
limits    how near each workload comes to what the machine, or the library that does the work, could do at best
growth    CPU seconds over 1, 4 and 16 times as much input, beside a line of equal cost per megabyte or document
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dedup_tables
from workload_summary import RESULTS, all_figures, shares

RATIO = "_cpu_ratio"
WORKLOADS = {
    "filters": "28 English filters",
    "modifiers": "Six modifiers",
    "language": "Language",
    "exact": "Exact duplicates",
    "large_exact": "Exact duplicates",
    "huge_exact": "Exact duplicates",
    "fuzzy": "Near duplicates",
    "large_fuzzy": "Near duplicates",
    "tags": "Tags of Gopher and C4",
    "fineweb": "Filters of FineWeb",
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
    "brute": "brute force (faiss)",
    "blas": "products of matrices",
    "webdataset": "webdataset with Pillow",
    **dedup_tables.TITLES,
}
LEFT, RIGHT, ROW, HEAD = 250, 640, 22, 30
GREEN, RED = "#2b7a4b", "#b5562f"
SIZES = (1, 4, 16)
SIDE, GAP, TOP = 210, 40, 60


@dataclass(frozen=True)
class Bar:
    """One system beside Gristmill."""

    workload: str
    system: str
    ratio: dict[str, float]
    rounds: int = 1


def bars(figures: dict[str, Any]) -> Iterator[Bar]:
    for name, title in WORKLOADS.items():
        found = figures.get(name, {})
        size = f", {found['documents']:,} documents" if "documents" in found else ""
        megabytes = found.get("megabytes", found.get("pages_mb"))
        size = f", {megabytes} MB" if megabytes and not size else size
        for key, value in found.items():
            system = KEYS.get(key, key).removesuffix(RATIO)
            if KEYS.get(key, key).endswith(RATIO) and system in SYSTEMS and system != "same":
                yield Bar(title + size, SYSTEMS[system], value, found.get("rounds", 1))


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
        colour = GREEN if bar.ratio["median"] >= 1 else RED
        middle = top + ROW / 2
        parts += [
            f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{bar.system}</text>',
            f'<rect x="{begin:.1f}" y="{top + 4}" width="{max(end - begin, 1):.1f}" height="14" fill="{colour}"/>',
            f'<path d="M{x(bar.ratio["min"]):.1f} {middle}H{x(bar.ratio["max"]):.1f}" stroke="#222"/>',
            f'<text x="{max(end, x(bar.ratio["max"])) + 6:.1f}" y="{middle + 4}">{_times(bar.ratio["median"])}</text>',
        ]
        top += ROW
    ticks = [value for value in (0.1, 1, 10, 100, 1000) if low <= math.log10(value) <= high]
    lines = [f'<path d="M{x(value):.1f} {HEAD}V{top}" stroke="{"#222" if value == 1 else "#ccc"}"/>' for value in ticks]
    marks = [f'<text x="{x(value):.1f}" y="{top + 16}" text-anchor="middle">{value:g}x</text>' for value in ticks]
    title = "CPU seconds of others, for each CPU second of Gristmill"
    return _svg(RIGHT + 70, top + 28, title, [*lines, *parts, *marks])


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 1 else f"{ratio:.1f}x"


def _svg(width: float, height: float, title: str, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        f'<text x="8" y="20" font-size="14">{title}</text>'
    )
    return "".join([head, *parts, "</svg>\n"])


def draw_limits(bytes_reached: list[tuple[str, str, float]]) -> str:
    """Workload, what bounds it, and the share of it that is reached, as bars of which a full one is the limit."""
    left, right, row = 290, 500, 24
    parts, top = [], HEAD + 8
    for title, limit, share in bytes_reached:
        width, middle = (right - left) * min(share, 1.0), top + row / 2
        parts += [
            f'<text x="{left - 8}" y="{middle + 4}" text-anchor="end">{title}</text>',
            f'<rect x="{left}" y="{top + 3}" width="{right - left}" height="{row - 6}" fill="#e8e8e8"/>',
            f'<rect x="{left}" y="{top + 3}" width="{width:.1f}" height="{row - 6}" fill="{GREEN}"/>',
            f'<text x="{right + 8}" y="{middle + 4}">{100 * share:.0f} % of {limit}</text>',
        ]
        top += row
    return _svg(right + 400, top + 10, "How near each comes to the limit of the machine or the library", parts)


def draw_growth(curves: list[tuple[str, str, list[float]]]) -> str:
    """Title, size of the smallest input, and CPU seconds over 1, 4 and 16 times as much; a panel for each."""
    parts = [part for place, curve in enumerate(curves) for part in _panel(GAP + place * (SIDE + GAP), *curve)]
    title = "CPU seconds over more input; dashed: as from 1x to 4x"
    return _svg(max(GAP + len(curves) * (SIDE + GAP), 400), TOP + SIDE + 46, title, parts)


def _panel(left: float, title: str, size: str, seconds: list[float]) -> list[str]:
    most, bottom = 1.15 * max(seconds), TOP + SIDE

    def x(times: float) -> float:
        return round(left + SIDE * times / 17, 1)

    def y(value: float) -> float:
        return round(bottom - SIDE * value / most, 1)

    slope = (seconds[1] - seconds[0]) / 3
    first = seconds[0] - slope  # what starting costs
    last = min(17.0, (most - first) / max(slope, 1e-9))  # the line ends where the panel does
    parts = [
        f'<text x="{left}" y="{TOP - 10}" font-weight="bold">{title}</text>',
        f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#ccc"/>',
        f'<path d="M{x(0)} {y(first)}L{x(last)} {y(first + slope * last)}" stroke="#999" stroke-dasharray="4 3"/>',
    ]
    points = [(x(times), y(value)) for times, value in zip(SIZES, seconds, strict=True)]
    line = " ".join(f"{right},{down}" for right, down in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{GREEN}" stroke-width="2"/>')
    for times, value, (right, down) in zip(SIZES, seconds, points, strict=True):
        aside = (
            f'x="{right + 10}" y="{down + 46}" text-anchor="end"' if times > 4 else f'x="{right + 8}" y="{down + 12}"'
        )
        parts += [
            f'<circle cx="{right}" cy="{down}" r="3.5" fill="{GREEN}"/>',
            f"<text {aside}>{value:.1f} s</text>",
            f'<text x="{right}" y="{bottom + 16}" text-anchor="middle">{times}x</text>',
        ]
    return [*parts, f'<text x="{left + SIDE / 2}" y="{bottom + 36}" text-anchor="middle">1x is {size}</text>']


def growth_curves(figures: dict[str, Any]) -> list[tuple[str, str, list[float]]]:
    """What `text_growth` and `growth` have found, as far as they were measured."""
    found = []
    if text := figures.get("text_growth"):
        found.append(("28 English filters", f"{text['megabytes']} MB", "", text))
    if dedup := figures.get("growth"):
        size = f"{dedup['documents']:,} documents"
        found += [(title, size, f"{kind}_", dedup) for kind, title in dedup_tables.WHAT.items()]
    return [
        (title, size, [one[f"{prefix}{times}x_cpu_s"]["median"] for times in SIZES])
        for title, size, prefix, one in found
    ]


def all_bars(folder: Path = RESULTS) -> list[Bar]:
    """What all results of a folder say."""
    return list(bars(all_figures(folder)))


def pictures(folder: Path = RESULTS) -> dict[str, str]:
    """The pictures of all results of a folder, by the names of their files."""
    figures = all_figures(folder)
    return {
        "ratios.svg": draw(list(bars(figures))),
        "limits.svg": draw_limits(shares(figures)),
        "growth.svg": draw_growth(growth_curves(figures)),
    }


def write(folder: Path = RESULTS) -> list[Path]:
    """The pictures, as files beside the results."""
    for name, picture in (found := pictures(folder)).items():
        (folder / name).write_text(picture)
    return [folder / name for name in found]


if __name__ == "__main__":
    print(*write(*map(Path, sys.argv[1:])), sep="\n")
