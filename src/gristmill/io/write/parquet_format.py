"""Parquet output: fragments are Arrow streams, and the commit writes their rows in row groups.

Row groups, and files with a target size, end at rows determined by their content, never at the end of a fragment. A
commit holds one row group and one fragment in memory. All files of an output have the same columns
(`output_schema.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import field
from functools import reduce
from itertools import chain
from sys import byteorder
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import JSON, is_json
from gristmill.core.arrow.type_widening import conform_columns
from gristmill.core.errors import ColumnError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.io.write.commit import Fragment, OutputFiles, OutputFormat
from gristmill.io.write.output_schema import STRUCTS
from gristmill.io.write.shared_fragments import open_fragment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.io.storage.output_directory import OutputDirectory
    from gristmill.io.write.file_compaction import RowSpan

ROW_GROUP_BYTES = 64 * 2**20
ROW_GROUP_ROWS = 100_000
_READ_BYTES = 4 * 2**20
PARQUET_OPTIONS = (
    "allow_truncated_timestamps",
    "coerce_timestamps",
    "column_encoding",
    "compression_level",
    "data_page_size",
    "data_page_version",
    "dictionary_pagesize_limit",
    "flavor",
    "store_schema",
    "use_byte_stream_split",
    "use_content_defined_chunking",
    "use_dictionary",
    "version",
    "write_page_checksum",
    "write_page_index",
    "write_statistics",
)
"""Options that can be passed on to `pyarrow.parquet.ParquetWriter`."""

ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
"""How Arrow streams are read: most are so small that a second thread and its memory cost more than they save."""

_OFFSETS = {pa.string().id: 4, pa.binary().id: 4, pa.large_string().id: 8, pa.large_binary().id: 8}
_BYTES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


@fast_dataclass(frozen=True)
class ParquetFormat(OutputFormat):
    """Parquet files. With `target_file_size`, a file ends with the row group that reaches that size."""

    compression: str = "zstd"
    row_group_size: int = ROW_GROUP_ROWS
    target_file_size: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    nested: str = STRUCTS
    one_schema: bool = True
    split: str | None = None
    can_join: bool = True
    name: str = "parquet"
    extension: str = ".parquet"
    extensions: tuple[str, ...] = (".parquet",)

    @property
    def shares_fragments(self) -> bool:
        return True

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        with pa.ipc.new_stream(file, table.schema, options=options) as writer:
            writer.write_table(table)

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        import pyarrow.parquet as pq

        if not schema.names:
            raise ColumnError("the rows have no columns, and a Parquet file needs at least one")
        schema = pa.schema([field.with_type(_plain(field.type)) for field in schema], schema.metadata)
        file_size = self.target_file_size
        groups = self._groups(fragment_tables(fragments, schema, parts.target))
        for first in groups:
            about: list[Any] = []
            options = {**self.options, "compression": self.compression, "metadata_collector": about}
            with parts.create() as file:
                with pq.ParquetWriter(file, schema, **options) as writer:
                    for group in chain([first], groups):
                        writer.write_table(group, row_group_size=group.num_rows)
                        if file_size is not None and file.tell() >= file_size:
                            break
                file.rows, file.content = _rows_and_data(about[0])

    def measure(self, file: BinaryIO) -> tuple[int, int]:
        import pyarrow.parquet as pq

        return _rows_and_data(pq.read_metadata(file))

    def join_files(
        self, spans: Sequence[RowSpan], target: OutputDirectory, new: BinaryIO, schema: pa.Schema | None
    ) -> None:
        assert schema is not None  # Parquet files of an output have one
        self._write(new, schema, (table for span in spans for table in _span_tables(span, target)))

    def rewrite(self, old: BinaryIO, own: pa.Schema, new: BinaryIO, schema: pa.Schema) -> None:
        self._write(new, schema, parquet_tables(old))

    def _write(self, file: BinaryIO, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
        """Write rows to one file, in the columns of the schema."""
        import pyarrow.parquet as pq

        schema = pa.schema([field.with_type(_plain(field.type)) for field in schema])
        with pq.ParquetWriter(file, schema, compression=self.compression, **self.options) as writer:
            for group in self._groups(conform_columns(table, schema) for table in tables):
                writer.write_table(group, row_group_size=group.num_rows)

    def _groups(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        file_size = self.target_file_size
        size = ROW_GROUP_BYTES if file_size is None else min(ROW_GROUP_BYTES, file_size)
        return row_groups(tables, size, self.row_group_size)


def _rows_and_data(about: Any) -> tuple[int, int]:
    """The rows of a Parquet file, and its bytes without those that describe it."""
    groups = map(about.row_group, range(about.num_row_groups))
    columns = (group.column(number) for group in groups for number in range(group.num_columns))
    return about.num_rows, sum(column.total_compressed_size for column in columns)


def _span_tables(span: RowSpan, target: OutputDirectory) -> Iterator[pa.Table]:
    skip, left = span.start, span.rows
    with target.open(span.path) as file:
        for table in parquet_tables(file):
            piece = table.slice(skip, left)
            skip, left = max(0, skip - table.num_rows), left - piece.num_rows
            if piece.num_rows:
                yield piece
            if not left:
                return
    raise OSError(f"{span.path} is shorter than when it was written")


def parquet_tables(file: BinaryIO) -> Iterator[pa.Table]:
    """The rows of a Parquet file, in tables of a few megabytes."""
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(file, buffer_size=_READ_BYTES, pre_buffer=False)
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        rows = max(1, group.num_rows * _READ_BYTES // max(group.total_byte_size, 1))
        for batch in parquet.iter_batches(batch_size=rows, row_groups=[number], use_threads=False):
            yield pa.Table.from_batches([batch])


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type as it is written: `arrow.json` with one storage type, and the default name for the items of a fixed-size
    list. Other names are lost in a pickle, so that files would depend on whether rows went through another process."""
    if is_json(kind):
        return JSON
    return pa.list_(kind.value_type, kind.list_size) if pa.types.is_fixed_size_list(kind) else kind


