"""Rest: when a process that has torn down the stages of one group may become a worker of another.

To start a worker costs more than many a group has to do: a process has to be forked or, on a cluster, to import all
that stages need. So those of `LocalExecutor` and `RayActorPoolExecutor` rest between groups and segments of a run.

Those that hold GPUs or much memory do not, nor those of a stage that bounds how many tasks a process may see, nor those
that a stage has left in another directory, with other variables of the environment or another mode for new files, with
threads of its own that are no daemons, or with a process that it has started.

What is given up: a process that is new for every group. What a stage leaves in globals, later stages may find there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from pathlib import Path
from typing import Any

from gristmill.executors.machine import private_memory_bytes


def process_state() -> tuple[Any, ...]:
    """What stages may change in their process, and others would find: variables, the directory, the mode of new files,
    threads that go on."""
    threads = {thread.ident for thread in threading.enumerate() if not thread.daemon}
    os.umask(mode := os.umask(0o077))
    with contextlib.suppress(OSError):
        return dict(os.environ), Path.cwd(), mode, threads
    return dict(os.environ), None, mode, threads


def is_reusable(before: tuple[Any, ...], most_bytes: int) -> bool:
    """Whether this process, which had these surroundings, is as good as a new one, and has no more memory than that for
    itself, once it has given back what it does not use."""
    gc.collect()
    if process_state() != before or _has_children():
        return False
    with contextlib.suppress(AttributeError, OSError):  # other systems than Linux have no such thing
        ctypes.CDLL(None).malloc_trim(0)
    return private_memory_bytes() < most_bytes


def _has_children() -> bool:
    if not hasattr(os, "waitid"):  # of macOS only newer versions of Python have it
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
