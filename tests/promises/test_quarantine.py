"""No record is lost silently: what ends its worker, or hangs in it, is found and set aside; the rest goes on."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Task
from gristmill.core.errors import ErrorBudgetError, StageError, TaskTimeoutError, WorkerLostError
from gristmill.io.manifest import check_manifest
from gristmill.io.target import Target
from gristmill.text import JsonlReader, JsonlWriter
from tests.conformance import failing
from tests.conformance.failing import After, Batches, Fail, Filter, Numbers
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
    from gristmill.core.run import Run

    return sorted(record.id for record in Run(run).quarantined())


# -- every way to fail -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "executor", "form", "blocksize"),
    [
        ("a.jsonl", LocalExecutor(2), Filter, 4_000),
        ("a.jsonl.gz", LocalExecutor(3), failing.PieceByPiece, 4_000),
        ("a.jsonl", LocalExecutor(3, fuse=False), failing.Several, 3_000),
    ],
    ids=["fused", "one-stream", "unfused"],
)
def test_all_kinds_of_failure_in_one_file(
    name: str, executor: LocalExecutor, form: type[Fail], blocksize: int, tmp_path: Path
) -> None:
    expected = clean(tmp_path, {name: range(800)}, KINDS)
    write_file(tmp_path / "in" / name, range(800))
    stage = form(KINDS).with_(timeout_s=0.4)
    whole = pipeline(tmp_path / "in", tmp_path / "out", stage, After(), blocksize=blocksize)
    result = whole.run(executor, tmp_path / "run", max_errors=None)
    assert contents(tmp_path / "out") == expected
    assert not (tmp_path / "out" / "_tmp").exists()
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
    assert errors["hang"] == "it ran for more than 0.4 s (timeout_s) and was stopped"
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
    bad = {0: "kill", 111: "exit", 112: "raise", 199: "exit"}
    result = Pipeline("p", stages=[Batches(), Slowly(bad), After()]).run(
        LocalExecutor(3), initial_tasks=[Task([5] * 40)], max_errors=None
    )
    rows = [row for task in result for row in task.to_rows()]
    assert [row["n"] for row in rows] == [n for n in range(200) if n % 7 and n not in bad]
    assert numbers(result.quarantined()) == sorted(bad)
    assert len({row["pid"] for row in rows}) > 1


def test_a_neighbour_in_the_same_call_is_not_blamed() -> None:
    """The page names the first of several tasks; the one that kills is found all the same, even without retries."""
    stage = failing.SeveralTasks({6: "kill", 17: "exit"}).with_(max_retries=0)
    result = Pipeline("p", stages=[Numbers(), stage]).run(LocalExecutor(1), initial_tasks=[Task(24)], max_errors=None)
    assert [task.data for task in result] == [n for n in range(24) if n % 7 and n not in (6, 17)]
    assert [(record.content, record.kind) for record in result.quarantined()] == [("6", "crashed"), ("17", "crashed")]


def test_a_stream_that_kills_half_way_keeps_what_it_gave() -> None:
    pipeline = Pipeline("p", stages=[Numbers(), failing.Steps({11: "exit", 30: "kill"}), After()])
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

    result = Pipeline("p", stages=[Slow()]).run(LocalExecutor(1), initial_tasks=[failing.numbered(0, 50)], max_errors=0)
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

    with pytest.raises(StageError, match="'SkipsOne' failed on task 0: .*not turned into the same outputs as before"):
        Pipeline("p", stages=[Fickle(), SkipsOne()]).run(LocalExecutor(1), initial_tasks=[Task(0)])


def test_raise_stops_when_a_worker_is_lost_or_hangs(tmp_path: Path) -> None:
    tasks = [failing.numbered(0, 20)]
    for what, kind in [("kill", WorkerLostError), ("hang", TaskTimeoutError)]:
        stage = Filter({5: what}, marks=tmp_path).with_(timeout_s=0.3, max_retries=1)
        with pytest.raises(kind, match="stage 'Fail' failed on task 0: "):
            Pipeline("p", stages=[stage]).run(LocalExecutor(1), initial_tasks=tasks, on_error="raise")
    assert len(list(tmp_path.iterdir())) == 4


# -- the budget --------------------------------------------------------------------------------------------


def test_workers_that_die_count_against_the_budget(tmp_path: Path) -> None:
    stage = Filter({5: "exit", 25: "kill", 45: "exit"})
    batches = [failing.numbered(start, start + 20) for start in (0, 20, 40)]
    with pytest.raises(ErrorBudgetError, match=r"more than max_errors=2 allows: the run was stopped"):
        Pipeline("p", stages=[stage]).run(LocalExecutor(2), tmp_path, initial_tasks=batches, max_errors=2)
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
    bad = {5: "raise", 6: "exit", 207: "raise", 208: "raise", 500: "kill"}
    expected = clean(tmp_path, files, bad)
    for name, rows in files.items():
        write_file(tmp_path / "in" / name, rows)
    whole = pipeline(tmp_path / "in", tmp_path / "out", Filter(bad))
    run = tmp_path / "run"
    for most in (1, 3, 4):
        with pytest.raises(ErrorBudgetError, match=f"max_errors={most} allows"):
            whole.run(LocalExecutor(2), run, max_errors=most)
        assert len(ids(run)) >= 2
        assert not (tmp_path / "out" / "_manifest.json").exists()
    result = whole.run(LocalExecutor(2), run, max_errors=5)
    assert contents(tmp_path / "out") == expected
    assert numbers(result.quarantined()) == sorted(bad)


# -- going on after a kill, and replay ---------------------------------------------------------------------

POISON = {3: "raise", 4: "exit", 110: "kill", 111: "raise", 230: "exit", 399: "raise", 480: "exit", 590: "raise"}
FILES = {f"{number}.jsonl": range(60 * number, 60 * number + 60) for number in range(10)}


class Nap(ProcessingStage[Any, Any]):
    def process(self, task: Any) -> Any:
        time.sleep(0.01)
        return task


class Mended(Filter):
    """Fails until the file `fixed` is there. That is not part of what it computes, so the plan stays the same."""

    not_identity = ("fixed",)

    def __init__(self, bad: Any, fixed: Path) -> None:
        super().__init__(bad)
        self.fixed = fixed

    def look(self, number: int) -> bool:
        return number % 7 != 0 if self.fixed.exists() else super().look(number)


def poisoned(folder: Path, out: str = "out", source: str = "in") -> Pipeline:
    return pipeline(folder / source, folder / out, Nap(), Mended(POISON, folder / "fixed"), blocksize=1500)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name, rows in FILES.items():
        write_file(tmp_path / "in" / name, rows)
    return tmp_path


SCRIPT = """
import sys
from pathlib import Path
from gristmill import LocalExecutor
from tests.promises.test_quarantine import poisoned
folder, workers, replay = sys.argv[1:]
executor = LocalExecutor(int(workers))
poisoned(Path(folder)).run(executor, f"{folder}/run", max_errors=None, replay=replay == "replay")
"""


def run_and_kill(folder: Path, rng: random.Random, replay: str = "", kills: int = 4) -> int:
    """Run in another process, killed a few times and started again with other workers. How often it was killed."""
    (folder / "script.py").write_text(SCRIPT)
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": f"{root}/src:{root}", "GRISTMILL_PROGRESS": "off"}
    for attempt in range(20):
        args = [sys.executable, str(folder / "script.py"), str(folder), str(rng.choice([1, 2, 3])), replay]
        process = subprocess.Popen(args, env=env, start_new_session=True)
        began = time.monotonic()
        while attempt < kills and process.poll() is None and not _has_begun(folder, attempt):
            assert time.monotonic() - began < 60
            time.sleep(0.01)
        try:
            process.wait(timeout=rng.uniform(0.05, 0.5) if attempt < kills else 60)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            continue
        assert process.returncode == 0
        return attempt
    raise AssertionError("it never ended")


def _has_begun(folder: Path, attempt: int) -> bool:
    plan = folder / "run" / "plan.json"
    return plan.exists() and plan.stat().st_mtime > time.time() - 5


def test_killed_and_resumed_it_ends_with_the_same_bytes_and_the_same_quarantine(corpus: Path) -> None:
    expected = clean(corpus, FILES, POISON)
    fresh = poisoned(corpus, "fresh").run(LocalExecutor(2), corpus / "other", max_errors=None)
    assert contents(corpus / "fresh") == expected
    assert numbers(fresh.quarantined()) == sorted(POISON)
    assert run_and_kill(corpus, random.Random(3)) >= 2
    assert contents(corpus / "out") == expected
    assert ids(corpus / "run") == sorted(record.id for record in fresh.quarantined())
    assert check_manifest(Target(str(corpus / "out")))[1] == []


def test_replay_after_a_fix_leaves_no_trace(corpus: Path) -> None:
    expected = clean(corpus, FILES, ())
    first = poisoned(corpus).run(LocalExecutor(2), corpus / "run", max_errors=None)
    assert len(first.quarantined()) == len(POISON)
    again = poisoned(corpus).run(LocalExecutor(2), corpus / "run", max_errors=None)
    assert again.summary()["read_jsonl"].rows_out == 0
    assert numbers(again.quarantined()) == sorted(POISON)
    (corpus / "fixed").touch()
    mended = poisoned(corpus).run(LocalExecutor(2), corpus / "run", replay=True)
    assert mended.summary()["read_jsonl"].rows_out == 6 * 60
    assert mended.quarantined() == []
    assert contents(corpus / "out") == expected
    nothing = poisoned(corpus).run(LocalExecutor(2), corpus / "run", replay=True)
    assert nothing.summary()["read_jsonl"].rows_out == 0
    assert contents(corpus / "out") == expected


def test_a_replay_that_is_killed_is_gone_on_with(corpus: Path) -> None:
    expected = clean(corpus, FILES, ())
    poisoned(corpus).run(LocalExecutor(2), corpus / "run", max_errors=None)
    (corpus / "fixed").touch()
    run_and_kill(corpus, random.Random(4), "replay", kills=3)
    assert contents(corpus / "out") == expected
    assert ids(corpus / "run") == []


def test_a_replay_that_fails_again_keeps_the_same_records(corpus: Path) -> None:
    poisoned(corpus).run(LocalExecutor(2), corpus / "run", max_errors=None)
    before, records = contents(corpus / "out"), ids(corpus / "run")
    poisoned(corpus).run(LocalExecutor(3), corpus / "run", max_errors=None, replay=True)
    assert contents(corpus / "out") == before
    assert ids(corpus / "run") == records


def test_without_a_run_directory_the_records_lie_beside_the_output(corpus: Path) -> None:
    """And a second run into the same output tells only of its own."""
    first = poisoned(corpus).run(LocalExecutor(2), max_errors=None)
    assert numbers(first.quarantined()) == sorted(POISON)
    assert ids(corpus / "out" / "_run") == sorted(record.id for record in first.quarantined())
    for name in list(FILES)[:3]:
        (corpus / "in" / name).unlink()
    second = poisoned(corpus).run(LocalExecutor(2), max_errors=None)
    left = [number for number in sorted(POISON) if number >= 180]
    assert numbers(second.quarantined()) == left
    assert len(ids(corpus / "out" / "_run")) == len(left)
    (corpus / "fixed").touch()
    third = poisoned(corpus).run(LocalExecutor(2), max_errors=None)
    assert third.quarantined() == ids(corpus / "out" / "_run") == []
