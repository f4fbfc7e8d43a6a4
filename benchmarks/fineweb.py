"""Figures: the recipe `fineweb`, and those of its stages that datatrove has without a download, beside datatrove.

Both read the same JSON lines and write what is left: `GopherRepetitionFilter`, `GopherQualityFilter`, C4 without the
rule of punctuation marks, `FineWebQualityFilter`, and the redaction of e-mail and IP addresses, with the parameters of
FineWeb. datatrove's filters of URLs and languages fetch lists and a model; deduplication has figures of its own
(dedup.py). datatrove runs as one task in one process, as it does on a cluster. Documents that only one of the two
leaves are counted. The whole recipe runs over more data, by Gristmill alone.

    python benchmarks/fineweb.py [MEGABYTES] [MEGABYTES OF THE WHOLE RECIPE] [ROUNDS]
"""

from __future__ import annotations

import os
import shutil
import sys
from operator import itemgetter
from typing import Any

from corpus import corpus
from peer_comparison import FILES, OUT, SAMPLE_S, difference, written
from peers.install import interpreter
from process_measurement import HERE, Measured, measure, show, stable


def own(size: int, stages: str) -> Measured:
    output = OUT / f"fineweb-{stages}"
    command = [sys.executable, HERE / "peers" / "gristmill_jobs.py", "fineweb", _folder(size), output, stages]
    return measure([*map(str, command)], memory=True, sample_s=SAMPLE_S, log=OUT / "fineweb.log")


def datatrove(size: int) -> Measured:
    output = OUT / "fineweb-datatrove"
    shutil.rmtree(output, ignore_errors=True)
    command = [interpreter("datatrove"), HERE / "peers" / "datatrove_jobs.py", "fineweb", _folder(size), output]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return measure([*map(str, command)], memory=True, sample_s=SAMPLE_S, env=env, log=OUT / "datatrove.log")


def _folder(size: int) -> Any:
    return corpus(size * 10**6, FILES)[0].parent


def run(rounds: int = 3, size: int = 20, whole: int = 200) -> dict[str, Any]:
    OUT.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Measured]] = {"own": [], "datatrove": [], "whole": []}
    for _ in range(rounds):
        found["own"].append(own(size, "filters"))
        found["datatrove"].append(datatrove(size))
        found["whole"].append(own(whole, "all"))
        for name, runs in found.items():
            print(f"  {name}: {runs[-1].cpu:.2f} s of CPU, {runs[-1].wall:.2f} s", flush=True)
    result: dict[str, Any] = {"megabytes": size, "whole_megabytes": whole}
    for name, runs in found.items():
        result[f"{name}_cpu_s"] = stable([run.cpu for run in runs])
        result[f"{name}_memory_mb"] = stable([run.together for run in runs], 0)
    pairs = zip(found["datatrove"], found["own"], strict=True)
    result["datatrove_cpu_ratio"] = stable([run.cpu / mine.cpu for run, mine in pairs])
    result["whole_mb_per_cpu_s"] = stable([whole / run.cpu for run in found["whole"]])
    mine, theirs = (written(OUT / f"fineweb-{name}", itemgetter("id")) for name in ("filters", "datatrove"))
    result["rows_out"], result["rows_that_differ"] = mine.total(), difference(mine, theirs).total()
    return result


def main(arguments: list[str]) -> None:
    size, whole, rounds = [*map(int, arguments), *(2, 10, 1)[len(arguments) :]]
    show(run(rounds, size, whole))


if __name__ == "__main__":
    main(sys.argv[1:])
