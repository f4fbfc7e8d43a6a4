"""The live display: what is drawn, how often, and that the terminal is left as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest

from gristmill.core.executor import Progress
from gristmill.observe import LiveProgress
from gristmill.observe import progress_lines as shown
from gristmill.observe.live_progress import TerminalPanel, compact_number, render_panel
from tests.observe.progress_samples import FakeTerminal, failing_progress, look, plan, some_progress


def drawn(progress: Progress, width: int, most: int = 1000) -> list[str]:
    seen = look(progress)
    return [plain_text(line).rstrip() for line in render_panel(seen, [shown.total_line(seen)], width, most)]


def plain_text(drawn: str) -> str:
    return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[78D])", "", drawn)


# -- what is drawn ---------------------------------------------------------------------------------------


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
    assert compact_number(number) == text


# -- on a terminal ---------------------------------------------------------------------------------------


def test_live_draws_at_most_five_times_a_second(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    drawn = []
    monkeypatch.setattr(TerminalPanel, "show", lambda _, lines: drawn.append(lines))
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
from tests.recipes.user_stages import Fails, MakeDocuments, Slow
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
    assert re.search(r"(bottleneck|busiest stage): Slow( \+ Fails)? \(1 worker, \d+% busy\)", bottleneck)
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
