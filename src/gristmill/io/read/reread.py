"""Read a block of an input file a second time, instead of storing its rows.

A reader records on each batch where it was read from. The record is lost as soon as the rows change, or the batch goes
to another process. A stage that would write the batch to a file stores the record instead
(`io/exchange/verdict_stage.py`), and the rows are read again later, split into the same blocks.

JSON lines in exactly the form in which they would be written, or in that form but for blanks and needless escapes, are
not even parsed again: a writer copies those that are kept (`UnreadLines`), unless a stage needs the rows before.

What is given up: input files must not change during a run; if one does, the run stops. The rows of compressed files,
and of files that need storage options (which may be secret, and must not be written), are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.batch import Batch, get_origin, set_origin, stored_rows
from gristmill.core.errors import InputError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.task import FileSlice
from gristmill.io.storage.file_input import FileInput, file_system, ignore

if TYPE_CHECKING:
    from typing import BinaryIO

JSONL_FORMAT, PARQUET_FORMAT = "jsonl", "parquet"


COPY_CHUNK_BYTES = 2**18
"""Bytes of lines that are copied at a time: they fit into the CPU cache."""


_NEWLINE = ord("\n")


class LineRange(NamedTuple):
    """The lines of a block: offset, size, and a function that returns their form (`LineForm` in `jsonl.py`)."""

    start: int
    size: int
    form: Callable[[], int]


@fast_dataclass(frozen=True)
class BlockOrigin:
    """Where a batch was read from: block number `block` of a part of a file that is read in blocks of `blocksize`.

    The field names are keys in spooled files.
    """

    format: str
    part: FileSlice
    blocksize: int
    fields: Sequence[str] | None = None
    options: Mapping[str, Any] | None = None
    block: int = 0
    stamp: str = ""
    lines: tuple[int, int, bool] | None = None
    """Offset and size of its lines, and whether they must be tidied when they are copied; None if they cannot be
    copied."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> BlockOrigin:
        part = dict(content["part"])
        groups, lines = part.pop("row_groups"), content.get("lines")
        file_slice = FileSlice(**part, row_groups=None if groups is None else tuple(groups))
        return cls(**{**content, "part": file_slice, "lines": tuple(lines) if lines else None})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def first(self) -> BlockOrigin:
        """The first block of the same part."""
        return replace(self, block=0, lines=None)

    def check(self) -> None:
        """Raise an InputError if the file has changed."""
        if current_stamp(self.part.path) != self.stamp:
            raise InputError(f"{self.part.path} has changed since this run first read it: start the run again")

    def tables(self) -> Iterator[pa.Table]:
        """Read the blocks of the part. Bad records are ignored: they were reported at the first reading."""
        source = FileInput(self.part, {}, self.blocksize, on_bad=ignore)
        self.check()
        if self.format == PARQUET_FORMAT:
            from gristmill.io.formats.parquet import read_parquet

            return read_parquet(source, self.fields)
        from gristmill.io.formats.jsonl import read_jsonl

        return read_jsonl(source, self.fields, **(self.options or {}))


def current_stamp(path: str) -> str:
    """The metadata of a file that change when its content does."""
    system, inner = file_system(path, {})
    try:
        info = system.info(inner)
    except FileNotFoundError as error:
        raise InputError(f"{path} was deleted after this run first read it: restore it") from error
    values = (info.get(key) for key in ("size", "ETag", "etag", "mtime", "LastModified", "created"))
    return " ".join(str(value) for value in values if value is not None)


def note_origin(batch: Batch, origin: BlockOrigin, lines: LineRange | None = None) -> None:
    """Note where a batch was read from."""
    set_origin(batch, (batch.data, origin, lines))


def origin_of(batch: Batch) -> BlockOrigin | None:
    """Where a batch can be read from again as it is; None if nothing is known of it."""
    noted: tuple[pa.Table, BlockOrigin, LineRange | None] | None = get_origin(batch)
    if noted is None:
        return None
    read, origin, lines = noted
    table, mask = stored_rows(batch)
    if table is not read or mask is not None or batch.objects:
        return None
    form = lines.form() if lines else 0
    line_range = (lines.start, lines.size, form == 1) if lines and form else None
    return replace(origin, stamp=current_stamp(origin.part.path), lines=line_range)


class BlockRereader:
    """Reads blocks again. Blocks of one part that are requested in order are read in a single pass."""

    def __init__(self) -> None:
        self._origin: BlockOrigin | None = None
        self._tables: Iterator[pa.Table] = iter(())
        self._next = 0

    def table(self, origin: BlockOrigin, rows: int) -> pa.Table:
        if self._origin != origin.first or self._next > origin.block:
            self._origin, self._tables, self._next = origin.first, origin.tables(), 0
        table = None
        while self._next <= origin.block:
            table = next(self._tables, None)
            self._next += 1
        if table is None or table.num_rows != rows:
            raise _rows_changed_error(origin)
        return table


