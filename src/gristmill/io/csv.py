"""CSV and TSV: a header, then rows. Every value is text unless a type is asked for.

Types are not guessed: a guess from the first rows is wrong later on, turns "007" into 7, and would depend on
how the file is cut. Quoted values may hold newlines, so a file is read from its beginning, in one stream.
"""

from __future__ import annotations

import codecs
import csv
import io
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.columns import literal, make_array
from gristmill.core.errors import InputError, did_you_mean
from gristmill.core.table import POSITION
from gristmill.io.input import BLOCK, BadRecord
from gristmill.io.lines import read_head, read_lines
from gristmill.io.parquet import with_positions
from gristmill.io.sniff import wrong_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gristmill.io.input import Input

_MARK = "\ufdd0"  # a code point that Unicode keeps free for such use
_MARKING = "gristmill.mark"
codecs.register_error(_MARKING, lambda error: (_MARK, error.end))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class CsvFormat:
    """How a file is written. Without a delimiter, `.tsv` files have tabs and all others commas."""

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


def read_csv(source: Input, fields: Sequence[str] | None = None, form: CsvFormat | None = None) -> Iterator[pa.Table]:
    """A table per block of rows, with the number of each readable row in the POSITION column."""
    form = form or CsvFormat()
    troubles: list[BadRecord] = []
    # Arrow reads ahead in a thread of its own: what it finds wrong is told here, in this thread.
    quiet = replace(source, on_bad=troubles.append)
    stream = _Stream(read_lines(quiet))
    start = 0
    for batch in _batches(io.BufferedReader(stream, 2**20), source, form, troubles):
        table, bad = _typed(batch, form, start, stream.marked)
        for record in (*troubles, *bad):
            source.on_bad(record)
        troubles.clear()
        table = with_positions(table, start, fields, source.path)
        start += batch.num_rows
        if bad:
            lost = {record.position for record in bad}
            table = table.filter(
                make_array([number not in lost for number in table.column(POSITION).to_pylist()], pa.bool_())
            )
        yield table
    for record in troubles:
        source.on_bad(record)


class _Stream(io.RawIOBase):
    """Blocks of lines as a file. Arrow stumbles over bytes that are not UTF-8, so it gets a mark in their place."""

    def __init__(self, blocks: Iterator[tuple[int, bytes]]) -> None:
        super().__init__()
        self._blocks = blocks
        self._rest = memoryview(b"")
        self.marked = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(self._mark(block[1]))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _mark(self, block: bytes) -> bytes:
        try:
            block.decode()
        except UnicodeDecodeError:
            self.marked = True
            return block.decode(errors=_MARKING).encode()
        return block


def _batches(
    stream: io.BufferedReader, source: Input, form: CsvFormat, troubles: list[BadRecord]
) -> Iterator[pa.RecordBatch]:
    """Batches of columns of text."""
    from pyarrow import csv as arrow_csv

    def note(row: Any) -> str:
        reason = f"a row of {row.actual_columns} values where {row.expected_columns} are expected"
        troubles.append(BadRecord(row.number or 0, reason, _raw(row.text)))
        return "skip"

    head = stream.peek(2**16)
    if not head.strip():
        return
    names = column_names(head, source.path, form)
    try:
        reader = arrow_csv.open_csv(
            stream,
            # A row may not be longer than a block.
            arrow_csv.ReadOptions(
                use_threads=False, block_size=max(BLOCK, source.blocksize), column_names=form.column_names
            ),
            arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=note, **form.marks(source.path)),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), check_utf8=False),
        )
        yield from reader
    except pa.ArrowInvalid as error:
        troubles.append(BadRecord(0, f"not CSV that can be read: {error}"))


def column_names(head: bytes, path: str, form: CsvFormat) -> list[str]:
    """The names in the header. Two columns of one name are an error: one of them would be lost."""
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
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{path} has two columns {twice[0]!r}: name them with read_kwargs={{'column_names': [...]}}")
    for name in form.column_types:
        if name not in names:
            raise InputError(f"{path} has no column {name!r} (of column_types).{did_you_mean(name, names)}")
    return names


def _typed(batch: pa.RecordBatch, form: CsvFormat, start: int, marked: bool) -> tuple[pa.Table, list[BadRecord]]:
    """The batch in the types that were asked for, and the rows that hold something else."""
    columns: list[pa.Array] = []
    bad: dict[int, BadRecord] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = form.type_of(name)
        if kind == pa.string():
            array, wrong = column, _marked_rows(column) if marked else []
        else:
            array, wrong = _cast(column, kind)
        columns.append(array)
        for row in wrong:
            what = "valid UTF-8" if kind == pa.string() else f"of type {kind}"
            reason = f"the value of column {name!r} is not {what}"
            bad.setdefault(row, BadRecord(start + row, reason, _raw(column[row].as_py())))
    return pa.table(columns, names=batch.schema.names), [bad[row] for row in sorted(bad)]


def _marked_rows(column: pa.Array) -> list[int]:
    from pyarrow import compute as pc

    return list(pc.indices_nonzero(pc.match_substring(column, _MARK)).to_pylist())


def _raw(text: object) -> bytes:
    return str(text).replace(_MARK, "\ufffd").encode()[:200]


def _cast(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """The column in another type, null where that cannot be, and the rows where it cannot."""
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


def peek_csv(source: Input, fields: Sequence[str] | None = None, form: CsvFormat | None = None) -> pa.Schema | None:
    """The columns, from the header; None for an empty file. Raises InputError for another format."""
    form = form or CsvFormat()
    head = read_head(source.whole()).removeprefix(b"\xef\xbb\xbf")
    if not head.strip():
        return None
    if wrong := wrong_format(source.path, "CSV", head):
        raise wrong
    names = column_names(head, source.path, form)
    schema = pa.schema([(name, form.type_of(name)) for name in names])
    return with_positions(schema.empty_table(), 0, fields, source.path).schema
