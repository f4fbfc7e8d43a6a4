"""What users meet at an exchange: their own sources, streams, workers that die, objects in memory, wrong arguments."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gristmill import (
    Batch,
    CountRows,
    DocumentBatch,
    EmptyTask,
    KeyedStage,
    LocalExecutor,
    Pipeline,
    ProcessingStage,
    Repartition,
    Shuffle,
    Sort,
)
from gristmill.core.arrow import hash_partitioning as spreading
from gristmill.core.arrow.hash_partitioning import LAYOUT_VERSION, partition_numbers
from gristmill.core.errors import ColumnError, PlanError, StageError
from gristmill.io.exchange import exchange
from gristmill.io.exchange.shuffle_files import ShuffleFileIndex, ShuffleFileWriter, read_index, read_partition_blocks
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.text import JsonlReader, JsonlWriter


class Numbers(ProcessingStage[EmptyTask, DocumentBatch]):
    """A source of one's own."""

    def __init__(self, batches: int = 5) -> None:
        self.batches = batches

    def process(self, task: EmptyTask) -> Iterator[DocumentBatch]:
        for batch in range(self.batches):
            yield DocumentBatch([{"n": batch * 10 + row, "odd": row % 2 == 1} for row in range(10)])


def numbers(result: Any) -> list[int]:
    return [row["n"] for task in result for row in task.to_rows()]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_source_of_ones_own_comes_in_its_order(workers: int, tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[Numbers(), Repartition(rows=7)])
    for _ in range(2):  # nothing tells whether its input has changed, so it is run whole each time
        result = pipeline.run(LocalExecutor(workers), tmp_path / "run")
        assert numbers(result) == list(range(50))
        assert result.summary()["Numbers"].rows_out == 50
    assert sorted(task.num_items for task in pipeline.stream(LocalExecutor(workers))) == [1] + [7] * 7


def test_tasks_that_are_given_are_not_taken_for_those_of_an_earlier_run(tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[Sort("n"), JsonlWriter(str(tmp_path / "out"))])
    for number in (1, 2):
        result = pipeline.run(LocalExecutor(0), [DocumentBatch([{"n": number}])], tmp_path / "run")
        assert Path(result.files()[0]).read_text() == f'{{"n":{number}}}\n'


def test_nothing_at_all(tmp_path: Path) -> None:
    for stage in (Shuffle(), Sort("n"), Repartition(rows=3), Repartition(num_partitions=2), CountRows("n")):
        result = Pipeline("p", stages=[stage, JsonlWriter(str(tmp_path / "out"))]).run(LocalExecutor(0), [])
        assert result.files() == []


def test_a_worker_that_dies_in_a_reduce_is_replaced(tmp_path: Path) -> None:
    class Dies(KeyedStage):
        key = "odd"

        def process_groups(self, table: pa.Table) -> pa.Table:
            if not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return table

    result = Pipeline("p", stages=[Numbers(), Dies()]).run(LocalExecutor(2))
    assert sorted(numbers(result)) == list(range(50))


def test_a_worker_that_always_dies_in_a_reduce_stops_the_run() -> None:
    class Dies(KeyedStage):
        key = "odd"
        max_retries = 0

        def process_groups(self, table: pa.Table) -> pa.Table:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(StageError, match="stage 'Dies' failed on task segment2-.*killed by SIGKILL"):
        Pipeline("p", stages=[Numbers(), Dies()]).run(LocalExecutor(1))


def test_hooks_and_counters_of_a_keyed_stage_work(tmp_path: Path) -> None:
    class Counts(KeyedStage):
        key = "odd"
        order = ("n",)

        def setup(self, worker_metadata: Any = None) -> None:
            self.ready = True

        def reduce(self, key: Any, rows: Any) -> Any:
            assert self.ready
            self.count("groups")
            largest = [row["n"] for row in rows][-1]
            return [{"odd": key, "n": largest}, {"odd": key, "n": -1}] if key else None

    result = Pipeline("p", stages=[Numbers(), Counts()]).run(LocalExecutor(1))
    assert numbers(result) == [49, -1]
    assert result.summary()["Counts"].counts == {"groups": 2}


def test_objects_in_memory_cannot_pass() -> None:
    batch = Batch([{"n": 1}], objects={"frames": [object()]})
    with pytest.raises(
        StageError, match=r"objects in memory \(frames\) cannot be written.*move the stage that creates them after"
    ):
        Pipeline("p", stages=[Shuffle()]).run(LocalExecutor(0), [batch])


def test_wrong_arguments_are_told() -> None:
    for make, words in (
        (Repartition, "give one of rows, bytes and num_partitions"),
        (lambda: Repartition(rows=0), "rows is 0, must be a whole number, 1 or more"),
        (lambda: Shuffle(num_partitions=0), "num_partitions is 0, must be"),
        (lambda: Sort([]), "by is empty"),
        (lambda: CountRows("count"), "count_field is 'count', which is a column to count by"),
    ):
        with pytest.raises(ValueError, match=words):
            make()

    class Neither(KeyedStage):
        key = "n"

    with pytest.raises(PlanError, match=r"stage 'Neither' must have one of reduce\(key, rows\) and process_groups"):
        Pipeline("p", stages=[Numbers(), Neither()]).plan()
    with pytest.raises(ColumnError, match="stage 'write_unsorted' needs column 'm'.*There are: n"):
        Pipeline("p", stages=[Sort("m")]).plan([DocumentBatch([{"n": 1}])])


