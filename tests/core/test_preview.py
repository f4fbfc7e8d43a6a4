from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.compute as pc
import pytest

from gristmill import DocumentBatch, EmptyTask, Pipeline, ProcessingStage, Task, processing_stage
from gristmill.dedup import ExactDeduplicationStage
from gristmill.text import JsonlReader, JsonlWriter, Modify, ScoreFilter, UrlsFilter, WordCountFilter
from gristmill.text.modifiers.removers import QuotationUnifier

TEXTS = ["“Good morning, said the cat.”", "no", "see https://a.example/b c", "one two three", "four five six"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for part in range(3):
        lines = [orjson.dumps({"id": f"{part}-{n}", "text": text}) for n, text in enumerate(TEXTS)]
        (folder / f"{part}.jsonl").write_bytes(b"\n".join(lines))
    return folder


def pipeline(corpus: Path, out: Path) -> Pipeline:
    stages = [
        JsonlReader(str(corpus)),
        Modify(QuotationUnifier()),
        ScoreFilter(WordCountFilter(min_words=2), score_field="words"),
        ScoreFilter(UrlsFilter()),
        JsonlWriter(str(out)),
    ]
    return Pipeline("p", stages=stages)


def test_rows_come_with_their_scores_and_fate(corpus: Path, tmp_path: Path) -> None:
    began = time.perf_counter()
    preview = pipeline(corpus, tmp_path / "out").preview(n=4)
    assert time.perf_counter() - began < 1
    assert [row.dropped_by for row in preview] == [None, "WordCountFilter", "UrlsFilter", None]
    assert preview[0].data["text"] == '"Good morning, said the cat."'
    assert preview[0].data["words"] == 5
    assert preview[0].scores == {"WordCountFilter": 5, "UrlsFilter": 0.0}
    assert preview[1].scores == {"WordCountFilter": 1}  # not seen by the next filter
    assert preview[2].scores["UrlsFilter"] == pytest.approx(19 / 25)


def test_it_ends_where_rows_must_meet_and_says_so(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    stages = [
        JsonlReader(str(corpus)),
        ScoreFilter(WordCountFilter(min_words=2)),
        ExactDeduplicationStage(extend=str(index)),
        ScoreFilter(UrlsFilter()),
        JsonlWriter(str(tmp_path / "out")),
    ]
    preview = Pipeline("p", stages=stages).preview(n=7)
    assert [row.dropped_by for row in preview] == [None, "WordCountFilter", None, None, None, None, "WordCountFilter"]
    assert [row.kept for row in preview] == [False] * 7
    assert {row.waits_for for row in preview} == {"ExactDeduplicationStage", None}
    assert "kept up to ExactDeduplicationStage, which needs all rows  WordCountFilter=5" in str(preview)
    assert not index.exists()


def test_nothing_is_written(corpus: Path, tmp_path: Path) -> None:
    pipeline(corpus, tmp_path / "out").preview()
    assert not (tmp_path / "out").exists()


def test_rows_are_taken_from_as_many_files_as_needed(corpus: Path, tmp_path: Path) -> None:
    preview = pipeline(corpus, tmp_path / "out").preview(n=12)
    assert [row.data["id"] for row in preview][-2:] == ["2-0", "2-1"]
    assert len(pipeline(corpus, tmp_path / "out").preview(n=100)) == 15


def test_it_prints_one_row_after_the_other(corpus: Path, tmp_path: Path) -> None:
    text = str(pipeline(corpus, tmp_path / "out").preview(n=2))
    assert text.splitlines()[0].split() == ["kept", "WordCountFilter=5,", "UrlsFilter=0"]
    assert 'text: "Good morning' in text
    assert "dropped by WordCountFilter" in text
    assert "__position__" not in text


def test_a_stage_of_ones_own_that_drops_rows_is_named() -> None:
    @processing_stage(name="only_long")
    def only_long(task: DocumentBatch) -> DocumentBatch:
        return task.keep(pc.greater(pc.utf8_length(task.data["text"]), 2))

    @processing_stage(name="nobody")
    def nobody(task: DocumentBatch) -> None:
        return None

    batch = DocumentBatch([{"text": "a"}, {"text": "abc"}])
    preview = Pipeline("p", stages=[only_long]).preview(5, [batch])
    assert [(row.data["text"], row.dropped_by) for row in preview] == [("a", "only_long"), ("abc", None)]
    preview = Pipeline("p", stages=[only_long, nobody]).preview(5, [batch])
    assert [row.dropped_by for row in preview] == ["only_long", "nobody"]


def test_hooks_are_called_and_torn_down() -> None:
    seen: list[str] = []

    class Model(ProcessingStage[DocumentBatch, DocumentBatch]):
        def setup(self, worker_metadata: Any = None) -> None:
            seen.append("setup")

        def teardown(self) -> None:
            seen.append("teardown")

        def process_batch(self, tasks: Any) -> Any:
            return list(tasks)

    Pipeline("p", stages=[Model()]).preview(1, [DocumentBatch([{"text": "a"}])])
    assert seen == ["setup", "teardown"]


def test_plain_tasks_are_shown_too() -> None:
    class Source(ProcessingStage[EmptyTask, Task[int]]):
        def process(self, task: EmptyTask) -> Iterator[Task[int]]:
            for number in range(20):  # all of them are run: only rows are counted while it goes on
                yield Task(number)

    preview = Pipeline("p", stages=[Source()]).preview(3)
    assert [row.data for row in preview] == [{"task": 0}, {"task": 1}, {"task": 2}]


def test_no_rows() -> None:
    preview = Pipeline("p", stages=[ScoreFilter(WordCountFilter())]).preview(5, [])
    assert len(preview) == 0
    assert str(preview) == "no rows"


ESCAPE = "\x1b[31mred\x07\n"


def test_data_does_not_steer_the_terminal() -> None:
    batch = DocumentBatch([{"text" + ESCAPE: "a b c" + ESCAPE, "text": ESCAPE}])
    text = str(Pipeline("p", stages=[ScoreFilter(WordCountFilter(min_words=1))]).preview(1, [batch]))
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text.split("\n")) == 3


@processing_stage(name="rebuild")
def rebuild(task: DocumentBatch) -> DocumentBatch:
    return DocumentBatch([{"text": row["text"].upper()} for row in task.data.to_pylist()])


@processing_stage(name="split")
def split(task: DocumentBatch) -> DocumentBatch:
    return DocumentBatch([{"text": word} for row in task.data.to_pylist() for word in row["text"].split()])


@processing_stage(name="empty")
def empty(task: DocumentBatch) -> DocumentBatch:
    return DocumentBatch({"text": []})


def fates(*stages: Any, n: int = 5, texts: tuple[str, ...] = ("a b", "c d e")) -> list[tuple[Any, ...]]:
    batch = DocumentBatch([{"text": text, "_preview_row": 7} for text in texts])
    preview = Pipeline("p", stages=list(stages)).preview(n, [batch])
    return [(row.data["text"], row.fate) for row in preview]


def test_a_new_batch_of_as_many_rows_holds_the_same_rows() -> None:
    assert fates(rebuild) == [("A B", "kept"), ("C D E", "kept")]
    at_least_3 = ScoreFilter(WordCountFilter(min_words=3))
    assert fates(rebuild, at_least_3) == [("a b", "dropped by WordCountFilter"), ("C D E", "kept")]
    assert fates(at_least_3, rebuild) == [("a b", "dropped by WordCountFilter"), ("C D E", "kept")]


def test_a_new_batch_of_other_rows_takes_the_place_of_the_old() -> None:
    assert fates(split) == [(word, "made by split") for word in "abcde"]
    assert fates(split, n=2) == [("a", "made by split"), ("b", "made by split")]
    assert fates(split, empty) == [(word, "dropped by empty") for word in "abcde"]
    assert fates(empty) == [("a b", "dropped by empty"), ("c d e", "dropped by empty")]
