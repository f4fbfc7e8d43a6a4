"""Every workload in one table, beside what the machine or a library could do at best: for docs/performance.md.

    python benchmarks/workload_summary.py

A limit is a measured speed, that of the best round, or several one after the other: what a run must do at least.
The share says how near Gristmill comes, start-up included; it is above 100 % where Gristmill does the work of a library
with less than the library takes. The last column says whether what comes out is right. What has not been measured yet
has a dash.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dedup_tables
from process_measurement import HERE, median, numbers

RESULTS = HERE / "results"
MARK = "summary"
DASH = "–"
HEADS = ("Workload", "CPU", "wall", "memory", "MB/s per core", "limit, or what it is held against", "share", "output")

Figures = dict[str, dict[str, Any]]
Number = Callable[[Figures], float | None]
Words = Callable[[Figures], str]


def value(figures: Figures, figure: str, key: str) -> float | None:
    """A number of the results, if there is one."""
    found = figures.get(figure, {}).get(key)
    return None if found is None else float(median(numbers(found)))


def ratio(figure: str, above: str, below: str) -> Number:
    """One number of a figure over another one."""

    def divided(figures: Figures) -> float | None:
        top, bottom = value(figures, figure, above), value(figures, figure, below)
        return top / bottom if top is not None and bottom else None

    return divided


def most(figures: Figures, figure: str, key: str) -> float | None:
    """The largest number of all rounds."""
    found = figures.get(figure, {}).get(key)
    return None if found is None else float(max(numbers(found)))


def best(figure: str, key: str) -> Number:
    """Megabytes per CPU second of something else, in its best round."""
    return lambda figures: most(figures, figure, key)


def steps(*names: str) -> Number:
    """Megabytes per CPU second of some steps of `limits`, one after the other."""
    return one_after_another(*(best("limits", f"{name}_mb_per_cpu_s") for name in names))


def one_after_another(*speeds: Number) -> Number:
    def speed(figures: Figures) -> float | None:
        found = [one(figures) for one in speeds]
        return 1 / sum(1 / one for one in found if one) if all(found) else None

    return speed


def fastest(*speeds: Number) -> Number:
    """Of several ways to do the same, as far as they have been measured."""
    return lambda figures: max((found for one in speeds if (found := one(figures))), default=None)


def as_of(whose: str, figure: str, key: str, what: str = "documents", tied: str = "") -> Words:
    """That what comes out is what another one gives, or how much of it differs in the round in which most does."""

    def words(figures: Figures) -> str:
        number, ties = most(figures, figure, key), most(figures, figure, tied)
        but = f", but for {ties:.0f} by a tie" if ties else ""
        if number is None:
            return DASH
        return f"{number:.0f} {what} differ from {whose}{but}" if number else f"as {whose}{but}"

    return words


def part(figure: str, same: str, of: str, what: str) -> Words:
    """How many of some things are the same, in the round in which fewest are."""

    def words(figures: Figures) -> str:
        number, total = figures.get(figure, {}).get(same), value(figures, figure, of)
        return DASH if number is None or total is None else f"{min(numbers(number)):,.0f} of {total:,.0f} {what}"

    return words


def f1(figures: Figures, figure: str) -> str:
    found = figures.get(figure, {})
    if figure == "large_fuzzy" and "own_recall_0.8" in found:
        return f"F1 {dedup_tables.f1(found, 'own'):.3f} at 0.8"
    return f"F1 {min(numbers(found['f1'])):.3f}" if "f1" in found else DASH


def _exact(figures: Figures) -> str:
    found = figures.get("large_exact", {})
    if "polars_left" not in found:
        return DASH
    if "polars_as_own" in found:
        return "the documents of polars" if found["polars_as_own"] is True else "other documents than of polars"
    left = {one for name in ("own", "polars") for one in numbers(found[f"{name}_left"])}
    return "as many as of polars" if len(left) == 1 else "others than of polars"


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
    per: int = 1
    """Of how many the time is, if that of one is to be told."""
    output: Words = lambda figures: DASH
    """Whether what comes out is right."""

    def found(self, figures: Figures, key: str) -> float | None:
        return value(figures, self.figure, f"{self.own}_{key}" if self.own else key)

    def time(self, figures: Figures, kind: str) -> float | None:
        found = self.found(figures, f"{kind}_{self.unit}")
        if found is None and kind == self.clock:
            found = self.found(figures, self.unit)
        return found and found / self.per

    def speed(self, figures: Figures) -> float | None:
        """Megabytes per CPU second."""
        size, cpu = value(figures, self.figure, self.megabytes), self.time(figures, "cpu")
        found = self.found(figures, "mb_per_cpu_s")
        return size / cpu if found is None and size and cpu and self.unit == "s" else found

    def part(self, figures: Figures) -> float | None:
        """How much of the limit is reached, where 1 is all."""
        if self.share:
            return self.share(figures)
        speed, fastest = self.speed(figures), self.best(figures) if self.best else None
        return speed / fastest if speed and fastest else None

    def cells(self, figures: Figures) -> list[str]:
        cpu, wall = (self.time(figures, kind) for kind in ("cpu", "wall"))
        memory, speed, share = self.found(figures, "memory_mb"), self.speed(figures), self.part(figures)
        size = value(figures, self.figure, self.megabytes)
        fastest = self.best(figures) if self.best else None
        limit = f"{self.limit}: {fastest:,.{1 if fastest < 10 else 0}f} MB/s" if fastest else self.limit
        return [
            self.title + (f", {size:.0f} MB" if size else ""),
            *(_shown(one, f" {self.unit}", 2 if self.unit == "s" else 3) for one in (cpu, wall)),
            _shown(memory, " MB"),
            _shown(speed, "", 1 if speed and speed < 10 else 0),
            limit,
            _shown(share and 100 * share, " %"),
            self.output(figures),
        ]


def _shown(number: float | None, unit: str, digits: int = 0) -> str:
    return DASH if number is None else f"{number:.{digits}f}{unit}"


CURATOR = "NeMo Curator's"
POOLS, ACTORS = "`multiprocessing`, 50 tasks to a call", "bare actors, 50 tasks to a call"
WEB = ("resiliparse", "justext", "trafilatura")

LINES = (
    Line(
        "JSON lines, read and written",
        "throughput",
        "no_stage",
        "orjson in a loop",
        best("throughput", "plain_loop_mb_per_cpu_s"),
        output=as_of("the loop's", "throughput", "no_stage_differ", "rows"),
    ),
    Line(
        "Parquet, read and written",
        "throughput",
        "parquet",
        "pyarrow in a loop",
        best("throughput", "plain_parquet_mb_per_cpu_s"),
        output=as_of("the loop's", "throughput", "parquet_differ", "tables"),
    ),
    Line(
        "28 English filters",
        "text",
        "chain",
        "counting alone",
        best("text", "kernel_mb_per_cpu_s"),
        output=as_of(CURATOR, "filters", "rows_that_differ", tied="rows_tied"),
    ),
    Line(
        "Six modifiers",
        "modifiers",
        "own",
        "the modifiers alone",
        steps("modifiers"),
        output=as_of(CURATOR, "modifiers", "rows_that_differ"),
    ),
    Line(
        "Language",
        "language",
        "own",
        "fastText's library, the faster of two ways to call it",
        fastest(steps("fasttext"), ratio("language", "megabytes", "loop_cpu_s")),
        output=as_of(CURATOR, "language", "rows_that_differ"),
    ),
    Line(
        "Exact duplicates",
        "large_exact",
        "own",
        "parsing, hashing, finding lines, copying",
        steps("own_parse", "hash128", "find_lines", "memory"),
        output=_exact,
    ),
    Line(
        "Near duplicates",
        "large_fuzzy",
        "own",
        "parsing, signatures of 29 bands, finding lines, copying",
        steps("own_parse", "signatures", "find_lines", "memory"),
        output=lambda figures: f1(figures, "large_fuzzy"),
    ),
    Line(
        "Semantic duplicates",
        "semantic",
        "",
        "products of matrices, of all pairs",
        share=ratio("semantic", "blas_cpu_s", "cpu_s"),
        output=lambda figures: f1(figures, "semantic"),
    ),
    *(
        Line(
            f"WARC to text by {name}",
            "warc",
            f"{name}_own",
            f"gunzip and {name} alone",
            one_after_another(steps("gunzip"), ratio("warc_extract", "pages_mb", f"{name}_bare_cpu_s")),
            megabytes="pages_mb",
            output=part("warc_extract", f"{name}_same", f"{name}_pages", f"pages as by {name}, before stop words"),
        )
        for name in WEB
    ),
    Line(
        "Wikitext to text",
        "sources",
        "wikitext",
        "mwparserfromhell in a loop",
        best("sources", "mwparserfromhell_mb_per_cpu_s"),
    ),
    Line(
        "Photographs, read and decoded, each",
        "image",
        "read_decode",
        "libjpeg-turbo",
        best("image", "turbo_mb_per_cpu_s"),
        unit="ms",
        megabytes="archive_mb",
        output=part("image", "same_pixels", "compared", "as by Pillow"),
    ),
    Line(
        "A picture through a model",
        "image_models",
        "pipeline",
        "the model in a loop",
        share=ratio("image_models", "loop_cpu_ms", "pipeline_cpu_ms"),
        unit="ms",
    ),
    Line("Starting, until the first file is written", "startup", "first_output", megabytes="none"),
    Line(
        "5,000 documents, from start to end",
        "startup",
        "end",
        "a plain loop",
        share=ratio("startup", "plain_loop_cpu_s", "end_cpu_s"),
        output=lambda figures: "as the loop's",  # or the figure fails
    ),
    Line("A task and stage, in the process itself", "overhead", "inline", unit="ms"),
    Line(
        "A task and stage, fused, in workers",
        "overhead",
        "fused",
        POOLS,
        share=ratio("overhead", "pools_cpu_ms", "fused_cpu_ms"),
        unit="ms",
    ),
    Line(
        "A task and stage, in pools of processes",
        "overhead",
        "unfused",
        POOLS,
        share=ratio("overhead", "pools_cpu_ms", "unfused_cpu_ms"),
        unit="ms",
    ),
    Line(
        "A task and stage, in pools of Ray actors",
        "tiny",
        "chunked",
        ACTORS,
        share=ratio("tiny", "bare_chunked_ms", "chunked_ms"),
        unit="ms",
        clock="wall",
        per=3,
    ),
    *(
        Line(
            f"A task and stage, on {title}",
            "tiny",
            name,
            ACTORS,
            share=ratio("tiny", "bare_chunked_ms", f"{name}_ms"),
            unit="ms",
            clock="wall",
            per=3,
        )
        for name, title in (("ray_data", "Ray Data"), ("xenna", "Xenna"))
    ),
    Line(
        "GPU workers busy",
        "balance",
        "steady",
        "all of the time",
        share=lambda figures: (value(figures, "balance", "steady_busy_percent") or 0) / 100 or None,
    ),
    Line(
        "Resume of a finished run over many files",
        "durability",
        "resume",
        "looking at each file",
        share=ratio("durability", "listing_cpu_s", "resume_cpu_s"),
    ),
)


def shares(figures: Figures) -> list[tuple[str, str, float]]:
    """Workload, limit, and the share of it that is reached, of all that have one."""
    found = [(line.title, line.limit, line.part(figures)) for line in LINES if line.figure in figures]
    return [(title, limit.replace("`", ""), share) for title, limit, share in found if share]


def all_figures(folder: Path) -> Figures:
    """What all results of a folder hold, by the names of figures."""
    figures: Figures = {}
    for path in sorted(folder.glob("*.json")):
        figures |= json.loads(path.read_text()).get("figures", {})
    return figures


def summary(folder: Path = RESULTS) -> str:
    """The table of all results of a folder."""
    figures = all_figures(folder)
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    lines += [f"| {' | '.join(line.cells(figures))} |" for line in LINES if line.figure in figures]
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary())
