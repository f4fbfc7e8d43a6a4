"""No record is lost silently: what ends its worker, or hangs in it, is found and set aside; the rest goes on."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Task
from gristmill.core.errors import ErrorBudgetError, StageError, TaskTimeoutError, WorkerLostError
from gristmill.text import JsonlReader, JsonlWriter
from tests.conformance import failing_stages
from tests.conformance.failing_stages import After, Batches, Fail, Filter, Numbers
from tests.conformance.small_stages import CountTo
from tests.promises.test_resume import contents

KINDS = {
    5: "exit",
    6: "kill",
    300: "segfault",
    301: "raise",
    302: "fork",
    555: "memory",
    700: "sys.exit",
    799: "hang",
}
ENDED = {"raise": "raised", "memory": "raised", "sys.exit": "raised", "hang": "timed out"}


def write_file(path: Path, rows: range, without: Any = ()) -> None:
    raw = "".join(json.dumps({"n": n, "text": f"row {n} " * 5}) + "\n" for n in rows if n not in without).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(raw, 1) if path.suffix == ".gz" else raw)


def pipeline(source: Path, out: Path, *stages: Any, blocksize: int = 4_000) -> Pipeline:
    return Pipeline("p", stages=[JsonlReader(str(source), blocksize=blocksize), *stages, JsonlWriter(str(out))])


def clean(tmp_path: Path, files: dict[str, range], bad: Any) -> dict[str, bytes]:
    """What comes out of an input that never had the bad rows."""
    for name, rows in files.items():
        write_file(tmp_path / "clean" / name, rows, bad)
    pipeline(tmp_path / "clean", tmp_path / "expected", Filter(())).run(LocalExecutor(0))
    return contents(tmp_path / "expected")


def numbers(records: Any) -> list[int]:
    return sorted(record.row["n"] for record in records)


def ids(run: Path) -> list[str]:
    from gristmill.core.records.run_directory import Run

    return sorted(record.id for record in Run(run).quarantined())


# -- every way to fail -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "executor", "form", "blocksize"),
    [
        ("a.jsonl", LocalExecutor(2), Filter, 4_000),
        ("a.jsonl.gz", LocalExecutor(3), failing_stages.PieceByPiece, 4_000),
        ("a.jsonl", LocalExecutor(3, fuse=False), failing_stages.Several, 3_000),
    ],
    ids=["fused", "one-stream", "unfused"],
)
def test_all_kinds_of_failure_in_one_file(
    name: str, executor: LocalExecutor, form: type[Fail], blocksize: int, tmp_path: Path
) -> None:
    expected = clean(tmp_path, {name: range(800)}, KINDS)
    write_file(tmp_path / "in" / name, range(800))
    stage = form(KINDS).with_(timeout_s=0.3)
    whole = pipeline(tmp_path / "in", tmp_path / "out", stage, After(), blocksize=blocksize)
    result = whole.run(executor, tmp_path / "run", max_errors=None)
    assert contents(tmp_path / "out") == expected
    assert not (tmp_path / "out.run" / "_tmp").exists()
    records = result.quarantined()
    assert numbers(records) == sorted(KINDS)
    for record in records:
        what = KINDS[record.row["n"]]
        assert record.kind == ENDED.get(what, "crashed")
        assert record.stage == "Fail"
        assert 3 <= record.attempts <= 5
        assert record.row["text"] == f"row {record.row['n']} " * 5
        assert (record.file, record.files) == (name, (str(tmp_path / "in" / name),))
        assert bool(record.traceback) == (record.kind == "raised")
    errors = {KINDS[record.row["n"]]: record.error for record in records}
    assert errors["exit"] == "its worker exited with code 3"
    assert errors["kill"] == errors["fork"] == "its worker was killed by SIGKILL: was the machine out of memory?"
    assert errors["segfault"] == "its worker was killed by SIGSEGV"
    assert errors["memory"] == "MemoryError: "
    assert errors["hang"] == "it ran for more than 0.3 s (timeout_s) and was stopped"
    line = result.summary()["Fail"]
    dropped = sum(n % 7 == 0 and n not in KINDS for n in range(800))
    assert (line.rows_in, line.quarantined, line.dropped) == (800, len(KINDS), dropped)
    assert line.counts["looks"] == 800 - len(KINDS)


def test_what_was_sent_when_the_worker_died_is_not_sent_again() -> None:
    """One task becomes 300 batches, which leave as they are made; late rows kill."""
    bad = {1500: "kill", 2501: "exit", 2502: "kill"}
    stages = [Batches(), Filter(bad), After()]
    result = Pipeline("p", stages=stages).run(LocalExecutor(1), initial_tasks=[Task([10] * 300)])
    found = [row["n"] for task in result for row in task.to_rows()]
    assert found == [n for n in range(3000) if n % 7 and n not in bad]
    assert numbers(result.quarantined()) == sorted(bad)
    assert [task.id for task in result][:3] == ["0.0", "0.1", "0.2"]


class Slowly(Filter):
    """Takes its time, so that others are asked to help, and leaves its mark."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        time.sleep(0.01)
        out = super().process(task)
        return out.with_data(out.data.append_column("pid", [[os.getpid()] * out.num_items]))


