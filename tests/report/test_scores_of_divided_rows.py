"""Rows of which a stage makes several without naming them: what cannot be known of them is not made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage
from gristmill.core.errors import InputError
from gristmill.report.whatif import whatif
from gristmill.report.why import why
from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter
from gristmill.view.data.row_sets import RunOrDataset
from gristmill.view.data.whatif import ScoreReader


class Lines(ProcessingStage[DocumentBatch, DocumentBatch]):
    """A row for each line of a text: in one batch, in a batch for each text, or in one for each line."""

    def __init__(self, batches: str) -> None:
        self.batches = batches

    def process(self, task: DocumentBatch) -> Any:
        return self.one(task) if self.batches == "one" else self.several(task)

    def one(self, task: DocumentBatch) -> DocumentBatch:
        lines = [text.split("\n") for text in task.data.column("text").to_pylist()]
        rows = task.take([row for row, some in enumerate(lines) for _ in some])
        return rows.with_column("text", pa.array([line for some in lines for line in some]))

    def several(self, task: DocumentBatch) -> Iterator[DocumentBatch]:
        for row in range(task.num_items):
            batch = self.one(task.take([row]))
            pieces = 1 if self.batches == "of a text" else batch.num_items
            for piece in range(pieces):
                yield batch if pieces == 1 else batch.slice(piece, 1)


def run(folder: Path, stages: list[Any]) -> str:
    (folder / "in").mkdir()
    texts = ["a b c\nd e", "a\nb c d\ne f g h", "a b"]
    rows = [json.dumps({"id": f"row {number}", "text": text}) + "\n" for number, text in enumerate(texts)]
    (folder / "in" / "texts.jsonl").write_text("".join(rows))
    steps = [JsonlReader(str(folder / "in")), *stages, JsonlWriter(str(folder / "out"))]
    Pipeline("lines", stages=steps).run(LocalExecutor(num_workers=0), run_dir=folder / "run", scores=True)
    return str(folder / "run")


@pytest.mark.parametrize("batches", ["one", "of a text", "of a line"])
@pytest.mark.parametrize("before", [0, 1])
def test_what_is_not_known_of_divided_rows_is_said(tmp_path: Path, batches: str, before: int) -> None:
    first = [ScoreFilter(WordCountFilter(min_words=1))] * before
    place = run(tmp_path, [*first, Lines(batches), ScoreFilter(WordCountFilter(min_words=3))])
    with pytest.raises(InputError, match="not known: a stage made several rows of one"):
        whatif(place, {"WordCountFilter.min_words": 2})
    (story,) = why(place, "row 1")
    assert (story.fate, story.scores) == ("unknown", [])
    assert "not known" in story.reason
    (whole,) = why(place, "row 2")
    assert (whole.fate, whole.dropped_by is None) == ("dropped", False)
    reader = ScoreReader(RunOrDataset(place))
    assert all(reader.judged(one.column) is None for one in reader.filters())


class OneByOne(Lines):
    """Each row in a batch of its own, as it is."""

    def one(self, task: DocumentBatch) -> DocumentBatch:
        return task


@pytest.mark.parametrize("batches", ["one", "of a text"])
def test_rows_that_are_only_cut_into_batches_are_known(tmp_path: Path, batches: str) -> None:
    place = run(tmp_path, [OneByOne(batches), ScoreFilter(WordCountFilter(min_words=3))])
    found = whatif(place, {"WordCountFilter.min_words": 6})
    assert (found.rows, found.before.rows, found.after.rows, found.exact) == (3, 2, 1, True)
