"""How rows become WebDataset shards and directories of files.

Fragments are Arrow streams; the commit splits their rows into tars of a given number of samples. Beside each tar is a
Parquet file, its index: a row for each sample with all its columns but the bytes, the key under which it is in the tar,
and where the encoded object is there (`offset`, `size`). The bytes of a tar depend on its rows alone.

The files of a sample are `KEY.EXTENSION`. The extension follows the bytes. A key is the id of the sample, made safe for
a tar: no dots in its last part, where WebDataset splits names; no part that leads out of a directory; and with a number
when the shard has the key already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import is_json, json_text, parse_json
from gristmill.core.arrow.type_widening import conform_columns
from gristmill.core.errors import ColumnError
from gristmill.core.task import digest
from gristmill.io.formats.tar import END_OF_ARCHIVE, member_header, member_padding
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import OutputFormat
from gristmill.io.write.parquet_format import ParquetFormat, fragment_tables, row_groups
from gristmill.samples.batch import SampleBatch, usual_extension
from gristmill.samples.sample_files import (
    CAPTION,
    EXTENSION,
    JSON_FILE,
    LABEL,
    LABEL_FILE,
    METADATA,
    SIDECARS,
    TEXT_FILE,
)

if TYPE_CHECKING:
    from gristmill.io.write.commit import Fragment, OutputFiles

KEY, OFFSET, SIZE = "key", "offset", "size"
_NO_LIMIT = 2**62


def _check_encoded_column(kind: type[SampleBatch], schema: pa.Schema) -> None:
    if kind.encoded_column not in schema.names:
        raise ColumnError(
            f"the rows have no column {kind.encoded_column!r}, so there are no {kind.sample_name}s to write. Do not "
            f"remove {kind.sample_name} data before the writer, or write the rows with ParquetWriter"
        )


@dataclass(frozen=True)
class WebDatasetFormat(OutputFormat):
    """Tars of `samples_per_tar` samples, each with an index beside it."""

    kind: type[SampleBatch]
    samples_per_tar: int = 1000
    name: str = "webdataset"
    extension: str = ".tar"
    extensions: tuple[str, ...] = (".tar", ".parquet")
    companion_extensions: tuple[str, ...] = (".parquet",)
    target_file_size: int | None = 0
    """Not None, so that files are numbered: there may be several for a partition."""

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        ParquetFormat().write_fragment(table, file)

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        _check_encoded_column(self.kind, schema)
        tables = fragment_tables(fragments, schema, parts.target)
        for shard in split_into_shards(tables, self.samples_per_tar):
            index = ShardIndex(self.kind)
            with parts.create() as tar:
                self._write(shard, tar, index)
            with parts.create() as file:
                index.write(file)

    def _write(self, shard: Iterable[pa.Table], tar: BinaryIO, index: ShardIndex) -> None:
        taken: set[str] = set()
        at = 0
        for table in shard:
            index.add_columns(table)
            for row in sample_rows(table, self.kind):
                key = unique_key(safe_key(row.get(self.kind.id_column), self.kind), taken)
                offset, size = at, 0
                for number, (extension, data) in enumerate(sample_members(row, self.kind)):
                    head = member_header(f"{key}.{extension}" if extension else key, len(data))
                    if number == 0 and row.get(self.kind.encoded_column) is not None:
                        offset, size = at + len(head), len(data)
                    for piece in (head, data, member_padding(len(data))):
                        tar.write(piece)
                        at += len(piece)
                index.add_sample(key, offset, size)
        tar.write(END_OF_ARCHIVE)


@dataclass(frozen=True)
class DirectoryFormat(OutputFormat):
    """A directory of files for each partition, and an index of them beside it."""

    kind: type[SampleBatch]
    extension: str = ".parquet"
    extensions: tuple[str, ...] = (".parquet",)
    target_file_size: int | None = None

    @property
    def name(self) -> str:
        return f"{self.kind.sample_name}s"

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        ParquetFormat().write_fragment(table, file)

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        """The old index is removed first and the new one written last: while there is one, its files are there."""
        _check_encoded_column(self.kind, schema)
        target, taken = parts.target, set[str]()
        target.remove(target.file(parts.stem + self.extension))
        clear_directory(target, parts.stem)
        index = ShardIndex(self.kind)
        for table in fragment_tables(fragments, schema, target):
            index.add_columns(table)
            for row in sample_rows(table, self.kind):
                key = unique_key(safe_key(row.get(self.kind.id_column), self.kind), taken)
                for extension, data in sample_members(row, self.kind):
                    with target.create(target.file(parts.stem, f"{key}.{extension or 'file'}")) as out:
                        out.write(data)
                index.add_sample(f"{parts.stem}/{key}", 0, len(row.get(self.kind.encoded_column) or b""))
        with parts.create() as file:
            index.write(file)


class ShardIndex:
    """The rows of an index while its shard is written: all columns but the bytes, and where each sample is."""

    def __init__(self, kind: type[SampleBatch]) -> None:
        self._left_out = (kind.encoded_column, SIDECARS)
        self._tables: list[pa.Table] = []
        self._samples: list[tuple[str, int, int]] = []

    def add_columns(self, table: pa.Table) -> None:
        self._tables.append(table.drop_columns([name for name in self._left_out if name in table.column_names]))

    def add_sample(self, key: str, offset: int, size: int) -> None:
        self._samples.append((key, offset, size))

    def write(self, file: BinaryIO) -> None:
        import pyarrow.parquet as pq

        table = pa.concat_tables(self._tables)
        plain = [field.with_type(pa.string() if is_json(field.type) else field.type) for field in table.schema]
        table = conform_columns(table, pa.schema(plain))
        keys, offsets, sizes = zip(*self._samples, strict=True)
        for name, values, kind in (
            (KEY, keys, pa.string()), (OFFSET, offsets, pa.int64()), (SIZE, sizes, pa.int64()),
        ):  # fmt: skip
            column = make_array(list(values), kind)
            if name in table.column_names:
                table = table.set_column(table.column_names.index(name), name, column)
            else:
                table = table.append_column(name, column)
        with pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
            for group in row_groups([table.combine_chunks()], 64 * 2**20, _NO_LIMIT):
                writer.write_table(group, row_group_size=group.num_rows)


def clear_directory(target: OutputDirectory, name: str) -> None:
    """Remove the files of an earlier run from a directory of the output."""
    OutputDirectory(target.file(name), target.storage_options).remove_all()


def split_into_shards(tables: Iterable[pa.Table], samples: int) -> Iterator[Iterator[pa.Table]]:
    """The rows in runs of `samples`, each as a stream: a shard need not fit into memory."""
    waiting = iter(tables)
    rest: list[pa.Table] = []

    def shard(first: pa.Table) -> Iterator[pa.Table]:
        missing, table = samples, first
        while table is not None:
            taken = table.slice(0, missing)
            missing -= taken.num_rows
            if taken.num_rows:
                yield taken
            if not missing:
                rest.extend([table.slice(taken.num_rows)] if table.num_rows > taken.num_rows else [])
                return
            table = next(waiting, None)

    while (first := rest.pop() if rest else next(waiting, None)) is not None:
        if first.num_rows:
            yield shard(first)


def sample_rows(table: pa.Table, kind: type[SampleBatch]) -> Iterator[dict[str, Any]]:
    """Rows, one at a time, with the columns that become files."""
    columns = (kind.id_column, kind.encoded_column, EXTENSION, CAPTION, METADATA, LABEL, SIDECARS)
    wanted = [name for name in columns if name in table.column_names]
    mixed = LABEL in wanted and is_json(table.schema.field(LABEL).type)
    for index in range(table.num_rows):
        row = {name: table.column(name)[index].as_py() for name in wanted}
        if mixed and row[LABEL] is not None:  # the column has numbers and names
            row[LABEL] = parse_json(row[LABEL])
        yield row


def sample_members(row: Mapping[str, Any], kind: type[SampleBatch]) -> Iterator[tuple[str, bytes]]:
    """Extension and bytes of the files of a sample: the object, its caption, metadata and label, and all others."""
    used: set[str] = set()

    def unused(extension: str) -> str:
        while extension.lower() in used:
            extension = f"more.{extension}"
        used.add(extension.lower())
        return extension

    encoded = row.get(kind.encoded_column)
    if encoded is not None:
        yield unused(extension_from_bytes(row.get(EXTENSION), encoded, kind)), encoded
    for name, extension in ((CAPTION, TEXT_FILE), (METADATA, JSON_FILE), (LABEL, LABEL_FILE)):
        if row.get(name) is not None:
            value = row[name]
            text = value if isinstance(value, str) else json_text(value) if name == METADATA else str(value)
            yield unused(extension), text.encode("utf-8", "surrogatepass")
    for sidecar in row.get(SIDECARS) or ():
        extension, data = sidecar.values() if isinstance(sidecar, dict) else sidecar  # a map, in older files
        yield unused(_safe_name(extension)), data


def extension_from_bytes(extension: str | None, data: bytes, kind: type[SampleBatch]) -> str:
    """The extension of an encoded object: the one that it has, unless its bytes are of another format."""
    form = kind.format_of(data)
    given = _safe_name(extension or "")
    if form is None or given.lower().rpartition(".")[2] in kind.formats[form]:
        return given or "bin"
    return usual_extension(kind, data) or given


MAX_NAME_BYTES, MAX_KEY_BYTES = 180, 1000
"""File systems take names of 255 bytes, and paths of 4096."""


def safe_key(sample_id: Any, kind: type[SampleBatch]) -> str:
    """A key for the files of a sample: its id without what has a meaning for WebDataset, tar or a file system."""
    names = [] if sample_id is None else _safe_name(str(sample_id)).split("/")
    parts = ["__" if name == ".." else name for name in names if name not in ("", ".")] or [kind.sample_name]
    parts[-1] = parts[-1].replace(".", "_")
    key = "/".join(map(_short, parts))
    return key if len(key.encode("utf-8", "replace")) <= MAX_KEY_BYTES else digest([key])


def _short(name: str) -> str:
    """The name of a file or directory, as long as file systems allow, with room for an extension."""
    raw = name.encode("utf-8", "replace")
    return name if len(raw) <= MAX_NAME_BYTES else f"{raw[:MAX_NAME_BYTES].decode(errors='ignore')}-{digest([name])}"


def _safe_name(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f\\]", "_", text)


def unique_key(key: str, taken: set[str]) -> str:
    """The key, with a number if it is taken."""
    unique = key
    if key in taken:  # all samples may have one id, so not every number is tried
        low, high = 1, 2
        while f"{key}_{high}" in taken:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if f"{key}_{middle}" in taken else (low, middle)
        unique = f"{key}_{high}"
    taken.add(unique)
    return unique
