"""JSON lines: one object per line.

A line that cannot be read is told with its offset and reason; its neighbours are not affected. NaN and
Infinity, which Python writes though JSON has none, are read. orjson reads integers beyond 64 bits as floats; a
block in which that has happened is read again, slowly and exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.columns import make_array
from gristmill.core.errors import InputError
from gristmill.core.table import POSITION, TooDeep, is_deep, is_json, to_array
from gristmill.io.input import BadRecord, check_names
from gristmill.io.lines import HEAD, MAX_LINE, read_head, read_lines
from gristmill.io.sniff import wrong_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.io.input import Input

Row = dict[str, Any]


def read_jsonl(
    source: Input, fields: Sequence[str] | None = None, max_line_bytes: int = MAX_LINE
) -> Iterator[pa.Table]:
    """A table per block of lines, with the byte offset of each line in the POSITION column."""
    for offset, block in read_lines(source, max_line_bytes):
        table = _block_table(source, block, offset, fields)
        if table is not None:
            yield table


def _block_table(source: Input, block: bytes, offset: int, fields: Sequence[str] | None) -> pa.Table | None:
    # In a function of its own, so that the rows are gone from memory when the table is passed on.
    table, positions, bad = _parse_table(block, offset, fields, source.path)
    for record in bad:
        source.on_bad(record)
    if table is None or not _lost_integers(table):
        return table
    return make_table(_exactly(block, offset, positions), positions, fields, source.path)


def _parse_table(
    block: bytes, offset: int, fields: Sequence[str] | None, path: str
) -> tuple[pa.Table | None, list[int], list[BadRecord]]:
    """The table of a block, None if it has no rows; where each row starts; and the bad records."""
    rows, positions, bad = parse_lines(block, offset)
    try:
        return make_table(rows, positions, fields, path) if rows else None, positions, bad
    except TooDeep as error:
        reason = str(error)
    kept: list[Row] = []
    places: list[int] = []
    for row, position in zip(rows, positions, strict=True):
        values = row.values() if fields is None else (row.get(name) for name in fields)
        if any(map(is_deep, values)):
            raw = block[position - offset : position - offset + 200].partition(b"\n")[0]
            bad.append(BadRecord(position, reason, raw))
        else:
            kept.append(row)
            places.append(position)
    return make_table(kept, places, fields, path) if kept else None, places, sorted(bad)


def _lost_integers(table: pa.Table) -> bool:
    """Whether a float may have been an integer of more than 64 bits."""
    for column in table.columns:
        if pa.types.is_floating(column.type) and (pc.max(pc.abs(column)).as_py() or 0.0) >= 2.0**63:
            return True
        if is_json(column.type):
            text = pa.chunked_array([chunk.storage for chunk in column.chunks], pa.string())
            if pc.any(pc.match_substring_regex(text, r"[0-9]e[0-9]")).as_py():
                return True
    return False


def _exactly(block: bytes, offset: int, positions: Sequence[int]) -> list[Row]:
    import json

    view = memoryview(block)
    ends = (block.find(b"\n", start - offset) for start in positions)
    spans = ((start - offset, end if end >= 0 else len(block)) for start, end in zip(positions, ends, strict=True))
    return [json.loads(bytes(view[start:end])) for start, end in spans]


def parse_lines(block: bytes, offset: int) -> tuple[list[Row], list[int], list[BadRecord]]:
    """The objects of a block of lines, where each line starts, and the lines that are not objects."""
    rows: list[Row] = []
    positions: list[int] = []
    bad: list[BadRecord] = []
    loads = orjson.loads
    for line in _split(block):
        try:
            row = loads(line)
        except orjson.JSONDecodeError as error:
            row = _second_look(bytes(line), error)
        if type(row) is dict:
            rows.append(row)
            positions.append(offset)
        elif row is not _BLANK:
            reason = row if isinstance(row, _Reason) else "not a JSON object"
            bad.append(BadRecord(offset, str(reason), bytes(line[:200])))
        offset += len(line) + 1
    return rows, positions, bad


def _split(block: bytes) -> Iterable[bytes | memoryview]:
    """The lines. Short ones are copied, which is quick; long ones are parsed where they lie."""
    return block.split(b"\n") if block.count(b"\n", 0, 2**16) > 64 else _views(block)


def _views(block: bytes) -> Iterator[memoryview]:
    view, start = memoryview(block), 0
    while (end := block.find(b"\n", start)) >= 0:
        yield view[start:end]
        start = end + 1
    yield view[start:]


class _Reason(str):
    """Why a line cannot be read; a type of its own, since a line may hold a string."""

    __slots__ = ()


_BLANK = _Reason("blank")


def _second_look(line: bytes, error: orjson.JSONDecodeError) -> Any:
    """Lines that orjson refuses: blank ones, Python's NaN and Infinity, and bad ones."""
    if not line.strip():
        return _BLANK
    try:
        text = line.decode()
    except UnicodeDecodeError as wrong:
        return _Reason(f"not valid UTF-8 at byte {wrong.start} of the line")
    if "NaN" in text or "Infinity" in text:
        import json

        try:
            row = json.loads(text)
            orjson.dumps(row, option=orjson.OPT_NON_STR_KEYS)  # refuses what is no Unicode text
        except (ValueError, TypeError, RecursionError):
            pass
        else:
            return row
    return _Reason(f"not JSON: {error.msg} at character {error.pos + 1} of the line")


def make_table(
    rows: Sequence[Row], positions: Sequence[int], fields: Sequence[str] | None = None, path: str = "a row"
) -> pa.Table:
    """A table of the rows: every field in order of first appearance, or only `fields`; what a row lacks is null."""
    shapes = list(dict.fromkeys(map(tuple, rows)))
    if any(POSITION in shape for shape in shapes):
        check_names(path, [POSITION], fields)
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


def peek_jsonl(source: Input, fields: Sequence[str] | None = None, strict: bool = True) -> pa.Schema | None:
    """The columns of the first lines; None when there is nothing to see. Raises InputError for another format."""
    head = read_head(source.whole())
    lines = head if len(head) < HEAD else head[: head.rfind(b"\n") + 1]
    table, _, bad = _parse_table(lines.removeprefix(b"\xef\xbb\xbf"), 0, fields, source.path)
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
    if error := wrong_format(source.path, "JSON lines", head):
        raise error
    if bad and strict:
        raise InputError(
            f"{source.path} is not JSON lines: none of its first {len(bad)} lines is a JSON object "
            f'(the first: {bad[0].reason}). To leave such lines out, use on_bad_record="skip"'
        )
    return None


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
