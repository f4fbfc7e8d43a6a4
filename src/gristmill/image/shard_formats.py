"""WebDataset shards: fragments are Arrow streams; the commit cuts their rows into tars of so many images.

Beside each tar lies a Parquet file, its index: a row for each sample with all its columns but the bytes, the key under
which it is in the tar, and where the image lies there (`offset`, `size`). The bytes of a tar depend on its rows alone.

The files of a sample are `KEY.EXTENSION`. The extension follows the bytes. A key is the `image_id`, made fit for a tar:
no dots in its last part, where WebDataset cuts names; nothing that would lead out of a directory; and with a number
when the shard has it already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import JSON, json_text, parse_json
from gristmill.core.errors import ColumnError
from gristmill.image.formats import EXTENSIONS, image_extension, image_format
from gristmill.image.image_samples import (
    CAPTION,
    EXTENSION,
    IMAGE,
    IMAGE_ID,
    JSON_FILE,
    LABEL,
    LABEL_FILE,
    METADATA,
    SIDECARS,
    TEXT_FILE,
)
from gristmill.io.formats.tar import END_OF_ARCHIVE, member_header, member_padding
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import OutputFormat
from gristmill.io.write.parquet_format import ParquetFormat, fragment_tables, row_groups

if TYPE_CHECKING:
    from gristmill.io.write.commit import Fragment, OutputFiles

KEY, OFFSET, SIZE = "key", "offset", "size"
_NO_LIMIT = 2**62

_NO_IMAGES = (
    f"the rows have no column {IMAGE!r}, so there are no images to write. Do not remove image data before the writer, "
    "or write the rows with ParquetWriter"
)


@dataclass(frozen=True)
class WebDatasetFormat(OutputFormat):
    """Tars of `images_per_tar` samples, each with an index beside it."""

    images_per_tar: int = 1000
    name: str = "webdataset"
    extension: str = ".tar"
    extensions: tuple[str, ...] = (".tar", ".parquet")
    companion_extensions: tuple[str, ...] = (".parquet",)
    target_file_size: int | None = 0
    """Files are numbered, since they are cut."""

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        ParquetFormat().write_fragment(table, file)

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        if IMAGE not in schema.names:
            raise ColumnError(_NO_IMAGES)
        rest = fragment_tables(fragments, schema, parts.target)
        for shard in _split_into_shards(rest, self.images_per_tar):
            places: list[tuple[str, int, int]] = []
            tables_of_shard: list[pa.Table] = []
            with parts.create() as tar:
                self._write(shard, tar, places, tables_of_shard)
            with parts.create() as file:
                write_shard_index(tables_of_shard, places, file)

    def _write(
        self, shard: Iterable[pa.Table], tar: BinaryIO, places: list[tuple[str, int, int]], kept: list[pa.Table]
    ) -> None:
        taken: set[str] = set()
        at = 0
        for table in shard:
            kept.append(drop_encoded_bytes(table))
            for row in sample_rows(table):
                key = unique_key(safe_key(row.get(IMAGE_ID)), taken)
                place = (key, at, 0)
                for number, (extension, data) in enumerate(sample_members(row)):
                    head = member_header(f"{key}.{extension}" if extension else key, len(data))
                    if number == 0 and row.get(IMAGE) is not None:
                        place = (key, at + len(head), len(data))
                    for piece in (head, data, member_padding(len(data))):
                        tar.write(piece)
                        at += len(piece)
                places.append(place)
        tar.write(END_OF_ARCHIVE)


@dataclass(frozen=True)
class DirectoryFormat(OutputFormat):
    """A directory of files for each partition, and an index of them beside it."""

    name: str = "images"
    extension: str = ".parquet"
    extensions: tuple[str, ...] = (".parquet",)
    target_file_size: int | None = None

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        ParquetFormat().write_fragment(table, file)

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        """The index goes first and comes back last: while it is there, so are its files."""
        if IMAGE not in schema.names:
            raise ColumnError(_NO_IMAGES)
        target, taken = parts.target, set[str]()
        target.remove(target.file(parts.stem + self.extension))
        clear_directory(target, parts.stem)
        kept: list[pa.Table] = []
        places: list[tuple[str, int, int]] = []
        for table in fragment_tables(fragments, schema, target):
            kept.append(drop_encoded_bytes(table))
            for row in sample_rows(table):
                key = unique_key(safe_key(row.get(IMAGE_ID)), taken)
                for extension, data in sample_members(row):
                    with target.create(target.file(parts.stem, f"{key}.{extension or 'file'}")) as out:
                        out.write(data)
                places.append((f"{parts.stem}/{key}", 0, len(row.get(IMAGE) or b"")))
        with parts.create() as file:
            write_shard_index(kept, places, file)


def clear_directory(target: OutputDirectory, name: str) -> None:
    """Remove what an earlier run has left in a directory of the output."""
    OutputDirectory(target.file(name), target.storage_options).remove_all()


def _split_into_shards(pieces: Iterable[pa.Table], images: int) -> Iterator[Iterator[pa.Table]]:
    """The rows in runs of `images`, each as a stream: a shard need not fit into memory."""
    waiting = iter(pieces)
    rest: list[pa.Table] = []

    def shard(first: pa.Table) -> Iterator[pa.Table]:
        room, table = images, first
        while table is not None:
            taken = table.slice(0, room)
            room -= taken.num_rows
            if taken.num_rows:
                yield taken
            if not room:
                rest.extend([table.slice(taken.num_rows)] if table.num_rows > taken.num_rows else [])
                return
            table = next(waiting, None)

    while (first := rest.pop() if rest else next(waiting, None)) is not None:
        if first.num_rows:
            yield shard(first)


def sample_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows, one at a time, with the columns that make files."""
    wanted = [
        name for name in (IMAGE_ID, IMAGE, EXTENSION, CAPTION, METADATA, LABEL, SIDECARS) if name in table.column_names
    ]
    mixed = LABEL in wanted and table.schema.field(LABEL).type == JSON
    for index in range(table.num_rows):
        row = {name: table.column(name)[index].as_py() for name in wanted}
        if mixed and row[LABEL] is not None:  # numbers and names among each other
            row[LABEL] = parse_json(row[LABEL])
        yield row


