"""Runs benchmarks, in rounds, and writes results/KIND.json, Markdown tables and pictures.

    python benchmarks/run.py              what Gristmill itself costs, in three rounds
    python benchmarks/run.py --KIND       another kind of figures: --peers, --dedup, --ray ... (see figure_kinds.py)
    python benchmarks/run.py --all        all kinds, one after the other
    python benchmarks/run.py NAME...      only these figures of a kind
    ... --quick                           smaller inputs; results and tables go to work/quick
    ... --rounds N                        so many rounds
    ... --minutes N                       fewer rounds, but at least one, of what would take longer on this machine
    ... --go-on                           leave out what this code has as many rounds of: after a run that was stopped
    ... --systems NAME,NAME               of --dedup: beside these only; other systems keep their last results
    ... --pages                           also put the tables into docs/performance.md and README.md
    ... --table                           measure nothing, only show the tables of the last results

Peers are installed first, each in an environment of its own under the user's cache directory. One that cannot be
installed, and a figure that fails, is named and left out; the others go on.

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
from pathlib import Path
from typing import Any

import dedup_systems
import plots
import process_measurement
import profile_shares
import simulate_cluster
from dedup_tables import TITLES
from figure_kinds import PACKAGES, Kind, kinds, packages
from measuring_order import Entry, code, merge, run_all
from peers.install import NotInstalled, additions, interpreter
from process_measurement import WORK, show
from result_tables import PAGE, README, headline, put_into, table
from workload_summary import MARK, RESULTS, summary

QUICK = WORK / "quick"
QUICK_LIMIT_S = 240.0
"""What one command may take over small inputs: a system that hangs is named, and left out."""


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", help="only these of the kinds below")
    for name, kind in kinds().items():
        about = f"{kind.about}: {', '.join(kind.figures)}"
        parser.add_argument(f"--{name}", action="append_const", const=name, dest="kinds", help=about)
    parser.add_argument("--all", action="store_const", const=list(kinds()), dest="kinds", help="all of these")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--minutes", type=float, default=math.inf, help="fewer rounds if all would take longer")
    parser.add_argument("--go-on", action="store_true", help="leave out what this code has as many rounds of")
    parser.add_argument("--quick", action="store_true", help="smaller inputs; results go to work/quick")
    parser.add_argument("--pages", action="store_true", help="put the tables into docs/performance.md and README.md")
    parser.add_argument("--table", action="store_true", help="measure nothing: only make the table of the last results")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--systems", type=lambda names: names.split(","), default=[], help="of --dedup: only these")
    options = parser.parse_args()
    if options.quick and options.pages:
        parser.error("the pages show figures over whole inputs: --pages goes without --quick")
    chosen = {name: kinds(options.patience, options.systems)[name] for name in options.kinds or ["core"]}
    folder = QUICK if options.quick else RESULTS
    began = time.perf_counter()
    if not options.table:
        install({peer for kind in chosen.values() for peer in kind.peers})
        began = time.perf_counter()
        measured(chosen, options, folder)
    there = [name for name in chosen if (folder / f"{name}.json").exists()]
    if missing := [f"--{name}" for name in chosen if name not in there]:
        print(f"not measured yet{' over small inputs' if options.quick else ''}: {', '.join(missing)}")
    written = [report(name, folder) for name in there]
    if options.pages:
        put_into_pages(dict(zip(there, written, strict=True)))
    if there:
        _tell(written, folder, time.perf_counter() - began)


def measured(chosen: dict[str, Kind], options: argparse.Namespace, folder: Path) -> None:
    """Measure the figures of some kinds. What is found is saved at once: a run may be stopped at any time."""
    if options.quick:
        process_measurement.LIMIT_S, dedup_systems.TURNS = QUICK_LIMIT_S, 1
    known = [name for kind in chosen.values() for name in kind.figures]
    if unknown := set(options.figures) - set(known):
        raise SystemExit(f"no figure {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    entries = [entry for name, kind in chosen.items() for entry in entries_of(name, kind, options, folder)]
    heads = {name: {"machine": machine(kind)} for name, kind in chosen.items()}

    def save(entry: Entry) -> None:
        mine = [one for one in entries if one.kind == entry.kind]
        figures = {one.name: one.merged() for one in mine if one.found}
        failed = {one.name: one.failed for one in mine if one.failed}
        found = heads[entry.kind] | {"figures": figures, "failed": failed}
        _save(found, folder / f"{entry.kind}.json")

    run_all(entries, time.perf_counter() + 60 * options.minutes, save)
    for entry in entries:
        if entry.found:
            print(f"\n== {entry.kind}: {entry.name}")
            show(merge(entry.found))


def entries_of(name: str, kind: Kind, options: argparse.Namespace, folder: Path) -> list[Entry]:
    """The figures of a kind that are wished for. How long each takes is known if it was measured here before."""
    known = kind.quick if options.quick else kind.figures
    path = folder / f"{name}.json"
    last = json.loads(path.read_text())["figures"] if path.exists() else {}
    guess, rounds = kind.quick_s / len(known), options.rounds or 3
    return [
        Entry(name, one, figure, rounds, last.get(one, {}).get("took_s", guess))
        for one, figure in known.items()
        if (not options.figures or one in options.figures)
        and not (options.go_on and is_measured(last.get(one, {}), rounds, code()))
    ]


def is_measured(found: dict[str, Any], rounds: int, now: str) -> bool:
    """Whether a figure is of the code of now, in so many rounds, beside all systems. What was changed since a commit is
    no certain code."""
    same = found.get("code") == now != "" and not now.endswith("+")
    return same and found.get("rounds", 0) >= rounds and not {"earlier", "failed"} & found.keys()


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


def report(name: str, folder: Path) -> str:
    """The table of a kind of figures, which is shown."""
    lines = table(json.loads((folder / f"{name}.json").read_text()), targets=folder != QUICK)
    print(f"\n## {name}: {kinds()[name].about}\n\n{lines}")
    return lines


def put_into_pages(tables: dict[str, str]) -> None:
    """The tables of some kinds, and all that is made of several."""
    for name, lines in tables.items():
        put_into(PAGE, lines, name)
    put_into(PAGE, summary(RESULTS), MARK)
    put_into(PAGE, profile_shares.table(), profile_shares.MARK)
    put_into(PAGE, simulate_cluster.table(), simulate_cluster.MARK)
    put_into(README, headline(plots.all_bars(RESULTS)), "ratios")


def _save(report: dict[str, Any], path: Path) -> None:
    """Figures that were not measured this time keep their last results, and so do systems of one that were left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        last = json.loads(path.read_text())
        for name, found in report["figures"].items():
            before = last["figures"].get(name, {})
            if "own_left" in found and before.get("documents") == found["documents"]:
                report["figures"][name] = _beside(before, found)
        kept = {name: one for name, one in last["figures"].items() if name not in report["failed"]}
        report["figures"] = {**kept, **report["figures"]}
        still = {name: why for name, why in last.get("failed", {}).items() if name not in report["figures"]}
        report["failed"] = {**still, **report["failed"]}
    draft = path.with_suffix(".draft")  # a run that is stopped here leaves the last results whole
    draft.write_text(json.dumps(report, indent=1) + "\n")
    draft.replace(path)


