"""The figures of results/dedup.json as Markdown: rows next to their targets, and all systems side by side."""

from __future__ import annotations

from typing import Any

Row = tuple[str, str, str]

TITLES = {
    "own": "Gristmill",
    "same": "Gristmill, 14 bands of 8",
    "polars": "polars, first of each, in order",
    "polars_any": "polars, any of each",
    "rensa": "rensa, in a plain loop",
    "text_dedup": "text-dedup",
    "data_juicer": "Data-Juicer",
    "datatrove": "datatrove",
    "dolma": "dolma",
}
TARGETS = {
    "exact": {"polars": 1, "polars_any": 1, "text_dedup": 15, "datatrove": 15},
    "fuzzy": {"text_dedup": 10, "data_juicer": 10, "datatrove": 30},
}
WHAT = {"exact": "Exact duplicates", "fuzzy": "Near duplicates"}


def systems(figures: dict[str, Any]) -> list[str]:
    """A table for each comparison, a line for each system."""
    lines: list[str] = []
    for name in ("exact", "large_exact", "huge_exact", "fuzzy", "large_fuzzy"):
        if found := figures.get(name):
            lines += ["", *_systems(name.rpartition("_")[2], found)]
            if failed := found.get("failed"):
                lines += ["", f"Not there, since it failed: {'; '.join(failed)}."]
            if earlier := found.get("earlier"):
                names = ", ".join(TITLES[one] for one in earlier)
                lines += ["", f"Of an earlier run, over what Gristmill took in that: {names}."]
    return lines