def fragment_tables(fragments: Iterable[Fragment], schema: pa.Schema, target: OutputDirectory) -> Iterator[pa.Table]:
    """The rows of the fragments, batch by batch, in the columns of the schema."""
    for fragment in fragments:
        for batch in stream_batches(fragment, target):
            yield conform_columns(pa.Table.from_batches([batch]), schema)


def stream_batches(fragment: Fragment, target: OutputDirectory) -> Iterator[pa.RecordBatch]:
    """The batches of a fragment of Arrow, which holds several streams if it is made of several."""
    with open_fragment(fragment, target) as file:
        rows = 0
        while rows < fragment.rows:
            with pa.ipc.open_stream(file, options=ONE_THREAD) as stream:
                for batch in stream:
                    rows += batch.num_rows
                    yield batch


def row_groups(pieces: Iterable[pa.Table], most_bytes: int, most_rows: int) -> Iterator[pa.Table]:
    """Regroup rows into tables that end with the row that reaches `most_bytes` or `most_rows`."""
    waiting: list[pa.Table] = []
    size = rows = 0
    for piece in pieces:
        piece_bytes = value_bytes(piece)
        if size + piece_bytes < most_bytes and rows + piece.num_rows < most_rows:
            waiting.append(piece)
            size, rows = size + piece_bytes, rows + piece.num_rows
            continue
        sums = pc.cumulative_sum(row_bytes(piece))
        start = 0
        while start < piece.num_rows:
            before = sums[start - 1].as_py() if start else 0
            end = bisect_left(sums, before + most_bytes - size, start, key=lambda value: value.as_py()) + 1
            end = min(end, piece.num_rows, start + most_rows - rows)
            waiting.append(piece.slice(start, end - start))
            size += sums[end - 1].as_py() - before
            rows += end - start
            if size >= most_bytes or rows >= most_rows:
                yield pa.concat_tables(waiting).combine_chunks()
                waiting, size, rows = [], 0, 0
            start = end
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def row_bytes(table: pa.Table) -> pa.Array:
    """The bytes that the values of each row take."""
    total = pa.repeat(literal(0, pa.int64()), table.num_rows)
    for column in table.combine_chunks().columns:
        chunk = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        total = pc.add(total, array_bytes(chunk))
    return total


def value_bytes(table: pa.Table) -> int:
    """The bytes of all values, independent of how the rows are split into chunks and buffers."""
    return sum(_value_bytes(chunk) for column in table.columns for chunk in column.chunks)


def _value_bytes(array: pa.Array) -> int:
    """Avoids computing a size for each value where it can: most shuffle blocks are small and have many columns."""
    kind, count = array.type, len(array)
    if pa.types.is_run_end_encoded(kind):
        constant = len(array.values) == 1
        return count * _value_bytes(array.values) if constant else _value_bytes(pc.run_end_decode(array))
    width = _OFFSETS.get(kind.id)
    if width is None:
        plain = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind)
        return 8 * count if plain else pc.sum(array_bytes(array)).as_py() or 0
    if array.null_count == count:
        return 0
    if array.null_count:
        return pc.sum(pc.binary_length(array)).as_py() or 0
    ends, first, last = memoryview(array.buffers()[1]), array.offset * width, (array.offset + count) * width
    return int.from_bytes(ends[last : last + width], byteorder) - int.from_bytes(ends[first : first + width], byteorder)


def array_bytes(array: pa.Array) -> pa.Array:
    """The bytes that each value takes: 8 for anything but text, binary and nested values."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return array_bytes(array.storage)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return array_bytes(array.cast(pa.large_binary()))
    if any(test(kind) for test in _BYTES):
        return pc.fill_null(pc.binary_length(array).cast(pa.int64()), literal(0, pa.int64()))
    if pa.types.is_struct(kind) and kind.num_fields:
        return reduce(pc.add, map(array_bytes, array.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _list_bytes(array)
    return pa.repeat(literal(8 * getattr(kind, "list_size", 1), pa.int64()), len(array))


def _list_bytes(array: pa.Array) -> pa.Array:
    zero = make_array([0], pa.int64())
    sums = pa.concat_arrays([zero, pc.cumulative_sum(array_bytes(array.values))])
    offsets = array.offsets
    sizes = pc.subtract(sums.take(offsets[1:]), sums.take(offsets[:-1]))
    return pc.if_else(array.is_valid(), sizes, literal(0, pa.int64()))
