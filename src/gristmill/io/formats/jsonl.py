"""Read JSON lines: one object per line.

A line that cannot be parsed is reported with its offset and the reason; other lines are not affected. NaN and Infinity,
which Python writes although JSON does not have them, are accepted. orjson reads integers beyond 64 bits as floats; a
block in which that may have happened is parsed again with the slower, exact parser of the standard library.

A block is parsed by `_kernels` if each key has only strings, or no strings, as values; lines need not have the same
keys. All other blocks, and all with a bad line, are parsed line by line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.arrow.table_conversion import (
    POSITION,
    NestedTooDeepError,
    is_json,
    is_nested_too_deep,
    to_array,
    wide_integer_columns,
)
from gristmill.core.errors import InputError
from gristmill.io.formats.format_detection import is_text, wrong_format_error
from gristmill.io.formats.line_blocks import (
    HEAD_BYTES,
    MAX_LINE_BYTES,
    ScannedBlock,
    changed_file_error,
    read_head,
    scan_line_blocks,
)
from gristmill.io.storage.file_input import MAX_BAD_RECORDS, MAX_RAW_BYTES, BadRecord, check_column_names
from gristmill.io.write.jsonl_format import column_as_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.io.storage.file_input import FileInput

JsonObject = dict[str, Any]
LineForm = Callable[[], int]
"""A function that returns whether lines are exactly as they would be written (`AS_WRITTEN`), or will be once they are
tidied (`UNTIDY`), or neither (0). The comparison takes time, so it is done on request only."""

UNTIDY, AS_WRITTEN = 1, 2


def read_jsonl(
    source: FileInput, fields: Sequence[str] | None = None, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[pa.Table]:
    """A table per block of lines, with the byte offset of each line in the POSITION column."""
    scan = None if kernels is None else kernels.json_columns_of
    for parser in starmap(
        partial(_BlockParser, fields, source.path, reading=True), scan_line_blocks(source, max_line_bytes, scan)
    ):
        while parser.has_more:
            table = _next_table(source, parser)
            parser.release_block()
            if table is not None:
                yield table


def _next_table(source: FileInput, parser: _BlockParser) -> pa.Table | None:
    # A separate function, so that the parsed rows are freed before the table is passed on.
    table, bad = parser.table()
    for record in bad:
        source.on_bad(record)
    if table is None:  # an empty table if there is more: bad records are handed on between tables
        return table_from_rows([], [], []) if parser.has_more else None
    if not _may_be_rounded(table):
        if parser.plain and source.on_lines:
            source.on_lines(parser.offset, parser.size, parser.plain)
        return table
    positions = table.column(POSITION).to_pylist()
    return table_from_rows(parser.exact_rows(positions), positions, parser.fields, source.path)


class _BlockParser:
    """Parses a block of lines into tables: one, unless there are many bad lines."""

    def __init__(
        self, fields: Sequence[str] | None, path: str, offset: int, block: bytes | ScannedBlock, reading: bool = False
    ) -> None:
        """While `reading`, lines that cannot be rows of a table are bad records; before that, they are an error."""
        self.reading = reading
        self.offset, self.fields, self.path = offset, fields, path
        self._block: bytes | ScannedBlock = block
        self.size = block.size if isinstance(block, ScannedBlock) else len(block)
        self.lines: Iterator[bytes | memoryview] | None = None
        self.next: int | None = offset
        self.plain: LineForm | None = None

    @property
    def has_more(self) -> bool:
        return self.next is not None

    def release_block(self) -> None:
        """Free the block once it is parsed: the stages that process its tables need the memory."""
        if not self.has_more:
            self._block = b""

    @property
    def block(self) -> bytes:
        if isinstance(self._block, ScannedBlock):
            self._block = self._block.read()
        return self._block

    def table(self) -> tuple[pa.Table | None, list[BadRecord]]:
        """The next table, None if it has no rows, and the bad records."""
        if self.lines is None:
            table, self.plain = self._quick_table()
            if table is not None:
                self.next = None
                return table, []
            self.lines = iter(split_lines(self.block))
        rows, positions, bad, self.next = parse_lines(self.lines, self.next or 0)
        if self.reading and self._reads_reserved_name and any(POSITION in row for row in rows):
            rows, positions = self._without_reserved_names(rows, positions, bad)
        try:
            return self._make(rows, positions), bad
        except NestedTooDeepError as error:
            reason = str(error)
        kept: list[JsonObject] = []
        kept_positions: list[int] = []
        for row, position in zip(rows, positions, strict=True):
            values = row.values() if self.fields is None else (row.get(name) for name in self.fields)
            if any(map(is_nested_too_deep, values)):
                bad.append(self._bad(position, reason))
            else:
                kept.append(row)
                kept_positions.append(position)
        return self._make(kept, kept_positions), sorted(bad)

    @property
    def _reads_reserved_name(self) -> bool:
        return self.fields is None or POSITION in self.fields

    def _without_reserved_names(
        self, rows: list[JsonObject], positions: list[int], bad: list[BadRecord]
    ) -> tuple[list[JsonObject], list[int]]:
        reason = f"has a field {POSITION!r}, a name that is reserved: rename it"
        bad += [self._bad(place, reason) for row, place in zip(rows, positions, strict=True) if POSITION in row]
        bad.sort()
        good = [index for index, row in enumerate(rows) if POSITION not in row]
        return [rows[index] for index in good], [positions[index] for index in good]

    def _bad(self, position: int, reason: str) -> BadRecord:
        start = position - self.offset
        return BadRecord(position, reason, self.block[start : start + MAX_RAW_BYTES].partition(b"\n")[0])

    def _quick_table(self) -> tuple[pa.Table | None, LineForm | None]:
        if isinstance(self._block, ScannedBlock):
            return _table_of(self._block.result, self.offset, self.fields)
        return parse_block_natively(self._block, self.offset, self.fields)

    def _make(self, rows: list[JsonObject], positions: list[int]) -> pa.Table | None:
        return table_from_rows(rows, positions, self.fields, self.path) if rows else None

    def exact_rows(self, positions: Sequence[int]) -> list[JsonObject]:
        """The rows at these positions, parsed with integers of any size."""
        import json

        view = memoryview(self.block)
        starts = [position - self.offset for position in positions]
        ends = [self.block.find(b"\n", start) for start in starts]
        spans = ((start, end if end >= 0 else None) for start, end in zip(starts, ends, strict=True))
        try:
            return [json.loads(bytes(view[start:end])) for start, end in spans]
        except ValueError as error:
            raise changed_file_error(self.path) from error


def _may_be_rounded(table: pa.Table) -> bool:
    """Whether a float may be a rounded integer of more than 64 bits."""
    for column in table.columns:
        if pa.types.is_floating(column.type) and (pc.max(pc.abs(column)).as_py() or 0.0) >= 2.0**63:
            return True
        if is_json(column.type):
            text = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
            if pc.any(pc.match_substring_regex(text, r"[0-9]e\+?[0-9]")).as_py():
                return True
    return False


def parse_block_natively(
    block: Any, offset: int, fields: Sequence[str] | None = None
) -> tuple[pa.Table | None, LineForm | None]:
    """The table of a block that the kernels can parse; None if its lines must be parsed one by one."""
    parsed = None if kernels is None else kernels.json_columns(block)
    return (None, None) if parsed is None else _table_of(parsed, offset, fields)


def _table_of(
    parsed: tuple[Sequence[Any], bytes, int], offset: int, fields: Sequence[str] | None
) -> tuple[pa.Table | None, LineForm | None]:
    columns, raw_starts, plain = parsed
    count = memoryview(raw_starts).nbytes // 8
    read: dict[str, pa.Array] = {}
    try:
        for name, *parts in columns:
            read[name] = _others(count, *parts) if len(parts) == 1 else _strings(count, *parts)
    except (orjson.JSONDecodeError, NestedTooDeepError):
        return None, None
    if POSITION in read:
        return None, None
    others = [(read[name], parts[0]) for name, *parts in columns if len(parts) == 1]
    if fields is not None:
        plain = 0
        read = {name: read[name] if name in read else pa.nulls(count) for name in fields}
        read.pop(POSITION, None)
    starts = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(raw_starts)])
    read[POSITION] = pc.add(starts, literal(offset, pa.int64())) if offset else starts
    return pa.table(read), partial(_form, plain, others) if plain else None


def _form(form: int, others: Sequence[tuple[pa.Array, bytes]]) -> int:
    """The form of lines (`LineForm`), given their columns without strings, each with the text of its values, which end
    with a comma each. It is 0 for large integers, whose form depends on whether other blocks have floats."""
    for column, values in others:
        if wide_integer_columns(pa.table([column], ["values"])):
            return 0
        written = ",".join("null" if text is None else text for text in column_as_texts(column)[0].to_pylist()).encode()
        if written == memoryview(values)[:-1]:
            continue
        raw = bytearray(values)
        if written != memoryview(raw)[: max(kernels.tidy_json(raw) - 1, 0)]:
            return 0
        form = UNTIDY
    return form


def _strings(count: int, ends: bytes, data: bytes, bitmap: bytes | None, nulls: int) -> pa.Array:
    validity = None if bitmap is None else pa.py_buffer(bitmap)
    return pa.Array.from_buffers(pa.string(), count, [validity, pa.py_buffer(ends), pa.py_buffer(data)], nulls)


def _others(count: int, values: bytes) -> pa.Array:
    """A column of values other than strings, from their JSON texts, which end with a comma each."""
    listed = orjson.loads(b"".join((b"[", memoryview(values)[:-1], b"]")))
    if len(listed) != count:
        raise orjson.JSONDecodeError("not one value per row", "", 0)
    return to_array(listed)


def parse_lines(
    lines: Iterator[bytes | memoryview], offset: int
) -> tuple[list[JsonObject], list[int], list[BadRecord], int | None]:
    """The objects of lines, their offsets, the bad lines, and the offset to continue at (None at the end)."""
    rows: list[JsonObject] = []
    positions: list[int] = []
    bad: list[BadRecord] = []
    loads = orjson.loads
    for line in lines:
        try:
            row = loads(line)
        except orjson.JSONDecodeError as error:
            row = _parse_rejected_line(bytes(line), error)
        if type(row) is dict:
            rows.append(row)
            positions.append(offset)
        elif row is not _BLANK_LINE:
            reason = row if isinstance(row, _Reason) else "not a JSON object"
            bad.append(BadRecord(offset, str(reason), bytes(line[:MAX_RAW_BYTES])))
            if len(bad) == MAX_BAD_RECORDS:
                return rows, positions, bad, offset + len(line) + 1
        offset += len(line) + 1
    return rows, positions, bad, None


def split_lines(block: bytes) -> Iterable[bytes | memoryview]:
    """The lines. Short ones are copied, which is fast; long ones are views of the block."""
    return block.split(b"\n") if block.count(b"\n", 0, 2**16) > 64 else _views(block)


def _views(block: bytes) -> Iterator[memoryview]:
    view, start = memoryview(block), 0
    while (end := block.find(b"\n", start)) >= 0:
        yield view[start:end]
        start = end + 1
    yield view[start:]


class _Reason(str):
    """Why a line cannot be parsed. A separate type, since a parsed line may be a string."""

    __slots__ = ()


_BLANK_LINE = _Reason("blank")


def _parse_rejected_line(line: bytes, error: orjson.JSONDecodeError) -> Any:
    """Parse a line that orjson refuses: a blank one, one with Python's NaN or Infinity, or a bad one."""
    if not line.strip():
        return _BLANK_LINE
    try:
        text = line.decode()
    except UnicodeDecodeError as wrong:
        return _Reason(f"not valid UTF-8 at byte {wrong.start} of the line")
    if "NaN" in text or "Infinity" in text:
        import json

        try:
            row = json.loads(text)
            orjson.dumps(row, option=orjson.OPT_NON_STR_KEYS)  # refuses lone surrogates
        except (ValueError, TypeError, RecursionError):
            pass
        else:
            return row
    return _Reason(f"not JSON: {error.msg} at character {error.pos + 1} of the line")


