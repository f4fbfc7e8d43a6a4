"""Where a file is cut into blocks makes no difference: not to the output, and not to whether a run ends well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, processing_stage
from gristmill.core.errors import ColumnError, StageError
from gristmill.text import (
    DocumentSplitter,
    Filter,
    JsonlReader,
    JsonlWriter,
    Modify,
    QuotationUnifier,
    RedactPii,
    Score,
    ScoreFilter,
    WordCountFilter,
)

STRETCHES: dict[str, list[dict[str, Any]]] = {
    "without the column": [{"body": "b", "n": 1}],
    "numbers": [{"text": 7}, {"text": 7.5}, {"text": 2**60}, {"text": -0.0}],
    "whole floats": [{"text": 7.0}, {"text": 1e20}],
    "truths": [{"text": True}],
    "lists": [{"text": ["a", 1.0]}, {"text": {"k": "a@b.org"}}],
    "nulls": [{"text": None}],
}
STAGES: dict[str, Any] = {
    "ScoreFilter": lambda: ScoreFilter(WordCountFilter(min_words=0), score_field="words"),
    "Score": lambda: Score(len, "length"),
    "Filter": lambda: Filter(lambda text: text != "gone", "text"),
    "Modify": lambda: Modify(QuotationUnifier()),
    "Modify with several": lambda: Modify(lambda text, n: f"{n} {text is None}", ["text", "n"], "both"),
    "RedactPii": lambda: RedactPii(spans_field="pii"),
    "DocumentSplitter": lambda: DocumentSplitter(" "),
}


def run(path: Path, blocksize: str, *stages: Any) -> bytes:
    out = path / f"out-{blocksize}"
    reader = JsonlReader(str(path / "in.jsonl"), blocksize=blocksize)
    Pipeline("p", stages=[reader, *stages, JsonlWriter(str(out))]).run(LocalExecutor(num_workers=0))
    return b"".join(file.read_bytes() for file in sorted(out.glob("*.jsonl")))


def write(path: Path, stretch: list[dict[str, Any]]) -> None:
    plain = [{"text": f"words of row {row}, a@b.org", "n": row} for row in range(20)]
    rows = [*plain, *stretch * (20 // len(stretch)), *plain]
    (path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("make", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("stretch", STRETCHES.values(), ids=STRETCHES)
def test_an_odd_stretch_of_a_file_is_the_same_in_blocks_of_any_size(tmp_path: Path, stretch: Any, make: Any) -> None:
    write(tmp_path, stretch)
    whole = run(tmp_path, "1MB", make())
    assert whole.count(b"\n") >= 60
    assert run(tmp_path, "300B", make()) == run(tmp_path, "100B", make()) == whole


def test_a_column_that_the_plan_cannot_know_must_be_there(tmp_path: Path) -> None:
    @processing_stage(name="renames")
    def renames(batch: Any) -> Any:
        return batch.with_data(batch.data.drop_columns(["text"]).append_column("body", batch.data["text"]))

    write(tmp_path, [{"text": "x", "n": 1}])
    with pytest.raises(StageError, match=r"needs column 'text'\. There are: n, body.*outputs\(\)"):
        run(tmp_path, "1MB", renames, ScoreFilter(WordCountFilter()))
    with pytest.raises(ColumnError, match="needs column 'txt'"):
        run(tmp_path, "300B", ScoreFilter(WordCountFilter(), text_field="txt"))
