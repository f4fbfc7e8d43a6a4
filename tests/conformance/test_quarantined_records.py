"""Records that a stage fails on are set aside, on every executor, and all others go on as if those were not there."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Task
from gristmill.core.errors import ColumnError, ErrorBudgetError, StageError
from gristmill.core.stage_roles import GatherRole, WriterRole
from gristmill.text import JsonlReader, JsonlWriter, ParquetWriter
from tests.conformance import failing_stages
from tests.conformance.executor_params import EXECUTORS, FEW, make, params
from tests.conformance.failing_stages import After, Batches, Fail, Filter, Numbers, Steps
from tests.conformance.small_stages import AddOne, CountTo
from tests.conformance.test_same_bytes import contents

SIZES = [10] * 7 + [1, 1, 2, 3]
ROWS = sum(SIZES)
BAD = {0, 14, 29, 31, 35, 38, *range(43, 47), *range(50, 60), 70, 73, 74}
"""The first row of a batch, one in the middle, the last, several, neighbours, all of ten, all of one, all at an end."""

GOOD = [n for n in range(ROWS) if n not in BAD and n % 7]


@pytest.fixture(params=params(*EXECUTORS), ids=str)
def executor(request: pytest.FixtureRequest) -> Any:
    return make(request)


@pytest.fixture(params=params(*FEW, suffix="-unfused"), ids=str)
def another(request: pytest.FixtureRequest) -> Any:
    """Fewer, for what depends little on the executor: a process takes its time."""
    return make(request)


def batches() -> list[DocumentBatch]:
    starts = [sum(SIZES[:index]) for index in range(len(SIZES))]
    return [failing_stages.numbered(start, start + size) for start, size in zip(starts, SIZES, strict=True)]


def numbers_of(result: Any) -> list[int]:
    found: list[int] = []
    for task in result:
        rows = task.to_rows() if isinstance(task, DocumentBatch) else [{"n": task.data}]
        found += [row["n"] for row in rows]
        if isinstance(task, DocumentBatch):
            assert [row["text"] for row in rows] == [f"row {row['n']}" for row in rows]
            assert task.objects == {"frames": [f"frame {row['n']}" for row in rows]}
    return found


def check_books(result: Any, rows: int, kept: int, aside: int, name: str = "Fail") -> None:
    line = result.summary()[name]
    assert (line.rows_in, line.rows_out, line.quarantined) == (rows, kept, aside)
    assert line.rows_in == line.rows_out + line.dropped + line.quarantined


def check_records(records: Sequence[Any], bad: set[int], attempts: int = 3) -> None:
    assert sorted(record.row["n"] for record in records) == sorted(bad)
    assert len({record.id for record in records}) == len(records)
    for record in records:
        assert record.row == {"n": record.row["n"], "text": f"row {record.row['n']}"}
        assert (record.stage, record.kind, record.error) == ("Fail", "raised", "ValueError: bad byte")
        assert record.attempts == attempts
        assert record.traceback.count("Traceback") == 1
        assert "in misbehave" in record.traceback


@pytest.mark.parametrize("form", failing_stages.FORMS[:4], ids=lambda form: form.__name__)
def test_rows_that_fail_are_set_aside_and_all_others_go_on(executor: Any, form: type[Fail]) -> None:
    check_form(executor, form)


@pytest.mark.parametrize("form", failing_stages.FORMS[4:], ids=lambda form: form.__name__)
def test_whatever_form_the_answer_has(another: Any, form: type[Fail]) -> None:
    check_form(another, form)


def check_form(executor: Any, form: type[Fail]) -> None:
    result = Pipeline("p", stages=[form(BAD), After()]).run(executor, initial_tasks=batches(), max_errors=None)
    assert numbers_of(result) == GOOD
    check_books(result, ROWS, len(GOOD), len(BAD))
    assert result.summary()["Fail"].counts["looks"] == ROWS - len(BAD)
    check_records(result.quarantined(), BAD)
    starts = [sum(SIZES[:index]) for index in range(len(SIZES))]
    for record in result.quarantined():
        assert starts[int(record.task)] + record.number == record.row["n"]


@pytest.mark.parametrize(
    ("form", "fused"),
    [*((form, True) for form in failing_stages.TASK_FORMS), (failing_stages.SeveralTasks, False)],
    ids=str,
)
def test_tasks_that_fail_are_set_aside(another: Any, form: type[Fail], fused: bool) -> None:
    """Tasks that come one by one, and tasks that another stage of the same worker makes of one."""
    bad = {0, 1, 5, 11, 12, 13, 14, 39}
    stages, tasks = ([Numbers()], [Task(40)]) if fused else ([], [Task(n) for n in range(40)])
    pipeline = Pipeline("p", stages=[*stages, form(bad), After()])
    result = pipeline.run(another, initial_tasks=tasks, max_errors=None)
    assert numbers_of(result) == [n for n in range(40) if n % 7 and n not in bad]
    check_books(result, 40, 40 - 8 - 6 + 2, 8)
    assert result.summary()["Fail"].counts["looks"] == 32
    records = sorted(result.quarantined(), key=lambda record: int(record.content))
    assert [int(record.content) for record in records] == sorted(bad)
    assert {(record.kind, record.attempts, record.error) for record in records} == {
        ("raised", 3, "ValueError: bad byte")
    }
    assert [record.task for record in records] == [f"0.{n}" if fused else str(n) for n in sorted(bad)]


@pytest.mark.parametrize(
    ("form", "fused"), [(Steps, False), (Steps, True), (failing_stages.SeveralSteps, True)], ids=str
)
def test_a_stream_that_fails_half_way_keeps_what_it_gave(another: Any, form: type[Fail], fused: bool) -> None:
    stages, tasks = ([Numbers()], [Task(6)]) if fused else ([], [Task(n) for n in range(6)])
    pipeline = Pipeline("p", stages=[*stages, form({0, 11, 22, 50, 51}), AddOne()])
    result = pipeline.run(another, initial_tasks=tasks, max_errors=None)
    assert [task.data - 1 for task in result] == [10, 20, 21, 30, 31, 32, 40, 41, 42]
    records = sorted(result.quarantined(), key=lambda record: str(record.content))
    assert [record.content for record in records] == [
        "0",
        "1, after its output number 1",
        "2, after its output number 2",
        "5",
    ]
    assert {(record.kind, record.attempts) for record in records} == {("raised", 3)}
    line = result.summary()["Fail"]
    assert (line.rows_in, line.rows_out, line.quarantined) == (6, 9, 4)


@pytest.mark.parametrize(
    ("form", "times"),
    [(Filter, 1), (Filter, 2), (failing_stages.RowByRow, 2), (failing_stages.SeveralTasks, 2), (Steps, 2)],
    ids=str,
)
def test_what_fails_once_or_twice_is_not_set_aside(another: Any, form: type[Fail], times: int, tmp_path: Path) -> None:
    """However many do: each record has its own retries, and nothing is counted twice."""
    stumbles = {1, 11, 22, 30, 40} if form is Steps else {1, 2, 3, 11, 12, 15, 22, 30, 31, 40}
    if form in (Filter, failing_stages.RowByRow):
        stages, given, expected = [Batches()], Task([10, 10, 30]), [n for n in range(50) if n % 7]
    elif form is Steps:
        stages, given, expected = [Numbers()], Task(5), [10 * n + step for n in range(5) for step in range(3)]
    else:
        stages, given, expected = [Numbers()], Task(50), [n for n in range(50) if n % 7]
    pipeline = Pipeline("p", stages=[*stages, form(stumbles, marks=tmp_path, times=times), After()])
    result = pipeline.run(another, initial_tasks=[given], max_errors=0)
    assert numbers_of(result) == expected
    assert result.quarantined() == []
    line = result.summary()["Fail"]
    assert line.quarantined == 0
    assert line.counts["looks"] == (15 if form is Steps else 50)


def test_without_retries_the_first_failure_counts(another: Any, tmp_path: Path) -> None:
    stage = Filter({3, 14}, marks=tmp_path, times=10).with_(max_retries=0)
    result = Pipeline("p", stages=[stage]).run(another, initial_tasks=batches(), max_errors=None)
    assert numbers_of(result) == [n for n in range(ROWS) if n not in {3, 14} and n % 7]
    check_records(result.quarantined(), {3, 14}, attempts=1)


class SetAside(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Sets odd rows aside by itself, and fails on one."""

    name = "SetAside"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        rows = task.to_rows()
        for row in rows:
            if row["n"] % 2:
                self.set_aside("it is odd", row=row, file="some.file", position=row["n"])
        if any(row["n"] == 4 for row in rows):
            raise ValueError("four")
        return task.take([index for index, row in enumerate(rows) if row["n"] % 2 == 0])


