"""Checksums of files: XXH3 of 128 bits, as `xxh128sum` makes them too. They tell damage, not forgery.

A checksum costs next to nothing while the bytes are at hand; to read them again for it would cost more than to write
them, and on an object store as much as to fetch them.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

if TYPE_CHECKING:

    class NewFile(BinaryIO):
        """What `ChecksumWriter` is to those who write to it."""

        size: int
        checksum: str


CHECKSUM_KIND = "xxh128"
KNOWN_CHECKSUM_KINDS = (CHECKSUM_KIND, "sha256")
"""Those that are known; the second is that of earlier versions."""

_CHUNK_BYTES = 2**20


class ChecksumWriter(io.BufferedIOBase):
    """A new file, written from its beginning to its end: it knows its size and its checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self.size = file, xxhash.xxh3_128(), 0

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self.size += memoryview(data).nbytes
        return self._file.write(data)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def tell(self) -> int:
        return self.size

    @property
    def raw_file(self) -> Any:
        """What is below the buffer, of a file of this machine."""
        return getattr(self._file, "raw", None)

    @property
    def closed(self) -> bool:
        return self._file.closed

    @property
    def checksum(self) -> str:
        return f"{CHECKSUM_KIND}:{self._hash.hexdigest()}"

    def close(self) -> None:
        """Nothing: who has opened the file still has to put it into place."""


def checksum_of(file: BinaryIO, kind: str = CHECKSUM_KIND) -> str:
    """The checksum of a file that is there. Earlier versions have made those of the kind "sha256"."""
    made: Any = xxhash.xxh3_128() if kind == CHECKSUM_KIND else hashlib.new(kind)
    while some := file.read(_CHUNK_BYTES):
        made.update(some)
    return f"{kind}:{made.hexdigest()}"
