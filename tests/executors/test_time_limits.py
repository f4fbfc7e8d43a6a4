"""Stages of Gristmill have a time limit for one record without `timeout_s`; stages of users have none."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, processing_stage
from gristmill.core.errors import WorkerLostError
from gristmill.core.run import time_limits
from gristmill.core.run.time_limits import time_limit
from gristmill.executors import driver
from gristmill.text import (
    DocumentFilter,
    Filter,
    JsonlReader,
    JsonlWriter,
    Modify,
    QuotationUnifier,
    RedactPii,
    ScoreFilter,
    WordCountFilter,
)


class OwnFilter(DocumentFilter):
    """A filter of a user."""

    def score_document(self, text: str) -> float:
        return 0.0

    def keep_document(self, score: float) -> bool:
        return True


class Slow(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Hangs on one row, or in setup."""

    name = "slow"
    max_retries = 0

    def __init__(self, bad: int = -1, setup_seconds: float = 0.0, node_seconds: float = 0.0) -> None:
        self.bad, self.setup_seconds, self.node_seconds = bad, setup_seconds, node_seconds

    def setup_on_node(self) -> None:
        time.sleep(self.node_seconds)

    def setup(self) -> None:
        time.sleep(self.setup_seconds)

    def process(self, task: DocumentBatch) -> DocumentBatch:
        time.sleep(60 * (self.bad in task.data.column("id").to_pylist()))
        return task


class SlowOfTheCatalogue(Slow):
    """The same as a stage of Gristmill."""


SlowOfTheCatalogue.__module__ = "gristmill.text.of_a_test"


def batch() -> list[Any]:
    return [DocumentBatch(pa.table({"id": list(range(8)), "text": ["x"] * 8}))]


@processing_stage
def function(task: DocumentBatch) -> DocumentBatch:
    return task


@pytest.mark.parametrize(
    ("stage", "limit"),
    [
        (ScoreFilter(WordCountFilter()), 600.0),
        (ScoreFilter([WordCountFilter(), WordCountFilter()]), 600.0),
        (Modify(QuotationUnifier()), 600.0),
        (RedactPii(), 600.0),
        (RedactPii().with_(timeout_s=7), 7.0),
        (SlowOfTheCatalogue(), 600.0),
        (Slow(), None),
        (Slow().with_(timeout_s=7), 7.0),
        (function, None),
        (ScoreFilter(OwnFilter()), None),
        (ScoreFilter([WordCountFilter(), OwnFilter()]), None),
        (Filter(lambda number: number > 1, "id"), None),
        (JsonlReader("data").decompose()[-1], None),
        (JsonlWriter("out").decompose()[0], None),
    ],
)
def test_stages_of_the_catalogue_that_work_on_rows_have_a_limit(stage: Any, limit: float | None) -> None:
    assert time_limit(stage, rows=100) == limit


def test_a_record_that_hangs_a_stage_of_the_catalogue_is_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "RECORD_SECONDS", 0.4)
    done = Pipeline("p", stages=[SlowOfTheCatalogue(bad=3)]).run(LocalExecutor(1), batch(), max_errors=1)
    assert sum(task.num_rows for task in done) == 7
    [record] = done.quarantined()
    assert record.row == {"id": 3, "text": "x"}
    assert "s (the limit for rows: 1; timeout_s sets another) and was stopped" in record.error


@pytest.mark.parametrize("hook", ["setup_seconds", "node_seconds"])
def test_a_setup_that_hangs_ends_the_run(monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    monkeypatch.setattr(driver, "SETUP_SECONDS", 0.4)
    with pytest.raises(WorkerLostError, match=r"'slow' .* its setup took more than 0\.4 s and was stopped"):
        Pipeline("p", stages=[Slow(**{hook: 15})]).run(LocalExecutor(1), batch())


class HangingFilter(DocumentFilter):
    """A filter of Gristmill that takes long for each document, and hangs on one."""

    def __init__(self, seconds: float, bad: str = "") -> None:
        self.seconds, self.bad = seconds, bad

    def score_document(self, text: str) -> float:
        time.sleep(60 if text == self.bad else self.seconds)
        return 1.0

    def keep_document(self, score: float) -> bool:
        return True


HangingFilter.__module__ = "gristmill.text.of_a_test"


def numbered(rows: int) -> list[Any]:
    return [DocumentBatch(pa.table({"text": [str(row) for row in range(rows)]}))]


def test_a_hang_in_a_large_batch_is_found_by_the_progress_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "RECORD_SECONDS", 0.3)
    monkeypatch.setattr(time_limits, "ROWS_PER_LIMIT", 8)  # 75 s for the batch, longer than the hang
    stage = ScoreFilter(HangingFilter(0.0, bad="1234")).with_(max_retries=0)
    assert (time_limit(stage, 16), time_limit(stage, 2000)) == (pytest.approx(0.9), pytest.approx(75.3))
    done = Pipeline("p", stages=[stage]).run(LocalExecutor(1), numbered(2000), max_errors=1)
    assert sum(task.num_rows for task in done) == 1999
    [record] = done.quarantined()
    assert record.row == {"text": "1234"}


def test_a_stage_that_makes_progress_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "RECORD_SECONDS", 1.0)
    monkeypatch.setattr(time_limits, "ROWS_PER_LIMIT", 16)
    stage = ScoreFilter(HangingFilter(0.01))
    done = Pipeline("p", stages=[stage]).run(LocalExecutor(1), numbered(400), max_errors=1)  # 4 s; 2 s for 16 rows
    assert sum(task.num_rows for task in done) == 400
    assert done.quarantined() == []