def test_a_stage_may_set_records_aside_by_itself(another: Any) -> None:
    result = Pipeline("p", stages=[SetAside()]).run(another, initial_tasks=batches()[:2], max_errors=None)
    assert numbers_of(result) == [0, 2, 6, 8, 10, 12, 14, 16, 18]
    check_books(result, 20, 9, 11, "SetAside")
    found = sorted((record.row["n"], record.kind, record.position) for record in result.quarantined() if record.row)
    assert found == sorted([(n, "unreadable", n) for n in range(1, 20, 2)] + [(4, "raised", None)])
    with pytest.raises(StageError, match="some.file, at 1: it is odd"):
        Pipeline("p", stages=[SetAside()]).run(another, initial_tasks=batches()[:1], on_error="raise")


# -- what is no fault of a record ------------------------------------------------------------------------


class Broken(ProcessingStage[Any, Any]):
    """Fails for a reason that is not the record's."""

    def __init__(self, error: Exception, marks: Path) -> None:
        self.error, self.marks = error, marks

    def process(self, task: Any) -> Any:
        (self.marks / str(len(list(self.marks.iterdir())))).touch()
        raise self.error


class Writes(Broken, WriterRole):
    name = "Broken"


class Gathers(Broken, GatherRole):
    name = "Broken"


