"""Figure: megabytes per second of CPU, JSON lines to JSON lines, with no stage between and with six.

Against a plain loop that parses each line with orjson and writes it again, over the same 100 MB file. `ratio` is CPU
seconds over those of the loop. Interpreter and framework start-up are part of all figures; at this size they matter
little.
"""

from __future__ import annotations

from typing import Any

from corpus import corpus
from measure import WORK, job, measure, stable

SIZE = 100
SIX = "QuotationUnifier,NewlineNormalizer,UrlsFilter,NonAlphaNumericFilter,WordCountFilter,MeanWordLengthFilter"


def run(rounds: int = 3, size: int = SIZE) -> dict[str, Any]:
    path, output = corpus(size * 10**6)[0], WORK / "out"
    megabytes = path.stat().st_size / 1e6
    loop, none, six = [], [], []
    for _ in range(rounds):
        loop.append(measure(job("copy_loop", path, output)))
        none.append(measure(job("text", path, output)))
        six.append(measure(job("text", path, output, SIX)))
    result: dict[str, Any] = {}
    for name, runs in (("plain_loop", loop), ("no_stage", none), ("six_stages", six)):
        result[f"{name}_mb_per_cpu_s"] = stable([megabytes / run.cpu for run in runs], 1)
        result[f"{name}_mb_per_s"] = stable([megabytes / run.wall for run in runs], 1)
    for name, runs in (("no_stage", none), ("six_stages", six)):
        result[f"{name}_ratio"] = stable([run.cpu / base.cpu for run, base in zip(runs, loop, strict=True)])
    return result


if __name__ == "__main__":
    from measure import show

    show(run())
