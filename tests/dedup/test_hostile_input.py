"""Data that nobody cleaned: columns of mixed values, ids that come twice, several stages and several ways to run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline, ProcessingStage
from gristmill.core.errors import StageError
from gristmill.dedup import (
    Decontaminate,
    DedupIndex,
    ExactDeduplicationStage,
    ExactDeduplicationWorkflow,
    FuzzyDeduplicationStage,
    Keep,
    TextDuplicatesRemovalStage,
    TextDuplicatesRemovalWorkflow,
)
from gristmill.dedup.columns.arrow_numpy import values_of
from gristmill.dedup.decontamination.ngram_overlap import OverlapIndex, OverlapRules
from gristmill.io.exchange import verdict_stage
from gristmill.text import Filter, JsonlReader, JsonlWriter

HERE = LocalExecutor(0)


def write(folder: Path, **files: Sequence[Mapping[str, Any]]) -> str:
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def kept(source: str, *stages: ProcessingStage[Any, Any]) -> list[Any]:
    result: Any = Pipeline("p", stages=[JsonlReader(source), *stages]).run(HERE)
    return [row["n"] for task in result for row in task.to_rows()]


def test_fuzzy_compares_texts_and_not_the_json_that_a_mixed_column_holds(tmp_path: Path) -> None:
    text = 'The miller said "grind" to the\nwheel, and it turned.'
    mixed: list[dict[str, Any]] = [{"n": 0, "text": text}, {"n": 1, "text": 5}, {"n": 2, "text": 5}]
    source = write(tmp_path / "in", a=mixed, b=[{"n": 3, "text": text}])
    assert kept(source, FuzzyDeduplicationStage(word_ngrams=2)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("keep", "values", "best"),
    [
        (Keep("source", "s", order=["wiki", 2]), [1, 2, "wiki"], 2),
        (Keep("source", "s", order=["wiki", 2]), [1, 2, ["wiki"]], 1),
        (Keep("highest", "s"), ["none", None, 3], 2),
        (Keep("highest", "s"), [2**60, 2**61], 1),
        (Keep("highest", "s"), ["x", "7"], 1),
        (Keep("newest", "s"), ["2024-01-01", "2025-01-01", [1]], 1),
    ],
)
@pytest.mark.filterwarnings("ignore:stage 'ExactDeduplicationStage':RuntimeWarning")  # how much that is
def test_what_a_policy_cannot_read_is_lowest(tmp_path: Path, keep: Keep, values: list[Any], best: int) -> None:
    rows = [{"n": n, "text": "same", "s": value} for n, value in enumerate(values)]
    assert kept(write(tmp_path / "in", a=rows), ExactDeduplicationStage(keep=keep)) == [best]


def test_not_a_number_is_lowest() -> None:
    ranks = Keep("highest", "s").rank(pa.table({"s": [float("nan"), 1.0]}))
    assert ranks.to_pylist() == [None, 1.0]


def test_an_id_is_the_same_whatever_else_is_in_its_block(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "text": "a"}, {"id": "x", "text": "a"}, {"id": 2.0, "text": "a"}]
    source = write(tmp_path / "in", a=rows, b=[{"text": "without"}])
    found = ExactDeduplicationWorkflow(source, tmp_path / "found", id_field="id", perform_removal=False).run(HERE)
    assert found.clusters_path is not None
    assert sorted(pq.read_table(found.clusters_path)["id"].to_pylist()) == ["1", "2", "x"]
    out = tmp_path / "out"
    removed = TextDuplicatesRemovalWorkflow(source, found.clusters_path, out, id_field="id", input_blocksize=20)
    assert removed.run(HERE).duplicates == 2


def test_an_id_that_comes_twice_does_not_cost_the_row_that_is_kept(tmp_path: Path) -> None:
    source = write(tmp_path / "in", a=[{"id": 1, "text": "a"}, {"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    found = ExactDeduplicationWorkflow(source, tmp_path / "found", id_field="id", perform_removal=False).run(HERE)
    assert found.clusters_path is not None
    with pytest.raises(StageError, match="1 ids of the table .* all of which would be lost"):
        TextDuplicatesRemovalWorkflow(source, found.clusters_path, tmp_path / "out", id_field="id").run(HERE)


def test_rows_that_are_not_found_again_are_told(tmp_path: Path) -> None:
    source = write(tmp_path / "in", a=[{"id": 1, "text": "a"}, {"id": 2, "text": "a"}])
    found = ExactDeduplicationWorkflow(source, tmp_path / "found", id_field="id", perform_removal=False).run(HERE)
    assert found.clusters_path is not None
    with pytest.warns(RuntimeWarning, match="lists 1 rows to remove, but 0 were removed"):
        TextDuplicatesRemovalWorkflow(source, found.clusters_path, tmp_path / "out").run(HERE)
    again = TextDuplicatesRemovalWorkflow(
        source, found.clusters_path, tmp_path / "resumed", id_field="id", cache_path=tmp_path / "run"
    )
    for resumed in (False, True):  # of what was done before, the summary says nothing
        assert again.run(HERE).run.resumed is resumed


def test_rows_that_share_an_id_with_one_that_is_removed_are_told(tmp_path: Path) -> None:
    source = write(tmp_path / "in", a=[{"id": 1, "text": "a"}, {"id": 2, "text": "a"}], b=[{"id": 2, "text": "b"}] * 2)
    found = ExactDeduplicationWorkflow(f"{source}/a.jsonl", tmp_path / "found", id_field="id", perform_removal=False)
    table = found.run(HERE).clusters_path
    assert table is not None
    stage = TextDuplicatesRemovalStage(table, "id")
    stages = [JsonlReader(source), stage, JsonlWriter(str(tmp_path / "out"))]
    message = r"stage 'TextDup\w*': the table lists 1 rows to remove, but 3 were removed: some ids name several rows"
    with pytest.warns(RuntimeWarning, match=message) as result:
        Pipeline("p", stages=stages).run(HERE)
    assert len(result) == 1
    ahead = Filter(lambda text: text == "b", "text")  # some rows are gone before
    Pipeline("p", stages=[JsonlReader(f"{source}/a.jsonl"), ahead, stage]).run(HERE)


@pytest.mark.parametrize("late", [False, True])
def test_a_workflow_tells_once_that_ids_name_several_rows(tmp_path: Path, late: bool) -> None:
    source = write(tmp_path / "in", a=[{"id": 1, "text": "a"}, {"id": 2, "text": "a"}])
    found = ExactDeduplicationWorkflow(source, tmp_path / "found", id_field="id", perform_removal=False).run(HERE)
    workflow = TextDuplicatesRemovalWorkflow(
        source, found.clusters_path or "", tmp_path / "out", id_field="id", cache_path=tmp_path / "run"
    )
    if late:
        workflow.run(HERE)  # and what comes in the next attempt is as much as the table lists
    write(tmp_path / "in", b=[{"id": 2, "text": "b"}])
    with pytest.warns(RuntimeWarning, match="lists 1 rows to remove, but 2 were removed") as result:
        assert workflow.run(HERE).duplicates == 2
    assert len(result) == 1


def test_each_of_several_stages_has_its_cluster_table(tmp_path: Path) -> None:
    source = write(tmp_path / "in", a=[{"text": f"t{n % 3}", "site": "s", "id": n} for n in range(6)])

    def clusters(*stages: ProcessingStage[Any, Any]) -> list[tuple[str, str]]:
        parts: list[Any] = [JsonlReader(source), *stages, JsonlWriter(str(tmp_path / "out"))]
        Pipeline("p", stages=parts).run(HERE)
        table = pq.read_table(tmp_path / "out.run" / "clusters")
        return sorted((row["cluster"], row["id"]) for row in table.to_pylist())

    by_text = [("0", "0"), ("0", "3"), ("1", "1"), ("1", "4"), ("2", "2"), ("2", "5")]
    texts, sites = (ExactDeduplicationStage(field, id_field="id") for field in ("text", "site"))
    assert clusters(texts, sites) == sorted([*by_text, ("0", "0"), ("0", "1"), ("0", "2")])
    assert clusters(texts) == by_text  # and what the other stage had found is gone


def test_a_run_is_known_again_however_its_rows_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their files, or in the run directory if a worker of its own has read them."""
    source = write(tmp_path / "in", a=[{"id": n, "text": f"t{n}"} for n in range(3)])
    for attempt in range(2):
        stage = ExactDeduplicationStage(id_field="id", extend=DedupIndex(tmp_path / "index"))
        stages: list[Any] = [JsonlReader(source), stage, JsonlWriter(str(tmp_path / f"out{attempt}"))]
        assert Pipeline("p", stages=stages).run(HERE).summary().rows_out == 3
        monkeypatch.setattr(verdict_stage, "origin_of", lambda batch: None)
    assert DedupIndex(tmp_path / "index").versions == [1]


