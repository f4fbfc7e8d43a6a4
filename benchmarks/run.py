"""Runs benchmarks, in rounds, and writes results/KIND.json, a Markdown table and a picture of the ratios.

    python benchmarks/run.py              what Gristmill itself costs: three rounds, about 15 minutes
    python benchmarks/run.py --KIND       another kind of figures: --peers, --dedup, --ray ... (see kinds.py)
    python benchmarks/run.py --all        all kinds, one after the other
    python benchmarks/run.py NAME...      only these figures of a kind
    ... --quick                           smaller inputs, one round; results go to work/quick
    ... --pages                           also put the tables into docs/performance.md and README.md
    ... --table                           measure nothing, only show the tables of the last results

Peers are installed first, each in an environment of its own under the user's cache directory. One that cannot be
installed, or fails, is told and left out.

Within a round each figure and what it is compared with run one after the other, so that a change of the machine's
load falls on both. Figures are medians over rounds. Trust CPU time and ratios; wall time needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import plots
from kinds import PACKAGES, Figure, Kind, kinds, packages
from measure import HERE, WORK, show
from tables import PAGE, README, headline, put_into, table

RESULTS = HERE / "results"
QUICK = WORK / "quick"


def run_all(figures: dict[str, Figure], rounds: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for name, figure in figures.items():
            began = time.perf_counter()
            found.setdefault(name, []).append(figure())
            print(f"round {number + 1}: {name}, {time.perf_counter() - began:.0f} s", flush=True)
    return {name: _merge(results) for name, results in found.items()}


def _merge(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Rounds of one figure as one: the median, the smallest and the largest of each number."""
    merged: dict[str, Any] = {"rounds": len(results)}
    for name, value in results[0].items():
        if isinstance(value, dict):
            values = sorted(result[name]["median"] for result in results)
            merged[name] = {"median": _middle(values), "min": values[0], "max": values[-1]}
        else:
            merged[name] = value if all(result[name] == value for result in results) else [r[name] for r in results]
    return merged


def _middle(values: list[float]) -> float:
    half = len(values) // 2
    return values[half] if len(values) % 2 else round((values[half - 1] + values[half]) / 2, 4)


def machine(kind: Kind) -> dict[str, Any]:
    """What the figures were measured on. No names of hosts, users or paths."""
    models = [line.partition(":")[2].strip() for line in _read("/proc/cpuinfo") if line.startswith("model name")]
    kilobytes = [int(line.split()[1]) for line in _read("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(kilobytes[0] * 1024 / 1e9) if kilobytes else None,
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "packages": packages(*PACKAGES) | kind.packages(),
    }


def _read(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figures", nargs="*", help="only these")
    for name, kind in kinds().items():
        parser.add_argument(f"--{name}", action="append_const", const=name, dest="kinds", help=kind.about)
    parser.add_argument("--all", action="store_const", const=list(kinds()), dest="kinds", help="all of these")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="one round over smaller inputs; results go to work/quick")
    parser.add_argument("--pages", action="store_true", help="put the tables into docs/performance.md and README.md")
    parser.add_argument("--table", action="store_true", help="measure nothing: only make the table of the last results")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine")
    options = parser.parse_args()
    for name in options.kinds or ["core"]:
        report(name, options)


def report(name: str, options: argparse.Namespace) -> None:
    """Measure one kind of figures, if so wished, and show its table."""
    kind = kinds(options.patience)[name]
    path = (QUICK if options.quick else RESULTS) / f"{name}.json"
    known = kind.quick if options.quick else kind.figures
    chosen = {one: figure for one, figure in known.items() if not options.figures or one in options.figures}
    if not chosen:
        raise SystemExit(f"no figure {', '.join(options.figures)} in --{name}; there are {', '.join(known)}")
    if not options.table:
        found = {"machine": machine(kind), "load_before": round(os.getloadavg()[0], 1)}
        found["figures"] = run_all(chosen, options.rounds or (1 if options.quick else kind.rounds))
        for one, result in found["figures"].items():
            print(f"\n== {one}")
            show(result)
        _save(found, path)
        print(f"\n{plots.write(path.parent)}")
    lines = table(json.loads(path.read_text()))
    print(f"\n{lines}")
    if options.pages:
        put_into(PAGE, lines, name)
        put_into(README, headline(plots.all_bars(RESULTS)), "ratios")


def _save(report: dict[str, Any], path: Path) -> None:
    """Figures that were not measured this time keep their last results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        report["figures"] = {**json.loads(path.read_text())["figures"], **report["figures"]}
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