def test_batches_that_others_took_over_are_isolated_there() -> None:
    """One task, three workers: most batches are finished by another worker than the one that made them."""
    bad = {0: "kill", 111: "exit", 112: "raise"}
    result = Pipeline("p", stages=[Batches(), Slowly(bad), After()]).run(
        LocalExecutor(3), initial_tasks=[Task([5] * 40)], max_errors=None
    )
    rows = [row for task in result for row in task.to_rows()]
    assert [row["n"] for row in rows] == [n for n in range(200) if n % 7 and n not in bad]
    assert numbers(result.quarantined()) == sorted(bad)
    assert len({row["pid"] for row in rows}) > 1


def test_a_neighbour_in_the_same_call_is_not_blamed() -> None:
    """The page names the first of several tasks; the one that kills is found all the same, even without retries."""
    stage = failing_stages.SeveralTasks({6: "kill", 17: "exit"}).with_(max_retries=0)
    result = Pipeline("p", stages=[Numbers(), stage]).run(LocalExecutor(1), initial_tasks=[Task(24)], max_errors=None)
    assert [task.data for task in result] == [n for n in range(24) if n % 7 and n not in (6, 17)]
    assert [(record.content, record.kind) for record in result.quarantined()] == [("6", "crashed"), ("17", "crashed")]


def test_a_stream_that_kills_half_way_keeps_what_it_gave() -> None:
    pipeline = Pipeline("p", stages=[Numbers(), failing_stages.Steps({11: "exit", 30: "kill"}), After()])
    result = pipeline.run(LocalExecutor(2), initial_tasks=[Task(5)], max_errors=None)
    assert [task.data for task in result] == [0, 1, 2, 10, 20, 21, 22, 40, 41, 42]
    assert sorted(str(record.content) for record in result.quarantined()) == ["1, after its output number 1", "3"]


def test_what_kills_once_or_twice_is_not_set_aside(tmp_path: Path) -> None:
    stage = Filter({3: "exit", 14: "kill", 31: "exit"}, marks=tmp_path, times=1)
    result = Pipeline("p", stages=[Batches(), stage]).run(
        LocalExecutor(2), initial_tasks=[Task([20] * 3)], max_errors=0
    )
    assert [row["n"] for task in result for row in task.to_rows()] == [n for n in range(60) if n % 7]
    assert result.quarantined() == []
    assert result.summary()["Fail"].counts["looks"] == 60


