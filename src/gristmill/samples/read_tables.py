"""Read tables of samples: Parquet files with encoded bytes, the {bytes, path} structs of Hugging Face, or URLs.

All columns are kept. Those that stages of the modality look at are added under their names: the id, `source`, the
encoded bytes, `extension`, and `caption` if another column is named for it. Where there are only URLs the bytes are
null, and a `UrlDownloadStage` fetches them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import MIXED, POSITION, is_text
from gristmill.core.errors import InputError
from gristmill.core.stage import Columns
from gristmill.core.task import FileGroupTask
from gristmill.io.formats.parquet import peek_parquet, read_parquet
from gristmill.io.read.files_reader import QUARANTINE, FilesReader
from gristmill.io.storage.file_input import BadRecord, FileInput
from gristmill.samples.batch import S, SampleBatch, usual_extension
from gristmill.samples.sample_files import CAPTION, EXTENSION, METADATA, SOURCE

URL = "url"
_ID_NAMES = ("id", "key", "__key__")

Files = TypeVar("Files", bound=FileGroupTask)


class TableReaderStage(FilesReader[Files, S]):
    """Reads Parquet files with encoded bytes in `encoded_field`, or with addresses in `url_field`. A modality sets
    `kind`."""

    kind: ClassVar[type[SampleBatch]]

    def __init__(
        self,
        encoded_field: str,
        url_field: str = URL,
        id_field: str | None = None,
        caption_field: str | None = None,
        fields: Sequence[str] | None = None,
        blocksize: int | str | None = None,
        on_bad_record: str = QUARANTINE,
    ) -> None:
        super().__init__(fields=fields, blocksize=blocksize, on_bad_record=on_bad_record)
        self.encoded_field, self.url_field = encoded_field, url_field
        self.id_field, self.caption_field = id_field, caption_field

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [self.kind.id_column, SOURCE, self.kind.encoded_column, EXTENSION]

    def schema(self, source: FileInput) -> pa.Schema | None:
        schema = peek_parquet(source, self.fields)
        if schema is None:
            return None
        names = schema.names
        if self.encoded_field not in names and self.url_field not in names:
            name = self.kind.sample_name
            raise InputError(
                f"{source.path} has neither a column {self.encoded_field!r} with {name}s nor {self.url_field!r} with "
                f"addresses. There are: {', '.join(names)}. Name the right one with {name}_field=... or url_field=..."
            )
        for what, column in (("id_field", self.id_field), ("caption_field", self.caption_field)):
            if column is not None and column not in names:
                raise InputError(f"{source.path} has no column {column!r} ({what}). There are: {', '.join(names)}")
        return self._table(source, schema.empty_table()).schema

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        for table in read_parquet(source, self.fields):
            yield self._table(source, table)

    def _table(self, source: FileInput, table: pa.Table) -> pa.Table:
        encoded, paths = self._encoded(table)
        if self.url_field not in table.column_names:
            table, encoded, paths = self._rows_with_bytes(source, table, encoded, paths)
        names = table.column_names
        file_name = pa.repeat(literal(source.path.rpartition("/")[2], pa.string()), table.num_rows)
        extensions = make_array([self._extension(value) for value in encoded], pa.string())
        columns: dict[str, Any] = {
            self.kind.id_column: self._ids(source, table, paths),
            SOURCE: table.column(SOURCE) if SOURCE in names else file_name,
            self.kind.encoded_column: encoded,
            EXTENSION: table.column(EXTENSION) if EXTENSION in names else extensions,
        }
        if self.caption_field:
            columns[CAPTION] = table.column(self.caption_field)
        positions = table.column(POSITION)
        rest = [name for name in names if name not in (*columns, POSITION)]
        if self.encoded_field != self.kind.encoded_column and self.encoded_field in rest:
            rest.remove(self.encoded_field)
        others = {name: table.column(name) for name in rest}
        if METADATA in others:
            others[METADATA] = _json_column(others[METADATA])
        return pa.table({**columns, **others, POSITION: positions})

    def _encoded(self, table: pa.Table) -> tuple[pa.Array, pa.Array | None]:
        """The encoded bytes, and the paths that structs of Hugging Face have beside them."""
        if self.encoded_field not in table.column_names:
            return pa.nulls(table.num_rows, pa.large_binary()), None
        column = as_one_array(table.column(self.encoded_field))
        kind = column.type
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            path = pc.struct_field(column, "path") if kind.get_field_index("path") >= 0 else None
            return pc.struct_field(column, "bytes").cast(pa.large_binary()), path
        if pa.types.is_null(kind):
            return pa.nulls(len(column), pa.large_binary()), None
        if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise InputError(
                f"column {self.encoded_field!r} holds {kind}, and {self.kind.sample_name}s are binary, or {{bytes, "
                "path}"
            )
        return column.cast(pa.large_binary()), None

    def _rows_with_bytes(
        self, source: FileInput, table: pa.Table, encoded: pa.Array, paths: pa.Array | None
    ) -> tuple[pa.Table, pa.Array, pa.Array | None]:
        """The rows that have bytes. Without URLs the others cannot be had, and are bad records."""
        if not encoded.null_count:
            return table, encoded, paths
        for index, position in enumerate(table.column(POSITION).to_pylist()):
            if not encoded[index].is_valid:
                path = paths[index].as_py() if paths is not None else None
                only = f", only the path {path!r}" if path else ""
                source.on_bad(BadRecord(position, f"no {self.kind.sample_name}{only}"))
        keep = encoded.is_valid()
        return table.filter(keep), encoded.filter(keep), None if paths is None else paths.filter(keep)

    def _ids(self, source: FileInput, table: pa.Table, paths: pa.Array | None) -> pa.Array:
        """The column of `id_field`, or one with a usual name; else the path, or the file and the row."""
        usual = (self.kind.id_column, *_ID_NAMES)
        named = self.id_field or next((name for name in usual if name in table.column_names), None)
        if named is not None:
            return as_one_array(table.column(named).cast(pa.string()))
        base = source.path.rpartition("/")[2].partition(".")[0]
        numbered = [f"{base}-{position:08}" for position in table.column(POSITION).to_pylist()]
        if paths is None:
            return make_array(numbered, pa.string())
        pairs = zip(paths.to_pylist(), numbered, strict=True)
        return make_array(
            [(path.rpartition(".")[0] or path) if path else number for path, number in pairs], pa.string()
        )

    def _extension(self, value: Any) -> str | None:
        buffer = value.as_buffer()
        return None if buffer is None else usual_extension(self.kind, memoryview(buffer).cast("B"))


def _json_column(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Metadata as the writer was given it: it writes JSON as text. Text that is no JSON objects stays text."""
    if not is_text(column.type):
        return column
    try:
        values = [orjson.loads(text) for text in column.to_pylist() if text is not None]
    except orjson.JSONDecodeError:
        return column
    if not all(isinstance(value, dict | list) for value in values):
        return column
    return pa.ExtensionArray.from_storage(MIXED, as_one_array(column).cast(MIXED.storage_type))
