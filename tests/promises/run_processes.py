"""The processes of a run, by the mark in their environment: driver, zygote and workers, orphans too. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from tests.promises.fault_pipeline import MARK


def marked(mark: str) -> list[int]:
    """The process ids of a run that are alive."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in _folders():
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def zygotes(driver: int) -> list[int]:
    return [pid for pid, parent in _parents().items() if parent == driver]


def workers(driver: int) -> list[int]:
    """The children of the driver's children, oldest first."""
    parents = _parents()
    return sorted(pid for pid, parent in parents.items() if parents.get(parent) == driver)


def _parents() -> dict[int, int]:
    found = {}
    for folder in _folders():
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(folder.name)] = int(parent)
    return found


def _folders() -> list[Path]:
    return [folder for folder in Path("/proc").iterdir() if folder.name.isdecimal()]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_at_once(pids: Iterable[int]) -> None:
    """Kill processes so that none lives to see another die."""
    pids = list(pids)
    send(pids, signal.SIGSTOP)
    send(pids, signal.SIGKILL)


def outlasting(mark: str, seconds: float) -> list[int]:
    """The processes of a run that are still there after so many seconds."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left