def test_a_batch_that_takes_long_is_given_in_pieces(tmp_path: Path) -> None:
    """No row of it hangs: the limit is for what is given at once."""

    class Slow(ProcessingStage[DocumentBatch, DocumentBatch]):
        timeout_s = 0.5

        def process(self, task: DocumentBatch) -> DocumentBatch:
            time.sleep(0.02 * task.num_items)
            return task

    result = Pipeline("p", stages=[Slow()]).run(
        LocalExecutor(1), initial_tasks=[failing_stages.numbered(0, 50)], max_errors=0
    )
    assert [row["n"] for task in result for row in task.to_rows()] == list(range(50))


def test_a_stage_that_answers_otherwise_when_asked_again_stops_the_run(tmp_path: Path) -> None:
    """Its outputs could not be told apart from those that were sent before the worker died."""

    class Fickle(ProcessingStage[Task[int], Task[int]]):
        def process(self, task: Task[int]) -> Iterator[Task[int]]:
            again = (tmp_path / "died").exists()
            for number in range(100):
                if number == 80 and not again:
                    (tmp_path / "died").touch()
                    time.sleep(0.3)
                    os._exit(1)
                yield Task(number)

    class SkipsOne(ProcessingStage[Task[int], Task[int]]):
        def process(self, task: Task[int]) -> Task[int] | None:
            return None if task.data == 3 and (tmp_path / "died").exists() else task

    with pytest.raises(StageError, match="'SkipsOne' failed on task 0: .*gave other outputs than before"):
        Pipeline("p", stages=[Fickle(), SkipsOne()]).run(LocalExecutor(1), initial_tasks=[Task(0)])


def test_raise_stops_when_a_worker_is_lost_or_hangs(tmp_path: Path) -> None:
    tasks = [failing_stages.numbered(0, 20)]
    for what, kind in [("kill", WorkerLostError), ("hang", TaskTimeoutError)]:
        stage = Filter({5: what}, marks=tmp_path).with_(timeout_s=0.3, max_retries=1)
        with pytest.raises(kind, match="stage 'Fail' failed on task 0: "):
            Pipeline("p", stages=[stage]).run(LocalExecutor(1), initial_tasks=tasks, on_error="raise")
    assert len(list(tmp_path.iterdir())) == 4


def test_workers_that_end_while_they_wait_are_replaced() -> None:
    """As the kernel does when memory is short; over a long run that may be often."""

    class Slowly(CountTo):
        def process(self, task: Any) -> Iterator[Task[int]]:
            for number in super().process(task):
                time.sleep(0.3)
                yield number

    class EndsLater(ProcessingStage[Task[int], Task[int]]):
        def process(self, task: Task[int]) -> Task[int]:
            threading.Timer(0.1, os._exit, [0]).start()
            return task

    stages = [Slowly(5), EndsLater().with_(num_workers=1)]
    result = Pipeline("p", stages=stages).run(LocalExecutor(2, fuse=False), max_errors=0)
    assert [task.data for task in result] == list(range(5))


# -- rejected rows -----------------------------------------------------------------------------------------


