"""Lines that stay at the bottom of a terminal while everything else scrolls above them.

The terminal itself keeps the two apart (a scroll region), so what anyone prints stays to be read: this process,
its workers, C libraries. A process that is killed with -9 leaves the region behind; `reset` removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence

_SAVE, _RESTORE, _DOWN, _CLEAR = "\x1b7", "\x1b8", "\x1bD", "\x1b[2K"


class TerminalPanel:
    """Draws on standard error."""

    def __init__(self) -> None:
        self._rows = 0
        self._height = 0

    def show(self, lines: Sequence[str]) -> None:
        """Replace the panel's lines. The last ones are kept when the terminal is too small for all."""
        rows = terminal_size()[1]
        if rows < 4:
            return
        lines = lines[-max(1, rows // 2) :]
        text = ""
        if (rows, len(lines)) != (self._rows, self._height):
            text = self._leave() + self._enter(rows, len(lines))
        top = rows - len(lines) + 1
        drawn = "".join(f"\x1b[{top + index};1H{_CLEAR}{line}" for index, line in enumerate(lines))
        _write(f"{text}{_SAVE}{drawn}{_RESTORE}")

    def close(self) -> None:
        """Remove the panel. The cursor stays after what was printed last."""
        if self._height:
            _write(self._leave())

    def _enter(self, rows: int, height: int) -> str:
        self._rows, self._height = rows, height
        room = _DOWN * height + f"\x1b[{height}A"  # scrolls what is there up, the cursor with it
        return f"{room}{_SAVE}\x1b[1;{rows - height}r{_RESTORE}"

    def _leave(self) -> str:
        if not self._height:
            return ""
        rows = range(self._rows - self._height + 1, self._rows + 1)
        self._height = 0
        cleared = "".join(f"\x1b[{row};1H{_CLEAR}" for row in rows)
        return f"{_SAVE}\x1b[r{cleared}{_RESTORE}"


def terminal_size() -> tuple[int, int]:
    """Columns and rows."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        size = os.get_terminal_size(sys.stderr.fileno())
        if size.columns and size.lines:
            return size.columns, size.lines
    return shutil.get_terminal_size()


def _write(text: str) -> None:
    """One write, so that nothing of another process comes in between. A terminal that went away is no error."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        try:
            number = sys.stderr.fileno()
        except (OSError, AttributeError):
            sys.stderr.write(text)
            sys.stderr.flush()
        else:
            os.write(number, text.encode())
