"""Which rows of a row set are requested and in what order, as given by the parameters of a URL."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import is_json, is_text
from gristmill.core.records.rejected_rows import RULE

LENGTH = "(length)"
"""What stands for the number of characters of the text among columns with numbers."""

LANGUAGE_COLUMNS = ("language", "lang", "language_code", "lang_id")
TEXT_COLUMNS = ("text", "content", "raw_content", "document", "body", "markdown", "transcript", "caption", "prompt")


@dataclass(frozen=True, slots=True)
class RowQuery:
    """What is asked for. Empty text, and None, stand for no wish."""

    row_set: str = ""
    stage: str = ""
    language: str = ""
    search: str = ""
    score: str = ""
    least: float | None = None
    most: float | None = None
    sort: str = ""
    down: bool = False
    rule: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> RowQuery:
        """From the parameters of an address; what makes no sense is left out."""
        return cls(
            given.get("in", ""),
            given.get("stage", ""),
            given.get("language", ""),
            given.get("search", "")[:1000],
            given.get("score", ""),
            _number(given.get("least", "")),
            _number(given.get("most", "")),
            given.get("sort", ""),
            given.get("down", "") == "1",
            given.get("rule", ""),
        )

    def address(self, **more: Any) -> str:
        """The parameters of an address."""
        parameters: dict[str, Any] = {"in": self.row_set, **asdict(self), "down": "1" if self.down else "", **more}
        del parameters["row_set"]
        for name in ("least", "most"):
            parameters[name] = "" if parameters[name] is None else f"{parameters[name]:.12g}"
        return urlencode({name: value for name, value in parameters.items() if value not in ("", None)})

    def with_(self, **changes: Any) -> RowQuery:
        return replace(self, **changes)

    @property
    def is_filtered(self) -> bool:
        return bool(self.stage or self.rule or self.language or self.search or self.has_range)

    @property
    def has_range(self) -> bool:
        return bool(self.score) and (self.least is not None or self.most is not None)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """What the columns of a row_set are good for."""

    names: tuple[str, ...] = ()
    text: str | None = None
    language: str | None = None
    stage: str | None = None
    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    rule: str | None = None

    @classmethod
    def of(cls, schema: pa.Schema, sample: pa.Table, stage: str | None = None, text: str | None = None) -> ColumnRoles:
        texts = [field.name for field in schema if is_text(field.type) or is_json(field.type)]
        plain = [field.name for field in schema if is_text(field.type)]
        return cls(
            tuple(schema.names),
            text if text in schema.names else _first(TEXT_COLUMNS, plain) or _longest(plain, sample),
            _first(LANGUAGE_COLUMNS, plain),
            stage if stage in schema.names else None,
            tuple(field.name for field in schema if is_number(field.type)),
            tuple(texts),
            RULE if stage is not None and _is_told(sample, RULE) else None,
        )


def _is_told(sample: pa.Table, name: str) -> bool:
    return name in sample.column_names and sample.column(name).null_count < sample.num_rows


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _first(wanted: Iterable[str], names: Sequence[str]) -> str | None:
    known = {name.lower(): name for name in reversed(names)}
    return next((known[name] for name in wanted if name in known), None)


def _longest(names: Sequence[str], sample: pa.Table) -> str | None:
    """The column with the most text in it."""
    there = [name for name in names if name in sample.column_names]
    return max(there, key=lambda name: sample.column(name).nbytes, default=None)


def columns_to_read(query: RowQuery, columns: ColumnRoles) -> list[str]:
    """The columns that must be read to answer a query, beside those that are counted by."""
    wanted = [columns.stage, columns.language, columns.rule]
    if query.search:
        wanted += columns.texts
    for name in (query.score if query.has_range else "", query.sort):
        wanted.append(columns.text if name == LENGTH else name)
    return [name for name in dict.fromkeys(wanted) if name and name in columns.names]


def matching_rows(query: RowQuery, columns: ColumnRoles, table: pa.Table) -> pa.Array | pa.ChunkedArray | None:
    """Which rows have the text and the score that are wanted, whatever their stage and language; None for all."""
    found = []
    if query.search:
        found.append(_contains_text(query.search, [table.column(name) for name in columns.texts]))
    if query.has_range:
        numbers = numeric_column(query.score, columns, table)
        for limit, compare in ((query.least, pc.greater_equal), (query.most, pc.less_equal)):
            if limit is not None:
                found.append(compare(numbers, literal(limit, pa.float64())))
    if not found:
        return None
    whole = found[0]
    for more in found[1:]:
        whole = pc.and_(whole, more)
    return pc.fill_null(whole, literal(False, pa.bool_()))


def _contains_text(search: str, columns: Sequence[pa.ChunkedArray]) -> Any:
    whole = None
    for column in columns:
        if pa.types.is_null(column.type):
            continue
        text = column if is_text(column.type) else column.cast(pa.string())
        found = pc.fill_null(pc.match_substring(text, search, ignore_case=True), literal(False, pa.bool_()))
        whole = found if whole is None else pc.or_(whole, found)
    count = len(columns[0]) if columns else 0
    return pa.repeat(literal(False, pa.bool_()), count) if whole is None else whole


def numeric_column(name: str, columns: ColumnRoles, table: pa.Table) -> Any:
    """A column of numbers, or the lengths of texts."""
    if name == LENGTH:
        texts = table.column(columns.text) if columns.text in table.column_names else None
        known = texts is not None and is_text(texts.type)
        return pc.utf8_length(texts).cast(pa.float64()) if known else pa.nulls(table.num_rows, pa.float64())
    if name not in table.column_names or not is_number(table.column(name).type):
        return pa.nulls(table.num_rows, pa.float64())
    return table.column(name).cast(pa.float64(), safe=False)
