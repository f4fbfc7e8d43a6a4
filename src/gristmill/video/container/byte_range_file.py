"""A part of a file as a file: the member of an archive, read where it lies."""

from __future__ import annotations

import io
import os
from typing import Any


class ByteRange(io.RawIOBase):
    """`size` bytes of a file from `offset` on, as a file for reading."""

    def __init__(self, file: Any, offset: int, size: int) -> None:
        super().__init__()
        self._file, self._offset, self._size = file, offset, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = max(min(len(buffer), self._size - self._position), 0)
        self._file.seek(self._offset + self._position)
        data = self._file.read(count)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
