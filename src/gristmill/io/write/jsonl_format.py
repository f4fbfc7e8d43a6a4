"""JSON lines output: encode rows as lines, and join the lines of many fragments into final files.

    numbers       NaN and infinity become null, which is all that JSON has for them
    nested data   keeps its JSON text
    dates, times  ISO 8601; zoned ones in UTC with a Z
    decimals      strings, so that no digit is lost
    bytes         base64
    nulls         written out, so that all lines of a file have the same keys

Fragments are joined by copying bytes. Lines are rewritten only if their fragment lacks columns or has integers in a
column of floats; even then the text of all other values is copied unchanged. With `one_schema` this holds for whole
files too (`output_schema.py`); nested values stay as they are.
"""

from __future__ import annotations

import io
import json
import re
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.arrow.table_conversion import as_plain_text, is_json, is_text, json_array
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.io.write.commit import Fragment, OutputFiles, OutputFormat
from gristmill.io.write.shared_fragments import open_fragment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gristmill.io.storage.checksum import NewFile
    from gristmill.io.storage.output_directory import OutputDirectory
    from gristmill.io.write.file_compaction import RowSpan

EXTENSION_BY_COMPRESSION = {None: ".jsonl", "gzip": ".jsonl.gz", "zstd": ".jsonl.zst"}
ENCODE_ROWS = 256  # rows that are held as Python objects at a time
EDIT_BYTES = 2**16  # bytes of lines that are edited at a time: they fit into the CPU cache
COPY_CHUNK_BYTES = 2**20
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_SPACE = re.compile(r"[ \t\r]*")

FileSpan = tuple[str, int, int]
"""A path, and the first byte and the one after the last."""


@fast_dataclass(frozen=True)
class JsonlFormat(OutputFormat):
    """One JSON object per line. `target_file_size` is the size before compression."""

    compression: str | None = None
    compression_level: int = 6
    sort_keys: bool = False
    target_file_size: int | None = None
    one_schema: bool = False
    force_ascii: bool = False
    plain_extension: str = ".jsonl"
    """The extension before that of the compression."""
    split: str | None = None
    can_join: bool = True
    name: str = "jsonl"

    @property
    def extension(self) -> str:
        return self.plain_extension + EXTENSION_BY_COMPRESSION[self.compression].removeprefix(".jsonl")

    @property
    def extensions(self) -> tuple[str, ...]:
        return tuple(self.plain_extension + one.removeprefix(".jsonl") for one in EXTENSION_BY_COMPRESSION.values())

    @property
    def shares_fragments(self) -> bool:
        return True

    @property
    def copies_lines(self) -> bool:
        return not self.sort_keys and not self.force_ascii

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        for lines in encode_lines(self._sorted(table), self.sort_keys):
            file.write(self._encoded(lines))

    def _encoded(self, lines: bytes) -> bytes:
        return as_ascii(lines) if self.force_ascii else lines

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        schema = self._ordered(schema)
        files = [self._fitting(fragment, schema, parts) for fragment in fragments]
        for spans in cut_into_files(files, self.target_file_size, parts.target):
            only_file = len(files) == 1 and fragments[0].start is None and spans == files
            if self.compression is None and only_file and parts.adopt_fragment(files[0][0]):
                continue
            with parts.create() as file:
                self._fill(file, spans, parts.target)

    def _order(self, names: Sequence[str]) -> list[str]:
        return sorted(names) if self.sort_keys else list(names)

    def _ordered(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([schema.field(name) for name in self._order(schema.names)])

    def _sorted(self, table: pa.Table) -> pa.Table:
        return table.select(self._order(table.column_names)) if self.sort_keys else table

    def _fitting(self, fragment: Fragment, schema: pa.Schema, parts: OutputFiles) -> FileSpan:
        """Where the rows of the fragment are in the columns of the schema."""
        edit = line_editor(self._ordered(fragment.schema), schema)
        if edit is None:
            start = fragment.start or 0
            return fragment.data, start, start + fragment.size
        path, created = parts.rewrite(fragment)
        with open_fragment(fragment, parts.target) as old, created as new:
            while lines := old.read(EDIT_BYTES):
                new.write(self._encoded(edit(lines + old.readline())))
            new.rows, new.content = fragment.rows, new.size
        return path, 0, parts.target.size(path)

    def rewrite(self, old: BinaryIO, own: pa.Schema, new: BinaryIO, schema: pa.Schema) -> None:
        edit = line_editor(self._ordered(own), self._ordered(schema)) or bytes
        with self._unpacked(old) as lines:
            blocks = (block + lines.readline() for block in iter(partial(lines.read, EDIT_BYTES), b""))
            self.pack(new, (self._encoded(edit(block)) for block in blocks))

    def _unpacked(self, file: BinaryIO) -> Any:
        """A file of this format as it was before compression."""
        import gzip

        if self.compression is None:
            return nullcontext(file)
        if self.compression == "gzip":
            return gzip.GzipFile(fileobj=file)
        return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"))

    def _fill(self, file: NewFile, spans: Sequence[FileSpan], target: OutputDirectory) -> None:
        chunks = (chunk for span in spans for chunk in read_span(span, target))
        self.pack(file, chunks if self.target_file_size is None else _counted(chunks, file))

    def measure(self, file: BinaryIO) -> tuple[int, int]:
        rows = content = 0
        with self._unpacked(file) as lines:
            while chunk := lines.read(COPY_CHUNK_BYTES):
                rows, content = rows + chunk.count(b"\n"), content + len(chunk)
        return rows, content

    def join_files(
        self, spans: Sequence[RowSpan], target: OutputDirectory, new: BinaryIO, schema: pa.Schema | None
    ) -> None:
        self.pack(new, (chunk for span in spans for chunk in self._lines(span, target)))

    def _lines(self, span: RowSpan, target: OutputDirectory) -> Iterator[bytes]:
        """Some lines of a file, in chunks."""
        skip, left = span.start, span.rows
        with target.open(span.path) as file, self._unpacked(file) as lines:
            while left and (block := lines.read(COPY_CHUNK_BYTES)):
                block += lines.readline()
                count = block.count(b"\n")
                if count <= skip:
                    skip -= count
                    continue
                if skip or count > left:
                    block = b"".join(block.splitlines(keepends=True)[skip : skip + left])
                left -= min(count - skip, left)
                skip = 0
                yield block
        if left:
            raise OSError(f"{span.path} is shorter than when it was written")

    def pack(self, file: BinaryIO, content: Iterable[bytes]) -> None:
        """Write lines to a file, compressed as the format wants it."""
        if self.compression is None:
            for chunk in content:
                file.write(chunk)
            return
        chunks = equal_blocks(content)
        if self.compression == "gzip":
            import gzip

            with gzip.GzipFile("", "wb", self.compression_level, file, mtime=0) as packed:
                for chunk in chunks:
                    packed.write(chunk)
        else:
            with pa.CompressedOutputStream(pa.PythonFile(file, "w"), "zstd") as packed:
                for chunk in chunks:
                    packed.write(chunk)


# -- rows to lines -------------------------------------------------------------------------------------------


def encode_lines(table: pa.Table, sort_keys: bool = False) -> Iterator[bytes]:
    """The rows as JSON lines, in chunks of `ENCODE_ROWS` rows."""
    names = table.column_names
    option = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_SORT_KEYS if sort_keys else 0)
    dumps = orjson.dumps
    keys = [("," if index else "{").encode() + _key(name).encode() for index, name in enumerate(names)]
    for batch in table.to_batches(max_chunksize=ENCODE_ROWS):
        if not names:
            yield b"{}\n" * batch.num_rows
            continue
        if kernels is not None:
            cells = zip(keys, (column_as_texts(column, option) for column in batch.columns), strict=True)
            yield kernels.json_lines(tuple((key, *cell) for key, cell in cells))
            continue
        columns = [_values(column) for column in batch.columns]
        yield b"".join(
            [dumps(dict(zip(names, row, strict=True)), as_plain_text, option) for row in zip(*columns, strict=True)]
        )