def table_from_rows(
    rows: Sequence[JsonObject], positions: Sequence[int], fields: Sequence[str] | None = None, path: str = "a row"
) -> pa.Table:
    """A table of the rows: all fields in order of first appearance, or only `fields`; missing values are null."""
    shapes = list(dict.fromkeys(map(tuple, rows)))
    if any(POSITION in shape for shape in shapes):
        check_column_names(path, [POSITION], fields)
    columns: dict[str, pa.Array] = {}
    if fields is None and len(shapes) == 1:
        values = zip(*(row.values() for row in rows), strict=True)
        columns = {name: to_array(column) for name, column in zip(shapes[0], values, strict=True)}
    else:
        names = dict.fromkeys(name for shape in shapes for name in shape) if fields is None else fields
        columns = {name: to_array([row.get(name) for row in rows]) for name in names}
    columns.pop(POSITION, None)
    columns[POSITION] = make_array(positions, pa.int64())
    return pa.table(columns)


def peek_jsonl(source: FileInput, fields: Sequence[str] | None = None, strict: bool = True) -> pa.Schema | None:
    """The columns of the first lines; None if there is no good line. Raises InputError for another format.

    If no line is good, text that does not begin with "{" counts as another format if `strict`; anything else counts as
    damage, and is reported when the file is read.
    """
    head = read_head(source.whole()).removeprefix(b"\xef\xbb\xbf")
    lines = head if len(head) < HEAD_BYTES - 3 else head[: head.rfind(b"\n") + 1]
    table, bad = _BlockParser(fields, source.path, 0, lines).table()
    if head.lstrip().startswith(b"[") and (table is None or not _is_json(head.lstrip().partition(b"\n")[0])):
        raise InputError(
            f"{source.path} is one JSON array, not JSON lines: write each of its elements on a line of its own "
            "(jq -c '.[]' old.json > new.jsonl)"
        )
    if table is not None:
        return table.schema
    if lines.rstrip().endswith(b"}") and len(bad) > 1 and _is_json(lines):
        raise InputError(
            f"{source.path} is one JSON object over several lines, not JSON lines: write it on one line "
            "(jq -c . old.json > new.jsonl)"
        )
    if error := wrong_format_error(source.path, "JSON lines", head):
        raise error
    if bad and strict and is_text(head) and not head.lstrip().startswith(b"{"):
        raise InputError(
            f"{source.path} is not JSON lines: none of its first {len(bad)} lines is a JSON object "
            f'(the first: {bad[0].reason}). To skip such lines, use on_bad_record="skip"'
        )
    return None


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
