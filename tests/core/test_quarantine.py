"""Quarantine: what a record keeps whatever it is, the budget, and what people are told when it is spent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import DocumentBatch, Task
from gristmill.core.errors import ErrorBudgetError, StageError
from gristmill.core.executor import Progress, rows_read
from gristmill.core.records.quarantine import (
    ALL_FAILED,
    MIN_ROWS_FOR_SHARE,
    ErrorBudget,
    Quarantine,
    QuarantinedRecord,
    failed_record,
)
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.task import FileGroupTask, Lineage

ERROR = StageError("grind", "0", (), "ValueError: bad", "Traceback ...")


def record_of(task: Task[Any]) -> dict[str, Any]:
    record = failed_record(task.named(Lineage("0.3", "0", ("a.jsonl",))), ERROR, 3)
    line: dict[str, Any] = json.loads(record.line("a1"))
    assert QuarantinedRecord.of(line).stage == "grind"
    assert QuarantinedRecord.of(line).id == line["id"] == record.id
    return line


# -- whatever a row holds ----------------------------------------------------------------------------------


def test_a_record_holds_the_row_its_place_and_the_error() -> None:
    rows = [{"text": "x", "meta": {"a": [1, None]}, "__position__": 77}]
    line = record_of(DocumentBatch(rows, metadata={"file": "a.jsonl"}))
    assert line["row"] == {"text": "x", "meta": {"a": [1, None]}}
    assert (line["file"], line["position"], line["files"]) == ("a.jsonl", 77, ["a.jsonl"])
    assert (line["stage"], line["kind"], line["error"], line["attempts"]) == ("grind", "raised", "ValueError: bad", 3)
    assert (line["task"], line["source"], line["attempt"]) == ("0.3", "0", "a1")


def test_values_that_json_has_no_form_for() -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    table = pa.table(
        {
            "bytes": [b"\xff\x00"],
            "when": [datetime(2024, 1, 2, tzinfo=UTC)],
            "decimal": [Decimal("1.10")],
            "nan": [float("nan")],
            "list": pa.array([[1, 2]]),
        }
    )
    row = record_of(DocumentBatch(table))["row"]
    assert row["bytes"] == "base64:/wA="
    assert row["decimal"] == "1.10"
    assert row["when"].startswith("2024-01-02")
    assert (row["nan"], row["list"]) == (None, [1, 2])


def test_integers_and_text_that_orjson_refuses() -> None:
    record = QuarantinedRecord("s", "raised", "e", "0", "0", row={"huge": 2**70, "half": "a\ud800b", 5: "key"})
    line = json.loads(record.line())
    assert line["row"] == {"huge": str(2**70), "half": "a\\ud800b", "5": "key"}


def test_a_row_that_python_cannot_read_is_kept_as_far_as_it_can() -> None:
    """Text that is no UTF-8, and a date beyond Python's: what a stage may have failed on."""
    broken = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    late = pa.array([2**40], pa.int64()).cast(pa.timestamp("s"))
    row = record_of(DocumentBatch(pa.table({"n": [1], "text": broken, "late": late})))["row"]
    assert row["n"] == 1
    assert "utf-8" in row["text"]
    assert row["late"]


def test_rows_that_are_too_deep_or_odd_are_described() -> None:
    deep: Any = 0
    for _ in range(5_000):
        deep = [deep]

    class Odd:
        def __str__(self) -> str:
            raise ValueError("no words")

    for row in ({"deep": deep}, {"odd": Odd()}):
        line = json.loads(QuarantinedRecord("s", "raised", "e", "0", "0", row=row).line())
        assert set(line["row"]) == {"repr"}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=4), st.text(), st.text())
