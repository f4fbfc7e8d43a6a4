"""Runs all benchmarks, in rounds, and writes results/core.json and a Markdown table.

    python benchmarks/run.py              three rounds, about 15 minutes
    python benchmarks/run.py --quick      one round over smaller inputs, under two minutes
    python benchmarks/run.py --readme     also put the table into README.md, between its two markers
    python benchmarks/run.py --ray        the figures on Ray instead: results/ray.json, about 10 minutes a round

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
import startup
import store
import throughput
import tiny
from measure import HERE, show

RESULTS = HERE / "results"
README = HERE.parent / "README.md"
PACKAGES = ("gristmill", "pyarrow", "orjson", "numpy", "ftfy")

Figure = Callable[[], dict[str, Any]]


def figures(ray: bool, quick: bool, patience_s: float) -> dict[str, Figure]:
    """One round of each."""
    if ray:
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
        }
    return {
        "startup": lambda: startup.run(1),
        "overhead": lambda: overhead.run(1),
        "memory": lambda: memory.run(1),
        "scaling": lambda: scaling.run(1, patience_s=patience_s),
        "durability": lambda: durability.run(1),
        "throughput": lambda: throughput.run(1),
    }


def run_all(rounds: int, ray: bool, quick: bool, patience_s: float, only: list[str]) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for name, figure in figures(ray, quick, patience_s).items():
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


def machine(packages: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    """What the figures were measured on. No names of hosts, users or paths."""
    models = [line.partition(":")[2].strip() for line in _read("/proc/cpuinfo") if line.startswith("model name")]
    kilobytes = [int(line.split()[1]) for line in _read("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(kilobytes[0] * 1024 / 1e9) if kilobytes else None,
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }


def _read(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


# -- the table -----------------------------------------------------------------------------------------------


def table(report: dict[str, Any]) -> str:
    """The figures next to their targets, as Markdown."""
    rows = [row for name, lines in LINES.items() if name in report["figures"] for row in lines(report["figures"][name])]
    where = report["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in where["packages"].items() if name != "gristmill")
    note = (
        f"{where['cpu']}, {where['cores']} cores, {where['memory_gb']} GB; Python {where['python']}, {versions}. "
        f"Medians of {_rounds(report)} (smallest to largest). CPU time is that of the whole process tree; "
        "that of a bare interpreter is taken off where starting is measured. `make bench` measures them anew."
    )
    lines = ["| Figure | Target | Measured |", "|---|---|---|"]
    lines += [f"| {what} | {target} | {value} |" for what, target, value in rows]
    return "\n".join([*lines, "", note])


def _rounds(report: dict[str, Any]) -> str:
    counts = sorted({found["rounds"] for found in report["figures"].values()})
    return f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} round{'s' if counts[-1] > 1 else ''}"


def _startup(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    loop = _num(found["plain_loop_cpu_s"], "s")
    return [
        ("5,000 documents, start to first output, CPU", "below 1 s", _num(found["first_output_cpu_s"], "s")),
        ("5,000 documents, start to end, CPU", "", f"{_num(found['end_cpu_s'], 's')}; in a plain loop {loop}"),
        ("`import gristmill`, CPU", "below 0.3 s", _num(found["import_cpu_s"], "s")),
    ]


def _overhead(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        ("Overhead per task and stage, 3 fused stages", "below 0.1 ms", _num(found["fused_cpu_ms"], "ms", 3)),
        ("Overhead per task and stage, 3 pools", "below 1 ms", _num(found["unfused_cpu_ms"], "ms", 3)),
    ]


def _memory(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    for kind, title in (("jsonl", "JSON lines"), ("gz", "gzip")):
        sizes = [name.split("_")[1] for name in found if name.startswith(f"{kind}_") and name.endswith("driver_rss_mb")]
        for role in ("driver", "worker"):
            if len(sizes) > 1:
                ends = [f"{found[f'{kind}_{size}_{role}_rss_mb']['median']:.0f}" for size in (sizes[0], sizes[-1])]
                growth = _num(found[f"{kind}_{role}_growth"], "x")
                what = f"Peak memory of a {role}, one file of {title}, {_size(sizes[-1])} over {_size(sizes[0])}"
                rows.append((what, "at most 1.2x", f"{growth}; {ends[0]} MB, {ends[1]} MB"))
    return rows


def _scaling(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [("Time on 2 workers over time on 1, CPU-bound", "at most 0.6", _num(found["wall_ratio"]))]


def _durability(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        ("CPU for ledger, manifest and counters, demo pipeline", "below 3 %", _num(found["books_percent"], "%", 1)),
        ("Resume of a finished run over 10,000 files, wall", "below 2 s", _num(found["resume_wall_s"], "s")),
    ]


def _throughput(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    for key, title in (("no_stage", "JSON lines to JSON lines"), ("six_stages", "the same with 6 stages between")):
        value = f"{_num(found[f'{key}_mb_per_cpu_s'], 'MB/s', 0)}; {found[f'{key}_ratio']['median']:.2f}x the CPU"
        rows.append((f"{title}, per CPU second", "", f"{value} of a plain orjson copy"))
    return rows


def _tiny(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    for key, target in (("single", "2.5 ms"), ("chunked", "0.1 ms")):
        how = "one per call" if key == "single" else "chunked automatically"
        value = f"{_num(found[f'{key}_ms'], 'ms', 3)}; bare actors {_num(found[f'bare_{key}_ms'], 'ms', 3)}"
        rows.append((f"A tiny task through 3 pools of Ray actors, {how}", f"at most {target}", value))
    return rows


def _balance(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    titles = {
        "steady": "CPU stage of 10 ms, GPU stage of 100 ms",
        "fast": "fast producer, slow GPU stage",
        "change": "rates that change in mid-run",
        "setup": "20 s of set-up",
        "shared": "three stages that share GPUs by memory",
    }
    return [
        (f"GPU workers busy, {title}", f"at least {100 * balance.CASES[case].target:.0f} %", _num(value, "%", 1))
        for case, title in titles.items()
        if (value := found.get(f"{case}_busy_percent"))
    ]


def _store(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    what = f"Memory of the driver, {found['gigabytes']:g} GB through the object store, end over first tenth"
    value = f"{_num(found['growth'], 'x')}; {found['driver_rss_mb']['median']:.0f} MB"
    return [(what, "at most 1.1x", value)]


LINES: dict[str, Callable[[dict[str, Any]], list[tuple[str, str, str]]]] = {
    "startup": _startup,
    "overhead": _overhead,
    "memory": _memory,
    "scaling": _scaling,
    "durability": _durability,
    "throughput": _throughput,
    "tiny": _tiny,
    "balance": _balance,
    "store": _store,
}


def _num(value: dict[str, float], unit: str = "", digits: int = 2) -> str:
    low, high = (f"{value[end]:.{digits}f}" for end in ("min", "max"))
    spread = f" ({low} to {high})" if low != high else ""
    gap = "" if unit in ("", "x") else " "
    return f"{value['median']:.{digits}f}{gap}{unit}{spread}"


def _size(name: str) -> str:
    number = int(name.removesuffix("mb"))
    return f"{number} MB" if number < 1000 else f"{number / 1000:g} GB"


def put_into_readme(text: str, begin_mark: str, end_mark: str) -> bool:
    """Replace what is between the markers of README.md; False if it has none."""
    if not README.exists():
        return False
    before, begin, rest = README.read_text().partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not (begin and end):
        return False
    README.write_text(f"{before}{begin_mark}\n{text}\n{end_mark}{after}")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figures", nargs="*", help=f"only these: {', '.join(LINES)}")
    parser.add_argument("--ray", action="store_true", help="the figures on a Ray cluster of this machine")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="one round over smaller inputs; nothing is written")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    parser.add_argument("--table", action="store_true", help="measure nothing: only make the table of the last results")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine")
    options = parser.parse_args()
    if unknown := set(options.figures) - set(LINES):
        parser.error(f"no figure {', '.join(unknown)}; there are {', '.join(LINES)}")
    name = "ray" if options.ray else "core"
    path = RESULTS / f"{name}.json"
    begin, end = (f"<!-- {'ray' if options.ray else 'benchmarks'}:{edge} -->" for edge in ("begin", "end"))
    if options.table:
        report = json.loads(path.read_text())
    else:
        rounds = options.rounds or (1 if options.quick or options.ray else 3)
        report = {
            "machine": machine((*PACKAGES, "ray") if options.ray else PACKAGES),
            "load_before": round(os.getloadavg()[0], 1),
        }
        report["figures"] = run_all(rounds, options.ray, options.quick, options.patience, options.figures)
        for name, found in report["figures"].items():
            print(f"\n== {name}")
            show(found)
        if not options.quick:
            _save(report, path)
    text = table(report)
    print(f"\n{begin}\n{text}\n{end}")
    if options.readme and not put_into_readme(text, begin, end):
        print(f"README.md has no {begin} and {end}: left as it is")


def _save(report: dict[str, Any], path: Path) -> None:
    """Figures that were not measured this time keep their last results."""
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        report["figures"] = {**json.loads(path.read_text())["figures"], **report["figures"]}
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
