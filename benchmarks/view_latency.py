"""Figure: how soon `gristmill view` answers for a run of two million rows, of which it keeps about half.

    python benchmarks/view_latency.py     makes the run once, in benchmarks/work, and asks a fresh server each time

Seconds from the request to the last byte: of the first page of each kind of rows, of a search for words that the rows
have and that none has, of rows in order of a number, of a page far back, of one row; and the server's memory.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from process_measurement import WORK, show

ROWS = 2_000_000
FILES = 8
TEXT = "the mill grinds slowly but it grinds fine and water turns wheel stone grain flour miller river sack bread"

PAGES = {
    "kept_first_page_s": "rows?in=kept",
    "dropped_first_page_s": "rows?in=dropped",
    "search_first_hits_s": "rows?in=kept&search=miller+river",
    "stage_and_score_s": "rows?in=dropped&stage=WordCountFilter&score=rejected_score&least=30&most=31",
    "one_row_s": "row?in=dropped&n=3",
}


def make(folder: Path, rows: int = ROWS) -> Path:
    """The run, made once."""
    from gristmill import LocalExecutor, Pipeline
    from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter

    run = folder / "run"
    if (run / "metrics.json").exists():
        return run
    (folder / "in").mkdir(parents=True, exist_ok=True)
    words = TEXT.split()
    texts = [" ".join(words[(start + step * 7) % len(words)] for step in range(start % 60 + 1)) for start in range(600)]
    for part in range(FILES):
        with (folder / "in" / f"part-{part}.jsonl").open("w") as out:
            for row in range(part, rows, FILES):
                language = ("en", "en", "de", "fr")[row % 4]
                out.write(f'{{"id": "doc-{row}", "text": "{row} {texts[row % 600]}", "language": "{language}"}}\n')
    stages = [
        JsonlReader(folder / "in"),
        ScoreFilter(WordCountFilter(min_words=32)),
        JsonlWriter(folder / "out", mode="overwrite"),
    ]
    Pipeline("two million rows", stages=stages).run(LocalExecutor(2), run_dir=run, rejected=True)
    return run


def run(place: Path) -> dict[str, Any]:
    began = time.perf_counter()
    command = [sys.executable, "-m", "gristmill.cli.main", "view", str(place), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            found: dict[str, Any] = {"start_s": time.perf_counter() - began}
            found |= {name: timed(url + page)[0] for name, page in PAGES.items()}
            found |= whole(url, "search_all_s", "in=kept&search=miller+river")
            found |= whole(url, "sorted_s", "in=dropped&sort=rejected_score&down=1")
            found |= whole(url, "counted_s", "in=kept")
            found["page_20000_s"], page = timed(f"{url}rows?in=kept&page=20000")
            assert re.search("999,951 to", page), page
            found["rss_mb"] = (
                int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())[1]) / 1000
            )
        finally:
            server.terminate()
    return found


def timed(url: str) -> tuple[float, str]:
    began = time.perf_counter()
    with urlopen(url) as answer:
        body = answer.read().decode()
    return time.perf_counter() - began, body


def whole(url: str, name: str, asked: str) -> dict[str, float]:
    """Until all rows have been looked at."""
    began = time.perf_counter()
    timed(f"{url}rows?{asked}")
    while not json.loads(timed(f"{url}state?{asked}")[1])["done"]:
        time.sleep(0.05)
    return {name: time.perf_counter() - began}


if __name__ == "__main__":
    os.environ.setdefault("GRISTMILL_PROGRESS", "off")
    show(run(make(WORK / "view", int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)))