def test_a_field_that_only_some_rows_have_is_null_in_the_others() -> None:
    tasks = [DocumentBatch(rows) for rows in ([{"n": 3, "late": "b"}], [{"n": 1}, {"n": 2}], [{"n": 4, "late": "a"}])]

    class Firsts(KeyedStage):
        key = "late"
        num_partitions = 3

        def reduce(self, key: Any, rows: Any) -> dict[str, Any]:
            return {"late": key, "n": next(rows)["n"]}

    for stage, wanted in ((Sort("late"), [4, 3, 1, 2]), (Firsts(), [1, 3, 4])):
        found = numbers(Pipeline("p", stages=[stage]).run(LocalExecutor(0), tasks))
        assert found == wanted if isinstance(stage, Sort) else sorted(found) == wanted
    counted = Pipeline("p", stages=[CountRows("late", num_partitions=1)]).run(LocalExecutor(0), tasks)
    assert [(row["late"], row["count"]) for task in counted for row in task.to_rows()] == [
        ("a", 1),
        ("b", 1),
        (None, 2),
    ]
    with pytest.raises(ColumnError, match="no column 'other'. There are: n"):
        Pipeline("p", stages=[Numbers(), Sort("other")]).run(LocalExecutor(0))


def test_what_another_version_has_half_partitioned_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for part in range(4):
        lines = (json.dumps({"word": f"w{row}", "part": part}) + "\n" for row in range(50))
        (tmp_path / "in" / f"{part}.jsonl").write_text("".join(lines))

    class Stops(ProcessingStage[DocumentBatch, DocumentBatch]):
        max_retries = 0

        def process(self, task: DocumentBatch) -> DocumentBatch:
            if task.to_rows()[0]["part"] == 3 and (tmp_path / "stop").exists():
                raise ValueError("stopped")
            return task

    class Counts(KeyedStage):
        key = "word"
        num_partitions = 4

        def reduce(self, key: Any, rows: Any) -> Any:
            return [{"word": key, "size": len(list(rows))}]

    def run() -> dict[str, int]:
        stages = [JsonlReader(tmp_path / "in"), Stops(), Counts(), JsonlWriter(tmp_path / "out")]
        Pipeline("p", stages=stages).run(LocalExecutor(0), run_dir=tmp_path / "run", on_error="raise")
        found = [
            json.loads(line) for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().splitlines()
        ]
        return {row["word"]: row["size"] for row in found}

    (tmp_path / "stop").touch()
    with pytest.raises(StageError, match="stopped"):
        run()
    (tmp_path / "stop").unlink()
    monkeypatch.setattr(exchange, "LAYOUT_VERSION", LAYOUT_VERSION + 1)
    monkeypatch.setattr(spreading, "_FACTORS", spreading._FACTORS[::-1])
    assert run() == {f"w{row}": 4 for row in range(50)}


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(27)])
def test_bytes_that_begin_alike_are_spread_and_meet_the_same_text(kind: pa.DataType) -> None:
    keys = pa.array([b"https://example.org/%07d" % number for number in range(4000)])
    found = partition_numbers(pa.table({"key": keys.cast(kind)}), ["key"], 8)
    assert max(pc.value_counts(found).field("counts").to_pylist()) < 4000 / 8 * 1.2
    assert found == partition_numbers(pa.table({"key": keys.cast(pa.string())}), ["key"], 8)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_the_same_bytes_meet_whether_their_column_is_of_a_fixed_size_or_not(kind: pa.DataType) -> None:
    keys = [bytes([number]) * 16 for number in range(40)]

    class Two(ProcessingStage[EmptyTask, DocumentBatch]):
        def process(self, task: EmptyTask) -> Iterator[DocumentBatch]:
            for one in (pa.binary(16), kind):
                yield DocumentBatch(pa.table({"key": pa.array(keys, pa.binary(16)).cast(one)}))

    class Sizes(KeyedStage):
        key = "key"
        num_partitions = 8

        def reduce(self, key: Any, rows: Iterator[dict[str, Any]]) -> Any:
            return {"size": len(list(rows))}

    found = Pipeline("p", stages=[Two(), Sizes()]).run(LocalExecutor(0))
    assert [row["size"] for task in found for row in task.to_rows()] == [2] * 40


def test_a_file_of_runs_gives_back_what_was_put_in(tmp_path: Path) -> None:
    target, path = OutputDirectory(str(tmp_path)), str(tmp_path / "a.runs")
    tables = {number: pa.table({"n": pa.array(range(number * 100), pa.int64())}) for number in (0, 3, 7000)}
    with target.create(path) as file:
        writer = ShuffleFileWriter(
            file, ShuffleFileIndex(tables[0].schema, frozenset({"n"}), kind=DocumentBatch, dataset_name="d")
        )
        for number, table in tables.items():
            writer.add(number, [table.slice(start, 4000) for start in range(0, max(table.num_rows, 1), 4000)])
        writer.close()
    index = read_index(target, path)
    assert (index.schema, index.added, index.kind, index.dataset_name) == (tables[0].schema, {"n"}, DocumentBatch, "d")
    assert index.rows == 700_300
    for number, table in tables.items():
        assert pa.concat_tables(read_partition_blocks(target, path, index, number)).equals(table)