@pytest.mark.parametrize("kind", [Writes, Gathers])
def test_what_cannot_be_written_stops_the_run(executor: Any, kind: type[Broken], tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    stages = [Filter({3}), kind(OSError("disk full"), tmp_path / "marks")]
    with pytest.raises(StageError, match="'Broken' failed on task .*: OSError: disk full") as caught:
        Pipeline("p", stages=stages).run(executor, batches()[:1], tmp_path / "run", max_errors=None)
    assert not isinstance(caught.value, ErrorBudgetError)
    assert len(list((tmp_path / "marks").iterdir())) == 3
    assert not any(b"Broken" in path.read_bytes() for path in (tmp_path / "run").glob("quarantine/*"))


def test_a_mistake_in_the_pipeline_stops_it_at_once(another: Any, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    stages = [Broken(ColumnError("there is no column 'txet'"), tmp_path / "marks")]
    with pytest.raises(StageError, match="there is no column 'txet'") as caught:
        Pipeline("p", stages=stages).run(another, batches()[:1], tmp_path / "run", max_errors=None)
    assert not isinstance(caught.value, ErrorBudgetError)
    assert len(list((tmp_path / "marks").iterdir())) == 1
    assert not (tmp_path / "run" / "quarantine").exists()


def test_a_source_that_fails_stops_the_run(another: Any) -> None:
    """Nobody knows what it would have given, so it is not one bad record among many."""

    class Half(CountTo):
        def process(self, task: Any) -> Any:
            yield from super().process(task)
            raise OSError("connection lost")

    with pytest.raises(StageError, match="'Half' failed on task 0: OSError: connection lost") as caught:
        Pipeline("p", stages=[Half(1000), AddOne()]).run(another)
    assert not isinstance(caught.value, ErrorBudgetError)


def test_raise_stops_at_the_first(another: Any, tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[Filter({14, 15})])
    with pytest.raises(StageError, match="'Fail' failed on task 1: ValueError: bad byte") as caught:
        pipeline.run(another, batches(), tmp_path / "run", on_error="raise", max_errors=None)
    assert not isinstance(caught.value, ErrorBudgetError)
    assert not (tmp_path / "run" / "quarantine").exists()


# -- the budget --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [len(BAD), len(BAD) - 1])
def test_a_number_of_errors_is_allowed(another: Any, most: int, tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[Filter(BAD)])
    if most == len(BAD):
        assert numbers_of(pipeline.run(another, initial_tasks=batches(), max_errors=most)) == GOOD
        return
    with pytest.raises(ErrorBudgetError, match=rf"more than max_errors={most} allows") as caught:
        pipeline.run(another, run_dir=tmp_path, initial_tasks=batches(), max_errors=most)
    assert "stage 'Fail': ValueError: bad byte" in str(caught.value)
    assert f"gristmill quarantine list {tmp_path}" in str(caught.value)
    assert "in misbehave" in caught.value.details
    kept = [json.loads(line) for path in (tmp_path / "quarantine").iterdir() for line in path.read_text().splitlines()]
    assert most < len(kept) <= len(BAD)


def test_a_share_of_errors_is_allowed_and_a_few_rows_are_judged_at_the_end(another: Any) -> None:
    pipeline = Pipeline("p", stages=[Filter(BAD)])
    share = len(BAD) / ROWS
    assert numbers_of(pipeline.run(another, initial_tasks=batches(), max_errors=share + 1e-9)) == GOOD
    with pytest.raises(ErrorBudgetError, match=rf"{len(BAD)} of {ROWS} records .* more than max_errors=.*% allows"):
        pipeline.run(another, initial_tasks=batches(), max_errors=share - 0.001)


def test_a_stage_that_fails_on_everything_stops_the_run_unless_any_number_may_fail(another: Any) -> None:
    pipeline = Pipeline("p", stages=[Filter(set(range(ROWS)))])
    with pytest.raises(ErrorBudgetError, match="77 of 77 records .* stage 'Fail' failed on everything"):
        pipeline.run(another, initial_tasks=batches(), max_errors=1.0)
    assert len(list(pipeline.run(another, initial_tasks=batches(), max_errors=None).quarantined())) == ROWS


@pytest.mark.parametrize(
    "wrong", [{"on_error": "ignore"}, {"max_errors": -1}, {"max_errors": 1.5}, {"max_errors": True}]
)
def test_wrong_settings_are_refused_before_anything_runs(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Pipeline("p", stages=[AddOne()]).run(LocalExecutor(0), initial_tasks=[Task(1)], **wrong)


# -- bytes -------------------------------------------------------------------------------------------------

WAYS: list[tuple[LocalExecutor, int]] = [
    (LocalExecutor(num_workers=0), 10**9),
    (LocalExecutor(num_workers=0, fuse=False), 300),
    (LocalExecutor(num_workers=3), 1_000),
    (LocalExecutor(num_workers=2, fuse=False), 2_000),
]


def write_corpus(folder: Path, without: set[int]) -> Path:
    """Three files with a late column, nested values and mixed types; rows that fail have nothing of their own."""
    folder.mkdir()
    for number, name in enumerate(["a.jsonl", "b.jsonl", "c.jsonl.gz"]):
        rows = [row(n) for n in range(100 * number, 100 * number + 100) if n not in without]
        raw = "".join(json.dumps(line) + "\n" for line in rows).encode()
        (folder / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    return folder


def row(n: int) -> dict[str, Any]:
    late = {"late": [n, {"deep": None}]} if n % 100 > 60 else {}
    return {"n": n, "text": f"row {n} " * (n % 5), "mixed": n if n % 3 else str(n), **late}


@pytest.mark.parametrize(
    ("form", "writer"),
    [
        (failing_stages.AddColumn, JsonlWriter),
        (failing_stages.AddColumn, ParquetWriter),
        (failing_stages.RowByRow, ParquetWriter),
    ],
    ids=str,
)
def test_the_output_is_that_of_the_rows_that_did_not_fail(form: type[Fail], writer: Any, tmp_path: Path) -> None:
    """Byte for byte, whoever does the work and however the input is cut; and the same records are in quarantine."""
    bad = {0, 99, 100, 150, 151, 152, 199, 244, *range(270, 280)}
    clean, corpus = write_corpus(tmp_path / "clean", bad), write_corpus(tmp_path / "corpus", set())
    ways = WAYS if writer is JsonlWriter else WAYS[1:3]

    def run(source: Path, out: Path, executor: LocalExecutor, blocksize: int) -> Any:
        stages = [JsonlReader(str(source), blocksize=blocksize), form(bad), After(), writer(str(out))]
        return Pipeline("p", stages=stages).run(executor, max_errors=None)

    run(clean, tmp_path / "expected", LocalExecutor(0), 10**9)
    found = []
    for index, (executor, blocksize) in enumerate(ways):
        out = tmp_path / str(index)
        result = run(corpus, out, executor, blocksize)
        assert contents(out) == contents(tmp_path / "expected"), (executor, blocksize)
        check_books(result, 300, 300 - len(bad) - sum(n % 7 == 0 and n not in bad for n in range(300)), len(bad))
        found.append({(record.id, record.file, record.position, record.row["n"]) for record in result.quarantined()})
    assert len({number for *_, number in found[0]}) == len(found[0]) == len(bad)
    assert all(other == found[0] for other in found)
    for record in result.quarantined():
        assert {name: value for name, value in record.row.items() if value is not None} == row(record.row["n"])
        assert record.files == (str(corpus / record.file),)
        if not record.file.endswith("gz"):
            line = (corpus / record.file).read_bytes()[record.position :].splitlines()[0]
            assert json.loads(line)["n"] == record.row["n"]
