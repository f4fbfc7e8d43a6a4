"""Memory for decoded objects that is used again.

The system clears memory before it gives it to a process. For the pixels of a batch that takes half as long as decoding
them, each time. So buffers are kept, and used again when no array refers to them.

What is given up: up to `KEPT_BYTES` of memory in a process that has decoded something.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

KEPT_BYTES = 256 * 2**20
BUFFER_STEP_BYTES = 2**18
_UNUSED = 3
"""References to a buffer that is only in the pool: from the list, the loop and the call of `getrefcount`."""


class BufferPool:
    """Buffers by size. A buffer is in use as long as an array refers to it."""

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self.max_bytes, self.size = max_bytes, 0
        self._buffers: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._lock = threading.Lock()

    def borrow(self, size: int) -> npt.NDArray[np.uint8]:
        """An array of `size` bytes. Its memory is used again when the array and all views of it are gone."""
        rounded = -(-size // BUFFER_STEP_BYTES) * BUFFER_STEP_BYTES
        with self._lock:
            same = self._buffers.setdefault(rounded, [])
            for buffer in same:
                if sys.getrefcount(buffer) <= _UNUSED:
                    return buffer[:size]
            buffer = np.empty(rounded, np.uint8)
            if self.size + rounded <= self.max_bytes:
                same.append(buffer)
                self.size += rounded
            return buffer[:size]


BUFFER_POOL = BufferPool()
