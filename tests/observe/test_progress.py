"""Progress: what is shown, when, and that the terminal is left as it was."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from typing import Any

import pytest

from gristmill import DocumentBatch, FileGroupTask, LocalExecutor, Pipeline, ProcessingStage
from gristmill.core.errors import GristmillError
from gristmill.core.executor import PoolProgress, Progress, Silent
from gristmill.core.result import Summary
from gristmill.core.stats import StageStats
from gristmill.observe import LiveProgress, PlainProgress, default_progress
from gristmill.observe import progress as shown
from gristmill.observe.draw import compact, draw
from gristmill.observe.look import Look, Watch
from gristmill.observe.panel import Panel


class Read(ProcessingStage[FileGroupTask, DocumentBatch]):
    def process(self, task: FileGroupTask) -> DocumentBatch:
        return DocumentBatch(data=[{"text": name} for name in task.data * 5])


class Halve(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task.slice(0, task.num_items // 2)


class Untold(ProcessingStage[Any, Any]):
    def process(self, task: Any) -> Any:
        return task


class Write(ProcessingStage[DocumentBatch, FileGroupTask]):
    def process(self, task: DocumentBatch) -> FileGroupTask:
        return FileGroupTask(data=["out"])


class Commit(ProcessingStage[Any, FileGroupTask]):
    gather = True

    def process(self, task: Any) -> Any:
        return task.data[0]


def plan() -> Any:
    pipeline = Pipeline("shown", stages=[Read(), Untold(), Halve(), Write(), Commit()])
    return pipeline.plan([FileGroupTask(data=["a"])])


def look(*moments: Progress, plan: Any = None) -> Look:
    """What is seen after these moments of a run."""
    watch = Watch(plan)
    for moment in moments:
        watch.saw(moment)
    return watch.look()


def drawn(progress: Progress, width: int, most: int = 1000) -> list[str]:
    seen = look(progress)
    return [plain_text(line).rstrip() for line in draw(seen, [shown.total_line(seen)], width, most)]


def some_progress(**changes: Any) -> Progress:
    stages = [("List", 0, 0), ("Read", 0, 2000), ("Halve", 2000, 1000), ("Write", 1000, 1000), ("Drop", 1000, 0)]
    return Progress(
        stages=[(name, StageStats(rows_in=taken, rows_out=given)) for name, taken, given in stages],
        pools=[PoolProgress("Read + Halve", 2, 1), PoolProgress("Write", 2, 2, 7, 100)],
        **{"sources_seen": 8, "sources_done": 2, "listing_done": True, "seconds": 20.0} | changes,
    )


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


def failing_progress() -> Progress:
    """Ten records could not be read, and three rows were too much for a stage."""
    progress = some_progress()
    progress.stages[1][1].quarantined = 10
    progress.stages[2] = ("Halve", StageStats(rows_in=2000, rows_out=1000, quarantined=3))
    return progress


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
    assert str(summary).endswith("\n13 records could not be processed")


def test_a_summary_without_failures_says_nothing_of_them() -> None:
    shown_text = str(Summary.of(some_progress()))
    assert "quarantine" not in shown_text
    assert shown_text.endswith("seconds above are summed over workers")


def test_unreadable_input_counts_as_read() -> None:
    only = Progress(stages=[("Read", StageStats(quarantined=1)), ("Write", StageStats())])
    assert Summary.of(only).rows_in == 1
    assert str(Summary.of(only)).endswith("1 record could not be processed")


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


@pytest.mark.parametrize(("mode", "kind"), [("off", Silent), ("plain", PlainProgress), ("live", LiveProgress)])
def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch, mode: str, kind: type) -> None:
    monkeypatch.setenv("GRISTMILL_PROGRESS", mode)
    assert type(default_progress()) is kind


def test_a_wrong_choice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_PROGRESS", "lve")
    with pytest.raises(GristmillError, match=r"must be off, plain, live. Did you mean 'live'"):
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


class FakeTerminal(io.StringIO):
    def __init__(self, tty: bool = True) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


# -- plain -------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])
    return now


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
        "gristmill: 2,000 rows in, 0 out; 2 of 8 sources, 00:20, 01:00 left, 100 rows/s; Commit is"
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
        "import sys; from gristmill.observe.progress import default_progress as d; d(); "
        "assert 'rich' not in sys.modules and 'pyarrow' not in sys.modules"
    )
    environment = {key: value for key, value in os.environ.items() if key != "GRISTMILL_PROGRESS"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, stderr=subprocess.PIPE)


# -- live --------------------------------------------------------------------------------------------------


def plain_text(drawn: str) -> str:
    return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[78D])", "", drawn)


def test_drawn_lines_hold_the_counts_and_fit() -> None:
    lines = drawn(some_progress(), 100)
    assert lines[0].split() == ["stage", "rows", "in", "kept", "dropped", "rows/s"]
    assert [line.split() for line in lines[1:5]] == [
        ["Read", "2,000", "100"],
        ["Halve", "2,000", "1,000", "1,000", "100"],
        ["Write", "1,000", "1,000", "0", "50"],
        ["Drop", "1,000", "0", "1,000", "50"],
    ]
    assert lines[5].startswith("2 of 8 sources")
    for width in (20, 40, 60, 80, 200):
        narrow = drawn(some_progress(), width)
        assert len(narrow) == len(lines)
        assert all(len(line) <= width for line in narrow)


def test_a_column_for_errors_is_drawn_when_it_is_needed() -> None:
    lines = drawn(failing_progress(), 100)
    assert lines[0].split() == ["stage", "rows", "in", "kept", "dropped", "errors", "rows/s"]
    assert lines[1].split() == ["Read", "2,000", "10", "100"]
    assert lines[2].split() == ["Halve", "2,000", "1,000", "997", "3", "100"]
    assert lines[3].split() == ["Write", "1,000", "1,000", "0", "50"]


def test_stage_names_are_not_markup() -> None:
    progress = some_progress()
    progress.stages[1] = ("[red]x[/nothing]", progress.stages[1][1])
    assert "[red]x[/nothing]" in "\n".join(drawn(progress, 100))


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (99_949, "99.9k"), (99_960, "100k"), (999_600, "1.0M"), (2.5e12, "2.5T")],
)
def test_short_numbers(number: float, text: str) -> None:
    assert compact(number) == text


def test_live_draws_at_most_five_times_a_second(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    drawn = []
    monkeypatch.setattr(Panel, "show", lambda _, lines: drawn.append(lines))
    observer = LiveProgress()
    observer.started(plan())
    for step in range(100):
        clock[0] = 100.0 + step / 100
        observer.progressed(some_progress())
    observer.finished(some_progress())
    assert 3 <= len(drawn) <= 5


def test_live_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    terminal = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    observer = LiveProgress()
    observer.started(plan())
    clock[0] += 1
    observer.progressed(some_progress())
    assert re.search(r"\x1b\[1;\d+r", terminal.getvalue())
    observer.finished(some_progress())
    assert "\x1b[r" in terminal.getvalue()
    size = len(terminal.getvalue())
    observer.finished(some_progress())
    assert len(terminal.getvalue()) == size


SCRIPT = """
import sys, time
sys.path[:0] = {path!r}
from tests.recipes.own_stages import Fails, MakeDocuments, Slow
from gristmill import LocalExecutor, Pipeline
stages = [MakeDocuments(), Slow(seconds=1.5, lines=30), *([Fails()] if {fails} else [])]
Pipeline("live", stages=stages).run(LocalExecutor(num_workers={workers}))
"""


ROWS = 30


def on_a_terminal(fails: bool, workers: int, columns: int) -> tuple[str, int]:
    """Run a pipeline on a pseudo-terminal; what it wrote, and its exit code."""
    driver, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    code = SCRIPT.format(path=[os.getcwd()], fails=fails, workers=workers)
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("GRISTMILL_PROGRESS", None)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    written: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(driver, written))
    reader.start()
    status = process.wait(60)
    reader.join(10)
    os.close(driver)
    return b"".join(written).decode(), status


def _read_all(number: int, written: list[bytes]) -> None:
    while True:
        try:
            piece = os.read(number, 4096)
        except OSError:  # the other end is closed
            return
        if not piece:
            return
        written.append(piece)


@pytest.mark.parametrize(
    ("fails", "workers", "columns"),
    [
        (False, 2, 60),
        (True, 1, 100),
        pytest.param(False, 1, 80, marks=pytest.mark.slow),
        pytest.param(True, 2, 120, marks=pytest.mark.slow),
        pytest.param(False, 2, 200, marks=pytest.mark.slow),
    ],
)
def test_on_a_real_terminal(fails: bool, workers: int, columns: int) -> None:
    written, status = on_a_terminal(fails, workers, columns)
    assert (status != 0) == fails
    screen = Screen(ROWS)
    frames = screen.watch(written)
    check_panel(frames[-1], columns)
    assert screen.region == (0, ROWS - 1), "the scroll region was not given back"
    text = screen.text()
    for line in range(30):
        assert text.count(f"printed by a stage, line {line}\n") == 1, "the panel hid what a stage printed"
    assert "rows in" not in text, "the panel is still there"
    assert ("the mill has no wind" in text) == fails


def check_panel(frame: list[str], columns: int) -> None:
    """What was on the screen when the panel was last drawn: it is at the bottom, and whole."""
    top = next(row for row, line in enumerate(frame) if line.startswith("stage "))
    header, *stages, total, bottleneck = frame[top:]
    assert all(len(line) <= columns for line in frame)
    assert {"kept", "dropped", "workers"} <= set(header.split())
    assert stages[0].split()[:2] == ["MakeDocuments", "4"]
    assert stages[1].split()[0] == "Slow"
    assert re.match(r"\d of \d sources, 00:\d\d", total)
    assert re.search(r"Slow( \+ Fails)?( is the bottleneck:|,) 1 worker busy \d+%", bottleneck)
    above = [line for line in frame[:top] if line]
    assert above[-1].startswith("printed by a stage"), "what stages print is above the panel"


class Screen:
    """As much of a terminal as the panel uses: rows that scroll inside a region, and what has scrolled away."""

    def __init__(self, rows: int) -> None:
        self.lines = [""] * rows
        self.gone: list[str] = []
        self.row, self.column = 0, 0
        self.region = (0, rows - 1)
        self.saved = (0, 0)

    def watch(self, text: str) -> list[list[str]]:
        """Feed it all; what was on the screen each time that the panel had been drawn."""
        frames = []
        for piece in re.split(r"(?<=\x1b8)", text):
            self.feed(piece)
            if any(line.startswith("stage ") for line in self.lines):
                frames.append([line.rstrip() for line in self.lines])
        return frames

    def feed(self, text: str) -> None:
        for escape, letter in re.findall(r"(\x1b(?:\[[0-9;?]*[A-Za-z]|[78D]))|([\s\S])", text):
            if escape:
                self._escape(escape)
            else:
                self._letter(letter)

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in [*self.gone, *self.lines]) + "\n"

    def _letter(self, letter: str) -> None:
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self._down()
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        top, bottom = self.region
        if self.row == bottom:
            self.gone.append(self.lines.pop(top))
            self.lines.insert(bottom, "")
        else:
            self.row = min(self.row + 1, len(self.lines) - 1)

    def _escape(self, escape: str) -> None:
        numbers = [int(part) for part in re.findall(r"\d+", escape)]
        kind = escape[-1]
        if kind == "7":
            self.saved = (self.row, self.column)
        elif kind == "8":
            self.row, self.column = self.saved
        elif kind == "D":
            self._down()
        elif kind == "A":
            self.row = max(self.row - numbers[0], 0)
        elif kind == "H":
            self.row, self.column = numbers[0] - 1, numbers[1] - 1
        elif kind == "K":
            self.lines[self.row] = ""
        elif kind == "r":
            self.region = (numbers[0] - 1, numbers[1] - 1) if numbers else (0, len(self.lines) - 1)
            self.row, self.column = 0, 0
