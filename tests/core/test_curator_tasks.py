"""Code written for NeMo Curator: how it makes tasks, sets up stages, and calls them by hand."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import gristmill
from gristmill import (
    CompositeStage,
    DocumentBatch,
    FileGroupTask,
    ImageBatch,
    LocalExecutor,
    Pipeline,
    ProcessingStage,
    Resources,
    Task,
)
from gristmill.core.errors import ContractError
from gristmill.text import (
    AddId,
    DocumentJoiner,
    DocumentSplitter,
    JsonlReader,
    JsonlWriter,
    Modify,
    ParquetWriter,
    ScoreFilter,
    WordCountFilter,
)

TEXTS = ["hello world", "foo bar baz", "x"]


def frame() -> pd.DataFrame:
    return pd.DataFrame({"id": [1, 2, 3], "text": TEXTS})


def batch(**fields: Any) -> DocumentBatch:
    return DocumentBatch(dataset_name="d", data=frame(), **fields)


# -- tasks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows", [frame(), frame().to_dict("records"), frame().to_dict("list"), pa.Table.from_pandas(frame())]
)
def test_rows_that_are_assigned_become_a_table(rows: Any) -> None:
    task = DocumentBatch([{"other": 1}])
    task.data = rows
    assert isinstance(task.data, pa.Table)
    assert task.to_pyarrow().column_names == ["id", "text"]
    assert (task.num_items, task.get_columns()) == (3, ["id", "text"])


def test_rows_assigned_after_some_were_dropped_are_all_there() -> None:
    task = batch().keep(pa.array([True, False, True]))
    task.data = frame()
    assert task.num_items == 3
    assert task.to_pandas()["text"].tolist() == TEXTS


def test_rows_that_are_assigned_must_line_up_with_objects() -> None:
    task = ImageBatch([{"image_id": "a"}], objects={"pixels": ["a"]})
    with pytest.raises(ContractError, match="1 entries for 3 rows"):
        task.data = frame()


class Lengths(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Changes the frame of its input, as stages for NeMo Curator often do."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        rows = task.to_pandas()
        rows["length"] = rows["text"].str.len()
        task.data = rows
        task._metadata["seen"] = True
        return task


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stage_may_assign_a_frame(workers: int) -> None:
    result = Pipeline("p", stages=[Lengths()]).run(LocalExecutor(workers), [batch()])
    assert result[0].to_pandas()["length"].tolist() == [11, 11, 1]
    assert result[0].metadata == {"seen": True}


def test_metadata_has_two_names() -> None:
    task = batch(_metadata={"a": 1}, _stage_perf=["anything"])
    assert task._metadata is task.metadata
    task._metadata = {"b": 2}
    assert task.metadata == {"b": 2}
    copied = DocumentBatch(
        dataset_name=task.dataset_name, data=task.data, _stage_perf=task._stage_perf, _metadata=task._metadata
    )
    copied.add_stage_perf("anything")
    assert (copied.metadata, copied._stage_perf, copied.validate()) == ({"b": 2}, [], True)


@pytest.mark.parametrize(
    "made", [lambda: DocumentBatch("name", frame()), lambda: FileGroupTask("name", ["a"]), lambda: Task("name", [1])]
)
def test_the_name_of_the_dataset_may_come_first(made: Callable[[], Task[Any]]) -> None:
    assert made().dataset_name == "name"
    assert made().num_items in (1, 3)


@dataclass
class Numbers(Task[list[int]]):
    extra: int = 0


def test_tasks_of_the_user_take_metadata_too() -> None:
    task = Numbers(dataset_name="d", data=[1], extra=2, _metadata={"a": 1}, _stage_perf=[])
    assert (task.extra, task._metadata) == (2, {"a": 1})
    assert Numbers([1], 5).extra == 5


def test_help_shows_the_fields_of_a_task() -> None:
    assert list(inspect.signature(DocumentBatch).parameters) == ["data", "dataset_name", "metadata", "objects"]


def test_a_name_in_two_places_is_refused() -> None:
    with pytest.raises(TypeError, match="positional"):
        DocumentBatch("name", frame(), dataset_name="other")


def test_file_groups_keep_a_reader_config() -> None:
    assert FileGroupTask(dataset_name="d", data=["a"], reader_config={"x": 1}).reader_config == {"x": 1}


# -- stages ------------------------------------------------------------------------------------------------


def public_stages() -> Iterator[type[ProcessingStage[Any, Any]]]:
    for module in ("", ".text", ".image", ".dedup", ".download"):
        package = import_module(f"gristmill{module}")
        for name in package.__all__:
            found = getattr(package, name)
            if isinstance(found, type) and issubclass(found, ProcessingStage):
                yield found


@pytest.mark.parametrize("method", ["setup", "setup_on_node"])
def test_every_stage_is_set_up_without_arguments(method: str) -> None:
    required = {
        kind.__name__: parameter.name
        for kind in public_stages()
        for parameter in list(inspect.signature(getattr(kind, method)).parameters.values())[1:]
        if parameter.default is parameter.empty
    }
    assert required == {}


def test_with_takes_what_other_engines_are_told() -> None:
    stage = ScoreFilter(WordCountFilter())
    spec = {"is_actor_stage": True}
    other = stage.with_(
        name=None,
        resources=Resources(cpus=2.0),
        batch_size=None,
        runtime_env=None,
        ray_stage_spec=spec,
        xenna_stage_spec={"num_workers_per_node": 1},
        num_workers=None,
    )
    assert (other.name, other.batch_size, other.resources.cpus) == (stage.name, stage.batch_size, 2.0)
    assert (other.ray_stage_spec(), other.xenna_stage_spec()) == (spec, {"num_workers_per_node": 1})
    assert other.with_(ray_stage_spec={"max_workers": 2}).ray_stage_spec() == {**spec, "max_workers": 2}
    assert (stage.ray_stage_spec(), stage.num_workers_per_node()) == ({}, None)
    assert other.get_config()["batch_size"] == stage.batch_size


def test_specs_are_no_change_for_a_run_that_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    for spec in ({}, {"max_workers": 2}):
        stage = Modify(str.upper).with_(ray_stage_spec=spec)
        stages = [JsonlReader(str(tmp_path / "in.jsonl")), stage, JsonlWriter(str(tmp_path / "out"))]
        pipeline = Pipeline("p", stages=stages)
        changes, to_do, done = pipeline.left_to_do(tmp_path / "run") if spec else ([], [], 0)
        assert (changes, to_do, done) == ([], [], 1 if spec else 0)
        pipeline.run(LocalExecutor(0), run_dir=tmp_path / "run")


def test_validate_input_looks_for_columns() -> None:
    stage = ScoreFilter(WordCountFilter())
    assert stage.validate_input(batch())
    assert not stage.validate_input(DocumentBatch([{"other": 1}]))


class Measuring(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        self._log_metric("a", 1.0)
        self._log_metrics({"b": 2})
        with self._time_metric("seconds"):
            return task


def test_metrics_are_counters() -> None:
    result = Pipeline("p", stages=[Measuring()]).run(LocalExecutor(0), [batch(), batch()])
    counters = result.summary()["Measuring"].counts
    assert (counters["a"], counters["b"]) == (2, 4)
    assert counters["seconds"] >= 0


def test_build_checks_the_pipeline(tmp_path: Path) -> None:
    Pipeline("p", stages=[JsonlReader(str(tmp_path))])
    with pytest.raises(gristmill.core.errors.GristmillError, match="no files"):
        Pipeline("p", stages=[JsonlReader(str(tmp_path))]).build()


# -- stages called by hand ---------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
def test_a_writer_called_by_hand_writes_and_names_the_file(writer: type[JsonlWriter], tmp_path: Path) -> None:
    stage = writer(str(tmp_path / "out"))
    stage.setup()
    written = stage.process(batch())
    assert isinstance(written, FileGroupTask)
    read = pd.read_json(written.data[0], lines=True) if writer is JsonlWriter else pd.read_parquet(written.data[0])
    assert read["text"].tolist() == TEXTS
    assert [path.name for path in (tmp_path / "out").iterdir()] == [Path(written.data[0]).name]


def test_other_batches_are_other_files_and_the_same_batch_is_the_same(tmp_path: Path) -> None:
    stage = JsonlWriter(str(tmp_path), mode="overwrite")
    (tmp_path / "old.jsonl").write_text("{}\n")
    names = [stage.process(task).data[0] for task in (batch(), DocumentBatch([{"text": "other"}]), batch())]  # type: ignore[union-attr]
    assert names[0] == names[2] != names[1]
    assert sorted(map(str, tmp_path.glob("*.jsonl"))) == sorted(set(names))


def test_a_reader_called_by_hand_reads_the_files_of_the_task(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": name}) + "\n")
    task = FileGroupTask(dataset_name="d", data=[str(tmp_path / "b.jsonl")])
    read: Any = JsonlReader(str(tmp_path)).process(task)  # type: ignore[arg-type]
    assert read.to_pandas()["text"].tolist() == ["b"]


class Shout(CompositeStage[DocumentBatch, DocumentBatch]):
    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [Modify(str.upper), ScoreFilter(WordCountFilter(min_words=2)), AddId("uid")]


def test_a_composite_called_by_hand_passes_the_task_through_its_parts() -> None:
    made: Any = Shout().process(batch())
    assert made.to_pandas()["text"].tolist() == ["HELLO WORLD", "FOO BAR BAZ"]
    assert "uid" in made.get_columns()


def test_splitter_and_joiner_called_by_hand() -> None:
    names = {"separator": " ", "text_field": "text", "segment_id_field": "segment"}
    segments = DocumentSplitter(**names).process(batch())
    joined: Any = DocumentJoiner(**names, document_id_field="id").process(segments)
    assert joined.to_pandas()["text"].tolist() == TEXTS