def test_any_row_makes_one_line(row: dict[str, Any], error: str, content: str) -> None:
    record = QuarantinedRecord("s", "raised", error, "0", "0", row=row, content=content)
    raw = record.line("a")
    assert b"\n" not in raw
    line = json.loads(raw)
    assert (line["error"], line["content"]) == (error, content)
    assert len(line["row"]) == len(row)


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x" * 10**7, "b'xxx"),
        ("y" * 10**7, "yyy"),
        (list(range(10**6)), "[0, 1, 2"),
        ({"a": "z" * 10**6}, "{'a': 'zz"),
        (Unspeakable(), "Unspeakable"),
        (7, "7"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tasks_are_described_in_bounded_space(data: Any, message: str) -> None:
    content = record_of(Task(data))["content"]
    assert content.startswith(message) or message in content
    assert len(content) <= 10_100


def test_files_are_named() -> None:
    assert "a.jsonl" in record_of(FileGroupTask(["a.jsonl"]))["content"]


# -- the budget --------------------------------------------------------------------------------------------


def test_a_number_and_a_share() -> None:
    assert ErrorBudget.of(3).is_exhausted(4, 10**9)
    assert not ErrorBudget.of(3).is_exhausted(3, 3)
    assert not ErrorBudget.of(0.01).is_exhausted(MIN_ROWS_FOR_SHARE // 100, 1)
    assert ErrorBudget.of(0.01).is_exhausted(MIN_ROWS_FOR_SHARE // 100 + 1, 1)
    assert ErrorBudget.of(0.01).is_exhausted(2, 100, final=True)
    assert not ErrorBudget.of(0.01).is_exhausted(1, 100, final=True)
    assert not ErrorBudget.of(None).is_exhausted(10**9, 1, final=True)
    assert ErrorBudget.of(0).is_exhausted(1, 10**9)
    assert ErrorBudget.of(0.0).is_exhausted(1, 10**9)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 10**5), st.integers(0, 10**5))
def test_what_is_left_is_spent_as_the_whole_would_be(before: int, now: int, rows: int, more: int) -> None:
    for budget in (ErrorBudget.of(300), ErrorBudget.of(0.01), ErrorBudget.of(None)):
        assert budget.remaining(before, rows).is_exhausted(now, more) == budget.is_exhausted(before + now, rows + more)


def test_rows_are_those_read_or_those_that_stages_made_of_them() -> None:
    reader, judge = StageStats(rows_out=900, quarantined=100), StageStats(rows_in=900, rows_out=10, quarantined=9)
    assert rows_read([StageStats(), reader]) == 1000
    assert rows_read([StageStats(rows_in=50, rows_out=10), judge]) == 900
    assert rows_read([StageStats(rows_in=10**6, rows_out=900), judge]) == 10**6
    assert rows_read([StageStats(rows_in=1000, rows_out=500_000, quarantined=500)]) == 1000
    one = StageStats(rows_in=500_000, rows_out=499_999, quarantined=1)
    assert rows_read([StageStats(rows_in=1000, rows_out=500_000, quarantined=500), one]) < 1_010
    assert rows_read([]) == 0


class Notes:
    """A run that only remembers."""

    url = "here"
    resumes = True

    def __init__(self, earlier_errors: tuple[int, int] = (0, 0)) -> None:
        self.earlier_errors = earlier_errors
        self.kept: list[QuarantinedRecord] = []

    def add_quarantined(self, records: Sequence[QuarantinedRecord]) -> None:
        self.kept += records

    def add_counts(self, source: str, group: int, stats: object) -> None: ...

    def quarantined(self) -> Iterator[QuarantinedRecord]:
        return iter([QuarantinedRecord("grind", "raised", "ValueError: old", "0", "0")])


def failures(count: int, error: str = "ValueError: bad {}") -> list[QuarantinedRecord]:
    return [
        QuarantinedRecord("grind", "raised", error.format(index), f"{index}", "0", traceback="trace")
        for index in range(count)
    ]


def test_the_message_sums_up() -> None:
    notes = Notes()
    quarantine = Quarantine(True, ErrorBudget.of(0.01), notes)
    quarantine.take(failures(90), 10_000)
    with pytest.raises(ErrorBudgetError) as caught:
        quarantine.take([*failures(20, "KeyError: 'text'"), *failures(1)], 10_500)
    assert str(caught.value).splitlines() == [
        "stage 'grind' failed on task 0: ValueError: bad 0",
        "",
        "111 of 10,500 records (1.06%) failed, more than max_errors=1% allows: the run was stopped.",
        "         20  stage 'grind': KeyError: 'text'",
        "          2  stage 'grind': ValueError: bad 0",
        "          1  stage 'grind': ValueError: bad 1",
        "          1  stage 'grind': ValueError: bad 2",
        "          1  stage 'grind': ValueError: bad 3",
        "  ... and 86 other causes",
        "To see the failed records: gristmill quarantine list here",
        (
            "Fix the cause and run again: with the same run_dir=... it goes on where this run stopped; "
            "or allow more with max_errors=..."
        ),
        "",
        "trace",
    ]
    assert len(notes.kept) == 111


def test_a_run_that_starts_from_the_beginning_is_not_said_to_go_on() -> None:
    notes = Notes()
    notes.resumes = False
    for quarantine in (Quarantine(True, ErrorBudget.of(0), notes), Quarantine(True, ErrorBudget.of(0))):
        with pytest.raises(ErrorBudgetError, match=r"without run_dir=\.\.\. it starts from the beginning") as caught:
            quarantine.take(failures(1), 10)
        assert "goes on" not in str(caught.value)


def test_causes_that_differ_in_each_record_take_no_memory() -> None:
    quarantine = Quarantine(True, ErrorBudget())
    for start in range(0, 20_000, 1_000):
        quarantine.take(
            [QuarantinedRecord("s", "raised", f"ValueError: {start + n}", "0", "0") for n in range(1000)], 1
        )
    assert len(quarantine._causes) <= 1_001
    assert sum(quarantine._causes.values()) == 20_000


def test_what_earlier_attempts_have_set_aside_counts() -> None:
    """So a run that has failed on too many does not end well by being started again."""
    quarantine = Quarantine(True, ErrorBudget.of(0.01), Notes((30, 1_000)))
    with pytest.raises(ErrorBudgetError, match=r"30 of 1,000 records \(3%\) failed, more than max_errors=1% allows"):
        quarantine.close(Progress())
    assert Quarantine(True, ErrorBudget.of(40), Notes((30, 1_000))).remaining_budget(5, True).is_exhausted(11, 1)
    Quarantine(True, ErrorBudget.of(0.03), Notes((30, 1_000))).close(Progress())


def test_a_stage_that_failed_on_everything_is_told_at_the_end() -> None:
    quarantine = Quarantine(True, ErrorBudget.of(1000))
    quarantine.take(failures(ALL_FAILED), ALL_FAILED)
    all_failed = StageStats(rows_in=ALL_FAILED, quarantined=ALL_FAILED)
    with pytest.raises(ErrorBudgetError, match="stage 'grind' failed on everything that it was given"):
        quarantine.close(Progress([("grind", all_failed)]))
    quarantine.close(Progress([("grind", StageStats(rows_in=ALL_FAILED + 1, quarantined=ALL_FAILED))]))
    Quarantine(True, ErrorBudget.of(None)).close(Progress([("grind", all_failed)]))
