"""Checksums of files: 128-bit XXH3, the same as `xxh128sum` prints.

They are computed while bytes are written, which is almost free; reading a file again for its checksum would cost more
than writing it. They detect damage, not tampering: XXH3 is not a cryptographic hash.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

if TYPE_CHECKING:

    class NewFile(BinaryIO):
        """The type that code writing to a `ChecksumWriter` sees."""

        size: int
        checksum: str
        rows: int
        content: int


CHECKSUM_KIND = "xxh128"
KNOWN_CHECKSUM_KINDS = (CHECKSUM_KIND, "sha256")
"""Kinds that can be verified. Earlier versions wrote "sha256"."""

_CHUNK_BYTES = 2**20


class ChecksumWriter(io.BufferedIOBase):
    """A new file that is written sequentially and knows its size and checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self.size = file, xxhash.xxh3_128(), 0
        self.rows = self.content = 0
        """Rows, and bytes that count towards a target size, if the format tells."""

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
        """The unbuffered file, if the file is local."""
        return getattr(self._file, "raw", None)

    @property
    def closed(self) -> bool:
        return self._file.closed

    @property
    def checksum(self) -> str:
        return f"{CHECKSUM_KIND}:{self._hash.hexdigest()}"

    def close(self) -> None:
        """Do nothing: `OutputDirectory.create` closes the file and moves it into place."""


def checksum_of(file: BinaryIO, kind: str = CHECKSUM_KIND) -> str:
    """Read a file and return its checksum."""
    hasher: Any = xxhash.xxh3_128() if kind == CHECKSUM_KIND else hashlib.new(kind)
    while chunk := file.read(_CHUNK_BYTES):
        hasher.update(chunk)
    return f"{kind}:{hasher.hexdigest()}"
