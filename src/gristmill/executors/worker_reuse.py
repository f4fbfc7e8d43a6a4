"""When a process that has torn down the stages of one group may become a worker of another.

Starting a worker costs more than many groups have to do: a process must be forked or, on a cluster, import everything
that stages need. So workers of `LocalExecutor` and `RayActorPoolExecutor` are kept idle between the groups and segments
of a run, and reused.

A worker is not reused if it holds GPUs or much memory, if a stage limits how many tasks a process may see, or if a
stage has changed the process: working directory, environment variables, umask, threads that are not daemons, child
processes.

What is given up: a fresh process for every group. What a stage leaves in globals is visible to later stages.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from pathlib import Path
from typing import Any

from gristmill.executors.machine_resources import private_memory_bytes


def process_state() -> tuple[Any, ...]:
    """What a stage may change for its whole process: environment, working directory, umask, threads."""
    threads = {thread.ident for thread in threading.enumerate() if not thread.daemon}
    os.umask(mode := os.umask(0o077))
    with contextlib.suppress(OSError):
        return dict(os.environ), Path.cwd(), mode, threads
    return dict(os.environ), None, mode, threads


def is_reusable(before: tuple[Any, ...], max_bytes: int) -> bool:
    """Whether this process is as good as a new one: unchanged, no children, and, after freeing unused memory, small."""
    gc.collect()
    if process_state() != before or _has_children():
        return False
    with contextlib.suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    return private_memory_bytes() < max_bytes


def _has_children() -> bool:
    if not hasattr(os, "waitid"):  # missing on macOS before Python 3.13
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
