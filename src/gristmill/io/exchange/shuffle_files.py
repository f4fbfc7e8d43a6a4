"""Shuffle files: how rows are stored between two segments of a pipeline.

    block, block, ...    rows of one partition, as an Arrow stream; a column with one value in all of them is
                         run-end encoded
    index                for each block: partition, offset, length, rows, bytes; and the schema of all rows

A source writes one file, whatever the number of partitions, and the reader of a partition reads its blocks from every
file. A block is read into memory at once: usually a few megabytes, but at least all rows that one batch has for the
partition. Negative partition numbers hold data that belongs to no partition.
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
"""Spooled batches: rows that stay with their source."""

SAMPLE_PARTITION = -2
"""A sample of keys, from which key ranges of equal size are computed."""

SHUFFLE_BLOCK_BYTES = 8 * 2**20
"""A block ends with the piece that makes it at least this large."""

COMPRESSION_PROBE_ABOVE, COMPRESSION_PROBE_BYTES = 2**18, 2**16
"""For larger tables, a sample of this many bytes is compressed to see whether compression pays."""

_MAGIC = b"gristmill runs 1"
_FOOTER_BYTES = len(_MAGIC) + 8
_TAIL_BYTES = 64 * 2**10


class ShuffleBlock(NamedTuple):
    """Where a block is in its file, and what it holds."""

    partition: int
    offset: int
    length: int
    rows: int
    nbytes: int
    name: str = ""
    """The id of the batch, for spooled rows."""
    content: str = ""
    """The checksum of their keys, for spooled rows (`Exchange.content_checksum`)."""


@fast_dataclass
class ShuffleFileIndex:
    """The content of a file. `added` and `wide` are as in `Fragment`."""

    schema: pa.Schema
    added: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    kind: type[Batch] = Batch
    dataset_name: str = ""
    blocks: list[ShuffleBlock] = field(default_factory=list)
    moved_rows_hash: str = ""
    """A hash of the rows that belong to partitions, without spooled rows."""

    @property
    def rows(self) -> int:
        """Rows of the source: the spooled ones if there are any, else those in partitions."""
        spooled = [block.rows for block in self.blocks if block.partition == SPOOL_PARTITION]
        return sum(spooled) if spooled else sum(block.rows for block in self.blocks if block.partition >= 0)


class ShuffleFileWriter:
    """Writes a shuffle file."""

    def __init__(self, file: BinaryIO, index: ShuffleFileIndex) -> None:
        self.file, self.index = file, index
        self.index.blocks = []
        self._offset = 0
        self._moved = blake2b(digest_size=16)  # a hash of the hashes of blocks, which a faster function computes

    def write_spooled(self, table: pa.Table, batch: Batch, content: str = "") -> None:
        """Write a spooled batch: its rows, or no rows and the place where they can be read again."""
        self.copy_block(
            SPOOL_PARTITION, table_to_stream(table), batch.num_items, batch.nbytes, batch.lineage.id, content
        )

    def add(self, partition: int, pieces: Iterable[pa.Table]) -> None:
        """Write rows of a partition, as one block or several."""
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
        """Write rows of a partition as one block."""
        if any(piece.schema != pieces[0].schema for piece in pieces):  # a column is run-end encoded in some only
            pieces = [decoded_table(piece) for piece in pieces]
        table = pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces).combine_chunks()
        self.copy_block(partition, table_to_stream(table), table.num_rows, value_bytes(table))

    def copy_block(self, partition: int, raw: Any, rows: int, nbytes: int, name: str = "", content: str = "") -> None:
        """Write a block that is encoded already."""
        self.file.write(raw)
        if partition >= 0:
            self._moved.update(_hash(raw))
        self.index.blocks.append(ShuffleBlock(partition, self._offset, len(raw), rows, nbytes, name, content))
        self._offset += len(raw)

    def close(self) -> None:
        """Write the index."""
        index = self.index
        content = {
            "schema": base64.b64encode(index.schema.serialize()).decode(),
            "added": sorted(index.added),
            "wide": sorted(index.wide),
            "kind": batch_class_name(index.kind),
            "dataset_name": index.dataset_name,
            "runs": [list(block) for block in index.blocks],
            "moved": self._moved.hexdigest(),
        }
        raw = orjson.dumps(content)
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
        raise InputError(f"{name} is not a subclass of Batch")
    return found


def table_to_stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if _is_compressible(table) else None, use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _is_compressible(table: pa.Table) -> bool:
    """Whether compression pays, judged by a sample of the largest column: it does not for images and embeddings. Small
    tables are not sampled: they are not compressed if a third of their bytes are hashes."""
    size = table.nbytes
    if size < COMPRESSION_PROBE_ABOVE:
        return bool(
            3 * table.num_rows * sum(kind.byte_width for kind in table.schema.types if is_hash_type(kind)) < size
        )
    chunk = max((chunk for column in table.columns for chunk in column.chunks), key=lambda chunk: int(chunk.nbytes))
    largest = max((buffer for buffer in chunk.buffers() if buffer), key=lambda buffer: int(buffer.size))
    start = largest.size // 2
    sample = largest.slice(start, min(COMPRESSION_PROBE_BYTES, largest.size - start))
    return bool(len(pa.compress(sample, codec="lz4_raw")) < 0.9 * sample.size)


def table_from_stream(raw: bytes) -> pa.Table:
    return decoded_table(_as_written(raw))


def _as_written(raw: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(raw), options=ONE_THREAD) as stream:
        return stream.read_all()


def decoded_table(table: pa.Table) -> pa.Table:
    """The table without run-end encoded columns."""
    for place, kind in enumerate(table.schema.types):
        if pa.types.is_run_end_encoded(kind):
            values = pc.run_end_decode(table.column(place))
            table = table.set_column(place, table.schema.field(place).with_type(values.type), values)
    return table


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a `decoded_table`."""
    for place, kind in enumerate(schema.types):
        if pa.types.is_run_end_encoded(kind):
            schema = schema.set(place, schema.field(place).with_type(kind.value_type))
    return schema


