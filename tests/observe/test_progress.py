"""Progress: what is counted, which display is chosen, and the one of plain lines."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import Any

import pytest

from gristmill import FileGroupTask, LocalExecutor, Pipeline
from gristmill.core.errors import GristmillError
from gristmill.core.executor import Progress, SilentObserver
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.result import Summary
from gristmill.observe import LiveProgress, PlainProgress, default_progress
from gristmill.observe import progress_lines as shown
from tests.observe.progress_samples import FakeTerminal, Halve, Read, failing_progress, look, plan, some_progress

# -- counting --------------------------------------------------------------------------------------------


def test_rows_in_and_out_of_a_run() -> None:
    summary = Summary.of(some_progress())
    assert (summary.rows_in, summary.rows_out) == (2000, 0)
    assert [line.counted() for line in summary.stages] == [
        ("", "", "", ""),
        ("", "2,000", "", ""),
        ("2,000", "1,000", "1,000", ""),
        ("1,000", "1,000", "0", ""),
        ("1,000", "0", "1,000", ""),
    ]
    empty = Summary.of(Progress())
    assert (empty.rows_in, empty.rows_out) == (0, 0)


def test_rows_in_quarantine_are_neither_kept_nor_dropped() -> None:
    summary = Summary.of(failing_progress())
    assert [summary[name].counted() for name in ("Read", "Halve", "Write")] == [
        ("", "2,000", "", "10"),
        ("2,000", "1,000", "997", "3"),
        ("1,000", "1,000", "0", ""),
    ]
    assert (summary.rows_in, summary.quarantined) == (2010, 13)
    table = [line.split() for line in str(summary).splitlines()]
    assert table[0] == ["stage", "rows", "in", "kept", "dropped", "quarantined", "seconds", "MB/s"]
    assert table[2] == ["Read", "2,000", "10", "0.00", "0.0"]
    assert table[3] == ["Halve", "2,000", "1,000", "997", "3", "0.00", "0.0"]
    assert str(summary).endswith("\n13 records failed and are not included")


def test_a_summary_without_failures_says_nothing_of_them() -> None:
    shown_text = str(Summary.of(some_progress()))
    assert "quarantine" not in shown_text
    assert shown_text.endswith("stage times are summed over all workers")


def test_unreadable_input_counts_as_read() -> None:
    only = Progress(stages=[("Read", StageStats(quarantined=1)), ("Write", StageStats())])
    assert Summary.of(only).rows_in == 1
    assert str(Summary.of(only)).endswith("1 record failed and is not included")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "2 of 8 sources, 00:20, 01:00 left, 100 rows/s"),
        ({"listing_done": False}, "2 of 8+ sources, 00:20, 100 rows/s"),
        ({"sources_done": 0, "seconds": 3700}, "0 of 8 sources, 1:01:40, 1 rows/s"),
    ],
)
def test_total_line(changes: dict[str, Any], line: str) -> None:
    assert shown.total_line(look(some_progress(**changes))) == line


# -- which one ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "kind"), [("off", SilentObserver), ("plain", PlainProgress), ("live", LiveProgress)])
def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch, mode: str, kind: type) -> None:
    monkeypatch.setenv("GRISTMILL_PROGRESS", mode)
    assert type(default_progress()) is kind


def test_a_wrong_choice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_PROGRESS", "lve")
    with pytest.raises(GristmillError, match=r"use off, plain or live. Did you mean 'live'"):
        default_progress()


@pytest.mark.parametrize(
    ("tty", "term", "kind"),
    [(True, "xterm", LiveProgress), (True, "dumb", PlainProgress), (False, "xterm", PlainProgress)],
)
def test_a_terminal_gets_the_live_display(monkeypatch: pytest.MonkeyPatch, tty: bool, term: str, kind: type) -> None:
    monkeypatch.delenv("GRISTMILL_PROGRESS", raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", FakeTerminal(tty))
    assert type(default_progress()) is kind


def test_without_standard_error_it_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRISTMILL_PROGRESS", raising=False)
    monkeypatch.setattr(sys, "stderr", None)
    assert type(default_progress()) is PlainProgress


# -- plain -------------------------------------------------------------------------------------------------


def test_plain_prints_a_line_per_ten_seconds(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    observer = PlainProgress()
    observer.started(plan())
    lines = []
    for second in range(35):
        clock[0] = 100.0 + second
        observer.progressed(some_progress())
        lines.append(capsys.readouterr().err)
    observer.finished(some_progress())
    assert [second for second, line in enumerate(lines) if line] == [10, 20, 30]
    assert lines[10].startswith(
        "gristmill: 2,000 rows in, 0 out; 2 of 8 sources, 00:20, 01:00 left, 100 rows/s; bottleneck: Commit"
    )
    assert lines[10].count("\n") == 1


def test_plain_counts_what_is_in_quarantine(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    observer = PlainProgress()
    observer.started(plan())
    clock[0] += 60
    observer.progressed(failing_progress())
    assert "gristmill: 2,010 rows in, 0 out, 13 quarantined; 2 of 8 sources" in capsys.readouterr().err


def test_plain_survives_a_closed_standard_error(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    observer = PlainProgress()
    observer.started(plan())
    clock[0] += 60
    observer.progressed(some_progress())


def test_a_short_run_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    source = [FileGroupTask(data=["a"])]
    pipeline = Pipeline("short", stages=[Read(), Halve()])
    pipeline.run(LocalExecutor(num_workers=0), initial_tasks=source, observer=PlainProgress())
    assert capsys.readouterr().err == ""


def test_plain_imports_no_rich() -> None:
    code = (
        "import sys; from gristmill.observe.progress_lines import default_progress as d; d(); "
        "assert 'rich' not in sys.modules and 'pyarrow' not in sys.modules"
    )
    environment = {key: value for key, value in os.environ.items() if key != "GRISTMILL_PROGRESS"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, stderr=subprocess.PIPE)
