"""The zygote: a small process that forks workers, and ensures that none of them outlives the driver.

It has a single thread and has imported what workers need, so that a fork is safe and takes milliseconds, whatever
threads, models or CUDA contexts the driver holds. Where the driver itself is small and has no threads, the zygote is a
fork of it (`driver_fork.py`), otherwise a new process. The user's script is not run again in workers, so it needs no
`if __name__ == "__main__"`. When the driver ends, in whatever way, the zygote kills the workers and removes the
temporary files of the run; when the zygote ends, the kernel kills the workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import os
import shutil
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import GristmillError
from gristmill.executors.local import fast_compute_import
from gristmill.executors.local.driver_fork import ForkedChild, can_fork, fork_zygote

if TYPE_CHECKING:
    import subprocess

_PRELOAD = ("gristmill.", "pyarrow", "fsspec", "orjson", "ftfy", "regex")
_NOT_PRELOADED = ("gristmill.cli", "gristmill.observe", "gristmill.recipes")
_PRELOAD_FOR_WORKERS = {"pyarrow": "pyarrow.compute", "gristmill.dedup.clusters.cluster_table": "pyarrow.parquet"}
_EXIT_SECONDS = 2.0
_STDERR_FD = 2  # the last of the standard streams
TEARDOWN_ERROR_SUFFIX = ".last"
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_MEMORY_SETTINGS = {
    "MALLOC_TRIM_THRESHOLD_": str(2**27),
    "MALLOC_MMAP_THRESHOLD_": str(2**27),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""Keep freed memory for the next block, instead of returning it to the system and having it cleared each time."""

_DEFAULT_ENVIRONMENT = dict.fromkeys(_THREAD_SETTINGS, "1") | _MEMORY_SETTINGS

_ZYGOTE_ENDED_MESSAGE = (
    "the process that starts workers has ended; it may have been killed. Run again with the same run_dir to continue"
)


class Zygote:
    """The driver's handle on the zygote."""

    def __init__(self, folders: list[str], linger: float = 0.0) -> None:
        """`linger` is how many seconds workers have to tear down after the driver is killed. Such a zygote is not a
        child of the driver, because Ray kills the children of its actors."""
        self.outlives_driver = linger > 0
        ours, theirs = _socket_pair()
        forks = not linger and can_fork()
        self._process = _start_fork(theirs) if forks else _start_process(theirs, linger)
        theirs.close()
        self._socket = ours
        self._file = ours.makefile("rwb")
        self._idle: list[tuple[int, Connection, int]] = []
        self._send_message(" ".join(_modules_to_preload(forks)), *folders)
        self.pid = int(self._answer()) if linger else self._process.pid

    def take_worker(self, threads: int) -> tuple[int, Connection]:
        """The pid and channel of an idle worker, or of a new one.

        Libraries read their number of threads only once, so an idle worker must have been set up for the same number.
        """
        for idle in [idle for idle in self._idle if idle[2] == threads][::-1]:
            if _is_idle_and_reusable(idle[1]):
                self._idle.remove(idle)
                return idle[:2]
            self._dismiss(idle)
        return self.fork()

    def keep_idle(self, pid: int, channel: Connection, threads: int, limit: int) -> None:
        """Keep a worker for reuse. If there are already `limit` of them, the oldest is stopped."""
        if len(self._idle) >= limit:
            self._dismiss(self._idle[0])
        self._idle.append((pid, channel, threads))

    def _dismiss(self, idle: tuple[int, Connection, int]) -> None:
        self._idle.remove(idle)
        idle[1].close()
        self.wait(idle[0])

    def fork(self) -> tuple[int, Connection]:
        """Fork a new worker. Returns its pid and the channel to it."""
        ours, theirs = Pipe()
        self._send_message("fork")
        try:
            socket.send_fds(self._socket, [b"."], [theirs.fileno()])
        except OSError as error:
            raise GristmillError(_ZYGOTE_ENDED_MESSAGE) from error
        theirs.close()
        return int(self._answer()), ours

    def set_folders(self, folders: list[str]) -> None:
        """Replace the folders that are removed if the driver is killed."""
        self._send_message("move", *folders)

    def wait(self, pid: int) -> int:
        """The exit code of a worker that has ended, or minus the signal."""
        self._send_message(f"wait {pid}")
        return int(self._answer())

    def close(self) -> None:
        """End the zygote and all workers that are left."""
        with contextlib.suppress(OSError, GristmillError):
            self._send_message("bye")
            self._socket.shutdown(socket.SHUT_WR)
            while self._file.read(1):  # until it has ended
                pass
            self._file.close()
        for _, channel, _ in self._idle:
            channel.close()
        self._socket.close()
        self._process.wait()

    def _send_message(self, *lines: str) -> None:
        try:
            self._file.write("".join(f"{line}\n" for line in lines).encode())
            self._file.flush()
        except OSError as error:
            raise GristmillError(_ZYGOTE_ENDED_MESSAGE) from error

    def _answer(self) -> bytes:
        try:
            answer = self._file.readline()
        except OSError as error:
            raise GristmillError(_ZYGOTE_ENDED_MESSAGE) from error
        if not answer:
            raise GristmillError(_ZYGOTE_ENDED_MESSAGE)
        return answer


