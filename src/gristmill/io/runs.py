"""Files of runs: what passes from one segment of a pipeline to the next.

    run, run, run, ...     each some rows of one partition, as an Arrow stream; a column that is the `same` in
                           all of them holds its value once
    index                  for each run: partition, offset, length, rows, bytes; and the columns of all rows

A source writes one file, whatever the number of partitions, and the reader of a partition reads its runs from every
file. A run is read at once: as a rule it is some megabytes at most, but never less than what one batch has for its
partition. Partitions below 0 hold what belongs to no partition.
"""

from __future__ import annotations

import base64
import importlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import reduce
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import orjson
import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.compute import pc
from gristmill.core.errors import InputError
from gristmill.core.native import kernels
from gristmill.core.record import record
from gristmill.core.spread import is_hash
from gristmill.io.write_parquet import ONE_THREAD, value_bytes

if TYPE_CHECKING:
    from gristmill.io.target import Target

SPOOL = -1
"""Rows that stay with their source, batch by batch."""

SAMPLE = -2
"""A few keys, by which partitions of a range of keys are found."""

RUN_BYTES = 8 * 2**20
"""A run ends with the piece that makes it this long."""

LARGE, PIECE = 2**18, 2**16
"""Of runs that are larger, a piece is compressed to see whether it is worth it."""

_MAGIC = b"gristmill runs 1"
_END = len(_MAGIC) + 8
_TAIL = 64 * 2**10


class Place(NamedTuple):
    """Where a run lies in its file, and what is in it."""

    partition: int
    offset: int
    length: int
    rows: int
    nbytes: int
    name: str = ""
    """Of the task, for rows that stay with their source."""
    content: str = ""
    """For these, what was said of the keys that were made of them (`Exchange.content`)."""


@record
class Index:
    """What is in a file. `added` and `wide` are those of a `Fragment`."""

    schema: pa.Schema
    added: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    kind: type[Batch] = Batch
    dataset_name: str = ""
    runs: list[Place] = field(default_factory=list)
    moved: str = ""
    """A hash of the rows that belong to partitions, and of nothing that stays with its source."""

    @property
    def rows(self) -> int:
        """Rows of the source: those that stay, if any do, else those that move."""
        spool = [run.rows for run in self.runs if run.partition == SPOOL]
        return sum(spool) if spool else sum(run.rows for run in self.runs if run.partition >= 0)


class RunsWriter:
    """Writes a file of runs."""

    def __init__(self, file: BinaryIO, index: Index) -> None:
        self.file, self.index = file, index
        self.index.runs = []
        self._offset = 0
        self._moved = blake2b(digest_size=16)  # of hashes of runs, which are quicker

    def spool(self, table: pa.Table, batch: Batch, content: str = "") -> None:
        """What is kept of a batch that stays with its source: its rows, or where they can be read again."""
        self.copy(SPOOL, stream_of(table), batch.num_items, batch.nbytes, batch.lineage.id, content)

    def add(self, partition: int, pieces: Iterable[pa.Table]) -> None:
        """The rows of a partition, as one run or several."""
        waiting: list[pa.Table] = []
        size = 0
        for piece in pieces:
            waiting.append(piece)
            size += piece.nbytes
            if size >= RUN_BYTES:
                self.write(partition, waiting)
                waiting, size = [], 0
        if waiting:
            self.write(partition, waiting)

    def write(self, partition: int, pieces: Sequence[pa.Table]) -> None:
        """Rows of a partition, as one run."""
        if any(piece.schema != pieces[0].schema for piece in pieces):  # a column is the same in one, not in another
            pieces = [plain_table(piece) for piece in pieces]
        table = pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces).combine_chunks()
        self.copy(partition, stream_of(table), table.num_rows, value_bytes(table))

    def copy(self, partition: int, raw: Any, rows: int, nbytes: int, name: str = "", content: str = "") -> None:
        """A run as it is, from elsewhere."""
        self.file.write(raw)
        if partition >= 0:
            self._moved.update(_hash(raw))
        self.index.runs.append(Place(partition, self._offset, len(raw), rows, nbytes, name, content))
        self._offset += len(raw)

    def close(self) -> None:
        """Write the index."""
        about = self.index
        told = {
            "schema": base64.b64encode(about.schema.serialize()).decode(),
            "added": sorted(about.added),
            "wide": sorted(about.wide),
            "kind": name_of_kind(about.kind),
            "dataset_name": about.dataset_name,
            "runs": [list(run) for run in about.runs],
            "moved": self._moved.hexdigest(),
        }
        raw = orjson.dumps(told)
        self.file.write(raw + len(raw).to_bytes(8, "little") + _MAGIC)


