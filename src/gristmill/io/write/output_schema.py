"""The columns of an output: found for each source, united over all, and the same in every file.

A commit knows the columns of one source, and writes its files with those. They are recorded with the files, so that the
last step of a run (`CommitRole.complete`) can unite those of all sources, also of sources that earlier attempts have
done, and rewrite the files that differ. So no row is ever found not to fit, and the result depends on the rows alone.
The price is a second pass over such files, in threads of the driver; declared types (`schema=`) avoid it.
"""

from __future__ import annotations

import base64
import os
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from gristmill.core.arrow.settled_types import json_structure, type_to_write, unite_types
from gristmill.core.arrow.table_conversion import JSON, common_type, is_json, is_text, wide_integer_columns
from gristmill.core.fast_dataclass import fast_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gristmill.core.task import WrittenFile, WrittenFiles
    from gristmill.io.storage.output_directory import OutputDirectory
    from gristmill.io.write.commit import OutputFormat

STRUCTS, AS_JSON, AS_READ = "structs", "json", "as_read"
"""What becomes of nested values: structs and lists of one type; `arrow.json`; or whatever they are."""

In = TypeVar("In")
Out = TypeVar("Out")
_WIDE, _ADDED = b"wide", b"added"
_THREADS = 8


@fast_dataclass(frozen=True)
class OutputColumns:
    """The columns of some rows, with the types that hold their values."""

    schema: pa.Schema
    added: frozenset[str] = frozenset()
    """Columns that stages added to those of the reader: they come last."""
    wide: frozenset[str] = frozenset()
    """Columns with integers that a float cannot hold."""

    def encoded(self) -> str:
        """The columns as text, to be recorded with the files of a source."""
        marks = {name: {_WIDE: b""} if name in self.wide else {} for name in self.schema.names}
        for name in self.added:
            if name in marks:
                marks[name] = {**marks[name], _ADDED: b""}
        return encode_schema(pa.schema([field.with_metadata(marks[field.name] or None) for field in self.schema]))

    @classmethod
    def decoded(cls, text: str) -> OutputColumns:
        schema = decode_schema(text)
        added, wide = (
            frozenset(field.name for field in schema if mark in (field.metadata or {})) for mark in (_ADDED, _WIDE)
        )
        return cls(pa.schema([field.remove_metadata() for field in schema]), added, wide)


def encode_schema(schema: pa.Schema) -> str:
    return base64.b85encode(zlib.compress(schema.serialize().to_pybytes())).decode()


@cache
def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(zlib.decompress(base64.b85decode(text))))


def columns_of(table: pa.Table, added: frozenset[str], nested: str) -> OutputColumns:
    """The columns of the rows of one batch."""
    wide = set(wide_integer_columns(table))
    kinds = []
    for field, column in zip(table.schema, table.columns, strict=True):
        kind = field.type
        if nested == STRUCTS and is_json(kind):
            kind, is_wide = json_structure(column)
            wide |= {field.name} if is_wide else set()
        kinds.append((field.name, kind))
    return OutputColumns(pa.schema(kinds), added, frozenset(wide))


def unite_columns(parts: Sequence[OutputColumns], nested: str) -> OutputColumns:
    """The columns of all parts, in order of first appearance, those that stages added last."""
    unite = common_type if nested == AS_JSON else unite_types
    read = [field for part in parts for field in part.schema if field.name not in part.added]
    added = [field for part in parts for field in part.schema if field.name in part.added]
    kinds: dict[str, pa.DataType] = {}
    for field in [*read, *added]:
        kinds[field.name] = unite(kinds.get(field.name, pa.null()), field.type)
    only_added = frozenset(field.name for field in added) - {field.name for field in read}
    wide = frozenset[str]().union(*(part.wide for part in parts))
    return OutputColumns(pa.schema(list(kinds.items())), only_added, wide)


