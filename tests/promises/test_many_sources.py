"""Many small files: what a run keeps of each is little, whatever the rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from gristmill import LocalExecutor, Pipeline
from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter

folder, out = sys.argv[1:]
stages = [JsonlReader(folder), ScoreFilter(WordCountFilter(min_words=1)), JsonlWriter(out)]
result = Pipeline("many", stages=stages).run(LocalExecutor(2), out + ".records")
assert result.summary().rows_out == len(result.files()), result.summary()
print(result.summary().rows_out)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
MOST_BYTES_PER_SOURCE = 8_000


@pytest.mark.slow
def test_the_driver_keeps_little_of_each_of_many_files(tmp_path: Path) -> None:
    """100,000 files would take it less than 800 MB. Two minutes on two cores."""
    peaks, counts = [], (500, 15_000)
    for count in counts:
        folder = tmp_path / f"in {count}"
        folder.mkdir()
        for number in range(count):
            (folder / f"{number}.jsonl").write_text(json.dumps({"id": number, "text": "a row of text " * 40}) + "\n")
        command = [sys.executable, "-c", SCRIPT, str(folder), str(tmp_path / f"out {count}")]
        env = {**os.environ, "GRISTMILL_PROGRESS": "off"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        rows, peak = map(int, done.stdout.split())
        assert rows == count
        peaks.append(peak * 1024)
    grown = (peaks[1] - peaks[0]) / (counts[1] - counts[0])
    assert grown < MOST_BYTES_PER_SOURCE, f"{grown:,.0f} bytes for each file"
