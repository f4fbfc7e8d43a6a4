"""How a task travels between local processes: by reference.

A task is pickled with its buffers out of band (pickle protocol 5). The pickle, a few hundred bytes, travels in the
message; the buffers, which hold the rows, are written once to a file in shared memory, and the receiver maps
that file instead of copying it. Small buffers travel in the message. Nothing is ever unpickled from a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import pickle
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.executor import TaskRef
from gristmill.core.task import Task
from gristmill.executors.local.zygote import teardown_error_files

INLINE_BYTES = 64 * 1024
_ALIGN = 64
_OVERHEAD_BYTES = 1024
_PREFIX = "gristmill-"
_UNREAD_ERROR_SECONDS = 3600.0
"""How long an abandoned folder with teardown errors is kept: its driver may still read them."""

_serial = itertools.count()


class _PackedFields(NamedTuple):
    head: bytes
    inline: tuple[bytes, ...] = ()
    path: str | None = None
    spans: tuple[tuple[int, int], ...] = ()


class PackedTask(_PackedFields, TaskRef):
    """A task as it travels between processes: its pickle, and its buffers in the message or in a file."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedTask, (self.head, self.inline, self.path, self.spans)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """The size of pickle and buffers, with an allowance for what the driver keeps about the task."""
        return _OVERHEAD_BYTES + len(self.head) + sum(map(len, self.inline)) + sum(size for _, size in self.spans)

    def load(self) -> Task[Any]:
        if self.path is None:
            return _checked_task(pickle.loads(self.head, buffers=self.inline))
        with open(self.path, "rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return _checked_task(
            pickle.loads(self.head, buffers=[view[start : start + size] for start, size in self.spans])
        )

    def release(self) -> None:
        """Remove the file. Processes that have mapped it keep what they have mapped."""
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)


def _checked_task(value: Any) -> Task[Any]:
    assert isinstance(value, Task)
    return value


def pack_task(task: Task[Any], folders: list[str] | None) -> PackedTask:
    """Pack a task, with large buffers in the first folder that has room. Without folders, everything travels inline."""
    task = compact_task(task)
    buffers: list[pickle.PickleBuffer] = []
    head = _dumps(task, buffers)
    raws = [buffer.raw() for buffer in buffers]
    if folders is None or sum(raw.nbytes for raw in raws) <= INLINE_BYTES:
        return PackedTask(head, tuple(bytes(raw) for raw in raws))
    path, spans = _write_to_first_folder(raws, folders)
    return PackedTask(head, (), path, spans)


def compact_task(task: Task[Any]) -> Task[Any]:
    """Copy the rows of a table slice, which would otherwise keep the buffers of the whole table."""
    if not isinstance(task, Batch):
        return task
    table = task.data
    if table.get_total_buffer_size() <= 2 * table.nbytes + INLINE_BYTES:
        return task
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return task.with_data(pa.ipc.open_stream(sink.getvalue()).read_all())


def _dumps(task: Task[Any], buffers: list[pickle.PickleBuffer]) -> bytes:
    """Plain pickle is faster; classes and functions defined in a script need cloudpickle."""
    if type(task).__module__ != "__main__":
        try:
            return pickle.dumps(task, 5, buffer_callback=buffers.append)
        except (pickle.PicklingError, AttributeError, TypeError):
            buffers.clear()
    head: bytes = cloudpickle.dumps(task, 5, buffer_callback=buffers.append)
    return head


def write_buffer_file(raw: memoryview, folders: list[str]) -> str:
    """Write the buffers of a task that was packed on another machine."""
    return _write_to_first_folder([raw], folders)[0]


def _write_to_first_folder(raws: list[memoryview], folders: list[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    for position, folder in enumerate(folders):
        path = f"{folder}/{os.getpid()}-{next(_serial)}"
        try:
            return path, _write_file(path, raws)
        except OSError:  # shared memory is full: use the disk
            Path(path).unlink(missing_ok=True)
            if position + 1 == len(folders):
                raise
    raise AssertionError("no folder to write to")


def _write_file(path: str, raws: list[memoryview]) -> tuple[tuple[int, int], ...]:
    spans = []
    with open(path, "wb") as file:
        for raw in raws:
            file.write(bytes(-file.tell() % _ALIGN))
            spans.append((file.tell(), raw.nbytes))
            file.write(raw)
    return tuple(spans)


class TemporaryFolder:
    """A temporary folder that is removed with this object, or by a later run if all processes of this one are killed.

    A lock, which the kernel drops when the process ends, shows that the folder is in use.
    """

    def __init__(self, parent: str | None = None) -> None:
        if parent is not None:
            Path(parent).mkdir(parents=True, exist_ok=True)
        _remove_abandoned_folders(Path(parent or tempfile.gettempdir()))
        self.path = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent)
        lock = os.open(self.path, os.O_RDONLY)
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)  # shared, because a zygote that outlives the driver locks it too
        self.remove = weakref.finalize(self, _remove, self.path, lock)


def _remove(path: str, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _remove_abandoned_folders(parent: Path) -> None:
    """Remove folders of runs that were killed with all their processes."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        if not is_process_alive(folder.name.removeprefix(_PREFIX).partition("-")[0]):
            with contextlib.suppress(OSError):  # removed, not ours, or locked: its process runs in another container
                lock = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not (
                        teardown_error_files(str(folder))
                        and time.time() - folder.stat().st_mtime < _UNREAD_ERROR_SECONDS
                    ):
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)


def is_process_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):
        return True
    return True


class StoredResult(TaskRef):
    """A result of a run, with the folder of its file, which exists as long as a result needs it."""

    def __init__(self, packed: PackedTask, folder: TemporaryFolder) -> None:
        self.packed, self.folder = packed, folder

    def load(self) -> Task[Any]:
        return self.packed.load()

    def release(self) -> None:
        self.packed.release()


def shared_memory_folder(disk: TemporaryFolder) -> TemporaryFolder:
    """A folder in shared memory, or on disk where there is none."""
    shared = "/dev/shm"  # noqa: S108
    return TemporaryFolder(shared if os.access(shared, os.W_OK) else disk.path)
