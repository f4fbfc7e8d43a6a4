"""Values of rows, formatted for people."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.table_conversion import POSITION, as_plain_text, table_to_rows
from gristmill.view.pages.html_elements import SafeHtml, element, to_html

CHARS_BEFORE_MATCH = 120
"""Characters shown before the place where a search was found."""

EXCERPT_CHARS = 420


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Python rows, as far as Python can hold them."""
    try:
        return table_to_rows(table)
    except Exception:  # noqa: BLE001  a date beyond Python's, text that is no UTF-8
        return [_row(table.slice(number, 1)) for number in range(table.num_rows)]


def _row(table: pa.Table) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in table.column_names:
        try:
            row |= table_to_rows(table.select([name]))[0]
        except Exception as error:  # noqa: BLE001
            row[name] = f"({error})"
    return row


def format_value(value: Any, most: int | None = None) -> str:
    """A value in words."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value):,} bytes"
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    elif isinstance(value, float):
        text = number(value)
    elif isinstance(value, dict | list):
        text = format_nested(value, short=most is not None and most < 1000)
    else:
        text = str(value)
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def format_nested(value: Any, short: bool = False) -> str:
    """A list or a record as JSON."""
    try:
        options = orjson.OPT_NON_STR_KEYS | (0 if short else orjson.OPT_INDENT_2)
        return orjson.dumps(_without_bytes(value), default=as_plain_text, option=options).decode()
    except (TypeError, RecursionError):
        return str(value)


def _without_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"({len(value):,} bytes)"
    if isinstance(value, Mapping):
        return {key: _without_bytes(item) for key, item in value.items()}
    return [_without_bytes(item) for item in value] if isinstance(value, list | tuple) else value


def number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def excerpt(text: str, search: str) -> SafeHtml:
    """The beginning of a text, or what is around the place where the search was found, with that marked."""
    start = 0
    if search:
        found = re.search(re.escape(search), text[:1_000_000], re.IGNORECASE)
        start = max(found.start() - CHARS_BEFORE_MATCH, 0) if found else 0
    piece = text[start : start + EXCERPT_CHARS]
    before, after = ("…" if start else ""), ("…" if start + EXCERPT_CHARS < len(text) else "")
    return SafeHtml(to_html(before) + highlight_matches(piece, search) + to_html(after))


def highlight_matches(text: str, search: str) -> SafeHtml:
    """The text with each place marked where the search is found."""
    if not search:
        return to_html(text)
    parts, end = [], 0
    for found in re.finditer(re.escape(search), text, re.IGNORECASE):
        parts += [to_html(text[end : found.start()]), element("mark", found.group())]
        end = found.end()
    return SafeHtml("".join([*parts, to_html(text[end:])]))


def position_of(row: Mapping[str, Any]) -> int:
    return int(row.get(POSITION) or 0)
