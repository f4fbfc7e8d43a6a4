"""Read CSV and TSV: a header, then rows. Every value is text unless a type is given.

Types are not inferred: inference from the first rows may fail later, turns "007" into 7, and would depend on how the
file is split. Quoted values may contain newlines, so a file is read from its beginning, as one stream.

Rows are numbered from 0 in file order, good and bad. An error that ends the file, such as damaged compression or an
unterminated quoted value, gets the number of the row that would have come next.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.errors import InputError, did_you_mean
from gristmill.io.formats.format_detection import wrong_format_error
from gristmill.io.formats.line_blocks import read_head, read_line_blocks
from gristmill.io.formats.table_validation import with_positions, without_bad_records
from gristmill.io.storage.file_input import DEFAULT_BLOCK_BYTES, MAX_RAW_BYTES, BadRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gristmill.io.storage.file_input import FileInput

_MARK = "\ufdd0"  # a Unicode noncharacter, reserved for internal use
_END_MARK = "\ufdd1\ufdd1"
_MARK_ERROR_HANDLER = "gristmill.mark"

MAX_BAD_ROWS_IN_SEQUENCE = 100_000
"""Reading a file stops after this many consecutive bad rows, which would fill the memory."""


def _mark(error: UnicodeError) -> tuple[str, int]:
    """Replace bytes that are not UTF-8, on which Arrow would fail, by marks and hexadecimal digits."""
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"{_MARK}{byte:02x}" for byte in error.object[error.start : error.end]), error.end


codecs.register_error(_MARK_ERROR_HANDLER, _mark)


@dataclass(frozen=True)
class CsvFormat:
    """The dialect of a file. By default `.tsv` files have tabs as delimiters, and all others commas."""

    delimiter: str | None = None
    quote_char: str | None = '"'
    escape_char: str | None = None
    column_names: Sequence[str] | None = None
    column_types: Mapping[str, Any] = field(default_factory=dict)

    def type_of(self, column: str) -> pa.DataType:
        kind = self.column_types.get(column, "string")
        return pa.type_for_alias(kind) if isinstance(kind, str) else kind

    def marks(self, path: str) -> dict[str, Any]:
        tabs = ".tsv" in path.rsplit("/", 1)[-1].lower()
        return {
            "delimiter": self.delimiter or ("\t" if tabs else ","),
            "quote_char": self.quote_char or False,
            "escape_char": self.escape_char or False,
        }


def read_csv(
    source: FileInput, fields: Sequence[str] | None = None, form: CsvFormat | None = None
) -> Iterator[pa.Table]:
    """A table per block of rows, with the number of each row in the POSITION column."""
    form = form or CsvFormat()
    # Arrow reads ahead in its own thread, so bad rows are collected there and reported from this thread.
    tracker = _BadRowTracker(form)
    stream = _MarkedLineStream(read_line_blocks(replace(source, on_bad=tracker.broke_off)))
    for batch in _batches(io.BufferedReader(stream, 2**20), source, form, tracker):
        numbers = tracker.pass_by(batch.num_rows, source)
        typed, bad = _typed(batch, form, numbers, source.path, stream.marked)
        table = without_bad_records(with_positions(typed, numbers, fields, source.path), bad)
        for record in bad:
            source.on_bad(record)
        yield table
    tracker.finish(source)


class _BadRowTracker:
    """Numbers the rows that Arrow returns and those that it skips, and keeps the reasons for the latter."""

    def __init__(self, form: CsvFormat) -> None:
        self.row = 0
        self.last: list[BadRecord] = []
        self._first = 2 if form.column_names is None else 1  # of Arrow's row numbers, which count the header
        self._rows: deque[BadRecord] = deque()
        self._before = self._in_a_row = 0

    def broke_off(self, record: BadRecord) -> None:
        self.last.append(record._replace(reason=f"{record.reason} (at byte {record.position:,})"))

    def swallowed(self, raw: bytes) -> None:
        """The file ended inside a row: because it is damaged there, or else because of an unterminated quote."""
        if self.last:
            self.last[-1] = self.last[-1]._replace(raw=raw)
        else:
            self.last.append(BadRecord(0, "a quoted value without a closing quote", raw))

    def left_out(self, row: Any) -> str:
        """Called by Arrow for a row with too few or too many values: "skip" or "error"."""
        if row.text == _END_MARK:
            return "skip"
        self._in_a_row = self._in_a_row + 1 if row.number == self._before + 1 else 0
        self._before = row.number
        if self._in_a_row == MAX_BAD_ROWS_IN_SEQUENCE:
            return "error"
        reason = f"a row of {row.actual_columns} values instead of {row.expected_columns}"
        self._rows.append(BadRecord(row.number - self._first, reason, _raw(row.text)))
        return "skip"

    def pass_by(self, count: int, source: FileInput) -> Sequence[int]:
        """The numbers of the next `count` rows that Arrow returns. Rows that it skipped in between are reported."""
        numbers: list[int] = []
        while len(numbers) < count:
            stop = self.row + count - len(numbers)
            if self._rows and self._rows[0].position < stop:
                numbers += range(self.row, self._rows[0].position)
                self._report(source)
            else:
                numbers += range(self.row, stop)
                self.row = stop
        return numbers

    def _report(self, source: FileInput) -> None:
        record = self._rows.popleft()
        source.on_bad(record)
        self.row = record.position + 1

    def finish(self, source: FileInput) -> None:
        """Report the remaining bad rows. Those of a block that Arrow could not finish belong to the final error."""
        while self._rows and self._rows[0].position == self.row:
            self._report(source)
        for number, record in enumerate(self.last, self.row):
            source.on_bad(record._replace(position=number))


class _MarkedLineStream(io.RawIOBase):
    """Blocks of lines as a file object, with marks for bytes that are not UTF-8, and a last line that marks the end."""

    def __init__(self, blocks: Iterator[tuple[int, bytes]]) -> None:
        super().__init__()
        self._blocks = blocks
        self._rest = memoryview(b"")
        self._open = False
        self.marked = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None and not self._open:
                return 0
            self._rest = memoryview(f"\n{_END_MARK}\n".encode() if block is None else self._mark(block[1]))
            self._open = block is not None
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _mark(self, block: bytes) -> bytes:
        try:
            block.decode()
        except UnicodeDecodeError:
            self.marked = True
            return block.decode(errors=_MARK_ERROR_HANDLER).encode()
        return block


def _batches(
    stream: io.BufferedReader, source: FileInput, form: CsvFormat, tracker: _BadRowTracker
) -> Iterator[pa.RecordBatch]:
    """Batches in which all columns are text."""
    from pyarrow import csv as arrow_csv

    head = stream.peek(2**16)
    if not head.strip():
        return
    if _is_binary(head):
        tracker.last.append(BadRecord(0, "not CSV: binary data", head[:MAX_RAW_BYTES]))
        return
    names = column_names(head, source.path, form)
    try:
        reader = arrow_csv.open_csv(
            stream,
            # A row must fit into a block.
            arrow_csv.ReadOptions(
                use_threads=False, block_size=max(DEFAULT_BLOCK_BYTES, source.blocksize), column_names=form.column_names
            ),
            arrow_csv.ParseOptions(
                newlines_in_values=True, invalid_row_handler=tracker.left_out, **form.marks(source.path)
            ),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), check_utf8=False),
        )
        for batch in reader:
            yield _before_end(batch, tracker)
    except pa.ArrowInvalid as error:
        tracker.last.append(BadRecord(0, f"CSV is unreadable from here on: {error}"))


def _before_end(batch: pa.RecordBatch, tracker: _BadRowTracker) -> pa.RecordBatch:
    """The batch without the line that marks the end, and without a row that has swallowed it."""
    last = [column[-1].as_py() for column in batch.columns] if batch.num_rows else []
    if not any(value.endswith((_END_MARK, f"{_END_MARK}\n")) for value in last):
        return batch
    if last != [_END_MARK]:
        tracker.swallowed(_raw(",".join(last)))
    return batch.slice(0, batch.num_rows - 1)


def _is_binary(head: bytes) -> bool:
    return b"\0" in head.lstrip(b"\r\n").partition(b"\n")[0]


def column_names(head: bytes, path: str, form: CsvFormat) -> list[str]:
    """The names in the header. Duplicate names are an error: one of the columns would be lost."""
    marks = form.marks(path)
    if form.column_names is not None:
        names = list(form.column_names)
    else:
        text = io.StringIO(head.decode(errors="replace"), newline="")
        lines = csv.reader(
            text,
            delimiter=marks["delimiter"],
            quotechar=marks["quote_char"] or None,
            escapechar=marks["escape_char"] or None,
            quoting=csv.QUOTE_MINIMAL if marks["quote_char"] else csv.QUOTE_NONE,
        )
        names = next((line for line in lines if line), [])
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"{path} has two columns {twice!r}: name them with read_kwargs={{'column_names': [...]}}")
    for name in form.column_types:
        if name not in names:
            raise InputError(f"{path} has no column {name!r}, named in column_types.{did_you_mean(name, names)}")
    return names


def _typed(
    batch: pa.RecordBatch, form: CsvFormat, numbers: Sequence[int], path: str, marked: bool
) -> tuple[pa.Table, list[BadRecord]]:
    """The batch in the requested types, and the rows with values that cannot be converted."""
    columns: list[pa.Array] = []
    bad: dict[int, BadRecord] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = form.type_of(name)
        if kind == pa.string():
            array, bad_rows = column, _marked_rows(column) if marked else []
        else:
            array, bad_rows = _cast(column, kind)
        columns.append(array)
        for row in bad_rows:
            what = "valid UTF-8" if kind == pa.string() else f"of type {kind}"
            reason = f"the value of column {name!r} is not {what}"
            bad.setdefault(row, BadRecord(numbers[row], reason, _row_text(batch, row, form.marks(path)["delimiter"])))
    return pa.table(columns, names=batch.schema.names), [bad[row] for row in sorted(bad)]


def _marked_rows(column: pa.Array) -> list[int]:
    from pyarrow import compute as pc

    return list(pc.indices_nonzero(pc.match_substring(column, _MARK)).to_pylist())


def _row_text(batch: pa.RecordBatch, row: int, delimiter: str) -> bytes:
    """A row as CSV text, close to the original."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="").writerow([column[row].as_py() for column in batch.columns])
    return _raw(text.getvalue())