def sample_members(row: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """The files of a sample, by extension: the image, its caption, metadata and label, and all others."""
    seen: set[str] = set()

    def named(extension: str) -> str:
        while extension.lower() in seen:
            extension = f"more.{extension}"
        seen.add(extension.lower())
        return extension

    if row.get(IMAGE) is not None:
        yield named(extension_from_bytes(row.get(EXTENSION), row[IMAGE])), row[IMAGE]
    for name, extension in ((CAPTION, TEXT_FILE), (METADATA, JSON_FILE), (LABEL, LABEL_FILE)):
        if row.get(name) is not None:
            value = row[name]
            text = value if isinstance(value, str) else json_text(value) if name == METADATA else str(value)
            yield named(extension), text.encode("utf-8", "surrogatepass")
    for extension, data in row.get(SIDECARS) or ():
        yield named(_safe_name(extension)), data


def extension_from_bytes(extension: str | None, data: bytes) -> str:
    """The extension of an image: the one that it has, unless its bytes are of another format."""
    found = image_format(data)
    told = _safe_name(extension or "")
    if found is None or told.lower().rpartition(".")[2] in EXTENSIONS[found]:
        return told or "bin"
    return image_extension(data) or told


def safe_key(image_id: Any) -> str:
    """A key for the files of a sample: the id without what WebDataset, tar or a file system would stumble over."""
    parts = (
        [part for part in _safe_name(str(image_id)).split("/") if part not in ("", ".")] if image_id is not None else []
    )
    parts = ["__" if part == ".." else part for part in parts] or ["image"]
    parts[-1] = parts[-1].replace(".", "_")
    return "/".join(parts)


def _safe_name(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f\\]", "_", text)


def unique_key(key: str, taken: set[str]) -> str:
    """The key, with a number if it is taken."""
    number, found = 2, key
    while found in taken:
        found, number = f"{key}_{number}", number + 1
    taken.add(found)
    return found


def drop_encoded_bytes(table: pa.Table) -> pa.Table:
    return table.drop_columns([name for name in (IMAGE, SIDECARS) if name in table.column_names])


def write_shard_index(pieces: Sequence[pa.Table], places: Sequence[tuple[str, int, int]], file: BinaryIO) -> None:
    import pyarrow.parquet as pq

    table = pa.concat_tables(pieces)
    keys, offsets, sizes = zip(*places, strict=True)
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