def _beside(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The results of a figure, and the last ones of systems that were left out this time. A ratio of before is over
    what Gristmill took then: which systems are of an earlier run is noted. One that has failed has no results."""
    failed = {one.partition(":")[0]: one for one in (*before.get("failed", []), *found.get("failed", []))}
    failed = {name: why for name, why in failed.items() if f"{name}_cpu_s" not in found}
    earlier = [name for name in TITLES if f"{name}_cpu_s" in before.keys() - found.keys() and name not in failed]
    kept = {key: one for key, one in before.items() if _system(key) in earlier}
    kept_beside = {"failed": list(failed.values()), "earlier": earlier}
    return {**found, **kept, **{key: names for key, names in kept_beside.items() if names}}


def _system(key: str) -> str:
    """Whose number it is: that of polars_any is not that of polars."""
    return max((name for name in TITLES if key.startswith(f"{name}_")), key=len, default="")


def _tell(written: list[str], folder: Path, seconds: float) -> None:
    """The ratios of all results, and where everything lies."""
    ratios = headline(plots.all_bars(folder))
    limits = summary(folder)
    print(f"\n{limits}\n\n{ratios}\n\nmeasured in {seconds / 60:.1f} minutes\nresults: {folder}/*.json")
    if folder == QUICK:
        page = folder / "tables.md"
        page.write_text("\n\n".join(["# Over small inputs", ratios, limits, *written]) + "\n")
        print(f"tables: {page}")
        print("Starting weighs much here. Over whole inputs, with their targets: docs/performance.md, make bench-full")
    print(f"pictures: {', '.join(map(str, plots.write(folder)))}")


if __name__ == "__main__":
    main()