def _raw(text: str) -> bytes:
    """Text read by Arrow as the original bytes, with marks undone."""
    text = text.partition(f"\n{_END_MARK}")[0]
    marked = re.compile(f"{_MARK}([0-9a-f]{{2}})".encode())
    return marked.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode())[:MAX_RAW_BYTES]


def _cast(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """The column in another type, null where a value cannot be converted, and the rows with such values."""
    try:
        return _convert(column, kind), []
    except pa.ArrowInvalid:
        pass
    wrong: list[int] = []
    pieces: list[pa.Array] = []
    for row in range(len(column)):
        try:
            pieces.append(_convert(column.slice(row, 1), kind))
        except pa.ArrowInvalid:
            wrong.append(row)
            pieces.append(pa.nulls(1, kind))
    return pa.concat_arrays(pieces), wrong


def _convert(text: pa.Array, kind: pa.DataType) -> pa.Array:
    from pyarrow import compute as pc

    return pc.if_else(pc.equal(text, literal("", pa.string())), literal(None, pa.string()), text).cast(kind)


def peek_csv(source: FileInput, fields: Sequence[str] | None = None, form: CsvFormat | None = None) -> pa.Schema | None:
    """The columns, from the header; None for an empty or damaged file. Raises InputError for another format."""
    form = form or CsvFormat()
    head = read_head(source.whole()).removeprefix(b"\xef\xbb\xbf")
    if not head.strip() or _is_binary(head):
        return None
    if wrong := wrong_format_error(source.path, "CSV", head):
        raise wrong
    names = column_names(head, source.path, form)
    schema = pa.schema([(name, form.type_of(name)) for name in names])
    return with_positions(schema.empty_table(), [], fields, source.path).schema
