"""Figures: what the promises cost. Ledger, manifest and counters on the demo pipeline; resuming a finished run.

The demo pipeline runs in one process, by turns with a run directory, checksums and counters, and without any of
them: the share of CPU time that they take. The target is below 3 %. What a report adds stands next to it.

A run over 10,000 files of one document that is finished is started again: seconds until it has found that nothing is
left to do and has written the manifest anew, from the start of the interpreter. The target is below 2 s.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from process_measurement import HERE, WORK, job, measure, stable

FILES = 10_000
DEMO = HERE.parent / "examples" / "demo"


def run(rounds: int = 3, loop_turns: int = 30, files: int = FILES) -> dict[str, Any]:
    books = [measure(job("books", DEMO, WORK / "books", loop_turns)).answer for _ in range(rounds)]
    folder = many_files(WORK / f"many-{files}", files)
    for name in ("many-run", "many-out"):
        shutil.rmtree(WORK / name, ignore_errors=True)
    resume = job("resume", folder, WORK / "many-out", WORK / "many-run")
    first = measure(resume).answer
    again = [measure(resume) for _ in range(rounds)]
    memory = measure(resume, memory=True).together
    listing = [measure(job("look_at", folder, WORK / "many-out")) for _ in range(rounds)]
    assert first["rows"] == files, first
    assert all(one.answer == {"rows": 0, "files": files} for one in again), again[0].answer
    return {
        "files": files,
        "books_percent": stable([100 * (one["with_s"] / one["without_s"] - 1) for one in books]),
        "report_percent": stable([100 * (one["report_s"] - one["with_s"]) / one["without_s"] for one in books]),
        "resume_wall_s": stable([one.wall for one in again]),
        "resume_cpu_s": stable([one.cpu for one in again]),
        "resume_memory_mb": stable([memory], 0),
        "listing_cpu_s": stable([one.cpu for one in listing]),
    }


def many_files(folder: Path, files: int) -> Path:
    if not (folder / f"{files - 1:05}.jsonl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            (folder / f"{number:05}.jsonl").write_text(json.dumps({"id": number, "text": "mill " * 60}) + "\n")
    return folder


if __name__ == "__main__":
    from process_measurement import show

    show(run())
