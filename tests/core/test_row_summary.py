"""What a run remembers of its rows: parts add up to the whole, in any order and however they were cut."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.deciding_stage import Decision
from gristmill.core.records.row_summary import (
    SAMPLES,
    RowSummariser,
    RowSummary,
    _count,
    bucket_lower_bound,
    histogram_buckets,
)
from gristmill.core.task import Task
from gristmill.samples.batch import DocumentBatch
from gristmill.text import Filter

STAGE = Filter(len, "text")


def batch(start: int, stop: int) -> DocumentBatch:
    rows = range(start, stop)
    table = pa.table({"text": [f"text {row}" for row in rows], "lang": ["en"] * len(rows), POSITION: list(rows)})
    return DocumentBatch(table, metadata={"file": "a.jsonl"})


def judged(parts: list[tuple[int, int]], shuffle: int = 0) -> RowSummary:
    """All rows are scored by their number; odd ones are dropped. Each part is sent by itself."""
    summariser, sent = RowSummariser([True]), []
    for start, stop in parts:
        rows = range(start, stop)
        keep = pa.array([row % 2 == 0 for row in rows], pa.bool_())
        summariser.decided(0, STAGE, batch(start, stop), Decision(keep, {"number": pa.array(list(rows), pa.int64())}))
        sent.append(summariser.take()["", 0])
    random.Random(shuffle).shuffle(sent)
    total = RowSummary()
    for summary in sent:
        total.add(summary)
    return total


@given(st.lists(st.integers(1, 299), max_size=8), st.integers(0, 9))
def test_parts_add_up_to_the_whole(cuts, shuffle):
    edges = sorted({0, *cuts, 300})
    assert judged(list(pairwise(edges)), shuffle) == judged([(0, 300)])


def test_samples_are_of_dropped_rows_with_their_scores():
    summary = judged([(0, 300)])
    assert len(summary.samples) == SAMPLES
    for _, sample in summary.samples:
        row = sample["position"]
        assert row % 2 == 1
        assert sample == {
            "row": {"text": f"text {row}", "lang": "en"},
            "scores": {"number": row},
            "file": "a.jsonl",
            "position": row,
        }


def test_rows_that_an_earlier_stage_has_marked_as_dropped_are_no_samples():
    rows = batch(0, 100).keep(pa.array([row >= 50 for row in range(100)]))
    keep = pa.array([row >= 80 for row in range(50, 100)])
    summariser = RowSummariser([True])
    summariser.decided(0, STAGE, rows, Decision(keep, {"number": pa.array(range(50, 100))}))
    summary = summariser.take()["", 0]
    assert summary.histograms["number"].total() == 50
    assert len(summary.samples) == SAMPLES
    assert all(50 <= sample["position"] < 80 for _, sample in summary.samples)
    assert all(sample["scores"]["number"] == sample["position"] for _, sample in summary.samples)


def test_rows_are_looked_at_where_they_come_in_and_go_out():
    summariser = RowSummariser([True, True])
    listed, rows = Task(data=None), batch(0, 10)
    summariser.passed(0, False, listed, rows)
    summariser.passed(0, False, rows, rows)  # in between nothing is counted
    summariser.passed(1, True, rows, listed)
    for summary in summariser.take().values():
        assert summary.values == {"lang": {"en": 10}}
        assert dict(summary.histograms["bytes"]) == {(histogram_buckets(pa.array([6.0]))[0].as_py()): 10}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_bucket_holds_numbers_of_about_the_same_size(number):
    low = bucket_lower_bound(histogram_buckets(pa.array([number]))[0].as_py())
    assert abs(low) <= abs(number)
    assert abs(number - low) <= max(abs(number) / 32, 1e-300)


@given(st.integers(0, 64))
def test_small_whole_numbers_are_exact(number):
    assert bucket_lower_bound(histogram_buckets(pa.array([float(number)]))[0].as_py()) == number


@given(st.lists(st.floats(), max_size=8))
def test_few_numbers_are_counted_as_many_are(numbers: list[float]) -> None:
    few, many = RowSummary(), RowSummary()
    _count(few, "score", pa.array(numbers, pa.float64()))
    _count(many, "score", pa.array(numbers * 20, pa.float64()))
    assert few.histograms["score"].keys() == many.histograms["score"].keys()
    assert {bucket: 20 * count for bucket, count in few.histograms["score"].items()} == many.histograms["score"]


def test_scores_that_are_no_numbers_are_left_out():
    summariser = RowSummariser([True])
    scores = {"name": pa.array(["a", "b"]), "nan": pa.array([float("nan"), 1.0]), "none": pa.array([None, 2])}
    summariser.decided(0, STAGE, batch(0, 2), Decision(pa.array([True, True]), scores))
    found = summariser.take()["", 0]
    assert {name: counts.total() for name, counts in found.histograms.items()} == {"nan": 1, "none": 1}
    assert found.samples == []
