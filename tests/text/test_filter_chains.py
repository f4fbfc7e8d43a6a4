"""Chains of filters: they share the counting, and each keeps the books of its own."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.run.worker import Worker
from gristmill.recipes import load_recipe
from gristmill.text import (
    BoilerPlateStringFilter,
    DocumentFilter,
    Filter,
    JsonlReader,
    JsonlWriter,
    Modify,
    NonAlphaNumericFilter,
    RepeatedLinesFilter,
    RepeatingDuplicateNGramsFilter,
    RepeatingTopNGramsFilter,
    Score,
    ScoreFilter,
    WordCountFilter,
)
from gristmill.text.statistics import column_statistics


class Short(DocumentFilter):
    """The number of characters, by a user."""

    def score_document(self, text: str) -> float:
        if text == "boom":
            raise ValueError("boom")
        return len(text)

    def keep_document(self, score: float) -> bool:
        return score < 60


CHAIN: list[DocumentFilter] = [
    WordCountFilter(2, 50),
    NonAlphaNumericFilter(0.6),
    RepeatedLinesFilter(0.5),
    Short(),
    BoilerPlateStringFilter(),
    RepeatingTopNGramsFilter(2, 0.6),
    RepeatingDuplicateNGramsFilter(3, 0.4),
]
TEXTS = [
    "one two three.",
    "one",
    None,
    "a b a b a b",
    "- - - -",
    "x\nx\nx",
    "",
    "terms of use",
    "w " * 40,
    "fine text here",
]
PROSE = """The miller's daughter went down to the river with a basket, and she found that the wheel had stopped.
It was not the ice, for there was none; nor was it a branch, though many had come down in the storm last night.
"We have to look at the gate," her father said, and they walked along the bank until they saw the old man waiting."""
words = st.sampled_from(["a", "b", "one", "two", "#", "\n", "terms of use", "word " * 20])
texts = st.none() | st.lists(words, max_size=12).map(" ".join)


def loop(rows: list[str | None]) -> tuple[list[str | None], list[int]]:
    """What the filters keep, one document after the other, and how many each has dropped."""
    kept, dropped = [], Counter[int]()
    for row in rows:
        verdicts = (number for number, one in enumerate(CHAIN) if not one.keep_document(one.score_document(row or "")))
        by = next(verdicts, None)
        if by is None:
            kept.append(row)
        else:
            dropped[by] += 1
    return kept, [dropped[number] for number in range(len(CHAIN))]


def run(stages: list[Any], rows: list[str | None]) -> tuple[DocumentBatch, list[Any]]:
    worker, out = Worker(stages), []
    worker.setup()
    batch = DocumentBatch({"text": pa.array(rows, pa.string()), "n": pa.array(range(len(rows)), pa.int64())})
    worker.run([batch], lambda task, position: out.append(task))
    worker.teardown()
    return out[0], worker.take_stats()


@given(st.lists(texts, max_size=10))
def test_a_chain_is_the_filters_one_by_one(rows: list[str | None]) -> None:
    kept, dropped = loop(rows)
    result, books = run([ScoreFilter(one) for one in CHAIN], rows)
    assert result.data.column("text").to_pylist() == kept
    assert [stat.rows_in - stat.rows_out for stat in books] == dropped
    assert [stat.rows_in for stat in books[1:]] == [stat.rows_out for stat in books[:-1]]
    whole, _ = run([ScoreFilter(CHAIN)], rows)
    assert whole.data.equals(result.data)


@given(st.lists(texts, max_size=10))
def test_scores_are_the_same_in_any_chain(rows: list[str | None]) -> None:
    labels = [f"s{number}" for number in range(len(CHAIN))]
    chained, _ = run([ScoreFilter(one, score_field=label) for one, label in zip(CHAIN, labels, strict=True)], rows)
    scored, _ = run([Score(CHAIN, labels)], rows)
    filtered, _ = run([Score(CHAIN, labels), *(Filter(*pair) for pair in zip(CHAIN, labels, strict=True))], rows)
    assert chained.to_rows() == filtered.to_rows()
    wanted = {label: [one.score_document(row or "") for row in rows] for one, label in zip(CHAIN, labels, strict=True)}
    assert scored.data.select(labels).to_pydict() == wanted


def counting(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, set[str]]]:
    """Rows of the column, rows that are counted and statistics, of each count from now on."""
    seen: list[tuple[int, int, set[str]]] = []
    count = column_statistics.count_column

    def watched(texts: Any, names: Any, rows: Any = None) -> Any:
        seen.append((len(texts), len(texts) if rows is None else rows.true_count, set(names)))
        return count(texts, names, rows)

    monkeypatch.setattr(column_statistics, "count_column", watched)
    return seen


def test_a_chain_counts_once_and_ngrams_only_for_rows_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counting(monkeypatch)
    run([ScoreFilter(one) for one in CHAIN], TEXTS)
    (size, counted, plain), (same_size, left, ngrams) = seen
    assert (size, counted, same_size, left) == (10, 10, 10, 3)
    assert {"words", "chars", "plain", "distinct_lines", "boilerplate_paragraphs"} <= plain
    assert ngrams == {"top_ngram_2", "duplicate_ngram_3"}


def test_text_that_was_changed_is_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counting(monkeypatch)
    stages = [
        ScoreFilter(WordCountFilter(2)),
        Score(len, "n"),
        ScoreFilter(WordCountFilter(3)),
        Modify(lambda text: text.replace(" ", "")),
        ScoreFilter(WordCountFilter(0, 1), score_field="words"),
    ]
    result, _ = run(stages, ["a b c", "a b", "a"])
    assert result.to_rows() == [{"text": "abc", "n": 5.0, "words": 1}]
    assert [counted for _, counted, _ in seen] == [3, 1]


def test_nothing_is_expected_after_the_end() -> None:
    before = list(column_statistics._announced)
    run([ScoreFilter(CHAIN), Modify(str.lower), Score(WordCountFilter(), "n")], TEXTS)
    assert column_statistics._announced == before


def test_only_what_later_stages_need_is_counted_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """And before it, nothing that is needed only after it."""
    counted: list[set[str]] = []
    count = column_statistics.count_column

    def noted(texts: Any, names: Any, *more: Any) -> Any:
        counted.append(set(names))
        return count(texts, names, *more)

    monkeypatch.setattr(column_statistics, "count_column", noted)
    first, change, later = ScoreFilter(WordCountFilter(1)), Modify(str.lower), ScoreFilter([NonAlphaNumericFilter(1.0)])
    again = ScoreFilter(WordCountFilter(2))
    run([first, change, later, again], TEXTS)
    first_count, second_count = (names for names in counted if names)
    assert first_count == {"words"}
    assert second_count >= {*NonAlphaNumericFilter().statistics(), "words"}


def test_what_is_counted_for_some_rows_is_not_taken_for_others() -> None:
    batch = DocumentBatch({"text": ["a b c", "a", "d d d d"]})
    few = batch.keep(pa.array([True, False, True]))
    one = RepeatingTopNGramsFilter(1)
    ScoreFilter(one).process(few)
    assert ScoreFilter(one, score_field="s").decide(batch).scores[one.name].to_pylist() == [
        one.score_document(text) for text in ("a b c", "a", "d d d d")
    ]


def test_pickles_hold_only_the_rows_that_are_left() -> None:
    batch = DocumentBatch({"text": ["x" * 10**6, "a b"]})
    kept: Any = ScoreFilter(WordCountFilter(2)).process(batch)
    raw = pickle.dumps(kept)
    assert len(raw) < 10**4
    assert pickle.loads(raw).to_rows() == [{"text": "a b"}]


def test_rejected_rows_and_quarantine_name_their_stage(tmp_path: Path) -> None:
    rows = [*TEXTS, "boom boom", "boom", "boom"]
    source = DocumentBatch({"text": pa.array(rows, pa.string()), "n": pa.array(range(len(rows)))})
    Pipeline("make", stages=[JsonlWriter(tmp_path / "in")]).run(LocalExecutor(0), initial_tasks=[source])
    chain = [WordCountFilter(1), *CHAIN[1:]]
    stages = [JsonlReader(tmp_path / "in"), *(ScoreFilter(one) for one in chain), JsonlWriter(tmp_path / "out")]
    result = Pipeline("chain", stages=stages).run(
        LocalExecutor(0), run_dir=tmp_path / "run", rejected=tmp_path / "rejected", max_errors=2
    )
    books = {stage.name: stage for stage in result.summary().stages}
    assert books["Short"].quarantined == 2
    assert all(
        stage.rows_in == stage.rows_out + stage.dropped + stage.quarantined for stage in list(books.values())[2:]
    )
    rejected = pq.read_table(tmp_path / "rejected").to_pylist()
    for row in rejected:
        [one] = [one for one in chain if one.name == row["rejected_by"]]
        assert row["rejected_score"] == one.score_document(row["text"] or "")
        assert row["rejected_threshold"] == one.threshold()
    assert len(rejected) + result.summary().rows_out + 2 == len(rows)


def test_the_english_recipe_is_28_filters_and_keeps_prose(tmp_path: Path) -> None:
    rows = [*TEXTS, PROSE, PROSE + "\n" + PROSE, PROSE.upper(), PROSE * 3]
    source = DocumentBatch({"text": pa.array(rows, pa.string())})
    Pipeline("make", stages=[JsonlWriter(tmp_path / "in")]).run(LocalExecutor(0), initial_tasks=[source])
    pipeline = load_recipe(
        "heuristic-english", {"input": str(tmp_path / "in"), "output": str(tmp_path / "out")}
    ).build()
    filters: list[Any] = [stage.filter_obj for stage in pipeline.stages if isinstance(stage, ScoreFilter)]
    assert len(filters) == 28
    result = pipeline.run(LocalExecutor(0))
    kept = [row for row in rows if all(one.keep_document(one.score_document(row or "")) for one in filters)]
    assert kept == [PROSE]
    assert [json.loads(line)["text"] for path in result.files() for line in Path(path).read_text().splitlines()] == kept
