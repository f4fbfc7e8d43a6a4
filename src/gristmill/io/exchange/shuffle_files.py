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

from gristmill.core.arrow.hash_partitioning import is_hash_type
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.batch import Batch
from gristmill.core.errors import InputError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.io.write.parquet_format import ONE_THREAD, value_bytes

if TYPE_CHECKING:
    from gristmill.io.storage.output_directory import OutputDirectory

SPOOL_PARTITION = -1
"""Rows that stay with their source, batch by batch."""

SAMPLE_PARTITION = -2
"""A few keys, by which partitions of a range of keys are found."""

SHUFFLE_BLOCK_BYTES = 8 * 2**20
"""A run ends with the piece that makes it this long."""

COMPRESSION_PROBE_ABOVE, COMPRESSION_PROBE_BYTES = 2**18, 2**16
"""Of runs that are larger, a piece is compressed to see whether it is worth it."""

_MAGIC = b"gristmill runs 1"
_FOOTER_BYTES = len(_MAGIC) + 8
_TAIL_BYTES = 64 * 2**10


class ShuffleBlock(NamedTuple):
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


@fast_dataclass
class ShuffleFileIndex:
    """What is in a file. `added` and `wide` are those of a `Fragment`."""

    schema: pa.Schema
    added: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    kind: type[Batch] = Batch
    dataset_name: str = ""
    blocks: list[ShuffleBlock] = field(default_factory=list)
    moved_rows_hash: str = ""
    """A hash of the rows that belong to partitions, and of nothing that stays with its source."""

    @property
    def rows(self) -> int:
        """Rows of the source: those that stay, if any do, else those that move."""
        spool = [run.rows for run in self.blocks if run.partition == SPOOL_PARTITION]
        return sum(spool) if spool else sum(run.rows for run in self.blocks if run.partition >= 0)


