"""Every drop has a reason: rows that stages drop go to Parquet with stage, score and threshold."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Sample, Task, processing_stage
from gristmill.core.errors import PlanError
from gristmill.text import (
    DocumentFilter,
    Filter,
    JsonlReader,
    JsonlWriter,
    Modify,
    ScoreFilter,
    UrlRemover,
    WordCountFilter,
)

FILES, ROWS = 5, 400


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    rng = random.Random(7)
    for number in range(FILES):
        rows = [{"id": f"{number}-{row}", "text": " ".join(["grist"] * rng.randrange(60))} for row in range(ROWS)]
        (folder / f"part-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class EveryThird(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops by the row's own content, and does not say so."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task.keep(pa.array([int(row["id"].split("-")[1]) % 3 > 0 for row in task.to_rows()]))


class Streams(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Gives each row as a batch of its own, but those with a 7."""

    def process(self, task: DocumentBatch) -> Any:
        for index, row in enumerate(task.to_rows()):
            if "7" not in row["id"]:
                yield task.slice(index, 1)


def pipeline(corpus: Path, out: Path, blocksize: int = 20_000, *more: Any) -> Pipeline:
    stages = [
        JsonlReader(str(corpus), blocksize=blocksize),
        Modify(UrlRemover()),
        ScoreFilter(
            [WordCountFilter(min_words=10), WordCountFilter(min_words=0, max_words=50)], score_field=["a", "b"]
        ),
        EveryThird(),
        Sample(0.8, seed=3),
        *more,
        JsonlWriter(str(out)),
    ]
    return Pipeline("rejecting", stages=stages)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def kept_ids(out: Path) -> list[str]:
    lines = [line for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line)["id"] for line in lines]


def test_kept_and_rejected_are_the_input_and_each_drop_has_its_reason(corpus: Path, tmp_path: Path) -> None:
    result = pipeline(corpus, tmp_path / "out").run(LocalExecutor(2), rejected=tmp_path / "rejected")
    rows = pq.read_table(tmp_path / "rejected").to_pylist()
    everything = [f"{number}-{row}" for number in range(FILES) for row in range(ROWS)]
    assert sorted([row["id"] for row in rows] + kept_ids(tmp_path / "out")) == sorted(everything)
    assert len(result.rejected()) == FILES
    by_stage = {name: [row for row in rows if row["rejected_by"] == name] for name in {r["rejected_by"] for r in rows}}
    summary = result.summary()
    assert {name: len(found) for name, found in by_stage.items()} == {
        line.name: line.dropped for line in summary.stages if line.dropped
    }
    for row in by_stage["WordCountFilter, WordCountFilter"]:
        words = len(row["text"].split())
        assert row["rejected_score"] == words
        short = words < 10
        assert row["rejected_filter"] == ("WordCountFilter" if short else "WordCountFilter 2")
        assert row["rejected_threshold"] == f"min_words={10 if short else 0}, max_words={100_000 if short else 50}"
    assert all(row["rejected_score"] is None for row in by_stage["EveryThird"])
    assert all(row["rejected_score"] >= 0.8 for row in by_stage["Sample"])
    assert {row["rejected_threshold"] for row in by_stage["Sample"]} == {"fraction=0.8"}
    for row in random.Random(1).sample(rows, 20):
        with (corpus / row["rejected_file"]).open("rb") as file:
            file.seek(row["rejected_position"])
            assert json.loads(file.readline())["id"] == row["id"]


def test_same_bytes_for_any_workers_blocks_and_fusion(corpus: Path, tmp_path: Path) -> None:
    found = []
    for number, (executor, blocksize) in enumerate(
        [(LocalExecutor(0), 10**6), (LocalExecutor(2), 9000), (LocalExecutor(3, fuse=False), 30_000)]
    ):
        run = tmp_path / f"run-{number}"
        pipeline(corpus, tmp_path / f"out-{number}", blocksize).run(executor, run, rejected=True)
        found.append(contents(run / "rejected"))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == FILES


def test_rows_that_a_generator_leaves_out_are_found(corpus: Path, tmp_path: Path) -> None:
    pipeline(corpus, tmp_path / "out", 20_000, Streams()).run(LocalExecutor(2), rejected=tmp_path / "rejected")
    rows = [row for row in pq.read_table(tmp_path / "rejected").to_pylist() if row["rejected_by"] == "Streams"]
    assert rows
    assert all("7" in row["id"] for row in rows)