def test_numbers_that_are_not_finite_are_not_all_the_same() -> None:
    values = values_of(pa.array([float("nan"), float("inf"), float("-inf"), 1.0, None]))
    assert values.to_pylist() == ["nan", "inf", "-inf", "1", None]


def test_an_item_that_a_benchmark_has_many_times_is_still_found() -> None:
    item = "A miller grinds twelve sacks of wheat in three hours. How many does he grind in eight?"
    index = OverlapIndex(pa.array([item] * 12), OverlapRules())
    assert {match.row for match in index.matches(pa.array(["clean", f"so: {item}"]))} == {1}
    wordings = pa.array([f"{item} {number}" for number in range(12)])
    assert not OverlapIndex(wordings, OverlapRules()).matches(pa.array([item]))


def test_items_that_can_hardly_be_found_are_told(tmp_path: Path) -> None:
    passage = " ".join(f"word{number}" for number in range(40))
    rows = [{"context": passage, "question": f"what is {number}"} for number in range(12)]
    benchmark = {"path": write(tmp_path / "benchmark", b=rows), "text_fields": ["context", "question"]}
    stages: list[Any] = [
        JsonlReader(write(tmp_path / "in", a=[{"text": passage}])),
        Decontaminate([benchmark], max_items=3),
    ]
    with pytest.warns(RuntimeWarning, match=r"has 12 of 12 items of which most words were not .* max_items=3"):
        result = Pipeline("p", stages=stages).run(HERE)
    assert result.summary()["Decontaminate"].counts["benchmark_items_too_common"] == 12