class ShuffleFileWriter:
    """Writes a file of runs."""

    def __init__(self, file: BinaryIO, index: ShuffleFileIndex) -> None:
        self.file, self.index = file, index
        self.index.blocks = []
        self._offset = 0
        self._moved = blake2b(digest_size=16)  # of hashes of runs, which are quicker

    def write_spooled(self, table: pa.Table, batch: Batch, content: str = "") -> None:
        """What is kept of a batch that stays with its source: its rows, or where they can be read again."""
        self.copy_block(
            SPOOL_PARTITION, table_to_stream(table), batch.num_items, batch.nbytes, batch.lineage.id, content
        )

    def add(self, partition: int, pieces: Iterable[pa.Table]) -> None:
        """The rows of a partition, as one run or several."""
        waiting: list[pa.Table] = []
        size = 0
        for piece in pieces:
            waiting.append(piece)
            size += piece.nbytes
            if size >= SHUFFLE_BLOCK_BYTES:
                self.write(partition, waiting)
                waiting, size = [], 0
        if waiting:
            self.write(partition, waiting)

    def write(self, partition: int, pieces: Sequence[pa.Table]) -> None:
        """Rows of a partition, as one run."""
        if any(piece.schema != pieces[0].schema for piece in pieces):  # a column is the same in one, not in another
            pieces = [decoded_table(piece) for piece in pieces]
        table = pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces).combine_chunks()
        self.copy_block(partition, table_to_stream(table), table.num_rows, value_bytes(table))

    def copy_block(self, partition: int, raw: Any, rows: int, nbytes: int, name: str = "", content: str = "") -> None:
        """A run as it is, from elsewhere."""
        self.file.write(raw)
        if partition >= 0:
            self._moved.update(_hash(raw))
        self.index.blocks.append(ShuffleBlock(partition, self._offset, len(raw), rows, nbytes, name, content))
        self._offset += len(raw)

    def close(self) -> None:
        """Write the index."""
        about = self.index
        told = {
            "schema": base64.b64encode(about.schema.serialize()).decode(),
            "added": sorted(about.added),
            "wide": sorted(about.wide),
            "kind": batch_class_name(about.kind),
            "dataset_name": about.dataset_name,
            "runs": [list(run) for run in about.blocks],
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


def batch_class_name(kind: type[Batch]) -> str:
    """The public name of a batch class, as it is written to a file, so that the class may move between modules. For a
    class of a script, which other processes cannot import, it is that of the nearest base class that they can."""
    for known in kind.__mro__:
        module, path = known.__module__, known.__qualname__
        if module != "__main__" and "<locals>" not in path and issubclass(known, Batch):
            top = module.partition(".")[0]
            public = getattr(importlib.import_module(top), path, None) is known
            return f"{top if public else module}:{path}"
    return batch_class_name(Batch)


def batch_class_named(name: str) -> type[Batch]:
    module, _, path = name.partition(":")
    home = importlib.import_module(module)
    if path.partition(".")[0] not in vars(home):  # earlier versions wrote the module, from which the class has moved
        home = importlib.import_module(module.partition(".")[0])
    found: Any = reduce(getattr, path.split("."), home)
    if not (isinstance(found, type) and issubclass(found, Batch)):
        raise InputError(f"{name} is no kind of batch")
    return found


def table_to_stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if _is_compressible(table) else None, use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _is_compressible(table: pa.Table) -> bool:
    """Whether compression is worth it, by a piece of the largest column: images and embeddings stay as they are. So do
    rows of which a third is hashes."""
    size = table.nbytes
    if size < COMPRESSION_PROBE_ABOVE:
        return bool(
            3 * table.num_rows * sum(kind.byte_width for kind in table.schema.types if is_hash_type(kind)) < size
        )
    chunk = max((chunk for column in table.columns for chunk in column.chunks), key=lambda chunk: int(chunk.nbytes))
    largest = max((buffer for buffer in chunk.buffers() if buffer), key=lambda buffer: int(buffer.size))
    start = largest.size // 2
    some = largest.slice(start, min(COMPRESSION_PROBE_BYTES, largest.size - start))
    return bool(len(pa.compress(some, codec="lz4_raw")) < 0.9 * some.size)


def table_from_stream(raw: bytes) -> pa.Table:
    return decoded_table(_as_written(raw))


def _as_written(raw: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(raw), options=ONE_THREAD) as stream:
        return stream.read_all()


def decoded_table(table: pa.Table) -> pa.Table:
    """The rows with a value in each, of columns that are the `same` too."""
    for place, kind in enumerate(table.schema.types):
        if pa.types.is_run_end_encoded(kind):
            values = pc.run_end_decode(table.column(place))
            table = table.set_column(place, table.schema.field(place).with_type(values.type), values)
    return table


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a `decoded_table`."""
    for place, kind in enumerate(schema.types):
        if pa.types.is_run_end_encoded(kind):
            schema = schema.set(place, schema.field(place).with_type(kind.value_type))
    return schema


def read_index(target: OutputDirectory, path: str) -> ShuffleFileIndex:
    size = target.size(path)
    tail = target.read(path, max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES))
    if not tail.endswith(_MAGIC):
        raise damaged_file_error(path, "it does not end as it should")
    length = int.from_bytes(tail[-_FOOTER_BYTES : -len(_MAGIC)], "little")
    if length + _FOOTER_BYTES > len(tail):
        tail = target.read(path, size - _FOOTER_BYTES - length, length + _FOOTER_BYTES)
    told = orjson.loads(tail[-_FOOTER_BYTES - length : -_FOOTER_BYTES])
    return ShuffleFileIndex(
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told["schema"]))),
        frozenset(told["added"]),
        frozenset(told["wide"]),
        batch_class_named(told["kind"]),
        told["dataset_name"],
        [ShuffleBlock(*run) for run in told["runs"]],
        told.get("moved", ""),
    )


def read_shuffle_block(target: OutputDirectory, path: str, offset: int, length: int, plain: bool = True) -> pa.Table:
    """The rows of one run; without `plain`, as they were written."""
    try:
        raw = target.read(path, offset, length)
    except FileNotFoundError as error:
        raise damaged_file_error(path, "it is not there") from error
    if len(raw) != length:
        raise damaged_file_error(path, "it is too short")
    return table_from_stream(raw) if plain else _as_written(raw)


def read_partition_blocks(
    target: OutputDirectory, path: str, index: ShuffleFileIndex, partition: int, plain: bool = True
) -> Iterator[pa.Table]:
    for run in index.blocks:
        if run.partition == partition:
            yield read_shuffle_block(target, path, run.offset, run.length, plain)


def damaged_file_error(path: str, why: str) -> InputError:
    return InputError(
        f"{path}, which an earlier part of the pipeline has written, cannot be read: {why}. Is the directory one that "
        "all nodes can see (run_dir=...)? If so, start the run again: what is missing will be done again"
    )
