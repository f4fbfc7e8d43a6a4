"""Starts the zygote as a fork of the driver, which already has loaded everything that workers need.

A fork inherits whatever the driver is in the middle of. So it is only used if the driver has no threads except those
that handle a fork themselves (OpenBLAS, jemalloc), has loaded only the standard library and what Gristmill itself
loads, does not turn warnings into errors, is no worker of `multiprocessing`, and is small. Otherwise the zygote is a
new process, which imports everything again.

What is given up: settings that a program makes in the standard library or numpy, such as its locale, also apply in
forked workers. Its files, signal handlers, log handlers and `__main__` do not.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa

MAX_FORK_BYTES = 2**28
"""A larger driver is not forked: each worker would start with a copy of its page tables."""

_FORK_SAFE_MODULES = sys.stdlib_module_names | {
    "__main__",
    "__mp_main__",
    "cython_runtime",
    "gristmill",
    "numpy",
    "pyarrow",
}
_FORK_SAFE_MODULES |= {"cloudpickle", "orjson", "xxhash", "fsspec", "ftfy", "regex", "wcwidth"}
_FORK_SAFE_MODULES |= {"_distutils_hack", "_virtualenv", "sitecustomize"}  # of the environment
_FORK_SAFE_MODULES |= {"pandas", "dateutil", "pytz", "tzdata", "six"}  # pyarrow loads them to make an array of a list
_FORK_SAFE_MODULES |= {
    "annotated_doc",
    "annotated_types",
    "click",
    "markdown_it",
    "mdurl",
    "pydantic",
    "pydantic_core",
    "pygments",
}
_FORK_SAFE_MODULES |= {
    "rich",
    "shellingham",
    "typer",
    "typing_extensions",
    "typing_inspection",
    "yaml",
}  # of the command line
_GENERATED_MODULE_PREFIXES = ("_cython_", "_sysconfigdata_")
_BLAS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")
_STDERR_FD = 2
_TRIM, _MAPPED = -1, -3  # what `mallopt` calls them
_kept_alive: list[Any] = []
"""Objects of the driver that must not be finalised in the fork."""


class ForkedChild:
    """A forked process, with the part of the interface of `subprocess.Popen` that is used."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> None:
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:  # the program has already waited for all its children
            return


def can_fork() -> bool:
    """Whether a fork of this process is as good as a new one."""
    if sys.platform != "linux" or threading.active_count() > 1 or sys.gettrace() or sys.getprofile():
        return False
    if parent_process() or any(action == "error" for action, *_ in warnings.filters):  # both would apply to stages too
        return False
    names = {name.partition(".")[0] for name in sys.modules}
    if any(name not in _FORK_SAFE_MODULES and not name.startswith(_GENERATED_MODULE_PREFIXES) for name in names):
        return False
    try:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        threads = [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    except (OSError, ValueError):
        return False
    others = sum(name != "jemalloc_bg_thd" for name in threads) - 1
    return resident <= MAX_FORK_BYTES and (not others or others == _call_openblas("get_num_threads") - 1)


def fork_zygote(kept: int, serve: Callable[[], None], defaults: Mapping[str, str]) -> ForkedChild:
    """Run `serve` in a fork of this process. Only the file descriptor `kept` and the standard output stay open.
    `defaults` are environment variables to set if the driver has not."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # it may be closed, or replaced by any object
            stream.flush()  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which `can_fork` has checked
        pid = os.fork()
    if pid:
        return ForkedChild(pid)
    code = 1
    try:
        os.setsid()
        _drop_driver_state(kept)
        _apply_defaults(defaults)
        serve()
        code = 0
    except BaseException:  # noqa: BLE001  no code of the driver may continue here
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _drop_driver_state(kept: int) -> None:
    """Disconnect the fork from the driver: its file descriptors point to /dev/null, its handlers are removed."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= _STDERR_FD:
        os.set_inheritable(null, True)
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if fd not in (kept, null) and not (0 < fd <= _STDERR_FD and _is_open(fd)):
            try:
                os.dup2(null, fd, inheritable=fd <= _STDERR_FD)
            except OSError:  # opened before the limit of open files was lowered: nothing can take its place
                with contextlib.suppress(OSError):
                    os.close(fd)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    gc.freeze()  # objects of the driver must not be finalised here
    _reopen_output(1, "stdout")
    _reopen_output(2, "stderr")
    _kept_alive.append(sys.modules["__main__"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    if logging := sys.modules.get("logging"):
        _reset_logging(logging)
    for name in (
        "_DYNAMIC_CLASS_TRACKER_BY_CLASS",
        "_DYNAMIC_CLASS_TRACKER_BY_ID",
    ):  # otherwise classes from scripts would carry over their state
        getattr(cloudpickle.cloudpickle, name, {}).clear()


def _is_open(fd: int) -> bool:
    """Whether this is the output that the driver was started with, and not another file that got its number."""
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def _reopen_output(fd: int, name: str) -> None:
    """Replace the driver's stream by plain, line-buffered output: other processes write there too."""
    old = getattr(sys, f"__{name}__")
    _kept_alive.extend((old, getattr(sys, name)))
    if old is not None:
        raw = io.BufferedWriter(io.FileIO(fd, "wb", closefd=False))
        stream = io.TextIOWrapper(raw, old.encoding, old.errors, line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _reset_logging(logging: Any) -> None:
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            _kept_alive.extend((logger.handlers, logger.filters))
            logger.handlers, logger.filters = [], []
            logger.setLevel(logging.NOTSET)
            logger.propagate, logger.disabled = True, False
    logging.root.setLevel(logging.WARNING)
    logging.disable(logging.NOTSET)


def _apply_defaults(defaults: Mapping[str, str]) -> None:
    """Apply settings that a new process would read from its environment."""
    threads = "OPENBLAS_NUM_THREADS" in os.environ
    os.environ.update({**defaults, **os.environ})
    libc = ctypes.CDLL(None)
    for variable, option in (("MALLOC_TRIM_THRESHOLD_", _TRIM), ("MALLOC_MMAP_THRESHOLD_", _MAPPED)):
        if os.environ[variable].isdecimal() and hasattr(libc, "mallopt"):
            libc.mallopt(option, int(os.environ[variable]))
    if os.environ["ARROW_DEFAULT_MEMORY_POOL"] == "system":
        pa.set_memory_pool(pa.system_memory_pool())
    if not threads:
        _call_openblas("set_num_threads", 1)


def _call_openblas(call: str, *arguments: int) -> int:
    """Call a function of the OpenBLAS that numpy has loaded; 1 if there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "openblas" in line:
            library = ctypes.CDLL(line.split(maxsplit=5)[-1])
            for name in _BLAS:
                if hasattr(library, name.format(call)):
                    return int(getattr(library, name.format(call))(*arguments))
    return 1
