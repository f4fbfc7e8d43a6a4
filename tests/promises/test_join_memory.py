"""Joins stay within memory whatever the keys, and go on after a kill in the segment that they were in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gristmill import Join, LocalExecutor, Pipeline
from gristmill.text import JsonlReader, JsonlWriter
from gristmill.text.read import JsonlReaderStage
from tests.promises.test_exchange_checkpoints import Stall, stall

ROOT = Path(__file__).parents[2]
ENV = os.environ | {"PYTHONPATH": f"{ROOT}/src:{ROOT}", "GRISTMILL_PROGRESS": "off"}

SKEWED = """
import json, sys
import pyarrow as pa
from gristmill import DocumentBatch, Join, LocalExecutor, Pipeline, ProcessingStage, Task
from gristmill.io.exchange import exchange
from gristmill.io.join import key_matching, partitioned_join

exchange.PARTITION_BLOCK_BYTES = partitioned_join.MAX_GROUP_BYTES = key_matching.MAX_PAIR_BYTES = 2**20
exchange.tables_of_size.__defaults__ = (2**20,)
TEXT = "x" * 1000

def rows(start, hot, other):
    for n in range(start, start + 1000):
        yield {"key": hot if n % 2 else other if n in (500, 9000) else f"k{n}", "n": n, "text": TEXT}

class Ours(ProcessingStage):
    def process(self, task):
        yield DocumentBatch(list(rows(task.data, "our", "their")))

for start in range(0, 12_000, 1000):
    with open(f"other/{start:05}.jsonl", "w") as file:
        for row in rows(start, "their", "our"):
            file.write(json.dumps({"key": row["key"], "m": row["n"], "more": TEXT}) + "\\n")

class Count(ProcessingStage):
    def process(self, task):
        assert task.data.nbytes < 4 * 2**20
        keys = task.data.column("key").to_pylist()
        return DocumentBatch([{"key": key, "m": m} for key, m in zip(keys, task.data.column("m").to_pylist())])

join = Join("other", "key", broadcast=False, num_partitions=2, memory_gb=8 / 1024)
tasks = [Task(data=start) for start in range(0, 12_000, 1000)]
result = Pipeline("skewed", stages=[Ours(), join, Count()]).run(LocalExecutor(0), initial_tasks=tasks)
found = {}
for task in result:
    for row in task.to_rows():
        found.setdefault(row["key"], []).append(row["m"])
odd = list(range(1, 12_000, 2))
assert found.pop("our") == [500, 9000] * 6_000
assert found.pop("their") == odd * 2
assert len(found) == 5_998 and all(len(ms) == 1 for ms in found.values())
print(pa.default_memory_pool().max_memory())
"""


def test_a_key_that_half_of_the_rows_have_on_either_side(tmp_path: Path) -> None:
    """12 MB on each side, of which 6 MB have one key, with 2 MB to sort in."""
    (tmp_path / "other").mkdir()
    env = ENV | {"TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", SKEWED], env=env, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 12 * 2**20
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


# -- kills -------------------------------------------------------------------------------------------------


class SlowRead(JsonlReaderStage):
    not_identity = ("room",)
    room: Path

    def process(self, task: Any) -> Any:
        stall(self.room, 2)
        yield from super().process(task)


class SlowReader(JsonlReader):
    def __init__(self, paths: str, room: Path) -> None:
        self.room = room
        super().__init__(paths)

    def reading_stage(self) -> SlowRead:
        stage = SlowRead(self.fields, self.read_kwargs, self.blocksize, self.on_bad_record)
        stage.room = self.room
        return stage


def pipeline(folder: Path, out: Path, room: Path) -> Pipeline:
    stages = [
        JsonlReader(str(folder / "mine"), blocksize=1500),
        Stall(1, room),
        Join(SlowReader(str(folder / "other"), room), "key", "left", broadcast=False, num_partitions=5),
        Stall(3, room),
        JsonlWriter(str(out)),
    ]
    return Pipeline("killed", stages=stages)


SCRIPT = """
import sys
from pathlib import Path
from gristmill import LocalExecutor
from tests.promises.test_join_memory import pipeline
folder, out, room, run = map(Path, sys.argv[1:])
pipeline(folder, out, room).run(LocalExecutor(2), run)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sides")
    for side, name in (("mine", "n"), ("other", "m")):
        (folder / side).mkdir()
        for number in range(6):
            rows = [{"key": row * (number + 2) % 50, name: f"{number}-{row}"} for row in range(40)]
            (folder / side / f"part-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def output(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.jsonl"))}


@pytest.mark.slow
@pytest.mark.parametrize("segment", [1, 2, 3])
def test_a_run_that_is_killed_goes_on_in_its_segment(folder: Path, tmp_path: Path, segment: int) -> None:
    pipeline(folder, tmp_path / "whole", tmp_path).run(LocalExecutor(0))
    (tmp_path / f"stall-{segment}").touch()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    places = [str(place) for place in (folder, tmp_path / "out", tmp_path, tmp_path / "run")]
    process = subprocess.Popen([sys.executable, str(script), *places], env=ENV)
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "here").exists():
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < until, "it never came so far"
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (tmp_path / f"stall-{segment}").unlink()
    result = pipeline(folder, tmp_path / "out", tmp_path).run(LocalExecutor(0), tmp_path / "run")
    assert output(tmp_path / "out") == output(tmp_path / "whole")
    read = result.summary()["read_jsonl"].rows_out
    assert read == 0 if segment > 1 else read <= 240


def test_a_run_is_not_resumed_with_another_side(tmp_path: Path) -> None:
    other, mine = tmp_path / "other.jsonl", tmp_path / "mine.jsonl"
    mine.write_text('{"id": 1}\n{"id": 2}\n')
    for broadcast in (True, False):
        for text, kept in (('{"id": 1}\n', [1]), ('{"id": 1}\n{"id": 2}\n', [1, 2])):
            other.write_text(text)
            out = tmp_path / f"out-{broadcast}"
            stages = [JsonlReader(str(mine)), Join(other, "id", "semi", broadcast=broadcast), JsonlWriter(str(out))]
            Pipeline("p", stages=stages).run(LocalExecutor(0), tmp_path / f"run-{broadcast}")
            rows = [json.loads(line) for raw in output(out).values() for line in raw.splitlines()]
            assert [row["id"] for row in rows] == kept
