"""Memory for pixels that is used again.

The system clears memory before it gives it to a process. For the pixels of a batch that takes half as long as decoding
them, each time. So buffers are kept, and used again when nobody looks at them any more.

What is given up: up to `KEPT_BYTES` of memory in a process that has decoded images.
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
"""References to a buffer that is only in the pool: the list's, the loop's and that of the call that counts them."""


class BufferPool:
    """Buffers by size. A buffer is in use as long as there is an array that looks at it."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self.max_bytes, self.size = most, 0
        self._buffers: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._lock = threading.Lock()

    def borrow(self, size: int) -> npt.NDArray[np.uint8]:
        """Memory of at least so many bytes, which goes back by being forgotten."""
        room = -(-size // BUFFER_STEP_BYTES) * BUFFER_STEP_BYTES
        with self._lock:
            same = self._buffers.setdefault(room, [])
            for buffer in same:
                if sys.getrefcount(buffer) <= _UNUSED:
                    return buffer[:size]
            made = np.empty(room, np.uint8)
            if self.size + room <= self.max_bytes:
                same.append(made)
                self.size += room
            return made[:size]


BUFFER_POOL = BufferPool()