class Steadily(Filter):
    """Slow enough for what it rejects to be sent before it is over."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        time.sleep(0.06)
        return super().process(task)


@pytest.mark.parametrize(
    ("form", "bad", "executor"),
    [
        (Steadily, {60: "kill"}, LocalExecutor(1)),
        (failing_stages.SeveralRowByRow, {60: "raise"}, LocalExecutor(0)),
        (failing_stages.RowByRow, {60: "raise"}, LocalExecutor(0)),
    ],
    ids=["killed", "several-streams", "stream"],
)
def test_rejected_rows_are_neither_lost_nor_doubled(form: type[Fail], bad: Any, executor: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write_file(tmp_path / "in" / "a.jsonl", range(100))
    whole = pipeline(tmp_path / "in", tmp_path / "out", form(bad), blocksize=10**6)
    result = whole.run(executor, tmp_path / "run", rejected=tmp_path / "rejected", max_errors=1)
    assert numbers(result.quarantined()) == [60]
    rows = [json.loads(line)["n"] for line in next((tmp_path / "out").glob("*.jsonl")).read_text().splitlines()]
    assert rows == [n for n in range(100) if n % 7 and n != 60]
    found = pq.read_table(next((tmp_path / "rejected").glob("*.parquet"))).column("n").to_pylist()
    assert found == list(range(0, 100, 7))


def test_rejected_rows_that_cannot_be_written_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.io.write.commit import WriteFragments

    write = WriteFragments.process

    def full(self: Any, task: Any) -> Any:
        if self.name == "write_rejected":
            raise OSError("disk full")
        return write(self, task)

    monkeypatch.setattr(WriteFragments, "process", full)
    write_file(tmp_path / "in" / "a.jsonl", range(50))
    whole = pipeline(tmp_path / "in", tmp_path / "out", Filter(()))
    with pytest.raises(StageError, match="'write_rejected' failed .*disk full"):
        whole.run(LocalExecutor(0), tmp_path / "run", rejected=True, max_errors=None)
    assert ids(tmp_path / "run") == []


# -- the budget --------------------------------------------------------------------------------------------


def test_workers_that_die_count_against_the_budget(tmp_path: Path) -> None:
    stage = Filter({5: "exit", 25: "kill", 45: "exit"})
    batches = [failing_stages.numbered(start, start + 20) for start in (0, 20, 40)]
    with pytest.raises(ErrorBudgetError, match=r"more than max_errors=2 allows: the run was stopped"):
        Pipeline("p", stages=[stage]).run(LocalExecutor(2), run_dir=tmp_path, initial_tasks=batches, max_errors=2)
    assert len(ids(tmp_path)) == 3


def test_a_stage_that_fails_on_everything_stops_soon(tmp_path: Path) -> None:
    write_file(tmp_path / "in" / "a.jsonl", range(200_000))
    began = time.monotonic()
    whole = pipeline(tmp_path / "in", tmp_path / "out", Filter(range(200_000)), blocksize=2**20)
    with pytest.raises(ErrorBudgetError) as caught:
        whole.run(LocalExecutor(2), tmp_path / "run")
    assert time.monotonic() - began < 20
    assert "stage 'Fail': ValueError: bad byte" in str(caught.value)
    assert len(str(caught.value)) < 3_000
    assert 100 < len(ids(tmp_path / "run")) < 1_000


def test_a_bad_file_among_many_good_ones_is_judged_by_all_rows(tmp_path: Path) -> None:
    """One call has more errors than its own rows would allow; of all rows they are few."""
    write_file(tmp_path / "in" / "a.jsonl", range(30_000))
    write_file(tmp_path / "in" / "b.jsonl", range(30_000, 30_400))
    stage = Filter(range(30_000, 30_200))
    whole = pipeline(tmp_path / "in", tmp_path / "out", stage, blocksize=2**24)
    assert len(whole.run(LocalExecutor(1)).quarantined()) == 200


def test_after_the_budget_was_spent_a_run_that_allows_more_goes_on(tmp_path: Path) -> None:
    files = {f"{number}.jsonl": range(100 * number, 100 * number + 100) for number in range(6)}
    bad = (5, 6, 207, 208, 500)
    expected = clean(tmp_path, files, bad)
    for name, rows in files.items():
        write_file(tmp_path / "in" / name, rows)
    whole = pipeline(tmp_path / "in", tmp_path / "out", Filter(bad))
    run = tmp_path / "run"
    for most in (1, 3, 4):
        with pytest.raises(ErrorBudgetError, match=f"max_errors={most} allows"):
            whole.run(LocalExecutor(0), run, max_errors=most)
        assert len(ids(run)) >= 2
        assert not (tmp_path / "out.run" / "manifest.json").exists()
    result = whole.run(LocalExecutor(2), run, max_errors=5)
    assert contents(tmp_path / "out") == expected
    assert numbers(result.quarantined()) == sorted(bad)
