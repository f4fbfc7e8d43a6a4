"""Runs benchmarks, in rounds, and writes results/KIND.json, a Markdown table and a picture of the ratios.

    python benchmarks/run.py              what Gristmill itself costs: three rounds, about 15 minutes
    python benchmarks/run.py --KIND       another kind of figures: --peers, --dedup, --ray ... (see kinds.py)
    python benchmarks/run.py --all        all kinds, one after the other
    python benchmarks/run.py NAME...      only these figures of a kind
    ... --quick                           smaller inputs; results and tables go to work/quick
    ... --rounds N                        so many rounds
    ... --minutes N                       fewer rounds, but at least one, if all would take longer on this machine
    ... --systems NAME,NAME               of --dedup: beside these only, or all; other systems keep their last results
    ... --pages                           also put the tables into docs/performance.md and README.md
    ... --table                           measure nothing, only show the tables of the last results

Peers are installed first, each in an environment of its own under the user's cache directory. One that cannot be
installed, and a figure that fails, is told and left out; the others go on.

Within a round each figure and what it is compared with run one after the other, so that a change of the machine's
load falls on both. Figures are medians over rounds. Trust CPU time and ratios; wall time needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
import traceback
from pathlib import Path
from typing import Any

import plots
import profiles
from kinds import PACKAGES, Figure, Kind, kinds, packages
from measure import HERE, WORK, show
from peers.install import NotInstalled, additions, interpreter
from summary import MARK, summary
from tables import PAGE, README, headline, put_into, table

RESULTS = HERE / "results"
QUICK = WORK / "quick"

Failed = dict[str, str]


def run_all(
    figures: dict[str, Figure], rounds: int, once: tuple[str, ...] = (), until: float = math.inf
) -> tuple[dict[str, Any], Failed]:
    """All figures in rounds, and why those failed that are not among them. Rounds after the first end by `until`."""
    found: dict[str, list[dict[str, Any]]] = {}
    failed: Failed = {}
    started = 0.0
    for number in range(rounds):
        now = time.perf_counter()
        if number and now + (now - started) > until:
            print("no time for another round", flush=True)
            break
        started = now
        for name, figure in figures.items():
            if name in failed or (number and name in once):
                continue
            began = time.perf_counter()
            try:
                found.setdefault(name, []).append(figure())
            except Exception as error:  # noqa: BLE001  (whatever it is: the other figures can still be measured)
                traceback.print_exc()
                failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                found.pop(name)
            print(f"round {number + 1}: {name}, {time.perf_counter() - began:.0f} s", flush=True)
    return {name: _merge(results) for name, results in found.items()}, failed


def _merge(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Rounds of one figure as one: the median, the smallest and the largest of each number."""
    merged: dict[str, Any] = {"rounds": len(results)}
    for name in dict.fromkeys(name for result in results for name in result):
        found = [result[name] for result in results if name in result]  # what failed in one round is not in it
        if isinstance(found[0], dict):
            values = sorted(one["median"] for one in found)
            merged[name] = {"median": _middle(values), "min": values[0], "max": values[-1]}
        elif isinstance(found[0], list):
            merged[name] = list(dict.fromkeys(one for some in found for one in some))
        else:
            merged[name] = found[0] if all(one == found[0] for one in found) else found
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
    parser.add_argument("--minutes", type=float, default=math.inf, help="fewer rounds if all would take longer")
    parser.add_argument("--quick", action="store_true", help="smaller inputs; results go to work/quick")
    parser.add_argument("--pages", action="store_true", help="put the tables into docs/performance.md and README.md")
    parser.add_argument("--table", action="store_true", help="measure nothing: only make the table of the last results")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--systems", type=lambda names: names.split(","), default=[], help="of --dedup: only these")
    options = parser.parse_args()
    names = options.kinds or ["core"]
    if not options.table:
        install({peer for name in names for peer in kinds()[name].peers})
    began = time.perf_counter()
    end = began + 60 * options.minutes
    first_rounds = [kinds()[name].quick_s for name in names]
    written = [report(name, options, end - sum(first_rounds[place:])) for place, name in enumerate(names, 1)]
    _tell(written, QUICK if options.quick else RESULTS, time.perf_counter() - began)