TableTransform = Callable[[pa.Table], pa.Table]


def _unchanged(table: pa.Table) -> pa.Table:
    return table


class UnreadLines:
    """Lines of a file that are not yet read (`core.batch.unread_rows`): they can be read as rows, or copied as they
    are."""

    def __init__(self, columns: pa.Table) -> None:
        """`columns` is an empty table with the columns of the rows."""
        self.columns = columns
        self.num_rows = self.nbytes = 0
        self._blocks: list[tuple[BlockOrigin, int, TableTransform]] = []
        self._read: dict[Any, pa.Table] = {}

    def add(self, origin: BlockOrigin, rows: int, nbytes: int, finish: TableTransform = _unchanged) -> None:
        """Add a block of lines. `finish` is applied to its rows when they are read."""
        self._blocks.append((origin, rows, finish))
        self.num_rows += rows
        self.nbytes += nbytes

    @property
    def size(self) -> int:
        """The bytes of all lines."""
        return sum(origin.lines[1] for origin, _, _ in self._blocks if origin.lines)

    def without_verdicts(self) -> UnreadLines:
        """The same lines, without the `finish` functions, which attach verdicts."""
        other = UnreadLines(self.columns)
        other.num_rows, other.nbytes = self.num_rows, self.nbytes
        other._blocks = [(origin, rows, _unchanged) for origin, rows, _ in self._blocks]
        other._read = self._read
        return other

    def read(self) -> pa.Table:
        """Parse all lines."""
        tables = [finish(self._table(origin, rows)) for origin, rows, finish in self._blocks]
        return pa.concat_tables(tables, promote_options="default")

    def _table(self, origin: BlockOrigin, rows: int) -> pa.Table:
        from gristmill.io.formats.jsonl import parse_block_natively

        if (key := (origin.part.path, origin.lines)) not in self._read:
            raw = b"".join(map(bytes, _read_lines_of(origin)))
            table, _ = parse_block_natively(raw, origin.lines[0] if origin.lines else 0)
            if table is None or table.num_rows != rows:
                raise _rows_changed_error(origin)
            self._read[key] = table
        return self._read[key]

    def write(self, file: BinaryIO, rows: pa.BooleanArray | None) -> None:
        """Copy the lines of the rows that are true in `rows`, or of all rows."""
        start = 0
        for origin, count, _ in self._blocks:
            bits = None
            if rows is not None:
                # concat_arrays copies the slice, so that its bits begin at a byte
                bits = pa.concat_arrays([rows.slice(start, count), pa.nulls(0, pa.bool_())]).buffers()[1]
            start += count
            row = 0
            for lines in _read_lines_of(origin):
                size, row = kernels.keep_lines(lines, bits, count, row)
                if size > 0 and origin.lines and origin.lines[2]:
                    size = kernels.tidy_json(lines[:size])
                if size < 0:
                    raise _rows_changed_error(origin)
                file.write(lines[:size])
            if row != count:
                raise _rows_changed_error(origin)


def _read_lines_of(origin: BlockOrigin) -> Iterator[memoryview]:
    """The lines of a block, in chunks of whole lines. Each chunk is a view of one buffer, valid until the next."""
    assert origin.lines is not None
    origin.check()
    start, left, _ = origin.lines
    with FileInput(origin.part, {}).open() as file:
        file.seek(start)
        buffer = bytearray(min(left, COPY_CHUNK_BYTES) + 1)  # one byte more, for a missing last newline
        held = 0  # bytes of an incomplete line at the start of the buffer
        while left:
            if held + 1 >= len(buffer):
                buffer = buffer + bytes(held)
            view = memoryview(buffer)
            filled = held + file.readinto(view[held : min(held + left, len(buffer) - 1)])
            if filled == held:
                raise _rows_changed_error(origin)
            left -= filled - held
            if not left and buffer[filled - 1] != _NEWLINE:  # the last line of a file may lack it
                buffer[filled] = _NEWLINE
                filled += 1
            end = buffer.rfind(b"\n", held, filled) + 1
            if end:
                yield view[:end]
            view[: filled - end] = view[end:filled]
            held = filled - end


def _rows_changed_error(origin: BlockOrigin) -> InputError:
    return InputError(f"{origin.part.path} has other rows than when this run first read it: start the run again")