def _is_idle_and_reusable(channel: Connection) -> bool:
    """Whether a worker says that it is as good as a new one, and has not died."""
    try:
        return channel.poll(_EXIT_SECONDS) and bool(channel.recv()) and not channel.poll(0)
    except (EOFError, OSError):
        return False


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends, neither in the place of a standard stream that the driver has closed: there a process has others."""
    low: list[int] = []
    while not low or low[-1] <= _STDERR_FD:
        low.append(os.open(os.devnull, os.O_RDONLY))
    pair = socket.socketpair()
    for fd in low:
        os.close(fd)
    return pair


def _start_process(theirs: socket.socket, linger: float) -> subprocess.Popen[bytes]:
    """The zygote as a process of its own."""
    import subprocess

    call = f"serve({theirs.fileno()}, {linger})"
    code = f"import gc, sys; gc.disable(); sys.path[:] = {sys.path!r}; from {__name__} import serve; {call}"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env=_DEFAULT_ENVIRONMENT | os.environ.copy(),
        start_new_session=True,
    )


def _start_fork(theirs: socket.socket) -> ForkedChild:
    """Start the zygote as a fork of this process."""
    return fork_zygote(theirs.fileno(), lambda: serve(theirs.detach()), _DEFAULT_ENVIRONMENT)


def _modules_to_preload(forks: bool) -> list[str]:
    """Modules to import in the zygote: those of this process, unless it is forked, and those that only workers need."""
    wanted = [wanted for name, wanted in _PRELOAD_FOR_WORKERS.items() if name in sys.modules]
    if forks:
        return wanted
    loaded = [name for name in sys.modules if name.startswith(_PRELOAD) and not name.startswith(_NOT_PRELOADED)]
    return wanted + loaded


def serve(fd: int, linger: float = 0.0) -> None:
    """Main function of the zygote. Runs in its own process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # if it were ignored, as in some drivers, workers could not be waited for
    if linger and os.fork():
        os._exit(0)
    with socket.socket(fileno=fd) as control, control.makefile("rwb", buffering=0) as file:
        if linger:
            file.write(b"%d\n" % os.getpid())
        _serve_requests(control, file, linger)


def _serve_requests(control: socket.socket, file: socket.SocketIO, linger: float) -> None:
    gc.disable()  # imports create no garbage worth collecting
    for name in file.readline().decode().split():
        with contextlib.suppress(ImportError):
            fast_compute_import.load() if name == fast_compute_import.NAME else importlib.import_module(name)
    folders = _read_folders(file)
    _lock_folders(folders if linger else [])
    gc.freeze()  # keeps the collector from touching, and so copying, pages that are shared with workers
    gc.enable()
    workers: set[int] = set()
    dismissed = False
    try:
        while line := file.readline():
            command, _, argument = line.decode().strip().partition(" ")
            if command == "fork":
                _, [worker_fd], _, _ = socket.recv_fds(control, 1, 1)
                pid = _fork_worker(worker_fd, control)
                workers.add(pid)
                file.write(b"%d\n" % pid)
            elif command == "bye":
                dismissed = True
            elif command == "move":
                folders = _read_folders(file)
            else:
                pid = int(argument)
                code = _reap(pid)
                workers.discard(pid)
                file.write(b"%d\n" % code)
    except ConnectionError:
        pass  # the driver was killed
    finally:
        if linger and not dismissed:
            _wait_for_teardown(workers, linger)
        for pid in workers:
            _kill_process_group(pid)
            os.waitpid(pid, 0)
        if not dismissed:  # the driver was killed and cannot remove its files itself
            _remove_folders(folders)


def _read_folders(file: socket.SocketIO) -> list[str]:
    return [file.readline().decode().rstrip("\n") for _ in range(2)]


def _lock_folders(folders: list[str]) -> None:
    """Lock the folders against removal by other runs while workers tear down: the driver's lock is gone."""
    for folder in folders:
        with contextlib.suppress(OSError):
            fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)


def _remove_folders(folders: list[str]) -> None:
    for folder in folders:
        if not teardown_error_files(folder):
            shutil.rmtree(folder, ignore_errors=True)


def teardown_error_files(folder: str) -> list[Path]:
    """Files with errors of teardowns that no driver has read."""
    with contextlib.suppress(FileNotFoundError):  # another process has removed it
        return sorted(path for path in Path(folder).iterdir() if path.suffix == TEARDOWN_ERROR_SUFFIX)
    return []


def _wait_for_teardown(workers: set[int], seconds: float) -> None:
    """After the driver has ended: interrupt workers, terminate those still in a call, and wait for their teardown."""
    began = time.monotonic()
    _signal_workers(workers, signal.SIGINT)
    terminated = False
    while workers and (passed := time.monotonic() - began) < seconds:
        if passed > _EXIT_SECONDS and not terminated:
            terminated = True
            _signal_workers(workers, signal.SIGTERM)
        for pid in list(workers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                workers.discard(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)


def _signal_workers(workers: set[int], number: int) -> None:
    for pid in workers:
        os.kill(pid, number)


def _reap(pid: int) -> int:
    """Wait for a worker that is about to end, kill it if it does not, and kill the processes that it has started."""
    deadline = time.monotonic() + _EXIT_SECONDS
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            _kill_process_group(pid)
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(ended[1])


def _kill_process_group(pid: int) -> None:
    """Kill a worker and its process group, which contains the processes that it has started."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _fork_worker(fd: int, control: socket.socket) -> int:
    pid = os.fork()
    if pid:
        os.close(fd)
        return pid
    code = 1
    try:
        os.close(control.fileno())
        os.setsid()
        _die_with_parent()
        if isinstance(sys.stdout, io.TextIOWrapper):  # so that a crash loses no printed lines
            sys.stdout.reconfigure(line_buffering=True)
        from gristmill.executors.local.worker_process import run_worker_process

        run_worker_process(Connection(fd))
        code = 0
    except BaseException:  # noqa: BLE001
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # whatever happens, this process must not continue as a second zygote
                stream.flush()
        os._exit(code)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        libc: Any = ctypes.CDLL(None)
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