def _hash(raw: Any) -> bytes:
    if kernels is None:
        return blake2b(raw, digest_size=16).digest()
    ends = pa.py_buffer(struct.pack("=qq", 0, len(raw)))
    one = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(raw)])
    return kernels.hash128(one, 0)  # type: ignore[no-any-return]


def name_of_kind(kind: type[Batch]) -> str:
    """What a kind of batch is called in a file. One that only a script knows is the nearest that all know."""
    for known in kind.__mro__:
        module, path = known.__module__, known.__qualname__
        if module != "__main__" and "<locals>" not in path and issubclass(known, Batch):
            return f"{module}:{path}"
    return name_of_kind(Batch)


def kind_named(name: str) -> type[Batch]:
    module, _, path = name.partition(":")
    found: Any = reduce(getattr, path.split("."), importlib.import_module(module))
    if not (isinstance(found, type) and issubclass(found, Batch)):
        raise InputError(f"{name} is no kind of batch")
    return found


def stream_of(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if _shrinks(table) else None, use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _shrinks(table: pa.Table) -> bool:
    """Whether compression is worth it, by a piece of the largest column: images and embeddings stay as they are. So do
    rows of which a third is hashes."""
    size = table.nbytes
    if size < LARGE:
        return bool(3 * table.num_rows * sum(kind.byte_width for kind in table.schema.types if is_hash(kind)) < size)
    chunk = max((chunk for column in table.columns for chunk in column.chunks), key=lambda chunk: int(chunk.nbytes))
    largest = max((buffer for buffer in chunk.buffers() if buffer), key=lambda buffer: int(buffer.size))
    start = largest.size // 2
    some = largest.slice(start, min(PIECE, largest.size - start))
    return bool(len(pa.compress(some, codec="lz4_raw")) < 0.9 * some.size)


def table_of(raw: bytes) -> pa.Table:
    return plain_table(_as_written(raw))


def _as_written(raw: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(raw), options=ONE_THREAD) as stream:
        return stream.read_all()


def plain_table(table: pa.Table) -> pa.Table:
    """The rows with a value in each, of columns that are the `same` too."""
    for place, kind in enumerate(table.schema.types):
        if pa.types.is_run_end_encoded(kind):
            values = pc.run_end_decode(table.column(place))
            table = table.set_column(place, table.schema.field(place).with_type(values.type), values)
    return table


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a `plain_table`."""
    for place, kind in enumerate(schema.types):
        if pa.types.is_run_end_encoded(kind):
            schema = schema.set(place, schema.field(place).with_type(kind.value_type))
    return schema


def read_index(target: Target, path: str) -> Index:
    size = target.size(path)
    tail = target.read(path, max(0, size - _TAIL), min(size, _TAIL))
    if not tail.endswith(_MAGIC):
        raise damaged(path, "it does not end as it should")
    length = int.from_bytes(tail[-_END : -len(_MAGIC)], "little")
    if length + _END > len(tail):
        tail = target.read(path, size - _END - length, length + _END)
    told = orjson.loads(tail[-_END - length : -_END])
    return Index(
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told["schema"]))),
        frozenset(told["added"]),
        frozenset(told["wide"]),
        kind_named(told["kind"]),
        told["dataset_name"],
        [Place(*run) for run in told["runs"]],
        told.get("moved", ""),
    )


def read_run(target: Target, path: str, offset: int, length: int, plain: bool = True) -> pa.Table:
    """The rows of one run; without `plain`, as they were written."""
    try:
        raw = target.read(path, offset, length)
    except FileNotFoundError as error:
        raise damaged(path, "it is not there") from error
    if len(raw) != length:
        raise damaged(path, "it is too short")
    return table_of(raw) if plain else _as_written(raw)


def runs_of(target: Target, path: str, index: Index, partition: int, plain: bool = True) -> Iterator[pa.Table]:
    for run in index.runs:
        if run.partition == partition:
            yield read_run(target, path, run.offset, run.length, plain)


def damaged(path: str, why: str) -> InputError:
    return InputError(
        f"{path}, which an earlier part of the pipeline has written, cannot be read: {why}. Is the directory one that "
        "all nodes can see (run_dir=...)? If so, start the run again: what is missing will be done again"
    )