def install(peers: set[str]) -> None:
    """Peers are made ready before the first figure, so that no figure waits for one."""
    began = time.perf_counter()
    for peer in sorted(peers):
        try:
            interpreter(peer)
            if peer == "nemo-curator":
                additions(peer, "web")
        except NotInstalled as error:  # figures that need it fail, and say so
            print(error, flush=True)
    if peers:
        print(f"other systems are there, after {time.perf_counter() - began:.0f} s", flush=True)


def report(name: str, options: argparse.Namespace, until: float = math.inf) -> str:
    """Measure one kind of figures, if so wished, and show its table. `until` is when its last round should be over."""
    kind = kinds(options.patience, options.systems)[name]
    path = (QUICK if options.quick else RESULTS) / f"{name}.json"
    known = kind.quick if options.quick else kind.figures
    chosen = {one: figure for one, figure in known.items() if not options.figures or one in options.figures}
    if not chosen:
        raise SystemExit(f"no figure {', '.join(options.figures)} in --{name}; there are {', '.join(known)}")
    if not options.table:
        print(f"\n## {name}: {kind.about}", flush=True)
        found = {"machine": machine(kind), "load_before": round(os.getloadavg()[0], 1)}
        began, used = time.perf_counter(), _cpu()
        once = kind.once + (kind.quick_once if options.quick else ())
        rounds = options.rounds or kind.rounds
        found["figures"], found["failed"] = run_all(chosen, rounds, once, until)
        for one, result in found["figures"].items():
            print(f"\n== {one}")
            show(result)
        _save(found, path, bool(options.systems))
        plots.write(path.parent)
        print(f"\n{name}: {time.perf_counter() - began:.0f} s, {_cpu() - used:.0f} s of CPU", flush=True)
    if not path.exists():
        raise SystemExit(f"--{name} has not been measured{' with --quick' if options.quick else ''} yet")
    lines = table(json.loads(path.read_text()))
    print(f"\n{lines}")
    if options.pages:
        put_into(PAGE, lines, name)
        put_into(PAGE, summary(RESULTS), MARK)
        put_into(PAGE, profiles.table(), profiles.MARK)
        put_into(README, headline(plots.all_bars(RESULTS)), "ratios")
    return lines


def _cpu() -> float:
    """CPU seconds of this process and all that it has waited for."""
    return sum(os.times()[:4])


def _save(report: dict[str, Any], path: Path, some_systems: bool) -> None:
    """Figures that were not measured this time keep their last results, and so do systems of one that were left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        last = json.loads(path.read_text())
        for name, found in report["figures"].items():
            before = last["figures"].get(name, {})
            if some_systems and before.get("documents") == found.get("documents"):
                report["figures"][name] = _beside(before, found)
        kept = {name: one for name, one in last["figures"].items() if name not in report["failed"]}
        report["earlier"] = [name for name in kept if name not in report["figures"]]
        report["figures"] = {**kept, **report["figures"]}
        still = {name: why for name, why in last.get("failed", {}).items() if name not in report["figures"]}
        report["failed"] = {**still, **report["failed"]}
    path.write_text(json.dumps(report, indent=1) + "\n")


def _beside(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The last results of a figure with those of some systems anew. What had failed before may be there now."""
    failed = [one for one in before.get("failed", []) if f"{one.partition(':')[0]}_cpu_s" not in found]
    return {**before, **found, "failed": list(dict.fromkeys([*failed, *found.get("failed", [])]))}


def _tell(written: list[str], folder: Path, seconds: float) -> None:
    """The ratios of all results, and where everything lies."""
    ratios = headline(plots.all_bars(folder))
    limits = summary(folder)
    print(f"\n{limits}\n\n{ratios}\n\nmeasured in {seconds / 60:.1f} minutes\nresults: {folder}/*.json")
    if folder == QUICK:
        page = folder / "tables.md"
        page.write_text("\n\n".join(["# Over small inputs", ratios, limits, *written]) + "\n")
        print(f"tables: {page}")
    print(f"picture: {plots.write(folder)}")


if __name__ == "__main__":
    main()
