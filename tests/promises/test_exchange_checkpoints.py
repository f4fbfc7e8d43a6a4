"""Each exchange is a checkpoint: a run that is killed goes on in the segment that it was in, and ends with the same
bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import KeyedStage, LocalExecutor, Pipeline, ProcessingStage, Repartition, Shuffle
from gristmill.core.errors import GristmillError, StageError
from gristmill.dedup import ExactDeduplicationStage
from gristmill.dedup.exact.exact_stage import KeepOnePerHash
from gristmill.text import JsonlReader, JsonlWriter

LAST = 4
"""Segments of the pipeline below."""


class Stall(ProcessingStage[Any, Any]):
    """Stops for good when it has seen some tasks, if it is told to, and says so."""

    not_identity = ("room",)

    def __init__(self, segment: int, room: Path) -> None:
        super().__init__()
        self.segment, self.room = segment, room

    def process(self, task: Any) -> Any:
        stall(self.room, self.segment)
        return task


def stall(room: Path, segment: int) -> None:
    """Lets the first calls pass, so that something of the segment is done when the run is killed."""
    if (room / f"stall-{segment}").exists():
        if sum(1 for _ in room.glob("passed-*")) < 2:
            (room / f"passed-{time.monotonic_ns()}").touch()
        else:
            (room / "here").touch()
            time.sleep(60)


class SlowHash(KeepOnePerHash):
    def __init__(self, room: Path) -> None:
        super().__init__("slow", 4)
        self._room = room

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        stall(self._room, 2)
        yield from super().process_sorted(tables)


class SlowDedup(ExactDeduplicationStage):
    def __init__(self, room: Path) -> None:
        super().__init__(id_field="id")
        self._room = room

    def rounds(self) -> Sequence[KeyedStage]:
        return [SlowHash(self._room)]


def pipeline(corpus: Path, out: Path, room: Path) -> Pipeline:
    stages = [
        JsonlReader(str(corpus), blocksize=1500),
        Stall(1, room),
        SlowDedup(room),
        Stall(3, room),
        Shuffle(seed=1, num_partitions=4),
        Stall(4, room),
        JsonlWriter(str(out)),
    ]
    return Pipeline("killed", stages=stages)


SCRIPT = """
import sys
from pathlib import Path
from gristmill import LocalExecutor
from tests.promises.test_exchange_checkpoints import pipeline
corpus, out, room, run, workers = sys.argv[1:]
pipeline(Path(corpus), Path(out), Path(room)).run(LocalExecutor(int(workers)), run, rejected=True)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(6):
        rows = [{"id": f"{number}-{row}", "text": f"text {row * (number + 1) % 70}"} for row in range(40)]
        (folder / f"part-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run that nobody kills gives."""
    folder = tmp_path_factory.mktemp("whole")
    result = pipeline(corpus, folder / "out", folder).run(LocalExecutor(0), folder / "run", rejected=True)
    return message(folder, result)


def message(folder: Path, result: Any) -> dict[str, Any]:
    out = {path.name: path.read_bytes() for path in sorted((folder / "out").glob("*.jsonl"))}
    rejected = {Path(path).name: Path(path).read_bytes() for path in result.rejected()}
    clusters = {path.name: path.read_bytes() for path in sorted((folder / "run" / "clusters").iterdir())}
    return {"out": out, "rejected": rejected, "clusters": clusters}


def kill_in(segment: int, corpus: Path, folder: Path, workers: int) -> None:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    (folder / f"stall-{segment}").touch()
    places = [str(corpus), str(folder / "out"), str(folder), str(folder / "run"), str(workers)]
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": f"{root}/src:{root}", "GRISTMILL_PROGRESS": "off"}
    process = subprocess.Popen([sys.executable, str(script), *places], env=env)
    try:
        until = time.monotonic() + 120
        while not (folder / "here").exists():
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < until, "it never came so far"
            time.sleep(0.02)
        time.sleep(0.3)  # what is done by then may get into the ledger
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (folder / f"stall-{segment}").unlink()


@pytest.mark.parametrize(
    ("segment", "workers", "then"),
    [
        (1, 2, 0),
        pytest.param(2, 3, 0, marks=pytest.mark.slow),
        pytest.param(3, 1, 2, marks=pytest.mark.slow),
        (4, 2, 0),
    ],
)
def test_a_run_that_is_killed_goes_on_in_its_segment(
    corpus: Path, tmp_path: Path, whole: dict[str, Any], segment: int, workers: int, then: int
) -> None:
    kill_in(segment, corpus, tmp_path, workers)
    result = pipeline(corpus, tmp_path / "out", tmp_path).run(LocalExecutor(then), tmp_path / "run", rejected=True)
    assert message(tmp_path, result) == whole
    summary = result.summary(attempt=True)
    if segment > 1:
        assert summary["read_jsonl"].rows_out == 0
    if segment > 2:
        parts = {
            part["name"]: part for part in json.loads((tmp_path / "run" / "metrics.json").read_text())["attempt_stages"]
        }
        assert parts["slow"]["part_of"] == "SlowDedup"
        assert parts["slow"]["rows_in"] == 0
    if segment == LAST:
        assert summary["SlowDedup"].rows_in == 0
    again = pipeline(corpus, tmp_path / "out", tmp_path).run(LocalExecutor(0), tmp_path / "run", rejected=True)
    assert sum(line.rows_in + line.rows_out for line in again.summary(attempt=True).stages) == 0
    assert message(tmp_path, again) == whole


def test_what_is_left_is_told_segment_by_segment(corpus: Path, tmp_path: Path) -> None:
    mill = pipeline(corpus, tmp_path / "out", tmp_path)
    _, left, done = mill.left_to_do(tmp_path / "run")
    assert (len(left), done) == (6, 0)
    mill.run(LocalExecutor(0), tmp_path / "run")
    assert mill.left_to_do(tmp_path / "run") == ([], [], 6 + 4 + 6 + 4)
    next((tmp_path / "out").glob("part-00002*")).unlink()
    _, left, _ = mill.left_to_do(tmp_path / "run")
    assert [why for _, why in left] == ["its output is gone"]
    result = mill.run(LocalExecutor(0), tmp_path / "run")
    assert result.summary(attempt=True)["Shuffle"].rows_in < 70
    assert result.summary(attempt=True)["read_jsonl"].rows_out == 0


def test_new_input_and_lost_checkpoints_are_done_again(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for path in list(corpus.iterdir())[:3]:
        (tmp_path / "in" / path.name).write_bytes(path.read_bytes())

    def mill(out: str) -> Pipeline:
        stages = [
            JsonlReader(str(tmp_path / "in")),
            ExactDeduplicationStage(num_partitions=2),
            Repartition(rows=20),
            JsonlWriter(str(tmp_path / out)),
        ]
        return Pipeline("grows", stages=stages)

    def contents(out: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted((tmp_path / out).glob("*.jsonl"))}

    mill("out").run(LocalExecutor(0), tmp_path / "run")
    (tmp_path / "in" / "part-x.jsonl").write_text('{"id": "x", "text": "text 3"}\n{"id": "y", "text": "news"}\n')
    result = mill("out").run(LocalExecutor(0), tmp_path / "run")
    assert result.summary(attempt=True)["read_jsonl"].rows_out == 2
    mill("fresh").run(LocalExecutor(0))
    assert contents("out") == contents("fresh")
    lost = sorted((tmp_path / "run" / "segments" / "1").glob("*.runs"))
    lost[0].unlink()
    assert mill("out").run(LocalExecutor(0), tmp_path / "run").summary(attempt=True)["read_jsonl"].rows_out in (2, 40)
    assert contents("out") == contents("fresh")


class Fails(KeyedStage):
    key = "text"
    num_partitions = 2

    def reduce(self, key: Any, rows: Any) -> dict[str, Any]:
        if key == "text 0":
            raise ValueError("not this one")
        return {"text": key, "rows": sum(1 for _ in rows)}


def test_a_group_that_a_reduce_fails_on_is_set_aside_and_the_books_balance(corpus: Path, tmp_path: Path) -> None:
    def mill() -> Pipeline:
        return Pipeline("p", stages=[JsonlReader(str(corpus)), Fails(), JsonlWriter(str(tmp_path / "out"))])

    result = mill().run(LocalExecutor(2), tmp_path / "run", max_errors=None)
    records = result.quarantined()
    line = result.summary()["Fails"]
    assert [(record.stage, record.row, record.error) for record in records] == [
        ("Fails", {"key": "text 0"}, "ValueError: not this one")
    ]
    assert line.quarantined == records[0].records > 1
    rows = [json.loads(text) for path in result.files() for text in Path(path).read_text().splitlines()]
    assert sum(row["rows"] for row in rows) == line.rows_in - line.quarantined
    again = mill().run(LocalExecutor(0), tmp_path / "run", max_errors=None)
    assert [record.id for record in again.quarantined()] == [record.id for record in records]
    with pytest.raises(StageError, match="not this one"):
        mill().run(LocalExecutor(0), on_error="raise")
    with pytest.raises(StageError, match="more than max_errors=1 allows"):
        mill().run(LocalExecutor(0), max_errors=1)


def test_rows_that_fail_after_an_exchange_are_set_aside_alone(corpus: Path, tmp_path: Path) -> None:
    class Odd(ProcessingStage[Any, Any]):
        def process(self, task: Any) -> Any:
            if "3-3" in task.data.column("id").to_pylist():
                raise ValueError("odd")
            return task

    stages = [JsonlReader(str(corpus)), Shuffle(num_partitions=2), Odd(), JsonlWriter(str(tmp_path / "out"))]
    result = Pipeline("p", stages=stages).run(LocalExecutor(2))
    assert [record.row["id"] for record in result.quarantined() if record.row] == ["3-3"]
    assert result.summary().rows_out == 239


def test_a_row_that_has_no_key_is_set_aside_alone(corpus: Path, tmp_path: Path) -> None:
    class Picky(ExactDeduplicationStage):
        def keys(self, batch: Any) -> pa.Table:
            if "2-20" in batch.data.column("id").to_pylist():
                raise ValueError("no key for this")
            return super().keys(batch)

    stages = [JsonlReader(str(corpus)), Picky(), JsonlWriter(str(tmp_path / "out"))]
    result = Pipeline("p", stages=stages).run(LocalExecutor(0))
    assert [record.row["id"] for record in result.quarantined() if record.row] == ["2-20"]
    line = result.summary()["Picky"]
    assert (line.rows_in, line.rows_out + line.dropped, line.quarantined) == (240, 239, 1)
    with pytest.raises(StageError, match="no key for this"):
        Pipeline("p", stages=stages).run(LocalExecutor(0), on_error="raise")


def test_object_stores_will_do(corpus: Path, tmp_path: Path) -> None:
    """One whose files are there for this process only, so the work is done here."""
    for where in (f"memory://{tmp_path.name}", str(tmp_path)):
        stages = [JsonlReader(str(corpus)), ExactDeduplicationStage(), Shuffle(), JsonlWriter(f"{where}/out")]
        Pipeline("p", stages=stages).run(LocalExecutor(0), f"{where}/run")
        again = Pipeline("p", stages=stages).run(LocalExecutor(0), f"{where}/run")
        assert again.summary(attempt=True).rows_in == 0
    store = fsspec.filesystem("memory")
    found = {path.rpartition("/")[2]: store.cat_file(path) for path in store.glob(f"/{tmp_path.name}/out/*.jsonl")}
    assert found == {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}
    assert found


def test_a_temporary_directory_is_gone_after_a_failure(corpus: Path, tmp_path: Path) -> None:
    class Stops(KeyedStage):
        key = "text"

        def process_groups(self, table: pa.Table) -> pa.Table:
            raise GristmillError("no further")

    stages = [JsonlReader(str(corpus)), Stops(), JsonlWriter(str(tmp_path / "out"))]
    with pytest.raises(StageError, match="no further"):
        Pipeline("p", stages=stages).run(LocalExecutor(1))
    assert not list((tmp_path / "out").rglob("*.runs"))


def test_rejected_rows_of_all_segments_are_kept(corpus: Path, tmp_path: Path) -> None:
    class Even(ProcessingStage[Any, Any]):
        def process(self, task: Any) -> Any:
            return task.keep(pa.array([int(row.rpartition("-")[2]) % 2 == 0 for row in task.data["id"].to_pylist()]))

    stages = [JsonlReader(str(corpus)), Even(), ExactDeduplicationStage(), JsonlWriter(str(tmp_path / "out"))]
    result = Pipeline("p", stages=stages).run(LocalExecutor(0), rejected=tmp_path / "rejected")
    rejected = [row for path in result.rejected() for row in pq.read_table(path).to_pylist()]
    summary = result.summary(attempt=True)
    for name in ("Even", "ExactDeduplicationStage"):
        assert sum(row["rejected_by"] == name for row in rejected) == summary[name].dropped > 0
    assert len(rejected) + summary.rows_out == 240