def as_ascii(lines: bytes) -> bytes:
    """The same JSON with every character outside of ASCII written as `\\uXXXX`."""
    if lines.isascii():
        return lines
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], lines.decode()).encode()


def column_as_texts(column: pa.Array, option: int = 0) -> tuple[pa.Array, bool]:
    """A column as strings, and whether the strings are JSON texts (else they are plain text to be quoted)."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column, False
    if is_json(kind):
        return _one_line(column.storage), True
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return column.cast(pa.string()), True
    dumps, option = orjson.dumps, option & ~orjson.OPT_APPEND_NEWLINE
    return make_array([dumps(value, as_plain_text, option).decode() for value in _values(column)], pa.string()), True


def _one_line(texts: pa.Array) -> pa.Array:
    """JSON texts without line feeds: white space in JSON, but the end of a line in this format."""
    return pc.replace_substring(texts, "\n", " ") if pc.any(pc.match_substring(texts, "\n")).as_py() else texts


def _values(column: pa.Array) -> list[Any]:
    """The values of a column as Python objects that orjson writes in the form of this format."""
    kind = column.type
    if is_json(kind):
        return [None if text is None else orjson.Fragment(text) for text in _one_line(column.storage).to_pylist()]
    if pa.types.is_timestamp(kind):
        texts = pc.replace_substring(column.cast(pa.timestamp(kind.unit)).cast(pa.string()), " ", "T")
        texts = pc.replace_substring_regex(texts, r"\.0+$", "")
        if kind.tz:
            texts = pc.binary_join_element_wise(texts, literal("Z", pa.string()), literal("", pa.string()))
        return texts.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_float16(kind):
        return column.cast(pa.float32()).to_pylist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


# -- editing lines ---------------------------------------------------------------------------------------------


def line_editor(own: pa.Schema, schema: pa.Schema) -> Callable[[bytes], bytes] | None:
    """A function that turns lines with the columns `own` into lines with those of `schema`; None if they are equal."""
    changes = {f.name: change for f in own if (change := _change(f.type, schema.field(f.name).type))}
    if not changes and own.names == schema.names:
        return None
    late = schema.names[len(own.names) :]
    if not changes and own.names == schema.names[: len(own.names)]:
        return _Append(late, first=not own.names)
    return _Rearrange(own.names, schema.names, changes)


def _change(old: pa.DataType, new: pa.DataType) -> Callable[[str], str] | None:
    if pa.types.is_integer(old) and pa.types.is_floating(new):
        return _as_float
    if pa.types.is_floating(old) and is_json(new):
        return _as_json
    if is_text(new) and not is_text(old):
        return _as_float_text if pa.types.is_floating(old) else _as_text
    return None


def _as_text(cell: str) -> str:
    return cell if cell == "null" or cell.startswith('"') else orjson.dumps(cell).decode()


def _as_float_text(cell: str) -> str:
    return _as_text(_as_json(cell))


def _as_float(cell: str) -> str:
    return cell if cell == "null" else orjson.dumps(float(cell)).decode()


def _as_json(cell: str) -> str:
    return cell if cell == "null" else str(json_array([float(cell)]).storage[0])


class _Append:
    """Adds columns at the end, as null."""

    def __init__(self, names: Sequence[str], first: bool) -> None:
        cells = ",".join(f"{_key(name)}null" for name in names)
        self.end = f"{'' if first else ','}{cells}}}\n".encode()

    def __call__(self, lines: bytes) -> bytes:
        return self.end.join([line[:-1] for line in lines.split(b"\n")])


class _Rearrange:
    """Splits lines at their columns and rebuilds them from the same texts."""

    def __init__(self, own: Sequence[str], names: Sequence[str], changes: dict[str, Callable[[str], str]]) -> None:
        from json import JSONDecoder

        # Numbers stay text, so that none is rounded or refused for its length.
        self.scan = JSONDecoder(parse_int=str, parse_float=str, parse_constant=str).raw_decode
        self.own = [(name, len(_key(name)) + 1) for name in own]
        self.names = [(name, _key(name)) for name in names]
        self.changes = changes

    def __call__(self, lines: bytes) -> bytes:
        return "".join(map(self._line, lines.decode().split("\n")[:-1])).encode()

    def _line(self, line: str) -> str:
        cells, at = {}, 0
        for name, key in self.own:
            start = self._skip(line, at + key)
            end = self.scan(line, start)[1]
            cells[name] = line[start:end]
            at = self._skip(line, end)
        for name, change in self.changes.items():
            cells[name] = change(cells[name])
        return "{" + ",".join([key + cells.get(name, "null") for name, key in self.names]) + "}\n"

    @staticmethod
    def _skip(line: str, at: int) -> int:
        match = _SPACE.match(line, at)
        return match.end() if match else at


def _key(name: str) -> str:
    return orjson.dumps(name).decode() + ":"


# -- joining files -------------------------------------------------------------------------------------------


def cut_into_files(
    files: Sequence[FileSpan], max_bytes: int | None, target: OutputDirectory
) -> Iterator[list[FileSpan]]:
    """The spans of lines that make up each new file of at most `max_bytes`, or of one line if that is larger."""
    if max_bytes is None:
        yield list(files)
        return
    part: list[FileSpan] = []
    left = max_bytes
    for path, begin, size in files:
        start = begin
        with target.open(path) as file:
            while start < size:
                end = size if size - start <= left else _line_end_before(file, start, start + left)
                if end == start and not part:
                    end = _line_end_after(file, start + left)
                if end > start:
                    part.append((path, start, end))
                    left -= end - start
                if end < size:
                    yield part
                    part, left = [], max_bytes
                start = end
    if part:
        yield part


def _counted(chunks: Iterable[bytes], file: NewFile) -> Iterator[bytes]:
    """The chunks, after adding their lines and bytes to those of the file."""
    for chunk in chunks:
        file.rows, file.content = file.rows + chunk.count(b"\n"), file.content + len(chunk)
        yield chunk


def _line_end_before(file: BinaryIO, start: int, end: int) -> int:
    while end > start:
        begin = max(start, end - COPY_CHUNK_BYTES)
        file.seek(begin)
        newline = file.read(end - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return start


def _line_end_after(file: BinaryIO, start: int) -> int:
    file.seek(start)
    return start + len(file.readline())


def read_span(span: FileSpan, target: OutputDirectory) -> Iterator[bytes]:
    path, start, end = span
    with target.open(path) as file:
        file.seek(start)
        while start < end:
            chunk = file.read(min(COPY_CHUNK_BYTES, end - start))
            if not chunk:
                raise OSError(f"{path} is shorter than when it was written")
            start += len(chunk)
            yield chunk


def equal_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of one size: a compressor's output may depend on the size of its input blocks."""
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk
        while len(waiting) >= COPY_CHUNK_BYTES:
            yield bytes(waiting[:COPY_CHUNK_BYTES])
            del waiting[:COPY_CHUNK_BYTES]
    if waiting:
        yield bytes(waiting)