def file_schema(columns: OutputColumns, fields: Sequence[str] | None, nested: str) -> pa.Schema:
    """The schema of a file with these columns, or with the `fields` among them."""
    names = columns.schema.names if fields is None else [name for name in fields if name in columns.schema.names]
    return pa.schema(
        [(name, _written(columns.schema.field(name).type, name in columns.wide, nested)) for name in names]
    )


def _written(kind: pa.DataType, wide: bool, nested: str) -> pa.DataType:
    if nested == AS_JSON:
        return JSON if is_json(kind) or (wide and pa.types.is_floating(kind)) else kind
    if nested == AS_READ:
        return kind if kind == JSON else type_to_write(kind, wide)
    return type_to_write(kind, wide)


# -- the whole output ------------------------------------------------------------------------------------------


def conform_outputs(
    target: OutputDirectory, form: OutputFormat, fields: Sequence[str] | None, outputs: Sequence[WrittenFiles]
) -> list[WrittenFiles]:
    """The outputs of all sources, after rewriting the files whose columns are not those of all."""
    known = list(dict.fromkeys(file.columns for output in in_order(outputs) for file in output.written if file.columns))
    if not known:
        return list(outputs)
    parts = [OutputColumns.decoded(text) for text in known]
    whole = unite_columns(parts, form.nested)
    schema = file_schema(whole, fields, form.nested)
    layout = encode_schema(schema)
    files = {file.path: file for output in outputs for file in output.written if file.columns and file.layout != layout}
    if not files:
        return list(outputs)
    _warn_of_text(target.url, parts, schema)
    rewritten = dict(zip(files, rewrite_files(target, form, list(files.values()), schema), strict=True))

    def now(file: WrittenFile) -> WrittenFile:
        new = rewritten.get(file.path, file)  # of any of the sources that are in the file
        return replace(file, size=new.size, checksum=new.checksum, layout=new.layout)

    return [output.with_written(tuple(map(now, output.written))) for output in outputs]


def in_order(outputs: Iterable[WrittenFiles]) -> list[WrittenFiles]:
    """The outputs in the order of the input."""
    return sorted(outputs, key=lambda output: output.lineage.sort_key())


def rewrite_files(
    target: OutputDirectory, form: OutputFormat, files: Sequence[WrittenFile], schema: pa.Schema
) -> list[WrittenFile]:
    """Replace each file, atomically, by one with the same rows in the columns of `schema`."""
    layout = encode_schema(schema)
    with target.scratch() as folder:

        def rewrite(file: WrittenFile) -> WrittenFile:
            name = file.path.rpartition("/")[2]
            path = f"{folder}/{name}" if folder else file.path
            with target.open(file.path) as old, target.create(path) as new:
                form.rewrite(old, decode_schema(file.layout), new, schema)
            if path != file.path:
                target.replace(path, name)
            return replace(file, size=new.size, checksum=new.checksum, layout=layout)

        return in_threads(rewrite, files)


def in_threads(function: Callable[[In], Out], items: Sequence[In]) -> list[Out]:
    """The results for all items, computed in as many threads as there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max(1, min(_THREADS, cores, len(items)))) as pool:
        return list(pool.map(function, items))


def _warn_of_text(url: str, parts: Sequence[OutputColumns], schema: pa.Schema) -> None:
    """Name the columns that are text only because their types differ between files."""
    found = []
    for field in schema:
        kinds = dict.fromkeys(part.schema.field(field.name).type for part in parts if field.name in part.schema.names)
        kinds = dict.fromkeys("JSON" if is_json(kind) else str(kind) for kind in kinds if not pa.types.is_null(kind))
        if is_text(field.type) and len(kinds) > 1 and set(kinds) != {"string", "large_string"}:
            found.append(f"{field.name!r} ({', '.join(kinds)})")
    if found:
        warnings.warn(
            f"{url}: {'; '.join(found[:8])} differ from source to source, and are written as text in all files. "
            "To choose their types, give the writer schema={...}",
            RuntimeWarning,
            stacklevel=2,
        )