def read_index(target: OutputDirectory, path: str) -> ShuffleFileIndex:
    size = target.size(path)
    tail = target.read(path, max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES))
    if not tail.endswith(_MAGIC):
        raise damaged_file_error(path, "it has no index at its end")
    length = int.from_bytes(tail[-_FOOTER_BYTES : -len(_MAGIC)], "little")
    if length + _FOOTER_BYTES > len(tail):
        tail = target.read(path, size - _FOOTER_BYTES - length, length + _FOOTER_BYTES)
    content = orjson.loads(tail[-_FOOTER_BYTES - length : -_FOOTER_BYTES])
    return ShuffleFileIndex(
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content["schema"]))),
        frozenset(content["added"]),
        frozenset(content["wide"]),
        batch_class_named(content["kind"]),
        content["dataset_name"],
        [ShuffleBlock(*block) for block in content["runs"]],
        content.get("moved", ""),
    )


def read_shuffle_block(target: OutputDirectory, path: str, offset: int, length: int, plain: bool = True) -> pa.Table:
    """The rows of one block; without `plain`, with their run-end encoded columns."""
    try:
        raw = target.read(path, offset, length)
    except FileNotFoundError as error:
        raise damaged_file_error(path, "it does not exist") from error
    if len(raw) != length:
        raise damaged_file_error(path, "it is too short")
    return table_from_stream(raw) if plain else _as_written(raw)


def read_partition_blocks(
    target: OutputDirectory, path: str, index: ShuffleFileIndex, partition: int, plain: bool = True
) -> Iterator[pa.Table]:
    for block in index.blocks:
        if block.partition == partition:
            yield read_shuffle_block(target, path, block.offset, block.length, plain)


def damaged_file_error(path: str, why: str) -> InputError:
    return InputError(
        f"{path}, written by an earlier segment of the pipeline, cannot be read: {why}. Make sure that run_dir=... is "
        "a directory that all nodes share, and start the run again: it repeats what is missing"
    )
