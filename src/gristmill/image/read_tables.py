"""Tables of images: Parquet files that hold encoded images, the {bytes, path} structs of Hugging Face, or URLs.

All columns are kept. Those that stages for images look at are added under their names, `image_id`, `source`, `image`
and `extension`, and `caption` if another column is named for it. Where there are only URLs `image` is null, and
ImageDownloadStage fills it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.batch import ImageBatch
from gristmill.core.errors import InputError
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.core.task import EmptyTask, FileGroupTask
from gristmill.image.formats import image_extension
from gristmill.image.image_samples import CAPTION, EXTENSION, IMAGE, IMAGE_ID, SOURCE
from gristmill.io.formats import format_detection
from gristmill.io.formats.parquet import peek_parquet, read_parquet
from gristmill.io.read.file_listing import Paths
from gristmill.io.read.file_partitions import BY_ROW_GROUPS, FilePartitioningStage
from gristmill.io.read.files_reader import QUARANTINE, FilesReader
from gristmill.io.storage.file_input import BadRecord, FileInput

URL = "url"
_IDS = (IMAGE_ID, "id", "key", "__key__")


class ImageParquetReaderStage(FilesReader[FileGroupTask, ImageBatch]):
    """Reads Parquet files with images or URLs."""

    name = "read_image_parquet"
    kind = ImageBatch

    def __init__(
        self,
        image_field: str = IMAGE,
        url_field: str = URL,
        id_field: str | None = None,
        caption_field: str | None = None,
        fields: Sequence[str] | None = None,
        blocksize: int | str | None = None,
        on_bad_record: str = QUARANTINE,
    ) -> None:
        super().__init__(fields=fields, blocksize=blocksize, on_bad_record=on_bad_record)
        self.image_field, self.url_field = image_field, url_field
        self.id_field, self.caption_field = id_field, caption_field

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [IMAGE_ID, SOURCE, IMAGE, EXTENSION]

    def schema(self, source: FileInput) -> pa.Schema | None:
        found = peek_parquet(source, self.fields)
        if found is None:
            return None
        names = found.names
        if self.image_field not in names and self.url_field not in names:
            raise InputError(
                f"{source.path} has neither a column {self.image_field!r} with images nor {self.url_field!r} with "
                f"addresses. There are: {', '.join(names)}. Name the right one with image_field=... or url_field=..."
            )
        for what, name in (("id_field", self.id_field), ("caption_field", self.caption_field)):
            if name is not None and name not in names:
                raise InputError(f"{source.path} has no column {name!r} ({what}). There are: {', '.join(names)}")
        return self._table(source, found.empty_table()).schema

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        for table in read_parquet(source, self.fields):
            yield self._table(source, table)

    def _table(self, source: FileInput, table: pa.Table) -> pa.Table:
        images, paths = self._images(table)
        if self.url_field not in table.column_names:
            table, images, paths = self._rows_with_images(source, table, images, paths)
        names = table.column_names
        here = pa.repeat(literal(source.path.rpartition("/")[2], pa.string()), table.num_rows)
        kinds = make_array([_extension(value) for value in images], pa.string())
        columns: dict[str, Any] = {
            IMAGE_ID: self._ids(source, table, paths),
            SOURCE: table.column(SOURCE) if SOURCE in names else here,
            IMAGE: images,
            EXTENSION: table.column(EXTENSION) if EXTENSION in names else kinds,
        }
        if self.caption_field:
            columns[CAPTION] = table.column(self.caption_field)
        place = table.column(POSITION)
        rest = [name for name in names if name not in (*columns, POSITION)]
        if self.image_field != IMAGE and self.image_field in rest:
            rest.remove(self.image_field)
        return pa.table({**columns, **{name: table.column(name) for name in rest}, POSITION: place})

    def _images(self, table: pa.Table) -> tuple[pa.Array, pa.Array | None]:
        """The encoded images, and the paths that structs of Hugging Face have beside them."""
        if self.image_field not in table.column_names:
            return _nulls(table.num_rows), None
        column = as_one_array(table.column(self.image_field))
        kind = column.type
        if pa.types.is_struct(kind) and "bytes" in [kind.field(i).name for i in range(kind.num_fields)]:
            path = pc.struct_field(column, "path") if kind.get_field_index("path") >= 0 else None
            return pc.struct_field(column, "bytes").cast(pa.large_binary()), path
        if pa.types.is_null(kind):
            return _nulls(len(column)), None
        if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise InputError(f"column {self.image_field!r} holds {kind}, and images are binary, or {{bytes, path}}")
        return column.cast(pa.large_binary()), None

    def _rows_with_images(
        self, source: FileInput, table: pa.Table, images: pa.Array, paths: pa.Array | None
    ) -> tuple[pa.Table, pa.Array, pa.Array | None]:
        """The rows that have an image; there is nowhere to get one for the others."""
        if not images.null_count:
            return table, images, paths
        for index, place in enumerate(table.column(POSITION).to_pylist()):
            if not images[index].is_valid:
                path = paths[index].as_py() if paths is not None else None
                source.on_bad(BadRecord(place, f"no image{f', only the path {path!r}' if path else ''}"))
        keep = images.is_valid()
        return table.filter(keep), images.filter(keep), None if paths is None else paths.filter(keep)

    def _ids(self, source: FileInput, table: pa.Table, paths: pa.Array | None) -> pa.Array:
        """The column that is named, or looks like one; else the path, or the file and the row."""
        named = self.id_field or next((name for name in _IDS if name in table.column_names), None)
        if named is not None:
            return as_one_array(table.column(named).cast(pa.string()))
        base = source.path.rpartition("/")[2].partition(".")[0]
        numbered = [f"{base}-{place:08}" for place in table.column(POSITION).to_pylist()]
        if paths is None:
            return make_array(numbered, pa.string())
        pairs = zip(paths.to_pylist(), numbered, strict=True)
        return make_array(
            [(path.rpartition(".")[0] or path) if path else number for path, number in pairs], pa.string()
        )


def _nulls(count: int) -> pa.Array:
    return pa.nulls(count, pa.large_binary())


def _extension(value: Any) -> str | None:
    buffer = value.as_buffer()
    return None if buffer is None else image_extension(memoryview(buffer).cast("B"))


@dataclass(eq=False, repr=False)
class ImageParquetReader(CompositeStage[EmptyTask, ImageBatch]):
    """Reads Parquet files with encoded images in `image_field`, or with addresses in `url_field`."""

    file_paths: Paths
    image_field: str = IMAGE
    url_field: str = URL
    id_field: str | None = None
    caption_field: str | None = None
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    fields: Sequence[str] | None = None
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None

    def __post_init__(self) -> None:
        self.decompose()  # wrong parameters are errors here

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        lister = FilePartitioningStage(
            self.file_paths,
            self.files_per_partition,
            self.blocksize,
            self.file_extensions or format_detection.PARQUET_EXTENSIONS,
            self.storage_options,
            self.limit,
            split_by=BY_ROW_GROUPS,
        )
        fields = (self.image_field, self.url_field, self.id_field, self.caption_field)
        return [lister, ImageParquetReaderStage(*fields, self.fields, self.blocksize, self.on_bad_record)]
