"""Reading again: a batch that is as its reader gave it need not be kept, since the file is still there.

A reader notes on each batch where it comes from. The note is lost as soon as anything happens to the rows, or the batch
goes to another process. A stage that would put the batch into a file keeps the note instead (`verdict_stage.py`), and the
rows are read a second time, with the same cuts.

JSON lines that are just as they would be written again, or would be without blanks and needless escapes, are not even
parsed a second time: a writer copies those that are kept (`UnreadLines`), unless somebody looks at the rows before.

What is given up: files that change while they are in use. That is found out, and stops the run. Compressed files, and
files that need storage options, which must not be written down, are kept the long way.
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
"""Bytes of lines that are copied at a time: they stay in the processor's cache."""


_NEWLINE = ord("\n")


class LineRange(NamedTuple):
    """Where the lines of a block are, and whether they are just as they would be written (`io/formats/jsonl.py`)."""

    start: int
    size: int
    form: Callable[[], int]


@fast_dataclass(frozen=True)
class BlockOrigin:
    """Where a batch was read from: the how manieth block of a part of a file, cut to blocks of a size."""

    format: str
    part: FileSlice
    blocksize: int
    fields: Sequence[str] | None = None
    options: Mapping[str, Any] | None = None
    block: int = 0
    stamp: str = ""
    lines: tuple[int, int, bool] | None = None
    """Where its lines begin, how many bytes they are, and whether they must be tidied to be as they would be written;
    None if that is not enough."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> BlockOrigin:
        part = dict(told["part"])
        groups, lines = part.pop("row_groups"), told.get("lines")
        found = FileSlice(**part, row_groups=None if groups is None else tuple(groups))
        return cls(**{**told, "part": found, "lines": tuple(lines) if lines else None})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def first(self) -> BlockOrigin:
        """The first block of the same part."""
        return replace(self, block=0, lines=None)

    def check(self) -> None:
        """Raise if the file is no longer the same."""
        if current_stamp(self.part.path) != self.stamp:
            raise InputError(
                f"{self.part.path} has changed since this run has read it for the first time: start the run again"
            )

    def tables(self) -> Iterator[pa.Table]:
        """The blocks of the part. Records that cannot be read were told of when they were read first."""
        source = FileInput(self.part, {}, self.blocksize, on_bad=ignore)
        self.check()
        if self.format == PARQUET_FORMAT:
            from gristmill.io.formats.parquet import read_parquet

            return read_parquet(source, self.fields)
        from gristmill.io.formats.jsonl import read_jsonl

        return read_jsonl(source, self.fields, **(self.options or {}))


def current_stamp(path: str) -> str:
    """What is known of a file that changes with its content."""
    system, inner = file_system(path, {})
    try:
        info = system.info(inner)
    except FileNotFoundError as error:
        raise InputError(f"{path} has gone since this run has read it for the first time: put it back") from error
    marks = (info.get(key) for key in ("size", "ETag", "etag", "mtime", "LastModified", "created"))
    return " ".join(str(mark) for mark in marks if mark is not None)


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
    place = (lines.start, lines.size, form == 1) if lines and form else None
    return replace(origin, stamp=current_stamp(origin.part.path), lines=place)


class BlockRereader:
    """Reads blocks again, one after the other; those of one part in one go."""

    def __init__(self) -> None:
        self._origin: BlockOrigin | None = None
        self._tables: Iterator[pa.Table] = iter(())
        self._next = 0

    def table(self, origin: BlockOrigin, rows: int) -> pa.Table:
        if self._origin != origin.first or self._next > origin.block:
            self._origin, self._tables, self._next = origin.first, origin.tables(), 0
        found = None
        while self._next <= origin.block:
            found = next(self._tables, None)
            self._next += 1
        if found is None or found.num_rows != rows:
            raise _rows_changed_error(origin)
        return found


TableTransform = Callable[[pa.Table], pa.Table]


def _unchanged(table: pa.Table) -> pa.Table:
    return table


class UnreadLines:
    """Lines of a file that are not yet read (`core.batch.unread_rows`): they can be read as rows, or copied as they
    are."""

    def __init__(self, columns: pa.Table) -> None:
        """`columns` has those of the rows, and no row."""
        self.columns = columns
        self.num_rows = self.nbytes = 0
        self._blocks: list[tuple[BlockOrigin, int, TableTransform]] = []
        self._read: dict[Any, pa.Table] = {}

    def add(self, origin: BlockOrigin, rows: int, nbytes: int, finish: TableTransform = _unchanged) -> None:
        """Some more lines; `finish` is what is done to their rows once they are read."""
        self._blocks.append((origin, rows, finish))
        self.num_rows += rows
        self.nbytes += nbytes

    @property
    def size(self) -> int:
        """How many bytes its lines are in the file."""
        return sum(origin.lines[1] for origin, _, _ in self._blocks if origin.lines)

    def without_verdicts(self) -> UnreadLines:
        """The same rows, as they are in the file."""
        other = UnreadLines(self.columns)
        other.num_rows, other.nbytes = self.num_rows, self.nbytes
        other._blocks = [(origin, rows, _unchanged) for origin, rows, _ in self._blocks]
        other._read = self._read
        return other

    def read(self) -> pa.Table:
        """All rows."""
        tables = [finish(self._table(origin, rows)) for origin, rows, finish in self._blocks]
        return pa.concat_tables(tables, promote_options="default")

    def _table(self, origin: BlockOrigin, rows: int) -> pa.Table:
        from gristmill.io.formats.jsonl import parse_block_natively

        if (place := (origin.part.path, origin.lines)) not in self._read:
            raw = b"".join(map(bytes, _read_lines_of(origin)))
            table, _ = parse_block_natively(raw, origin.lines[0] if origin.lines else 0)
            if table is None or table.num_rows != rows:
                raise _rows_changed_error(origin)
            self._read[place] = table
        return self._read[place]

    def write(self, file: BinaryIO, rows: pa.BooleanArray | None) -> None:
        """The lines of some rows, or of all."""
        start = 0
        for origin, count, _ in self._blocks:
            bits = None
            if rows is not None:
                some = pa.concat_arrays([rows.slice(start, count), pa.nulls(0, pa.bool_())])  # begins with a whole byte
                bits = some.buffers()[1]
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
    """The lines of a block, some at a time. The memory is used again for the next ones."""
    assert origin.lines is not None
    origin.check()
    start, left, _ = origin.lines
    with FileInput(origin.part, {}).open() as file:
        file.seek(start)
        room = bytearray(min(left, COPY_CHUNK_BYTES) + 1)
        held = 0  # bytes of a line of which more is to come
        while left:
            if held + 1 >= len(room):
                room = room + bytes(held)
            view = memoryview(room)
            filled = held + file.readinto(view[held : min(held + left, len(room) - 1)])
            if filled == held:
                raise _rows_changed_error(origin)
            left -= filled - held
            if not left and room[filled - 1] != _NEWLINE:  # the last line of a file may lack it
                room[filled] = _NEWLINE
                filled += 1
            end = room.rfind(b"\n", held, filled) + 1
            if end:
                yield view[:end]
            view[: filled - end] = view[end:filled]
            held = filled - end


def _rows_changed_error(origin: BlockOrigin) -> InputError:
    return InputError(f"{origin.part.path} has other rows than when this run has read it first: start it again")
