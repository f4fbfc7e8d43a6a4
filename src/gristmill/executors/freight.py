"""How a task travels through another engine: as one string of bytes.

The bytes are a parcel's pickle, with the file that holds its buffers appended as it is. So whoever passes it on copies
memory and unpickles nothing. A large task that lies in the object store is not copied: it travels as its number.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Callable
from typing import Any

from gristmill.core.flow import Item
from gristmill.core.task import Lineage
from gristmill.executors.transport import Parcel, pack, write_verbatim

_SIZE = 8


def load_up(convoy: int, lineage: Lineage, ref: Any) -> bytes:
    """A task, by its reference, that belongs to a convoy, as a row of an engine."""
    if not isinstance(ref, Parcel):
        return _bytes((convoy, lineage, None), b"")
    if ref.path is None:
        return _bytes((convoy, lineage, ref), b"")
    with open(ref.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body:
        return _bytes((convoy, lineage, ref), body)


def _bytes(head: tuple[Any, ...], body: Any) -> bytes:
    raw = pickle.dumps(head, 5)
    return b"".join([len(raw).to_bytes(_SIZE, "little"), raw, body])


def unload(row: Any, folders: list[str], fetch: Callable[[int], Any]) -> tuple[int, Item]:
    """The convoy and the task, ready for a worker of this machine. `fetch` gets what lies in the object store."""
    view = memoryview(row)
    start = _SIZE + int.from_bytes(view[:_SIZE], "little")
    convoy, lineage, parcel = pickle.loads(view[_SIZE:start])
    if parcel is None:
        parcel = pack(fetch(convoy).load(), folders)
    elif parcel.path is not None:
        parcel = parcel._replace(path=write_verbatim(view[start:], folders))
    return convoy, Item(lineage, [parcel], parcel.nbytes)
