"""Ids, splitting and joining, train and test: the same for every way to cut the input."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage
from gristmill.core.errors import ColumnError, StageError
from gristmill.core.task import GatherTask
from gristmill.text import AddId, DocumentJoiner, DocumentSplitter, JsonlReader, JsonlWriter, TrainTestSplit
from tests.io.fragment_writing import batches, gathered

HERE = LocalExecutor(num_workers=0)


def through(folder: Path, name: str, stages, blocksize: str, rows=None, executor=HERE) -> list[dict]:
    """What comes out of a pipeline over a file that is read in blocks."""
    source = folder / "in.jsonl"
    rows = rows or [{"text": f"é {number}|b {number}|", "n": number} for number in range(50)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = JsonlReader(str(source), blocksize=blocksize)
    Pipeline("p", stages=[reader, *stages, JsonlWriter(str(folder / name))]).run(executor)
    return [
        json.loads(line) for path in sorted((folder / name).glob("*.jsonl")) for line in path.read_text().splitlines()
    ]


@pytest.mark.parametrize(
    "stages",
    [
        [AddId("id")],
        [DocumentSplitter("|"), AddId("id", "x")],
        [AddId("id"), DocumentSplitter("|"), DocumentJoiner("|")],
        [AddId("id"), DocumentSplitter("|"), DocumentJoiner("|", max_length=6), AddId("part")],
        [DocumentJoiner("+", segment_id_field="n", document_id_field="n", drop_segment_id_field=False)],
        [TrainTestSplit()],
        [TrainTestSplit(keep="test", seed=4)],
    ],
    ids=lambda stages: "-".join(stage.name for stage in stages),
)
def test_blocks_change_nothing(stages, tmp_path: Path) -> None:
    small, large = through(tmp_path, "small", stages, "100"), through(tmp_path, "large", stages, "1MB")
    assert small == large != []


def test_ids_are_distinct_and_named_after_the_file(tmp_path: Path) -> None:
    rows = through(tmp_path, "out", [DocumentSplitter("|"), AddId("id", "web")], "1MB")
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == len(ids) == 150
    start = ids[0].rsplit("_", 1)[0]
    assert start.startswith("web_")
    assert ids[:4] == [f"{start}_0", f"{start}_0_1", f"{start}_0_2", ids[3]]


def test_an_id_that_is_there_is_not_overwritten_unasked(tmp_path: Path) -> None:
    [batch] = batches([{"id": 7}])
    with pytest.raises(ColumnError, match="overwrite=True"):
        AddId("id").process(batch)
    [row] = AddId("id", overwrite=True).process(batch).to_rows()
    assert isinstance(row["id"], str)
    with pytest.raises((ColumnError, StageError), match="overwrite=True"):
        through(tmp_path, "out", [AddId("text")], "1MB")


def test_documents_are_split_at_plain_text() -> None:
    rows = [{"text": text, "k": number} for number, text in enumerate(["a.b", "", None, ".", "é", "日.本."])]
    out = DocumentSplitter(".", segment_id_field="s").process(DocumentBatch(rows)).to_rows()
    assert [(row["text"], row["k"], row["s"]) for row in out] == [
        ("a", 0, 0), ("b", 0, 1), ("", 1, 0), (None, 2, 0), ("", 3, 0), ("", 3, 1), ("é", 4, 0),
        ("日", 5, 0), ("本", 5, 1), ("", 5, 2),
    ]  # fmt: skip
    empty = DocumentBatch(pa.table({"text": pa.array([], pa.string())}))
    assert DocumentSplitter(".").process(empty).get_columns() == ["text", "segment_id"]


SEGMENTS = [
    {"id": "b", "segment_id": 1, "text": "b1", "size": 2},
    {"id": "a", "segment_id": 0, "text": "a0", "size": 2},
    {"id": "b", "segment_id": 0, "text": "b0", "size": 3},
    {"id": None, "segment_id": 0, "text": "x", "size": 1},
    {"id": "a", "segment_id": 10, "text": None, "size": 0},
    {"id": "a", "segment_id": 9, "text": "a9", "size": 5},
    {"id": None, "segment_id": 0, "text": None, "size": None},
]


def joined(joiner: DocumentJoiner, cuts=()) -> list[tuple]:
    out = joiner.process(gathered(list(batches(SEGMENTS, cuts))))
    return [(row["id"], row["text"], row["size"]) for batch in out for row in batch.to_rows()]


@pytest.mark.parametrize("cuts", [(), (1, 3), (2,), (1, 2, 3, 4, 5, 6)])
def test_segments_are_joined_in_order_across_batches(cuts) -> None:
    assert joined(DocumentJoiner("+"), cuts) == [
        ("b", "b0+b1", 3),
        ("a", "a0+a9", 2),
        (None, "x", 1),
        (None, None, None),
    ]
    assert joined(DocumentJoiner("+", max_length=4), cuts) == [
        ("b", "b0", 3), ("b", "b1", 2), ("a", "a0", 2), ("a", "a9", 5), (None, "x", 1), (None, None, None),
    ]  # fmt: skip
    assert joined(DocumentJoiner("+", max_length=6, length_field="size"), cuts) == [
        ("b", "b0+b1", 6), ("a", "a0", 2), ("a", "a9", 6), (None, "x", 1), (None, None, 0),
    ]  # fmt: skip


class Slow(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Takes its time, so that an idle worker is given some of the batches that the joiner has made."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        time.sleep(0.03)
        return task


def test_what_was_joined_may_be_shared_out_to_other_workers(tmp_path: Path) -> None:
    stages = [AddId("id"), DocumentSplitter("|"), DocumentJoiner("|"), Slow()]
    here = through(tmp_path, "here", stages, "100")
    assert through(tmp_path, "there", stages, "100", executor=LocalExecutor(num_workers=2)) == here


def test_the_number_of_the_segment_goes_unless_it_is_wanted() -> None:
    [batch] = DocumentJoiner().process(gathered(list(batches(SEGMENTS))))
    assert "segment_id" not in batch.get_columns()
    [batch] = DocumentJoiner(drop_segment_id_field=False).process(gathered(list(batches(SEGMENTS))))
    assert batch.to_rows()[0]["segment_id"] == 0
    assert DocumentJoiner().process(GatherTask([])) == []


def test_parts_have_their_shares_and_do_not_overlap(tmp_path: Path) -> None:
    rows = [{"text": "x", "n": number, "site": f"s{number % 40}"} for number in range(4000)]
    parts = {"train": 0.8, "valid": 0.1, "test": 0.1}
    out = through(tmp_path, "out", [TrainTestSplit(parts)], "1MB", rows)
    counts = {name: sum(row["split"] == name for row in out) for name in parts}
    assert sum(counts.values()) == 4000
    assert abs(counts["train"] - 3200) < 120
    assert abs(counts["valid"] - 400) < 80
    kept = through(tmp_path, "kept", [TrainTestSplit(parts, keep="valid")], "1MB", rows)
    assert [row["n"] for row in kept] == [row["n"] for row in out if row["split"] == "valid"]
    assert "split" not in kept[0]
    other = through(tmp_path, "other", [TrainTestSplit(parts, seed=1, keep="valid")], "1MB", rows)
    assert [row["n"] for row in other] != [row["n"] for row in kept]


def test_a_group_stays_together() -> None:
    rows = [{"site": f"s{number % 40}"} for number in range(400)] + [{"site": None}]
    out = TrainTestSplit({"a": 0.5, "b": 0.5}, group_field="site").process(DocumentBatch(rows)).to_rows()
    sides = {(row["site"], row["split"]) for row in out}
    assert len(sides) == 41
    assert {side for _, side in sides} == {"a", "b"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AddId(""), "id_field is empty"),
        (lambda: DocumentSplitter(""), "separator is empty"),
        (lambda: DocumentJoiner(max_length=0), "1 or more"),
        (lambda: DocumentJoiner(length_field="n"), "no effect without max_length"),
        (lambda: TrainTestSplit({"a": 0.5}), "add up to 1"),
        (lambda: TrainTestSplit(keep="tset"), "test"),
    ],
)
def test_bad_parameters_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_segments_with_numbers_in_text_are_in_their_order() -> None:
    rows = [{"id": 1, "segment_id": number, "text": number or "last"} for number in ["10", None, "9", "2"]]
    [batch] = DocumentJoiner(" ").process(gathered([DocumentBatch(rows)]))
    assert batch.to_rows() == [{"id": 1, "text": "2 9 10 last"}]
    with pytest.raises(ColumnError, match="'x' in column 'segment_id' is not a number"):
        DocumentJoiner().process(gathered([DocumentBatch([{"id": 1, "segment_id": "x", "text": "a"}])]))


def test_a_document_of_very_many_segments_is_joined() -> None:
    count = 300_000
    segments = pa.table({"id": pa.repeat(1, count), "segment_id": range(count), "text": pa.repeat("a", count)})
    [batch] = DocumentJoiner("").process(gathered([DocumentBatch(segments)]))
    assert batch.to_rows() == [{"id": 1, "text": "a" * count}]
