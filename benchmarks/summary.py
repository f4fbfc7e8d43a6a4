"""Every workload in one table, beside what the machine or a library could do at best: for docs/performance.md.

    python benchmarks/summary.py

A limit is a measured speed, or several of them one after the other: what a run must do at least. The share says how
near Gristmill comes, start-up included. What has not been measured yet has a dash.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import HERE

RESULTS = HERE / "results"
MARK = "summary"
DASH = "–"
HEADS = ("Workload", "CPU", "wall", "memory", "MB/s per core", "limit", "share of it")

Figures = dict[str, dict[str, Any]]
Number = Callable[[Figures], float | None]


def value(figures: Figures, figure: str, key: str) -> float | None:
    """A number of the results, if there is one."""
    found = figures.get(figure, {}).get(key)
    return float(found["median"] if isinstance(found, dict) else found) if found is not None else None


def ratio(figure: str, above: str, below: str) -> Number:
    """One number of a figure over another one."""

    def divided(figures: Figures) -> float | None:
        top, bottom = value(figures, figure, above), value(figures, figure, below)
        return top / bottom if top is not None and bottom else None

    return divided


def steps(*names: str) -> Number:
    """Megabytes per CPU second of some steps of `limits`, one after the other."""

    def speed(figures: Figures) -> float | None:
        found = [value(figures, "limits", f"{name}_mb_per_cpu_s") for name in names]
        return 1 / sum(1 / one for one in found if one) if all(found) else None

    return speed


def loop(figure: str, key: str) -> Number:
    """Megabytes per CPU second of another way to do the same, of the same figure."""
    return lambda figures: value(figures, figure, key)


@dataclass(frozen=True)
class Line:
    """A workload: where its figures are, and what bounds it."""

    title: str
    figure: str
    own: str
    limit: str = DASH
    best: Number | None = None
    """Megabytes per CPU second at best."""
    share: Number | None = None
    """For what is not counted in megabytes."""
    megabytes: str = "megabytes"
    unit: str = "s"
    """Of CPU time and wall time: seconds, or milliseconds for each."""
    clock: str = "cpu"
    """Which time a figure has that has only one."""

    def cells(self, figures: Figures) -> list[str]:
        only = value(figures, self.figure, f"{self.own}_{self.unit}")
        cpu, wall = (
            value(figures, self.figure, f"{self.own}_{kind}_{self.unit}") or (only if kind == self.clock else None)
            for kind in ("cpu", "wall")
        )
        memory = value(figures, self.figure, f"{self.own}_memory_mb") or value(figures, self.figure, "worker_rss_mb")
        size = value(figures, self.figure, self.megabytes)
        speed = value(figures, self.figure, f"{self.own}_mb_per_cpu_s")
        if speed is None and size and cpu and self.unit == "s":
            speed = size / cpu
        best = self.best(figures) if self.best else None
        share = self.share(figures) if self.share else (speed / best if speed and best else None)
        limit = f"{self.limit}: {best:,.0f} MB/s" if best else self.limit
        return [
            self.title + (f", {size:.0f} MB" if size else ""),
            *(_shown(one, f" {self.unit}", 2) for one in (cpu, wall)),
            _shown(memory, " MB"),
            _shown(speed, "", 1 if speed and speed < 10 else 0),
            limit,
            _shown(share and 100 * share, " %"),
        ]


def _shown(number: float | None, unit: str, digits: int = 0) -> str:
    return DASH if number is None else f"{number:.{digits}f}{unit}"


LINES = (
    Line(
        "JSON lines, read and written",
        "throughput",
        "no_stage",
        "orjson",
        loop("throughput", "plain_loop_mb_per_cpu_s"),
    ),
    Line(
        "Parquet, read and written",
        "throughput",
        "parquet",
        "pyarrow",
        loop("throughput", "plain_parquet_mb_per_cpu_s"),
    ),
    Line("28 English filters", "text", "chain", "counting alone", loop("text", "kernel_mb_per_cpu_s")),
    Line("Six modifiers", "modifiers", "own", "the modifiers alone", steps("modifiers")),
    Line("Language", "language", "own", "fastText in a loop", ratio("language", "megabytes", "loop_cpu_s")),
    Line(
        "Exact duplicates",
        "large_exact",
        "own",
        "parsing twice, hashing, copying",
        steps("own_parse", "own_parse", "hash128", "copy"),
    ),
    Line(
        "Near duplicates",
        "large_fuzzy",
        "own",
        "parsing twice, signatures, copying",
        steps("own_parse", "own_parse", "signatures", "copy"),
    ),
    *(
        Line(
            f"WARC to text by {name}",
            "warc",
            f"{name}_own",
            f"{name} alone",
            ratio("warc_extract", "pages_mb", f"{name}_bare_cpu_s"),
            megabytes="pages_mb",
        )
        for name in ("resiliparse", "justext", "trafilatura")
    ),
    Line(
        "A photograph, read and decoded",
        "image",
        "read_decode",
        "libjpeg-turbo",
        share=ratio("image", "turbo_ms", "read_decode_ms"),
        unit="ms",
    ),
    Line(
        "A picture through a model",
        "image_models",
        "pipeline",
        "the model in a loop",
        share=ratio("image_models", "loop_cpu_ms", "pipeline_cpu_ms"),
        unit="ms",
    ),
    Line(
        "5,000 documents, from start to end",
        "startup",
        "end",
        "a plain loop",
        share=ratio("startup", "plain_loop_cpu_s", "end_cpu_s"),
    ),
    Line("A task and stage, fused", "overhead", "fused", unit="ms"),
    Line("A task and stage, in pools of processes", "overhead", "unfused", unit="ms"),
    Line(
        "A task through 3 pools of Ray actors",
        "tiny",
        "chunked",
        "bare actors, 50 tasks to a call",
        share=ratio("tiny", "bare_chunked_ms", "chunked_ms"),
        unit="ms",
        clock="wall",
    ),
    Line(
        "GPU workers busy",
        "balance",
        "steady",
        "all of the time",
        share=lambda figures: (value(figures, "balance", "steady_busy_percent") or 0) / 100 or None,
    ),
    Line("Resume of a finished run over 10,000 files", "durability", "resume"),
)


def summary(folder: Path = RESULTS) -> str:
    """The table of all results of a folder."""
    figures: Figures = {}
    for path in sorted(folder.glob("*.json")):
        figures |= json.loads(path.read_text()).get("figures", {})
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    lines += [f"| {' | '.join(line.cells(figures))} |" for line in LINES if line.figure in figures]
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary())
