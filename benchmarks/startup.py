"""Figure: what it costs to start. A job of 5,000 documents (13 MB of JSON lines in 8 files): read, two filters, write.

CPU seconds of the whole process tree above a bare interpreter (`python -c pass`), to the first file of output and to
the end, next to the same work in a plain loop in one process. The target is below 1 s to the first output.
"""

from __future__ import annotations

import sys
from typing import Any

from corpus import corpus
from peer_comparison import written
from process_measurement import WORK, job, measure, median, stable

SIZE, FILES = 13_000_000, 8


def run(rounds: int = 3) -> dict[str, Any]:
    folder, output, by_loop = corpus(SIZE, FILES)[0].parent, WORK / "small", WORK / "small-loop"
    bare, own, loop, imports = [], [], [], []
    # First of all once more, so that every module has its byte code and the files are in the cache.
    memory = measure(job("small", folder, output), memory=True).together
    for _ in range(rounds):
        bare.append(measure([sys.executable, "-c", "pass"]))
        own.append(measure(job("small", folder, output)))
        loop.append(measure(job("small_loop", folder, by_loop)))
        imports.append(measure(job("import_gristmill")))
    assert written(output) == written(by_loop), "the loop and the pipeline disagree"
    cpu, wall = median([run.cpu for run in bare]), median([run.wall for run in bare])
    return {
        "first_output_cpu_s": stable([run.answer["first_cpu"] - cpu for run in own]),
        "first_output_wall_s": stable([run.answer["first_wall"] for run in own]),
        "end_cpu_s": stable([run.cpu - cpu for run in own]),
        "megabytes": SIZE // 10**6,
        "end_memory_mb": stable([memory], 0),
        "end_wall_s": stable([run.wall - wall for run in own]),
        "driver_cpu_s": stable([run.answer["driver_cpu"] - cpu for run in own]),
        "plain_loop_cpu_s": stable([run.cpu - cpu for run in loop]),
        "plain_loop_wall_s": stable([run.wall - wall for run in loop]),
        "import_cpu_s": stable([run.cpu - cpu for run in imports]),
        "import_modules": imports[0].answer["modules"],
        "import_heavy": imports[0].answer["heavy"],
        "interpreter_cpu_s": stable([run.cpu for run in bare]),
        "pandas_in_driver": own[0].answer["pandas_in_driver"],
        "pandas_in_workers": own[0].answer["pandas_in_workers"],
    }


if __name__ == "__main__":
    from process_measurement import show

    show(run())
