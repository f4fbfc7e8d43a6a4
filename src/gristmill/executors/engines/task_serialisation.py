"""How a task travels through another engine: as one byte string.

It holds the pickle of a `PackedTask`, followed by the file with its buffers as it is. So passing a task on copies
memory and unpickles nothing. A large task in the object store is not copied: it travels as its number.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Callable
from typing import Any

from gristmill.core.run.task_flow import WorkItem
from gristmill.core.task import Lineage
from gristmill.executors.local.task_transport import PackedTask, pack_task, write_buffer_file

_HEADER_BYTES = 8


def serialise_task(delivery: int, lineage: Lineage, ref: Any) -> bytes:
    """A row of the engine for a task, by its reference, that belongs to a delivery."""
    if not isinstance(ref, PackedTask):
        return _join_bytes((delivery, lineage, None), b"")
    if ref.path is None:
        return _join_bytes((delivery, lineage, ref), b"")
    with open(ref.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body:
        return _join_bytes((delivery, lineage, ref), body)


def _join_bytes(head: tuple[Any, ...], body: Any) -> bytes:
    raw = pickle.dumps(head, 5)
    return b"".join([len(raw).to_bytes(_HEADER_BYTES, "little"), raw, body])


def deserialise_task(row: Any, folders: list[str], fetch: Callable[[int], Any]) -> tuple[int, WorkItem]:
    """The delivery and the task of a row, for a worker of this machine. `fetch` gets a task in the object store."""
    view = memoryview(row)
    start = _HEADER_BYTES + int.from_bytes(view[:_HEADER_BYTES], "little")
    delivery, lineage, packed = pickle.loads(view[_HEADER_BYTES:start])
    if packed is None:
        packed = pack_task(fetch(delivery).load(), folders)
    elif packed.path is not None:
        packed = packed._replace(path=write_buffer_file(view[start:], folders))
    return delivery, WorkItem(lineage, [packed], packed.nbytes)
