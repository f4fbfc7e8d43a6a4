"""Where the time goes: runs a workload under py-spy and writes a flame graph, or the functions that cost most.

    python benchmarks/flame_graph.py WORKLOAD [--top]       make profile WORKLOAD=filters
    python benchmarks/flame_graph.py WORKLOAD... --save     the shares that docs/performance.md shows

All processes of the run are looked at 200 times a second, C code included; time in which they wait does not count, but
for a core: shares are to be saved on a quiet machine. The picture opens in a browser; a click on a frame zooms in.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import image_reading
import profile_shares
import semantic_dedup
from corpus import corpus
from dedup_corpus import dedup_corpus
from durability import FILES, many_files
from measuring_order import code
from peer_comparison import SIX, language_tools, note
from process_measurement import HERE, JOBS, WORK, job, measure
from throughput import as_parquet
from warc_to_text import archive

OUT = WORK / "profile"
RATE, SHARES_RATE = 200, 500
_RESUMED = OUT / "many-out", OUT / "many-run"


def workloads() -> dict[str, list[object]]:
    """The command of each workload. Its inputs are made when it is asked for."""
    peers = HERE / "peers" / "gristmill_jobs.py"
    fuzzy = '{"word_ngrams": 5, "threshold": 0.8}'
    duplicates = _Made(lambda: dedup_corpus(200_000) / "jsonl")
    pages = _Made(lambda: archive(50 * 10**6))
    return {
        "copy": [JOBS, "text", _corpus(500), OUT / "copy"],
        "modifiers": [peers, "chain", _corpus(100), OUT / "modifiers", _Made(lambda: note(SIX, OUT / "six.json"))],
        "language": [
            peers,
            "chain",
            _corpus(100),
            OUT / "language",
            _Made(lambda: note(language_tools(), OUT / "tools.json")),
        ],
        "filters": [HERE / "text_heuristics.py", "chain", _corpus(500), OUT / "filters"],
        "exact": [peers, "exact", duplicates, OUT / "exact", "{}"],
        "fuzzy": [peers, "fuzzy", duplicates, OUT / "fuzzy", fuzzy],
        "tiny": [JOBS, "tiny", 100_000, "unfused"],
        "small": [JOBS, "small", _corpus(13), OUT / "small"],
        "parquet": [JOBS, "parquet", _Made(lambda: as_parquet(corpus(300 * 10**6)[0])), OUT / "parquet"],
        "semantic": [
            HERE / "semantic_dedup.py",
            "own",
            _Made(lambda: semantic_dedup.corpus(200_000)),
            OUT / "semantic",
            "{}",
        ],
        "images": [HERE / "image_reading.py", _Made(lambda: image_reading.archive(600))],
        "resume": [JOBS, "resume", _Made(_finished), *_RESUMED],
        "warc": [JOBS, "warc", pages, OUT / "warc", "resiliparse"],
        "justext": [JOBS, "warc", pages, OUT / "justext", "justext"],
        "trafilatura": [JOBS, "warc", pages, OUT / "trafilatura", "trafilatura"],
    }


@dataclass(frozen=True)
class _Made:
    """An input that is made when it is asked for."""

    make: Callable[[], Path]

    def __str__(self) -> str:
        return str(self.make())


def _corpus(megabytes: int) -> _Made:
    return _Made(lambda: corpus(megabytes * 10**6)[0])


def _finished() -> Path:
    """The input of a run that has ended, and is resumed."""
    folder = many_files(WORK / f"many-{FILES}", FILES)
    measure(job("resume", folder, *_RESUMED))
    return folder


def record(command: list[str], output: Path, form: str, native: bool = True) -> None:
    """Run a command under py-spy."""
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if spy is None:
        sys.exit("py-spy is not installed: pip install py-spy")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["GRISTMILL_PROGRESS"] = "off"
    how = ["--rate", str(RATE if native else SHARES_RATE), "--subprocesses", "--format", form, "--output", str(output)]
    how += ["--native"] if native else ["--nonblocking"]
    subprocess.run([spy, "record", *how, "--", sys.executable, *command], env=env, check=True)


def main() -> None:
    known = workloads()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=sorted(known), nargs="+")
    parser.add_argument("--top", action="store_true", help="no picture, but the functions that cost most")
    parser.add_argument("--save", action="store_true", help="no picture, but shares for results/profiles.json")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    for workload in options.workload:
        shutil.rmtree(OUT / workload, ignore_errors=True)
        command = [str(part) for part in known[workload]]
        if not (options.top or options.save):
            record(command, OUT / f"{workload}.svg", "flamegraph")
            print(f"flame graph: {OUT / workload}.svg")
            continue
        record(command, OUT / f"{workload}.txt", "raw", native=options.top)
        stacks = profile_shares.stacks(OUT / f"{workload}.txt")
        if options.top:
            costs = profile_shares.innermost(stacks)
            for name, count in costs.most_common(20):
                print(f"{100 * count / costs.total():5.1f} %  {name}")
        if options.save:
            profile_shares.save(workload, stacks, code())
            print(profile_shares.table())


if __name__ == "__main__":
    main()
