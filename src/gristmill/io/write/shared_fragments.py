"""Small batches that one worker writes one after the other for the same source share a temporary file.

Creating, renaming and removing a file takes longer than writing a few kilobytes. The first batch of a source has a file
of its own, which may become the final file as it is. The following ones are appended to another: a fragment is sent on
only when its bytes are in the file and the file is closed, so that any process can read it, and bytes that a failed
attempt has appended belong to no fragment. Object stores cannot append: there every batch is an object.
"""

from __future__ import annotations

import io
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gristmill.io.storage.output_directory import OutputDirectory
    from gristmill.io.write.commit import Fragment

SMALL_BATCH_BYTES = 2**16
SHARED_FILE_BYTES = 2**24
"""The size at which a new file is begun: as much is read at a time."""


class SharedFragmentFile:
    """The file that the next small batch of a source is appended to. An object of one worker."""

    def __init__(self) -> None:
        self._source: str | None = None
        self._path = ""
        self._size = 0

    def follows(self, source: str) -> bool:
        """Whether the batch before was of this source too."""
        same, self._source = source == self._source, source
        if not same:
            self._path = ""
        return same

    def append(self, prefix: str, content: memoryview) -> tuple[str, int]:
        """Append the bytes of a fragment; its path and where it begins. A new file begins with `prefix`."""
        if self._path and self._size < SHARED_FILE_BYTES:
            with suppress(FileNotFoundError):  # its source has been committed: this is a repeated attempt
                return self._write(os.O_APPEND, content)
        self._path, self._size = f"{prefix}.{os.urandom(4).hex()}.shared", 0
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        return self._write(os.O_CREAT | os.O_EXCL, content)

    def _write(self, flags: int, content: memoryview) -> tuple[str, int]:
        path, start = self._path, self._size
        self._path = ""  # if this fails the file may end with half a fragment: the next batch begins another
        with open(os.open(path, os.O_WRONLY | flags, 0o666), "wb", buffering=0) as file:
            rest = content
            while rest:
                rest = rest[file.write(rest) :]
        self._path, self._size = path, start + len(content)
        return path, start


def adjacent_joined(fragments: Iterable[Fragment]) -> Iterator[Fragment]:
    """The fragments, those with the same columns that follow each other in a file as one."""
    last: Fragment | None = None
    for fragment in fragments:
        if last is not None and _continues(last, fragment):
            joined = replace(last, rows=last.rows + fragment.rows, size=last.size + fragment.size)
            last = joined.named(last.lineage)
            continue
        if last is not None:
            yield last
        last = fragment
    if last is not None:
        yield last


def _continues(last: Fragment, fragment: Fragment) -> bool:
    return (
        last.start is not None
        and fragment.start == last.start + last.size
        and fragment.data == last.data
        and fragment.schema.equals(last.schema, check_metadata=True)
    )


def open_fragment(fragment: Fragment, target: OutputDirectory) -> BinaryIO:
    """The bytes of a fragment, or of several that are joined."""
    if fragment.start is None:
        return target.open(fragment.data)
    return io.BytesIO(target.read(fragment.data, fragment.start, fragment.size))