def test_off_writes_nothing_and_on_later_does_the_sources_again(corpus: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    assert pipeline(corpus, out).run(LocalExecutor(0), run).rejected() == []
    assert not (run / "rejected").exists()
    whole = pipeline(corpus, out).run(LocalExecutor(0), run, rejected=True)
    assert whole.summary()["read_jsonl"].rows_out == FILES * ROWS
    again = pipeline(corpus, out).run(LocalExecutor(2), run, rejected=True)
    assert again.summary(attempt=True)["read_jsonl"].rows_out == 0
    assert again.rejected() == whole.rejected()


class DiesOnce(ProcessingStage[DocumentBatch, DocumentBatch]):
    def __init__(self, note: Path) -> None:
        self.note = note

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if any(row["id"].endswith("-211") for row in task.to_rows()) and not self.note.exists():
            self.note.touch()
            os._exit(1)
        return task


def test_a_worker_that_dies_leaves_no_row_twice(corpus: Path, tmp_path: Path) -> None:
    clean = pipeline(corpus, tmp_path / "a").run(LocalExecutor(0), rejected=tmp_path / "ra")
    pipeline(corpus, tmp_path / "b", 3000, DiesOnce(tmp_path / "note")).run(LocalExecutor(2), rejected=tmp_path / "rb")
    assert (tmp_path / "note").exists()
    assert contents(tmp_path / "ra") == contents(tmp_path / "rb")
    assert clean.quarantined() == []


def test_an_interrupted_run_is_resumed_with_the_same_rejects(corpus: Path, tmp_path: Path) -> None:
    class Stop(ProcessingStage[Any, Any]):
        max_retries = 0

        def process(self, task: Any) -> Any:
            if not (tmp_path / "go").exists() and "part-3" in task.lineage.files[0]:
                raise RuntimeError("stop here")
            return task

    whole = pipeline(corpus, tmp_path / "out", 9000, Stop())
    with pytest.raises(Exception, match="stop here"):
        whole.run(LocalExecutor(0), tmp_path / "run", rejected=True, on_error="raise")
    (tmp_path / "go").touch()
    resumed = whole.run(LocalExecutor(2), tmp_path / "run", rejected=True)
    assert 0 < resumed.summary(attempt=True)["read_jsonl"].rows_out < FILES * ROWS
    pipeline(corpus, tmp_path / "fresh").run(LocalExecutor(0), rejected=tmp_path / "rejected")
    assert contents(tmp_path / "run" / "rejected") == contents(tmp_path / "rejected")
    assert not (tmp_path / "run" / "rejected" / "_tmp").exists()


def test_rows_in_quarantine_are_not_rejected(corpus: Path, tmp_path: Path) -> None:
    class Picky(DocumentFilter):
        def score_document(self, text: str) -> float:
            if len(text.split()) == 33:
                raise ValueError("I do not like 33")
            return len(text)

        def keep_document(self, score: Any) -> bool:
            return score > 100

    stages = [JsonlReader(str(corpus)), ScoreFilter(Picky()), JsonlWriter(str(tmp_path / "out"))]
    result = Pipeline("p", stages=stages).run(
        LocalExecutor(2), tmp_path / "run", rejected=tmp_path / "rejected", max_errors=0.1
    )
    rejected = [row["id"] for row in pq.read_table(tmp_path / "rejected").to_pylist()]
    aside = [record.row["id"] for record in result.quarantined() if record.row]
    assert aside
    assert len({*rejected, *aside, *kept_ids(tmp_path / "out")}) == FILES * ROWS
    assert len(rejected) + len(aside) + len(kept_ids(tmp_path / "out")) == FILES * ROWS


def test_batches_in_memory_and_verdicts_that_are_no_numbers(tmp_path: Path) -> None:
    @processing_stage(name="drop_all")
    def drop_all(task: DocumentBatch) -> None:
        return None

    batch = DocumentBatch([{"text": "a", "lang": "de"}, {"text": "b", "lang": "en"}, {"text": "c", "lang": None}])
    stages = [Filter(lambda lang: lang == "en", filter_field="lang"), drop_all]
    result = Pipeline("p", stages=stages).run(
        LocalExecutor(0), initial_tasks=[batch, batch], rejected=tmp_path / "rejected"
    )
    assert [task.num_rows for task in result] == []
    rows = pq.read_table(tmp_path / "rejected").to_pylist()
    assert [(row["text"], row["rejected_by"]) for row in rows] == [
        ("a", "Filter"),
        ("c", "Filter"),
        ("b", "drop_all"),
    ] * 2
    assert {row["rejected_score"] for row in rows} == {None}


def test_what_cannot_be_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is none: give run_dir=... or rejected='dir'"):
        Pipeline("p", stages=[EveryThird()]).run(LocalExecutor(0), initial_tasks=[Task(1)], rejected=True)
    with pytest.raises(PlanError, match="lies in the output"):
        pipeline(corpus, tmp_path / "out").run(LocalExecutor(0), rejected=tmp_path / "out")
    with pytest.raises(PlanError, match="holds the input"):
        pipeline(corpus, tmp_path / "out").run(LocalExecutor(0), rejected=corpus)
    assert Pipeline("p", stages=[EveryThird()]).run(LocalExecutor(0), initial_tasks=[Task(1)][:0]).rejected() == []


def test_a_fresh_run_leaves_nothing_of_an_older_one(corpus: Path, tmp_path: Path) -> None:
    pipeline(corpus, tmp_path / "out").run(LocalExecutor(0), rejected=tmp_path / "rejected")
    for path in list(corpus.iterdir())[1:]:
        path.unlink()
    pipeline(corpus, tmp_path / "out").run(LocalExecutor(0), rejected=tmp_path / "rejected")
    assert len(list((tmp_path / "rejected").glob("*.parquet"))) == 1
