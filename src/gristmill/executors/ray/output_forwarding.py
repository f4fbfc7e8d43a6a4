"""What stages print on a cluster, brought to the driver's terminal as it was printed.

Ray's log monitors send what each process of a job writes to its driver. Of that, the lines of workers are passed on as
they are, to standard output or standard error, as on one machine; what Ray itself says is left out. They come a moment
late: so a worker that has printed ends with a mark, and a run is over when the driver has seen the marks.

What is given up: the last lines of a worker that is killed, when the driver ends right after it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

_HANDLER = "ray_print_logs"
_MARK = "\x1egristmill-"
_WORKER_ACTOR_NAMES = re.compile(r"RayWorker|MapWorker|Stage \d+ - GroupStage")
"""What Ray calls our own actors, Ray Data's and Xenna's."""

_SUPPRESSED_TEXT = "Using blocking ray.get inside async actor"
_STREAMS = (1, 2)
_WAIT_SECONDS = 5.0
"""Seconds that the last lines have to arrive."""


class OutputMarker:
    """The worker's side: knows whether it has printed anything."""

    def __init__(self) -> None:
        self._sizes = [_bytes_written(stream) for stream in _STREAMS]

    @property
    def has_new_output(self) -> bool:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        return [_bytes_written(stream) for stream in _STREAMS] != self._sizes

    def mark(self) -> list[str]:
        """End what was printed since the last time with marks."""
        marks = []
        for place, stream in enumerate(_STREAMS):
            if _bytes_written(stream) != self._sizes[place]:
                marks.append(secrets.token_hex(8))
                os.write(stream, f"{_MARK}{marks[-1]}\n".encode())
                self._sizes[place] = _bytes_written(stream)
        return marks


def _bytes_written(stream: int) -> int:
    """How much was written to it; what is no file cannot tell."""
    with contextlib.suppress(OSError):
        found = os.fstat(stream)
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


class OutputForwarder:
    """The driver's side: passes on what workers print."""

    def __init__(self) -> None:
        self.marks: set[str] = set()

    @property
    def is_installed(self) -> bool:
        return any(handler == self.forward for _, handler in _dispatcher().handlers)

    def install(self) -> None:
        """Take the place of Ray's own printer, if there is one: it prefixes lines, and leaves out what is alike."""
        dispatcher = _dispatcher()
        if any(name == _HANDLER for name, _ in dispatcher.handlers):
            dispatcher.remove_handler(_HANDLER)
            dispatcher.add_handler(_HANDLER, self.forward)

    def forward(self, data: Mapping[str, Any]) -> None:
        if not _WORKER_ACTOR_NAMES.match(str(data.get("actor_name") or "")):
            return
        sink = sys.stderr if data.get("is_err") else sys.stdout
        for line in data.get("lines", ()):
            text, marked, mark = line.partition(_MARK)
            if (text or not marked) and _SUPPRESSED_TEXT not in text:
                sink.write(f"{text}\n")
            if marked:
                self.marks.add(mark)
        with contextlib.suppress(OSError, ValueError):
            sink.flush()

    def wait_for_output(self, board: Any) -> None:
        """Wait for the last lines that workers have printed, whose marks are on the board."""
        import ray

        if self.is_installed:
            with contextlib.suppress(ray.exceptions.RayError):
                self.wait_for_marks(ray.get(board.take_output_marks.remote()))

    def wait_for_marks(self, marks: Iterable[str]) -> None:
        """Until all that was printed before the marks is there."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self.marks.issuperset(marks) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.marks.difference_update(marks)


def _dispatcher() -> Any:
    return importlib.import_module("ray._private.ray_logging").global_worker_stdstream_dispatcher


output_forwarder = OutputForwarder()
