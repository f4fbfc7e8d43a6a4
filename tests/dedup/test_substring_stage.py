"""Passages that were there before are cut out, wherever in the corpus they are."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.dedup import SubstringDeduplicationStage
from gristmill.dedup.substring import substring_stage
from gristmill.dedup.substring.substring_stage import anchors, repeated_spans, without_spans
from gristmill.text import JsonlReader, JsonlWriter
from tests.dedup.unicode_texts import columns

LEGAL = "This passage stands in many documents, word for word, ünd nobody wants to learn it by heart. "


def run(texts: list[Any], batch: int = 2, **options: Any) -> list[tuple[int, Any]]:
    rows = [{"id": index, "text": text} for index, text in enumerate(texts)]
    tasks = [DocumentBatch(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    stage = SubstringDeduplicationStage(**{"min_length": 40, **options})
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=tasks)
    return [(row["id"], row["text"]) for task in result for row in task.to_rows()]


def in_memory(texts: list[str | None], length: int) -> list[tuple[int, str | None]]:
    """What is left of all texts as one column, without those of which nothing is."""
    column = pa.array(texts, pa.string())
    left = without_spans(column, repeated_spans(column, length)).to_pylist()
    return [(row, new) for row, new in enumerate(left) if new == texts[row] or (new or "").strip()]


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ([], []),
        (["short"], ["short"]),
        ([f"one {LEGAL}two", f"six: {LEGAL}four"], [f"one {LEGAL}two", "six:four"]),
        ([LEGAL, LEGAL, LEGAL], [LEGAL]),
        (["", None, " ", "", None], ["", None, " ", "", None]),
        ([LEGAL + "x" * 30 + LEGAL], [LEGAL + "x" * 30]),
        ([LEGAL, 5, LEGAL + "a"], [LEGAL, 5, "a"]),
    ],
)
def test_what_is_left(texts: list[Any], wanted: list[Any]) -> None:
    assert [text for _, text in run(texts)] == wanted


def made(seed: int, count: int = 60) -> list[str | None]:
    """Texts that share passages of all lengths, some of two alphabets, some of one letter."""
    draw = random.Random(seed)
    pool = ["".join(draw.choices("abcé中 \n", k=400)) for _ in range(8)] + ["=" * 300, "ab" * 150]
    texts: list[str | None] = [None, ""]
    for _ in range(count):
        parts = []
        for _ in range(draw.randrange(6)):
            source = draw.choice(pool)
            start = draw.randrange(len(source))
            parts += [source[start : start + draw.randrange(120)], "".join(draw.choices("xyzß ", k=draw.randrange(50)))]
        texts.append("".join(parts))
    draw.shuffle(texts)
    return texts


@pytest.mark.parametrize(("seed", "length", "partitions"), [(1, 40, None), (2, 17, 1), (3, 64, 3)])
def test_the_same_as_all_in_memory(seed: int, length: int, partitions: int | None) -> None:
    texts = made(seed)
    assert run(texts, batch=7, min_length=length, num_partitions=partitions) == in_memory(texts, length)


def test_a_passage_that_all_documents_have_reaches_over_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was new in a group is held when it goes on."""
    texts: list[str | None] = [f"{LEGAL[: 50 + n % 3]}{n}{LEGAL[n % 40 :]}{n}" for n in range(90)]
    monkeypatch.setattr(
        "gristmill.io.exchange.keyed_stage.tables_of_size", lambda pieces: (one for p in pieces for one in _rows(p, 9))
    )
    assert run(texts, batch=40, num_partitions=1) == in_memory(texts, 40)


def _rows(table: pa.Table, count: int) -> list[pa.Table]:
    return [table.slice(start, count) for start in range(0, table.num_rows, count)]


@settings(max_examples=25)
@given(columns, st.sampled_from([2, 3, 7, 16]), st.integers(0, 2))
@example(["aaaaaaaaaaaa", "ababababab"], 4, 0)
def test_anchors_are_the_same_from_c_and_python(texts: list[str | None], length: int, start: int) -> None:
    column = pa.array(texts, pa.string()).slice(start)
    found = anchors(column, length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(substring_stage, "kernels", None)
        assert found.tolist() == anchors(column, length).tolist()
    for row, first, last, place, _ in found.tolist():
        assert first <= last <= place <= first + length - length // 2
        assert last + length <= len(column[row].as_py().encode())
    assert np.sum(found["last"] - found["first"] + 1) == sum(
        max(len((text or "").encode()) - length + 1, 0) for text in column.to_pylist()
    )


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=30), max_size=5), st.sampled_from([1, 3]))
def test_bytes_are_cut_anywhere(parts: list[bytes], length: int) -> None:
    column = pa.array(parts, pa.binary())
    found = repeated_spans(column, length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(substring_stage, "kernels", None)
        assert found.equals(repeated_spans(column, length))


def test_the_same_bytes_however_it_was_cut(tmp_path: Path) -> None:
    texts, found = made(5, 50), []
    (tmp_path / "in").mkdir()
    for part in range(3):
        rows = [{"id": n, "text": text} for n, text in enumerate(texts)][part::3]
        (tmp_path / "in" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number, size in enumerate(["1MB", "5KB", "2KB"]):
        place = tmp_path / str(number)
        stage = SubstringDeduplicationStage(min_length=40)
        stages = [JsonlReader(tmp_path / "in", blocksize=size), stage, JsonlWriter(place / "out")]
        result = Pipeline("p", stages=stages).run(LocalExecutor(0), place / "run")
        found.append({path.name: path.read_bytes() for path in (place / "out").glob("*.jsonl")})
        line = result.summary()["SubstringDeduplicationStage"]
        assert line.rows_in == len(texts)
        assert line.counts["bytes_removed"] > 1000
    assert found[0] == found[1] == found[2]
    ordered = [text for part in range(3) for text in texts[part::3]]
    rows = [json.loads(line) for name in sorted(found[0]) for line in found[0][name].splitlines()]
    assert all(set(row) == {"id", "text"} for row in rows)
    assert [row["text"] for row in rows] == [text for _, text in in_memory(ordered, 40)]


def test_a_length_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="min_length is 3, must be 16 bytes or more"):
        SubstringDeduplicationStage(min_length=3)
