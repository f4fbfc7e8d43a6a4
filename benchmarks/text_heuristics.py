"""Figure: the 28 English heuristics, JSON lines to JSON lines, in megabytes per second of CPU.

The recipe `heuristic-english` over generated web text (corpus.py), against a plain loop that parses each line with
orjson and writes it again: `ratio` is CPU seconds over those of the loop. Start-up is part of both. `kernel` is the
counting of all statistics of all documents, in one process, without files; its megabytes are those of the JSON lines
too. Memory is measured in runs of its own: that of the largest worker, resident, and that of all processes together.
`growth` is over 1, 4 and 16 times as much: what a further megabyte costs.

    python benchmarks/text_heuristics.py [MEGABYTES] [ROUNDS]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from corpus import corpus
from process_measurement import WORK, job, measure, median, show, stable

SIZE = 500
KERNEL_SIZE = 50
RECIPE = "heuristic-english"


def run(rounds: int = 3, size: int = SIZE) -> dict[str, Any]:
    path, small, output = corpus(size * 10**6)[0], corpus(KERNEL_SIZE * 10**6)[0], WORK / "out"
    megabytes = path.stat().st_size / 1e6
    own = [sys.executable, str(Path(__file__).resolve())]
    loop, chain, kernel, memory = [], [], [], []
    for _ in range(rounds):
        loop.append(measure(job("copy_loop", path, output)))
        chain.append(measure([*own, "chain", str(path), str(output)]))
        kernel.append(measure([*own, "kernel", str(small)]).answer["mb_per_cpu_s"])
        memory.append(measure([*own, "chain", str(path), str(output)], memory=True))
    return {
        "megabytes": round(megabytes),
        "rows_in": chain[0].answer["rows_in"],
        "rows_out": chain[0].answer["rows_out"],
        "plain_loop_mb_per_cpu_s": stable([megabytes / one.cpu for one in loop], 1),
        "chain_cpu_s": stable([one.cpu for one in chain]),
        "chain_wall_s": stable([one.wall for one in chain]),
        "chain_mb_per_cpu_s": stable([megabytes / one.cpu for one in chain], 1),
        "chain_mb_per_s": stable([megabytes / one.wall for one in chain], 1),
        "chain_ratio": stable([one.cpu / base.cpu for one, base in zip(chain, loop, strict=True)]),
        "kernel_mb_per_cpu_s": stable(kernel, 1),
        "worker_rss_mb": stable([one.peak("worker") for one in memory], 1),
        "chain_memory_mb": stable([one.together for one in memory], 0),
    }


def growth(rounds: int = 3, size: int = 25) -> dict[str, Any]:
    """What a further megabyte costs from 4 to 16 times as many, over what it costs from 1 to 4 times.

    Small runs are mostly starting, and what they differ by is small: a tenth of a second more or less would be a tenth
    of it. So a round has several of them, and takes the median of each size."""
    seconds: dict[int, list[float]] = {}
    for _ in range(rounds):
        for times, turns in ((1, 4), (4, 4), (16, 1)):
            command = [sys.executable, __file__, "chain", corpus(times * size * 10**6)[0], WORK / "out"]
            turned = [measure([*map(str, command)]).cpu for _ in range(turns)]
            seconds.setdefault(times, []).append(median(turned))
    early = [(more - less) / (3 * size) for less, more in zip(seconds[1], seconds[4], strict=True)]
    late = [(more - less) / (12 * size) for less, more in zip(seconds[4], seconds[16], strict=True)]
    return {
        "megabytes": size,
        **{f"{times}x_cpu_s": stable(found) for times, found in seconds.items()},
        "early_ms": stable([1e3 * one for one in early], 1),
        "late_ms": stable([1e3 * one for one in late], 1),
        "growth": stable([after / before for before, after in zip(early, late, strict=True)]),
    }


def chain(path: str, output: str) -> dict[str, Any]:
    from gristmill.recipes import load_recipe

    summary = load_recipe(RECIPE, {"input": path, "output": output}).build().run().summary()
    return {"rows_in": summary.rows_in, "rows_out": summary.rows_out}


def kernel(path: str) -> dict[str, Any]:
    """All statistics that the recipe needs, for all documents, dropped or not."""
    import time

    import orjson
    import pyarrow as pa

    from gristmill.recipes import load_recipe
    from gristmill.text import ScoreFilter
    from gristmill.text.statistics import column_statistics

    with open(path, "rb") as lines:
        texts = pa.array([orjson.loads(line)["text"] for line in lines])
    stages = load_recipe(RECIPE, {"input": path, "output": "unused"}).build().stages
    names = [name for stage in stages if isinstance(stage, ScoreFilter) for name in stage.filter_obj.statistics()]
    seconds = []
    for _ in range(5):
        began = time.process_time()
        column_statistics.count_column(texts, names)
        seconds.append(time.process_time() - began)
    return {"mb_per_cpu_s": Path(path).stat().st_size / 1e6 / min(seconds)}


def main(arguments: list[str]) -> None:
    if arguments[:1] in (["chain"], ["kernel"]):
        print(json.dumps(globals()[arguments[0]](*arguments[1:])))
        return
    size, rounds = [*map(int, arguments), *(SIZE, 3)[len(arguments) :]]
    show(run(rounds, size))


if __name__ == "__main__":
    main(sys.argv[1:])
