"""Figure: megabytes per second of CPU, JSON lines to JSON lines with no stage between and with six; and Parquet.

Against what libraries can do at best: a plain loop that parses each line with orjson and writes it again, and one of
pyarrow that reads and writes batches (zstd), over the same 100 MB. `ratio` is CPU seconds over those of the loop.
Interpreter and framework start-up are part of all figures; at this size they matter little. Megabytes are those of the
JSON lines, also of Parquet. Memory is that of all processes together.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from corpus import corpus
from peer_comparison import difference, written
from process_measurement import WORK, Measured, job, measure, stable

SIZE = 100
SIX = "QuotationUnifier,NewlineNormalizer,UrlsFilter,NonAlphaNumericFilter,WordCountFilter,MeanWordLengthFilter"
ROW_GROUP = 8192
BASES = {"no_stage": "plain_loop", "six_stages": "plain_loop", "parquet": "plain_parquet"}
SAMPLE_S = 0.05


def run(rounds: int = 3, size: int = SIZE) -> dict[str, Any]:
    path, output = corpus(size * 10**6)[0], WORK / "throughput"
    shutil.rmtree(output, ignore_errors=True)
    table, megabytes = as_parquet(path), path.stat().st_size / 1e6
    jobs = {
        "plain_loop": job("copy_loop", path, output / "loop"),
        "no_stage": job("text", path, output / "none"),
        "six_stages": job("text", path, output / "six", SIX),
        "plain_parquet": job("copy_parquet", table, output / "loop"),
        "parquet": job("parquet", table, output / "parquet"),
    }
    found: dict[str, list[Measured]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, command in jobs.items():
            found[name].append(measure(command, memory=True, sample_s=SAMPLE_S))
    result: dict[str, Any] = {
        "megabytes": round(megabytes),
        "no_stage_differ": difference(written(output / "none"), written(output / "loop")).total(),
        "parquet_differ": int(not _tables_equal(output / "parquet", output / "loop")),
    }
    for name, runs in found.items():
        result[f"{name}_cpu_s"] = stable([run.cpu for run in runs])
        result[f"{name}_wall_s"] = stable([run.wall for run in runs])
        result[f"{name}_memory_mb"] = stable([run.together for run in runs], 0)
        result[f"{name}_mb_per_cpu_s"] = stable([megabytes / run.cpu for run in runs], 1)
        result[f"{name}_mb_per_s"] = stable([megabytes / run.wall for run in runs], 1)
    for name, base in BASES.items():
        pairs = zip(found[name], found[base], strict=True)
        result[f"{name}_ratio"] = stable([run.cpu / bare.cpu for run, bare in pairs])
    return result


def _tables_equal(*folders: Path) -> bool:
    import pyarrow.parquet as pq

    one, other = (pq.read_table(next(folder.glob("*.parquet"))) for folder in folders)
    return bool(one.select(other.column_names).equals(other))


def as_parquet(path: Path) -> Path:
    """The same rows in a file of Parquet, made once."""
    import pyarrow.json
    import pyarrow.parquet as pq

    made = path.with_suffix(".parquet")
    if not made.exists():
        draft = made.with_suffix(".draft")
        pq.write_table(pyarrow.json.read_json(path), draft, ROW_GROUP, compression="zstd")
        draft.replace(made)
    return made


if __name__ == "__main__":
    from process_measurement import show

    show(run())
