"""A key that half of the rows have needs no more memory than others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
import pyarrow as pa
from gristmill import DocumentBatch, KeyedStage, LocalExecutor, Pipeline, ProcessingStage, SourceStage, Task
from gristmill.io.exchange import exchange, keyed_stage

keyed_stage.PARTITION_BLOCK_BYTES = exchange.PARTITION_BLOCK_BYTES = 2 * 2**20
TEXT = "x" * 1000

class Rows(ProcessingStage):
    def process(self, task):
        start = task.data
        numbers = range(start, start + 1000)
        yield DocumentBatch([{"key": "hot" if n % 2 else f"k{n}", "n": n, "text": TEXT} for n in numbers])

class Longest(KeyedStage):
    key = "key"
    num_partitions = 2
    memory_gb = 8 / 1024

    def reduce(self, key, rows):
        numbers = [row["n"] for row in rows]
        assert numbers == sorted(numbers)
        return {"key": key, "rows": len(numbers)}

tasks = [Task(data=start) for start in range(0, 40_000, 1000)]
result = Pipeline("skewed", stages=[Rows(), Longest()]).run(LocalExecutor(0), initial_tasks=tasks)
rows = [row for task in result for row in task.to_rows()]
hot = next(row["rows"] for row in rows if row["key"] == "hot")
print(json.dumps({"groups": len(rows), "hot": hot, "peak": pa.default_memory_pool().max_memory()}))
"""


def test_a_group_larger_than_memory_is_a_stream(tmp_path: Path) -> None:
    """40 MB of rows, of which 20 MB have one key, with 2 MB to sort in."""
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": f"{root}/src:{root}", "GRISTMILL_PROGRESS": "off", "TMPDIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    output = json.loads(ran.stdout)
    assert (output["groups"], output["hot"]) == (20_001, 20_000)
    assert output["peak"] < 16 * 2**20
    assert list(tmp_path.iterdir()) == []
