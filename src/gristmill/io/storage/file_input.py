"""FileInput: the part of a file to read, and callbacks for the bytes read and the bad records found in it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import (
    BadRecordError,
    InputError,
    MissingDependencyError,
    explain_storage_error,
    is_system_error,
)
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.remote_storage import open_file_system
from gristmill.core.secret_values import remember_secrets
from gristmill.core.task import FileSlice

if TYPE_CHECKING:
    from types import TracebackType

DEFAULT_BLOCK_BYTES = 16 * 2**20
"""Bytes that are read, parsed and passed on at a time by default."""

MAX_BLOCK_BYTES = 512 * 2**20
"""A block becomes one Arrow table, whose text columns can hold less than 2 GiB each."""

MAX_RAW_BYTES = 64 * 2**10
"""How much of a bad record is kept: usually all of it, of a longer one its beginning."""

MAX_BAD_RECORDS = 1000
"""A block is cut after this many bad lines, so that they are handed on and do not accumulate in memory."""

READ_AHEAD_BYTES = 2**20
GLOB_CHARACTERS = frozenset("*?[")

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class BadRecord(NamedTuple):
    """Data that could not be read: its position (byte offset or row number), the reason, its bytes (up to
    `MAX_RAW_BYTES`), and how many records it stands for."""

    position: int
    reason: str
    raw: bytes = b""
    records: int = 1

    @property
    def content(self) -> str | None:
        """The bytes as text; those that are not UTF-8 are written like \\xff."""
        return self.raw.decode(errors="backslashreplace") if self.raw else None


def raise_bad_record(record: BadRecord) -> None:
    raise BadRecordError(f"bad record at {record.position}: {record.reason}")


def ignore(_: object) -> None:
    return


@fast_dataclass(frozen=True)
class FileInput:
    """A part of a file. `on_bad` is called with each bad record, and may raise; `on_bytes` with the bytes read.

    `on_lines` is called before a table is returned whose lines a writer may be able to copy: with their offset, their
    size, and a function that says how closely they match what a writer would write (`LineForm` in `jsonl.py`).
    """

    part: FileSlice
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    blocksize: int = DEFAULT_BLOCK_BYTES
    on_bad: Callable[[BadRecord], None] = raise_bad_record
    on_bytes: Callable[[int], None] = ignore
    on_lines: Callable[[int, int, Callable[[], int]], None] | None = None

    @property
    def path(self) -> str:
        return self.part.path

    def whole(self) -> Self:
        """The file that the part belongs to, for inspection: without callbacks."""
        return replace(self, part=FileSlice(self.part.path), on_bad=ignore, on_bytes=ignore)

    def open(self, read_ahead: bool = True) -> OpenFile:
        """Open the file for reading. Without read-ahead each read is one request, for formats that seek a lot."""
        return OpenFile(self.path, self.storage_options, "readahead" if read_ahead else "none")


class OpenFile:
    """An open file. `failure` is set when a read fails, which tells I/O errors from damaged content."""

    def __init__(self, path: str, storage_options: Mapping[str, Any], cache: str) -> None:
        system, inner = file_system(path, storage_options)
        self._path = path
        self.failure: Exception | None = None
        self.local = isinstance(system, LocalFileSystem)
        """Whether reading the same bytes a second time is cheap."""
        try:
            self._file = system.open(inner, "rb", block_size=READ_AHEAD_BYTES, cache_type=cache)
        except FileNotFoundError as error:
            if self.local and os.path.islink(inner):  # noqa: PTH114
                raise OSError(error.errno, "it is a link to a file that does not exist", path) from error
            raise InputError(f"{path} was deleted after it was listed: start the run again") from error

    def read(self, size: int = -1) -> bytes:
        try:
            data: bytes = self._file.read(size)
        except Exception as error:  # each file system raises its own errors
            self.failure = error
            if is_system_error(error):
                raise
            self.failure = OSError(f"{self._path} cannot be read: {explain_storage_error(error)}")
            raise self.failure from error
        return data

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill the buffer, as far as the file reaches. Returns the bytes read."""
        view = memoryview(buffer)
        filled = 0
        while filled < len(view) and (count := self._file.readinto(view[filled:])):
            filled += count
        return filled

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def fileno(self) -> int:
        return int(self._file.fileno())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LocalFileSystem:
    """The part of fsspec's local file system used here. Importing fsspec takes 0.1 s."""

    protocol = ("file", "local")

    def info(self, path: str) -> dict[str, Any]:
        status = os.stat(path)  # noqa: PTH116
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "file" if stat.S_ISREG(status.st_mode) else "other"
        return {"name": path, "size": status.st_size, "type": kind, "mtime": status.st_mtime_ns}

    def invalidate_cache(self) -> None:
        """Do nothing: there is no cache."""

    def ls(self, path: str, detail: bool = False) -> list[str]:
        return [f"{path.rstrip('/')}/{name}" for name in os.listdir(path)]  # noqa: PTH208

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return open(path, mode)


def file_system(path: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and the path in it."""
    if "::" in path and "://" not in path and os.path.lexists(os.path.expanduser(path)):  # noqa: PTH111
        return LocalFileSystem(), os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
    if "://" not in path and "::" not in path and not GLOB_CHARACTERS & set(path) and not storage_options:
        return LocalFileSystem(), os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
    remember_secrets([storage_options, path])
    try:
        return open_file_system(path, storage_options)
    except ImportError as error:
        extra = "pip install 'gristmill[s3]'" if path.startswith(("s3:", "s3a:")) else "install the package it names"
        raise MissingDependencyError(f"{path} cannot be opened: {error} ({extra})") from error
    except ValueError as error:
        known = " (such as s3, gs, az, hf, https)" if "not known" in str(error) else ""
        raise InputError(f"{path} cannot be opened: {error}{known}") from error


def check_column_names(path: str, names: Iterable[str], fields: Sequence[str] | None) -> None:
    """Raise an InputError if a column to read has a reserved name or a duplicate one."""
    seen: set[str] = set()
    wanted = None if fields is None else frozenset(fields)
    for name in names:
        if wanted is not None and name not in wanted:
            continue
        if name == POSITION:
            raise InputError(
                f"{path} has a column {name!r}, a name reserved for the position of each record: rename it, or "
                "name the columns to read with fields=[...]"
            )
        if name in seen:
            raise InputError(
                f"{path} has two columns {name!r}: rename one, or name the columns to read with fields=[...]"
            )
        seen.add(name)


def parse_size(size: int | str) -> int:
    """Bytes from a number, `"16MB"` (decimal) or `"128MiB"` (binary)."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
        return size
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?)?b?\s*", size.lower()) if isinstance(size, str) else None
    number = int(float(match[1]) * _UNITS[match[2] or ""]) if match else 0
    if number < 1:
        raise ValueError(f"a size is a whole number of bytes, 1 or more, or text like '16MB' or '128MiB', not {size!r}")
    return number


def block_bytes(blocksize: int | str | None) -> int:
    return DEFAULT_BLOCK_BYTES if blocksize is None else min(parse_size(blocksize), MAX_BLOCK_BYTES)


def largest_block_bytes(blocksize: int) -> int:
    """The most bytes of a block: a short rest of a file is added to the last block."""
    return blocksize + blocksize // 4
