"""Runs all benchmarks, in rounds, and writes results/core.json and a Markdown table.

    python benchmarks/run.py              three rounds, about 15 minutes
    python benchmarks/run.py --quick      one round over smaller inputs, under two minutes
    python benchmarks/run.py --readme     also put the table into README.md, between its two markers
    python benchmarks/run.py --ray        the figures on Ray instead: results/ray.json, about 10 minutes a round
    python benchmarks/run.py --peers      side by side with NeMo Curator: results/peers.json, about 8 minutes a round
    python benchmarks/run.py --warc       WARC files to text, beside NeMo Curator: results/warc.json, about 10 minutes
    python benchmarks/run.py --dedup      deduplication, beside five other systems: results/dedup.json, about 20 minutes
    python benchmarks/run.py --sources    wikitext and LaTeX to text: results/sources.json, a minute

Peers are installed first, under the user's cache directory. Any of these takes the names of single figures.

Within a round each figure and what it is compared with run one after the other, so that a change of the machine's
load falls on both. Figures are medians over rounds. Trust CPU time and ratios; wall time needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import balance
import durability
import memory
import overhead
import scaling
import sources
import startup
import store
import throughput
import tiny
import versus
import warc
from measure import HERE, show
from peers.install import pins
from tables import LINES, put_into_readme, table

import dedup
import text

RESULTS = HERE / "results"
PACKAGES = ("gristmill", "pyarrow", "orjson", "numpy", "ftfy")

Figure = Callable[[], dict[str, Any]]


def figures(kind: str, quick: bool, patience_s: float) -> dict[str, Figure]:
    """One round of each."""
    if kind == "peers":
        return {
            "filters": lambda: versus.filters(1, 13 if quick else 100),
            "modifiers": lambda: versus.modifiers(1, 13 if quick else 50),
            "language": lambda: versus.language(1, 13 if quick else 50),
        }
    if kind == "dedup":
        return {
            "exact": lambda: dedup.exact(1, 5_000 if quick else 50_000),
            "fuzzy": lambda: dedup.fuzzy(1, 5_000 if quick else 50_000),
            "large": lambda: dedup.large(1, 20_000 if quick else 200_000),
            "growth": lambda: dedup.growth(1, 1_250 if quick else 12_500),
            "bound": lambda: dedup.bound(1, 200_000 if quick else 2_000_000),
        }
    if kind == "warc":
        return {
            "warc": lambda: warc.versus(1, 5 if quick else 50),
            "warc_extract": lambda: warc.extract(1, 5 if quick else 50),
            "warc_memory": lambda: warc.memory(1, (20, 60) if quick else (100, 1000)),
        }
    if kind == "sources":
        return {"sources": lambda: sources.run(50 if quick else 400)}
    if kind == "ray":
        return {
            "tiny": lambda: tiny.run(1),
            "balance": lambda: balance.run(1, ("steady",) if quick else tuple(balance.CASES)),
            "store": lambda: store.run(1, 0.5 if quick else 10.0),
        }
    if quick:
        return {
            "startup": lambda: startup.run(1),
            "overhead": lambda: overhead.run(1),
            "memory": lambda: memory.run(1, (50, 150), (50,)),
            "scaling": lambda: scaling.run(1, throughput.SIX),
            "durability": lambda: durability.run(1),
            "throughput": lambda: throughput.run(1, 50),
            "text": lambda: text.run(1, 50),
        }
    return {
        "startup": lambda: startup.run(1),
        "overhead": lambda: overhead.run(1),
        "memory": lambda: memory.run(1),
        "scaling": lambda: scaling.run(1, patience_s=patience_s),
        "durability": lambda: durability.run(1),
        "throughput": lambda: throughput.run(1),
        "text": lambda: text.run(1),
    }


def run_all(rounds: int, kind: str, quick: bool, patience_s: float, only: list[str]) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for name, figure in figures(kind, quick, patience_s).items():
            if only and name not in only:
                continue
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


def machine(kind: str) -> dict[str, Any]:
    """What the figures were measured on. No names of hosts, users or paths."""
    models = [line.partition(":")[2].strip() for line in _read("/proc/cpuinfo") if line.startswith("model name")]
    kilobytes = [int(line.split()[1]) for line in _read("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(kilobytes[0] * 1024 / 1e9) if kilobytes else None,
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "packages": _packages(kind),
    }


def _packages(kind: str) -> dict[str, str]:
    found = {name: version(name) for name in (*PACKAGES, *(["ray"] if kind in ("ray", "peers") else []))}
    if kind == "dedup":
        found |= {peer: pins(peer)[peer] for peer in dedup.PEERS}
    if kind in ("peers", "warc"):
        peer = pins("nemo-curator")
        found |= {"nemo-curator": f"{peer['nemo-curator']} with pandas {peer['pandas']} and ray {peer['ray']}"}
    return found


def _read(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figures", nargs="*", help=f"only these: {', '.join(LINES)}")
    parser.add_argument("--ray", action="store_true", help="the figures on a Ray cluster of this machine")
    parser.add_argument("--peers", action="store_true", help="side by side with other curation systems")
    parser.add_argument("--warc", action="store_true", help="WARC files to text, beside NeMo Curator")
    parser.add_argument("--sources", action="store_true", help="wikitext and LaTeX to text, beside mwparserfromhell")
    parser.add_argument("--dedup", action="store_true", help="deduplication, beside systems that do it on CPUs")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="one round over smaller inputs; nothing is written")
    parser.add_argument("--keep", action="store_true", help="write the results of --quick too")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    parser.add_argument("--table", action="store_true", help="measure nothing: only make the table of the last results")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine")
    options = parser.parse_args()
    if unknown := set(options.figures) - set(LINES):
        parser.error(f"no figure {', '.join(unknown)}; there are {', '.join(LINES)}")
    kind = next((name for name in ("peers", "ray", "dedup", "warc", "sources") if getattr(options, name)), "core")
    path = RESULTS / f"{kind}.json"
    begin, end = (f"<!-- {'benchmarks' if kind == 'core' else kind}:{edge} -->" for edge in ("begin", "end"))
    if options.table:
        report = json.loads(path.read_text())
    else:
        rounds = options.rounds or (1 if options.quick or kind in ("ray", "dedup", "warc", "sources") else 3)
        report = {"machine": machine(kind), "load_before": round(os.getloadavg()[0], 1)}
        report["figures"] = run_all(rounds, kind, options.quick, options.patience, options.figures)
        for name, found in report["figures"].items():
            print(f"\n== {name}")
            show(found)
        if options.keep or not options.quick:
            _save(report, path)
    lines = table(report)
    print(f"\n{begin}\n{lines}\n{end}")
    if options.readme and not put_into_readme(lines, begin, end):
        print(f"README.md has no {begin} and {end}: left as it is")


def _save(report: dict[str, Any], path: Path) -> None:
    """Figures that were not measured this time keep their last results."""
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        report["figures"] = {**json.loads(path.read_text())["figures"], **report["figures"]}
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
