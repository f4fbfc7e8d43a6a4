"""Figure: two workers instead of one. Wall time of a CPU-bound pipeline over 100 MB of JSON lines in one file.

The target is at most 0.6 of the time on one worker. Only a quiet machine with two free cores can show it:
`cores_used_by_others` is what else was running before the round. `cpu_ratio` is the CPU time on two workers over that
on one, which says what is lost to sharing caches and memory; a wall ratio can be no better than half of it.
"""

from __future__ import annotations

import os
from typing import Any

from corpus import corpus
from process_measurement import WORK, job, measure, quiet, stable

SIZE = 100
STAGES = "UnicodeReformatter,QuotationUnifier,WordCountFilter,MeanWordLengthFilter,NonAlphaNumericFilter,UrlsFilter"


def run(rounds: int = 3, stages: str = STAGES, patience_s: float = 0.0) -> dict[str, Any]:
    path = corpus(SIZE * 10**6)[0]  # six blocks: three for each of two workers
    one, two, loads = [], [], []
    for _ in range(rounds):
        loads.append(quiet(patience_s))
        one.append(measure(job("text", path, WORK / "out", stages, 1)))
        two.append(measure(job("text", path, WORK / "out", stages, 2)))
    return {
        "one_worker_wall_s": stable([run.wall for run in one]),
        "two_workers_wall_s": stable([run.wall for run in two]),
        "wall_ratio": stable([b.wall / a.wall for a, b in zip(one, two, strict=True)]),
        "one_worker_cpu_s": stable([run.cpu for run in one]),
        "cpu_ratio": stable([b.cpu / a.cpu for a, b in zip(one, two, strict=True)]),
        "cores_used_by_others": stable(loads, 2),
        "cores": len(os.sched_getaffinity(0)),
    }


if __name__ == "__main__":
    from process_measurement import show

    show(run())
