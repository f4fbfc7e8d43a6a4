"""What the commands print."""

from __future__ import annotations

import inspect
import posixpath
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gristmill.observe.rows import Ends, Rows, ends_of, rows_of, totals

if TYPE_CHECKING:
    from gristmill.core.executor import Observer, Progress
    from gristmill.core.plan import Plan
    from gristmill.core.preview import Preview
    from gristmill.core.result import StageLine, Summary
    from gristmill.recipes.catalogue import Entry
    from gristmill.recipes.form import Form

PIPED_WIDTH = 200
"""Columns for a table that goes to a file or another program: nothing should be cut there."""


def console() -> Console:
    wide = None if sys.stdout.isatty() else PIPED_WIDTH
    return Console(width=wide, markup=False, highlight=False, emoji=False)


def to_json(value: Any) -> str:
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, default=repr, option=options).decode()


class Watch:
    """Passes a run's moments on to its observer, and remembers the plan."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.ends: list[Ends] = []

    def started(self, plan: Plan) -> None:
        self.ends = ends_of(plan.stages)
        self.observer.started(plan)

    def progressed(self, progress: Progress) -> None:
        self.observer.progressed(progress)

    def finished(self, progress: Progress) -> None:
        self.observer.finished(progress)


@dataclass(frozen=True)
class Outcome:
    """A run's summary, with rows told from files."""

    stages: list[tuple[StageLine, Rows]]
    seconds: float
    files: list[str]
    run_dir: str | None = None

    @classmethod
    def of(cls, summary: Summary, ends: Sequence[Ends], run_dir: str | None = None) -> Outcome:
        lines = [
            (line, rows_of(end, line.rows_in, line.rows_out)) for line, end in zip(summary.stages, ends, strict=True)
        ]
        return cls(lines, summary.seconds, summary.files, run_dir)

    @property
    def totals(self) -> tuple[int, int]:
        return totals([rows for _, rows in self.stages])

    def to_json(self) -> str:
        rows_in, rows_out = self.totals
        stages = [
            {
                "name": line.name,
                "rows_in": rows.taken,
                "kept": rows.kept,
                "dropped": rows.dropped,
                "seconds": round(line.seconds, 6),
                "mb_per_s": round(line.mb_per_s, 3),
                "counts": line.counts,
            }
            for line, rows in self.stages
        ]
        whole = {"rows_in": rows_in, "rows_out": rows_out, "seconds": round(self.seconds, 6), "stages": stages}
        return to_json({**whole, "files": self.files, "run_dir": self.run_dir})


def print_outcome(outcome: Outcome) -> None:
    """A table of stages, the totals, and where the output is."""
    out = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("stage", overflow="fold")
    for title in ("rows in", "kept", "dropped", "seconds", "MB/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("notes", overflow="fold")
    for line, rows in outcome.stages:
        speed = f"{line.mb_per_s:,.1f}" if line.mb_per_s else ""
        notes = ", ".join(f"{value:,g} {name.replace('_', ' ')}" for name, value in line.counts.items())
        counts = (_number(rows.taken), _number(rows.kept), _number(rows.dropped, "yellow"))
        table.add_row(Text(line.name), *counts, f"{line.seconds:,.2f}", speed, Text(notes))
    out.print(table)
    rows_in, rows_out = outcome.totals
    share = f" ({rows_out / rows_in:.1%} kept)" if rows_in else ""
    out.print(f"{rows_in:,} rows in, {rows_out:,} out{share}, in {outcome.seconds:,.2f} s", style="bold")
    out.print("the seconds of a stage are summed over workers", style="dim")
    for where in _places(outcome.files):
        out.print(where, soft_wrap=True)
    if outcome.run_dir:
        out.print(f"records of the run in {outcome.run_dir}", soft_wrap=True)


def _number(value: int | None, style: str = "") -> Text:
    return Text("" if value is None else f"{value:,}", style=style if value else "")


def _places(files: Iterable[str]) -> list[str]:
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(posixpath.dirname(file) or ".", []).append(posixpath.basename(file))
    shown = []
    for folder, names in folders.items():
        count = f"{len(names):,} file{'s' if len(names) != 1 else ''}"
        listed = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
        shown.append(f"wrote {count} to {folder}: {listed}")
    return shown


def print_preview(preview: Preview) -> None:
    """Each row with its fate, its scores and its columns."""
    out = console()
    for number, row in enumerate(preview, 1):
        fate = Text(f"dropped by {row.dropped_by}", "yellow") if row.dropped_by else Text("kept", "green")
        scores = "  ".join(f"{name}={_short(value)}" for name, value in row.scores.items())
        out.print(Text(f"{number}  ", "bold") + fate + Text(f"  {scores}" if scores else ""), soft_wrap=True)
        for name, value in row.data.items():
            if not name.startswith("_"):
                out.print(Text("   ") + Text(f"{name}: ", "dim") + Text(_short(value)), soft_wrap=True)
    kept = sum(row.dropped_by is None for row in preview)
    out.print(f"{len(preview)} rows, {kept} kept" if len(preview) else "no rows", style="bold")


def _short(value: Any, most: int = 100) -> str:
    """One line without control characters: what a document holds must not steer the terminal."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * most])
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def print_catalogue(entries: Sequence[Entry]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("kind", no_wrap=True)
    table.add_column("what it does", overflow="fold")
    order = ["reader", "stage", "filter", "modifier", "writer"]
    for entry in sorted(entries, key=lambda entry: (order.index(entry.kind), entry.name)):
        table.add_row(entry.name, entry.kind, Text(entry.help))
    console().print(table)
    console().print("`gristmill stages NAME` shows the parameters of one", style="dim")


def print_entry(entry: Entry) -> None:
    """The docstring and the parameters."""
    out = console()
    out.print(Text(entry.name, "bold") + Text(f"  {entry.kind}", "dim"))
    out.print(Text(entry.doc or "no description"), soft_wrap=True)
    if not entry.parameters:
        out.print("\nno parameters")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("parameter", "default", "type"):
        table.add_column(title, overflow="fold")
    for known in entry.parameters.values():
        default = "required" if known.default is inspect.Parameter.empty else repr(known.default)
        table.add_row(Text(known.name, "bold"), Text(default), Text(known.annotation, "dim"))
    out.print(table)


def print_recipes(forms: dict[str, Form]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("name", "what it does", "variables"):
        table.add_column(title, overflow="fold")
    for name, form in forms.items():
        variables = [f"{key}=..." if value is None else f"{key}={value}" for key, value in form.vars.items()]
        table.add_row(Text(name, "bold"), Text(form.description or ""), Text(", ".join(variables), "dim"))
    console().print(table)
    console().print("`gristmill run NAME --set input=...` runs one", style="dim")
