"""Print quarantined records. Everything shown may come from data, so control characters are escaped."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from rich import box
from rich.table import Table
from rich.text import Text

from gristmill.cli.console_output import console, format_json
from gristmill.core.errors import printable, shorten
from gristmill.core.records.quarantine import RAISED
from gristmill.core.result import count_noun
from gristmill.core.run.preview import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from gristmill.core.records.quarantine import QuarantinedRecord

MAX_ERROR_CHARS = 120
MAX_VALUE_CHARS = 300
MAX_TRACEBACK_LINES = 30
"""Of a traceback: the last ones tell most."""


@dataclass
class FailureCause:
    """What several records have in common: the stage, and the kind of error."""

    stage: str
    example: str
    count: int = 0
    same_error: bool = True

    def __str__(self) -> str:
        return f"{self.stage}: {self.example}" + ("" if self.same_error else ", and similar")


@dataclass
class QuarantineSummary:
    """Records in quarantine, counted by cause."""

    count: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    files: dict[str, None] = field(default_factory=dict)
    causes: dict[tuple[str, str], FailureCause] = field(default_factory=dict)

    @classmethod
    def of(cls, aside: Iterable[QuarantinedRecord]) -> QuarantineSummary:
        cases = cls()
        for record in aside:
            cases.add(record)
        return cases

    def add(self, record: QuarantinedRecord) -> None:
        self.count += record.records
        self.ids[record.id] = self.ids.get(record.id, 0) + record.records
        self.files.update(dict.fromkeys(record.files))
        error = one_line(record.error, MAX_ERROR_CHARS)
        cause = self.causes.setdefault((record.stage, _error_type(record)), FailureCause(record.stage, error))
        cause.count += record.records
        cause.same_error = cause.same_error and cause.example == error

    def most_common(self) -> list[FailureCause]:
        return sorted(self.causes.values(), key=lambda cause: -cause.count)


def _error_type(record: QuarantinedRecord) -> str:
    """How it failed: the name of the exception, if there was one."""
    named = re.match(r"[A-Za-z_][\w.]*(?=:|$)", record.error) if record.kind == RAISED else None
    return named[0] if named else record.kind


def record_location(record: QuarantinedRecord) -> str:
    """File and position, or what else is known."""
    file = record.file or (posixpath.basename(record.files[0]) if record.files else "")
    if file and record.position is not None:
        return printable(f"{file}:{record.position}")
    task = f"task {record.task}" + (f", row {record.number}" if record.row is not None else "")
    return printable(f"{file} ({task})" if file else task)


# -- list ------------------------------------------------------------------------------------------------


def list_json(aside: Iterable[QuarantinedRecord]) -> str:
    names = ("stage", "kind", "error", "file", "position", "task", "source", "files", "records", "attempts")
    return format_json([{"id": record.id, **{name: getattr(record, name) for name in names}} for record in aside])


def print_list(aside: Iterable[QuarantinedRecord], most: int) -> int:
    """A table of the first records, and the causes of all. How many there are."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("id", "stage", "kind"):
        table.add_column(title, no_wrap=True)
    table.add_column("where", overflow="fold")
    table.add_column("error", no_wrap=True, overflow="ellipsis")
    table.add_column("attempts", justify="right")
    cases, more = QuarantineSummary(), 0
    for record in aside:
        cases.add(record)
        if most and table.row_count >= most:
            more += 1
        else:
            error = Text(one_line(record.error, MAX_ERROR_CHARS))
            shown = (Text(printable(text)) for text in (record.id, record.stage, record.kind))
            table.add_row(*shown, Text(record_location(record)), error, str(record.attempts))
    if cases.count:
        _print_list(console(), table, more, cases)
    return cases.count


def _print_list(out: Console, table: Table, more: int, cases: QuarantineSummary) -> None:
    out.print(table)
    if more:
        out.print(f"... and {more:,} more; -n 0 lists all", style="dim")
    out.print(f"{count_noun(cases.count, 'quarantined record')}:", style="bold")
    for cause in cases.most_common():
        out.print(Text(f"{cause.count:>9,}  ") + Text(printable(cause)), soft_wrap=True)


# -- show ------------------------------------------------------------------------------------------------


def print_json(aside: Iterable[QuarantinedRecord]) -> int:
    """Each record as a line of JSON. How many there were."""
    lines = [orjson.dumps({"id": record.id, **asdict(record)}).decode() for record in aside]
    print("".join(line + "\n" for line in lines), end="")
    return len(lines)


def print_records(aside: Iterable[QuarantinedRecord], full: bool) -> int:
    """Each record with all that is known of it. How many there were."""
    out, count = console(), 0
    for count, record in enumerate(aside, 1):
        if count > 1:
            out.print()
        tried = f"{record.attempts} attempt{'' if record.attempts == 1 else 's'}"
        title = f"  {printable(record.stage)}, {printable(record.kind)}, {tried}"
        out.print(Text(record.id, "bold") + Text(title), soft_wrap=True)
        for name, lines in _facts(record, full):
            _print_fact(out, name, lines)
    return count


def _facts(record: QuarantinedRecord, full: bool) -> Iterator[tuple[str, list[str]]]:
    """What is known of a record: a name, and the lines that belong to it."""
    yield "where", [record_location(record)]
    if record.files:
        yield "files", [printable(file) for file in record.files] if full else [shorten(record.files)]
    yield "error", _lines(record.error, full)
    if record.records != 1:
        yield "records", [f"{record.records:,}"]
    if record.content is not None:
        yield "content", _lines(record.content, full)
    for column, value in (record.row or {}).items():
        yield f"row.{printable(column)}", _lines(value, full)
    if record.traceback:
        yield "traceback", _last_lines(record.traceback, full)


def _last_lines(text: str, full: bool) -> list[str]:
    lines = text.rstrip().splitlines()
    if full:
        return [printable(line) for line in lines]
    shown = [printable(line, MAX_VALUE_CHARS) for line in lines[-MAX_TRACEBACK_LINES:]]
    return shown if len(lines) == len(shown) else [f"... {len(lines) - len(shown):,} earlier lines", *shown]


def _lines(value: Any, full: bool) -> list[str]:
    if not full:
        return [one_line(value, MAX_VALUE_CHARS)]
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return [printable(line) for line in text.splitlines()] or [""]


def _print_fact(out: Console, name: str, lines: list[str]) -> None:
    label = Text(f"   {name}:", "dim")
    if len(lines) == 1 and name != "traceback":
        out.print(label + Text(f" {lines[0]}", ""), soft_wrap=True)
        return
    out.print(label)
    for line in lines:
        out.print(Text(f"      {line}"), soft_wrap=True)


# -- replay ----------------------------------------------------------------------------------------------


def print_replayed(before: QuarantineSummary, after: QuarantineSummary) -> None:
    """What a replay has done about the records that were in quarantine."""
    out = console()
    still = sum(min(count, after.ids.get(name, 0)) for name, count in before.ids.items())
    new = after.count - still
    files = f" of {shorten(list(before.files))}" if before.files else ""
    message = f"replayed {count_noun(before.count)}{files}: {before.count - still:,} no longer quarantined"
    message += f", {still:,} still quarantined" if still else ""
    message += f", {new:,} newly quarantined" if new else ""
    out.print(message, style="yellow" if after.count else "green", soft_wrap=True)
