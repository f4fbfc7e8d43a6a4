"""Memory of this process: how much it has for itself, how it gets some, and how it gives back what it does not use."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path

_LARGE = 2**26  # bytes in large pages: some blocks


def own_memory() -> int:
    """Bytes of memory that this process has for itself alone; 0 where that cannot be told."""
    try:
        resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def use_large_pages() -> None:
    """What this process allocates next lies in large pages, if the system gives them to who asks: a block has thousands
    of small ones, and to get each takes longer than to fill it."""
    libc = ctypes.CDLL(None)
    if not hasattr(mmap, "MADV_HUGEPAGE") or not hasattr(libc, "madvise"):
        return
    libc.malloc.restype = ctypes.c_void_p
    start = libc.malloc(ctypes.c_size_t(_LARGE))
    if start:
        first, end = start + mmap.PAGESIZE & -mmap.PAGESIZE, start + _LARGE & -mmap.PAGESIZE
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_HUGEPAGE)
        libc.free(ctypes.c_void_p(start))  # workers keep it for what comes next (`zygote.py`)


def give_back() -> None:
    """Give the system what is not in use."""
    with contextlib.suppress(AttributeError, OSError):  # other systems than Linux have no such thing
        ctypes.CDLL(None).malloc_trim(0)
