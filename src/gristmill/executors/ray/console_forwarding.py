"""Shows what stages print on a cluster on the driver's terminal, as it was printed.

Ray's log monitors send the output of every process of a job to its driver. Lines of workers are passed on unchanged, to
standard output or standard error, as on one machine; Ray's own lines are left out. They arrive with a delay. So a
worker that has printed something ends with a mark, and a run waits until the driver has seen all marks.

What is given up: the last lines of a worker that is killed, if the driver ends right after it.
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
"""The names of our actors, and of those of Ray Data and Xenna, in Ray's logs."""

_SUPPRESSED_TEXT = "Using blocking ray.get inside async actor"
_STREAMS = (1, 2)
_WAIT_SECONDS = 5.0
"""How long to wait for the last lines."""


class OutputMarker:
    """The worker's side: detects output, and prints marks after it."""

    def __init__(self) -> None:
        self._sizes = [_bytes_written(stream) for stream in _STREAMS]

    @property
    def has_new_output(self) -> bool:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        return [_bytes_written(stream) for stream in _STREAMS] != self._sizes

    def mark(self) -> list[str]:
        """Print a mark on each stream with new output. Returns the marks."""
        marks = []
        for index, stream in enumerate(_STREAMS):
            if _bytes_written(stream) != self._sizes[index]:
                marks.append(secrets.token_hex(8))
                os.write(stream, f"{_MARK}{marks[-1]}\n".encode())
                self._sizes[index] = _bytes_written(stream)
        return marks


def _bytes_written(stream: int) -> int:
    """The size of the file behind a stream; 0 if it is not a file."""
    with contextlib.suppress(OSError):
        status = os.fstat(stream)
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    return 0


class OutputForwarder:
    """The driver's side: prints the lines of workers."""

    def __init__(self) -> None:
        self.marks: set[str] = set()

    @property
    def is_installed(self) -> bool:
        return any(handler == self.forward for _, handler in _dispatcher().handlers)

    def install(self) -> None:
        """Replace Ray's own printer, which prefixes lines and drops similar ones."""
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

    def wait_for_output(self, control_actor: Any) -> None:
        """Wait until the last lines of workers were shown."""
        import ray

        if self.is_installed:
            with contextlib.suppress(ray.exceptions.RayError):
                self.wait_for_marks(ray.get(control_actor.take_output_marks.remote()))

    def wait_for_marks(self, marks: Iterable[str]) -> None:
        """Wait until the marks were seen, and so everything printed before them."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self.marks.issuperset(marks) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.marks.difference_update(marks)


def _dispatcher() -> Any:
    return importlib.import_module("ray._private.ray_logging").global_worker_stdstream_dispatcher


output_forwarder = OutputForwarder()
