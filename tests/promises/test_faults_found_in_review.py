"""What a review found: each of these was wrong once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Task
from gristmill.core.errors import PlanError
from gristmill.core.records.run_directory import Run
from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter


def write(folder: Path, rows: int = 300, name: str = "a.jsonl") -> Path:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"id": row, "text": "grist " * (row % 30)}) for row in range(rows)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def pipeline(corpus: Path, out: Path, min_words: int = 10, *more: Any) -> Pipeline:
    stages = [JsonlReader(str(corpus)), ScoreFilter(WordCountFilter(min_words=min_words)), *more, JsonlWriter(str(out))]
    return Pipeline("p", stages=stages)


def rows(out: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in out.glob("*.jsonl"))


def test_output_that_another_pipeline_has_written_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    corpus, out, run = write(tmp_path / "in"), tmp_path / "out", tmp_path / "run"
    pipeline(corpus, out).run(LocalExecutor(0), run)
    mine = rows(out)
    pipeline(corpus, out, min_words=0).run(LocalExecutor(0))
    assert rows(out) == 300
    pipeline(corpus, out).run(LocalExecutor(0), run)
    assert rows(out) == mine


class Odd(ProcessingStage[DocumentBatch, DocumentBatch]):
    max_retries = 0

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if any(row["id"] == 77 for row in task.to_rows()):
            raise self.error
        return task


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("error", [ValueError("caf\udce9"), BaseException("a panic of native code")], ids=repr)
def test_any_error_is_isolated_and_can_be_read_again(tmp_path: Path, error: BaseException, workers: int) -> None:
    corpus, out = write(tmp_path / "in"), tmp_path / "out"
    result = pipeline(corpus, out, 0, Odd(error)).run(LocalExecutor(workers), tmp_path / "run")
    found = list(Run(tmp_path / "run").quarantined())
    assert [(record.stage, record.row) for record in found] == [("Odd", {"id": 77, "text": "grist " * 17})]
    assert found == result.quarantined()
    assert rows(out) == 299


def test_a_file_name_that_is_no_unicode_can_be_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = os.fsencode(folder) + b"/caf\xe9.jsonl"
    with open(path, "w") as file:
        file.write('{"id": 1, "text": "grist"}\n')
    first = pipeline(folder, tmp_path / "out", 0).run(LocalExecutor(0), tmp_path / "run")
    again = pipeline(folder, tmp_path / "out", 0).run(LocalExecutor(0), tmp_path / "run")
    assert (first.summary().rows_in, again.summary(attempt=True).rows_in) == (1, 0)


class DiesAt(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        if any(row["id"] == 77 for row in task.to_rows()):
            os._exit(1)
        return task.slice(0, task.num_items // 2)


def test_nothing_temporary_is_left_among_rejected_rows(tmp_path: Path) -> None:
    corpus = write(tmp_path / "in")
    pipeline(corpus, tmp_path / "out", 0, DiesAt()).run(LocalExecutor(1), tmp_path / "run", rejected=True)
    assert not (tmp_path / "run" / "rejected" / "_tmp").exists()


def test_a_directory_with_other_peoples_files_is_not_used_for_rejected_rows(tmp_path: Path) -> None:
    corpus, place = write(tmp_path / "in"), tmp_path / "precious"
    place.mkdir()
    pq.write_table(DocumentBatch([{"a": 1}]).data, place / "mine.parquet")
    with pytest.raises(PlanError, match=r"holds mine.parquet, which were not written as"):
        pipeline(corpus, tmp_path / "out").run(LocalExecutor(0), rejected=place)
    assert (place / "mine.parquet").exists()


def test_a_stage_may_set_aside_an_exception_and_any_row(tmp_path: Path) -> None:
    class Picky(ProcessingStage[Task[int], Task[int]]):
        def process(self, task: Task[int]) -> Task[int] | None:
            if task.data == 3:
                self.set_aside(ValueError("three"), row="not a mapping")
                return None
            return task

    tasks = [Task(number) for number in range(200)]
    result = Pipeline("p", stages=[Picky()]).run(LocalExecutor(0), initial_tasks=tasks)
    assert [(record.error, record.content) for record in result.quarantined()] == [
        ("ValueError: three", "not a mapping")
    ]


def test_a_run_directory_may_be_given_as_a_file_url(tmp_path: Path) -> None:
    corpus, url = write(tmp_path / "in"), f"file://{tmp_path}/run"
    pipeline(corpus, tmp_path / "out").run(LocalExecutor(0), url)
    again = pipeline(corpus, tmp_path / "out").run(LocalExecutor(0), tmp_path / "run")
    assert again.summary(attempt=True).rows_in == 0


def test_a_file_that_cannot_be_read_at_all_counts_as_one(tmp_path: Path) -> None:
    class Fails(ProcessingStage[Task[int], Task[int]]):
        def process(self, task: Task[int]) -> Any:
            yield Task(1)
            if task.data == 5:
                raise OSError("gone")

    tasks = [Task(number) for number in range(200)]
    result = Pipeline("p", stages=[Fails()]).run(LocalExecutor(0), initial_tasks=tasks)
    assert (len(result), result.summary().quarantined) == (200, 1)
