"""Code written for NeMo Curator: how it runs pipelines and what its stages return."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, LocalExecutor, MergingStage, Pipeline, ProcessingStage, Task
from gristmill.core.errors import AnswerCountError
from gristmill.text import JsonlReader, JsonlWriter


class Double(ProcessingStage[Task[int], Task[int]]):
    def process(self, task: Task[int]) -> Task[int]:
        return Task(data=2 * task.data)


def test_tasks_are_the_second_argument_of_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline("p", stages=[Double()])
    tasks = [Task(data=1), Task(data=2)]
    assert [task.data for task in pipeline.run(LocalExecutor(0), tasks)] == [2, 4]
    assert sorted(task.data for task in pipeline.stream(LocalExecutor(0), tasks)) == [2, 4]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given", [{"run_dir": "run"}, {"checkpoint_path": "run"}, {"run_dir": "run", "checkpoint_path": Path("run")}]
)
def test_a_run_directory_has_two_names(given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline("p", stages=[Double()])
    pipeline.run(LocalExecutor(0), [Task(data=1)], **given)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_path_in_second_or_third_position_is_the_run_directory(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    pipeline = Pipeline("p", stages=[JsonlReader(str(tmp_path / "in.jsonl")), JsonlWriter(str(tmp_path / "out"))])
    pipeline.run(LocalExecutor(0), tmp_path / "second")
    Pipeline("p", stages=[Double()]).run(LocalExecutor(0), [Task(data=1)], str(tmp_path / "third"))
    assert (tmp_path / "second").is_dir()
    assert (tmp_path / "third").is_dir()


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        ((None, [Task(data=1)]), {"run_dir": "a", "checkpoint_path": "b"}, "one run directory, and 2 were given: a, b"),
        ((None, None, [Task(data=1)]), {}, "run_dir must be a path"),
        ((None, [1, 2]), {}, "initial_tasks must be a list of tasks"),
    ],
)
def test_what_is_no_task_and_no_path_is_refused(
    arguments: tuple[Any, ...], given: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=message):
        Pipeline("p", stages=[Double()]).run(*arguments, **given)
    assert list(tmp_path.iterdir()) == []


class TwoIntoOne(ProcessingStage[DocumentBatch, DocumentBatch]):
    batch_size = 2

    def process_batch(self, tasks: Sequence[DocumentBatch]) -> list[DocumentBatch]:  # type: ignore[override]
        return [DocumentBatch.concat(tasks)]


@pytest.mark.parametrize("on_error", ["quarantine", "raise"])
@pytest.mark.parametrize("workers", [0, 2])
def test_fewer_answers_than_tasks_are_an_error(workers: int, on_error: str) -> None:
    tasks = [DocumentBatch([{"n": number}]) for number in range(4)]
    with pytest.raises(AnswerCountError, match=r"got 2 tasks and returned 1 answers.*gristmill.MergingStage"):
        Pipeline("p", stages=[TwoIntoOne()]).run(LocalExecutor(workers), tasks, on_error=on_error)


class Merged(MergingStage[DocumentBatch, DocumentBatch]):
    def merge(self, tasks: Sequence[DocumentBatch]) -> DocumentBatch:
        sizes = [task.num_items for task in tasks]
        rows = [row for task in tasks for row in task.to_rows()]
        return DocumentBatch([{"n": [row["n"] for row in rows], "sizes": sizes}])


class MergedByTwo(Merged):
    merge_size = 2


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for file in range(3):
        lines = [json.dumps({"n": 100 * file + number}) for number in range(20)]
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def merging(corpus: Path, out: Path, stage: ProcessingStage[Any, Any]) -> Pipeline:
    return Pipeline("p", stages=[JsonlReader(str(corpus), blocksize=60), stage, JsonlWriter(str(out))])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_merging_stage_sees_the_tasks_of_one_file_in_order(workers: int, corpus: Path, tmp_path: Path) -> None:
    merging(corpus, tmp_path / "out", Merged()).run(LocalExecutor(workers))
    rows = [json.loads(path.read_text()) for path in sorted((tmp_path / "out").glob("*.jsonl"))]
    assert sorted(row["n"] for row in rows) == [[100 * file + n for n in range(20)] for file in range(3)]
    assert all(len(row["sizes"]) > 2 for row in rows)


def test_merge_size_limits_how_many_tasks_are_merged(corpus: Path) -> None:
    result = Pipeline("p", stages=[JsonlReader(str(corpus), blocksize=60), MergedByTwo()]).run(LocalExecutor(2))
    rows = [row for task in result for row in task.to_rows()]
    assert [n for row in rows for n in row["n"]] == [100 * file + n for file in range(3) for n in range(20)]
    assert {len(row["sizes"]) for row in rows} <= {1, 2}
    assert len({task.id for task in result}) == len(list(result)) > 3


class FailsOnce(Merged):
    """Fails on the last file until a marker exists."""

    not_identity = ("marker",)

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def merge(self, tasks: Sequence[DocumentBatch]) -> DocumentBatch:
        merged = super().merge(tasks)
        if merged.to_rows()[0]["n"][0] >= 200 and not Path(self.marker).exists():
            raise RuntimeError("not yet")
        return merged


def test_merged_sources_are_resumed_and_written_once(corpus: Path, tmp_path: Path) -> None:
    stage = FailsOnce(str(tmp_path / "marker"))
    with pytest.raises(Exception, match="not yet"):
        merging(corpus, tmp_path / "out", stage).run(LocalExecutor(0), run_dir=tmp_path / "run")
    (tmp_path / "marker").touch()
    again = merging(corpus, tmp_path / "out", stage).run(LocalExecutor(2), run_dir=tmp_path / "run")
    assert again.summary(attempt=True)["read_jsonl"].rows_out == 20
    merging(corpus, tmp_path / "whole", Merged()).run(LocalExecutor(0))
    found = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}
    assert found == {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("*.jsonl")}
    assert len(found) == 3


def test_parts_of_readers_and_writers_have_their_names_of_curator_too(tmp_path: Path) -> None:
    reader = JsonlReader(tmp_path).with_({"file_partitioning": {"batch_size": 1}, "jsonl_reader": {"batch_size": 3}})
    assert [(part.name, part.batch_size) for part in reader.stages()] == [("list_files", 1), ("read_jsonl", 3)]
    writer = JsonlWriter(tmp_path / "out").with_({"jsonl_writer": {"max_retries": 2}})
    assert writer.stages()[0].max_retries == 2
    with pytest.raises(TypeError, match="no single sub-stage 'parquet_reader'"):
        JsonlReader(tmp_path).with_({"parquet_reader": {"batch_size": 3}})