def _systems(kind: str, found: dict[str, Any]) -> list[str]:
    title = f"{WHAT[kind]}: {found['documents']:,} documents, {found['megabytes']} MB"
    heads = [title, "CPU", "over Gristmill's", "wall", "memory", "documents left"]
    if kind == "exact" and "own_recall" in found:
        heads += ["surplus removed", "removed rightly", "F1"]
    if kind == "fuzzy":
        heads += ["found of 0.9 to 1", "0.8 to 0.9", "0.7 to 0.8", "0.6 to 0.7", "removed rightly", "F1 at 0.8"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in (one for one in TITLES if f"{one}_cpu_s" in found):
        ratio = "" if name == "own" else number(found[f"{name}_cpu_ratio"], "x", 1)
        cells = [TITLES[name], number(found[f"{name}_cpu_s"], "s"), ratio, number(found[f"{name}_wall_s"], "s")]
        cells += [number(found[f"{name}_memory_mb"], "MB", 0), _counts(found[f"{name}_left"])]
        if kind == "exact" and "own_recall" in found:
            cells += _exactness(found, name)
        if kind == "fuzzy":
            cells += [_percent(found[f"{name}_recall_{low}"]) for low in (0.9, 0.8, 0.7, 0.6)]
            cells += [_percent(found[f"{name}_precision_0.7"]), f"{f1(found, name):.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _exactness(found: dict[str, Any], name: str) -> list[str]:
    if f"{name}_recall" not in found:  # of an earlier run, which did not ask
        return ["", "", ""]
    recall, precision = (found[f"{name}_{what}"] for what in ("recall", "precision"))
    return [_percent(recall), _percent(precision), f"{_f1(recall['median'], precision['median']):.3f}"]


def f1(found: dict[str, Any], name: str) -> float:
    """Of recall, the mean of the tenths from 0.8 on, and precision: removed, and like another by 0.8 or more."""
    recall = sum(found[f"{name}_recall_{low}"]["median"] for low in (0.8, 0.9)) / 2
    return _f1(recall, found[f"{name}_precision_0.8"]["median"])


def _f1(recall: float, precision: float) -> float:
    return float(2 * recall * precision / max(recall + precision, 1e-9))


def beside(kind: str, found: dict[str, Any]) -> list[Row]:
    """The ratios that have a target."""
    what = f"{WHAT[kind]}, {found['documents']:,} documents"
    rows = []
    for name, target in TARGETS[kind].items():
        if f"{name}_cpu_ratio" in found:
            own = f"{name}_own_cpu_s" if f"{name}_own_cpu_s" in found else "own_cpu_s"
            value = times(found, f"{name}_cpu_ratio", f"{name}_cpu_s", own)
            rows.append((f"{what}, CPU, {TITLES[name]}", f"at least {target}x", value))
    return rows


def exact(found: dict[str, Any]) -> list[Row]:
    return beside("exact", found)


def fuzzy(found: dict[str, Any]) -> list[Row]:
    return beside("fuzzy", found)


def large_exact(found: dict[str, Any]) -> list[Row]:
    return [_speed("exact", found, ""), *beside("exact", found)]


def large_fuzzy(found: dict[str, Any]) -> list[Row]:
    what = f"{WHAT['fuzzy']}, {found['documents']:,} documents"
    tenths = [
        (f"{what}, pairs found of similarity {low} to {low + 0.1:.1f}", "at least 99 %", _percent(value))
        for low in (0.9, 0.8)
        if (value := found[f"own_recall_{low}"])
    ]
    rightly = _percent(found["own_precision_0.7"])
    rows = [(f"{what}, removed that have another like them, by 0.7 or more", "at least 99.5 %", rightly)]
    return [_speed("fuzzy", found, "at least 40 MB/s"), *beside("fuzzy", found), *tenths, *rows]


def _speed(kind: str, found: dict[str, Any], target: str) -> Row:
    what = f"{WHAT[kind]}, {found['documents']:,} documents ({found['megabytes']} MB), per CPU second"
    memory = f"{found['own_memory_mb']['median']:.0f} MB of memory"
    return what, target, f"{number(found['own_mb_per_cpu_s'], 'MB/s', 0)}; {memory}"


def start(found: dict[str, Any]) -> list[Row]:
    """What each system takes for next to nothing."""
    what = f"Exact duplicates of {found['documents']:,} documents: starting and ending, CPU"
    return [(what, "", each(found, TITLES))]


def light(found: dict[str, Any]) -> list[Row]:
    """Stages that do without comparing documents: by line, passage, hash or Bloom filter."""
    speeds = [
        f"{key.removesuffix('_mb_per_cpu_s')} {number(value, '', 0)}"
        for key, value in found.items()
        if key.endswith("_mb_per_cpu_s")
    ]
    what = f"Lighter deduplication, {found['documents']:,} documents, MB per CPU second"
    return [(what, "", "; ".join(speeds))]


def growth(found: dict[str, Any]) -> list[Row]:
    rows = []
    for kind, what in WHAT.items():
        early, late = (f"{found[f'{kind}_{when}_us']['median']:.0f} µs" for when in ("early", "late"))
        few, some, many = (f"{times * found['documents']:,}" for times in (1, 4, 16))
        title = f"{what}, CPU per further document, {some} to {many} over {few} to {some}"
        rows.append((title, "at most 1.15x", f"{number(found[f'{kind}_growth'], 'x')}; {late} over {early}"))
    return rows


def bound(found: dict[str, Any]) -> list[Row]:
    size, limit = f"{found['megabytes'] / 1000:.1f} GB", f"at most {1000 * found['memory_gb']:.0f} MB"
    rows = []
    for kind, what in WHAT.items():
        if value := found.get(f"{kind}_memory_mb"):
            both = f"{number(value, 'MB', 0)}; the largest worker {number(found[f'{kind}_worker_mb'], 'MB', 0)}"
            setting = f"{size} with `memory_gb={found['memory_gb']}`"
            rows.append((f"{what}, {setting}, two workers, memory of all processes", limit, both))
    return rows


LINES = {
    "dedup_start": start,
    "exact": exact,
    "fuzzy": fuzzy,
    "large_exact": large_exact,
    "large_fuzzy": large_fuzzy,
    "huge_exact": large_exact,
    "light": light,
    "growth": growth,
    "bound": bound,
}


def number(value: dict[str, float], unit: str = "", digits: int = 2) -> str:
    """A median, and the smallest and largest if there are several rounds."""
    low, high = (f"{value[end]:.{digits}f}" for end in ("min", "max"))
    spread = f" ({low} to {high})" if value["min"] != value["max"] else ""
    gap = "" if unit in ("", "x") else " "
    return f"{value['median']:.{digits}f}{gap}{unit}{spread}"


def times(found: dict[str, Any], ratio: str, other: str, own: str = "own_cpu_s") -> str:
    """How many times the seconds of Gristmill another one takes, and those of both."""
    theirs, ours = found[other]["median"], found[own]["median"]
    return f"{number(found[ratio], 'x', 1)}; {theirs:.{2 if theirs < 10 else 1}f} s over {ours:.2f} s"


def each(found: dict[str, Any], titles: dict[str, str]) -> str:
    """The CPU seconds and wall seconds of some systems, as far as they are there."""
    return "; ".join(
        f"{title} {number(found[f'{name}_cpu_s'], 's')}, by the clock {number(found[f'{name}_wall_s'], 's')}"
        for name, title in titles.items()
        if f"{name}_cpu_s" in found
    )


def _counts(value: int | list[int]) -> str:
    """A number, or the numbers of the rounds, if they differ."""
    return " to ".join(f"{one:,}" for one in sorted({value} if isinstance(value, int) else {min(value), max(value)}))


def _percent(value: dict[str, float]) -> str:
    return f"{100 * value['median']:.1f} %"
