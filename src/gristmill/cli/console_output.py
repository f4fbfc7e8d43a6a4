"""What the commands print."""

from __future__ import annotations

import inspect
import posixpath
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gristmill.core.errors import printable
from gristmill.core.result import count_noun, count_texts
from gristmill.core.run.preview import one_line
from gristmill.core.task import WrittenFiles

if TYPE_CHECKING:
    from gristmill.core.result import Result, Summary
    from gristmill.core.run.preview import Preview
    from gristmill.core.task import Lineage
    from gristmill.recipes.recipe_file import RecipeFile
    from gristmill.recipes.stage_catalogue import Entry

PIPED_WIDTH = 200
"""Width of tables that go to a file or another program, where nothing should be cut."""


def console() -> Console:
    wide = None if sys.stdout.isatty() else PIPED_WIDTH
    return Console(width=wide, markup=False, highlight=False, emoji=False)


def format_json(value: Any) -> str:
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, default=repr, option=options).decode()


def summary_json(result: Result, run_dir: str | None) -> dict[str, Any]:
    """What a run did, for programs."""
    summary = result.summary()
    stages = [
        {
            "name": line.name,
            "rows_in": line.rows_in,
            "kept": line.rows_out,
            "dropped": line.dropped,
            "quarantined": line.quarantined,
            "seconds": round(line.seconds, 6),
            "mb_per_s": round(line.mb_per_s, 3),
            "counts": line.counts,
        }
        for line in summary.stages
    ]
    whole: dict[str, Any] = {"rows_in": summary.rows_in, "rows_out": summary.rows_out}
    whole |= {"quarantined": summary.quarantined, "nothing_to_do": result.nothing_to_do}
    whole |= {"sources_not_counted": unknown} if (unknown := result.sources_not_counted) else {}
    where = {"files": result.files(), "run_dir": run_dir or result.run_dir}
    return {**whole, "seconds": round(summary.seconds, 6), "stages": stages, **where}


def print_summary(result: Result, run_dir: str | None, report: str | None) -> None:
    """A table of stages, the totals, where output and report are, and how many records failed."""
    out, summary = console(), result.summary()
    if result.nothing_to_do:
        verb = "was" if result.sources == 1 else "were"
        done = f"nothing to do: {count_noun(result.sources, 'source')} {verb} done before"
        out.print(f"{done}; these are the totals of the run", style="bold")
    out.print(_stage_table(summary, out.width))
    for line in summary.stages:
        if counts := count_texts(line.counts):
            out.print(Text(f"{line.name}: {', '.join(counts)}"))
    rows_in, rows_out = summary.rows_in, summary.rows_out
    share = "" if summary.kept_share is None else f" ({summary.kept_share:.1%} kept)"
    out.print(f"{count_noun(rows_in, 'row')} in, {rows_out:,} out{share}, in {summary.seconds:,.2f} s", style="bold")
    out.print("stage times are summed over all workers", style="dim")
    for note in _attempt_notes(result):
        out.print(note, style="dim")
    for where in _output_lines([*result.files(), *_attached_paths(result)]):
        out.print(where, soft_wrap=True)
    if run_dir:
        out.print(f"run directory: {run_dir}", soft_wrap=True)
    if report:
        out.print(f"report: {report}/report.html", soft_wrap=True)
    if failed := quarantine_line(result):
        out.print(failed, style="yellow", soft_wrap=True)


def _attempt_notes(result: Result) -> list[str]:
    """What to know of the totals of a run that was resumed."""
    notes = []
    if result.resumed and not result.nothing_to_do:
        now = result.summary(attempt=True)
        notes.append(f"all attempts together; this one: {count_noun(now.rows_in, 'row')} in {now.seconds:,.2f} s")
    if unknown := result.sources_not_counted:
        notes.append(f"without {count_noun(unknown, 'source')} that version 0.1 has done, of which no counts are known")
    return notes


def _stage_table(summary: Summary, width: int) -> Table:
    """One line per stage. A narrow terminal does not show the speed; the report does."""
    titles = summary.titles()
    speeds = ("seconds", "MB/s") if width >= 80 else ("seconds",)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("stage", overflow="fold")
    for title in (*titles, *speeds):
        table.add_column(title, justify="right", no_wrap=True)
    for line in summary.stages:
        speed = f"{line.mb_per_s:,.1f}" if line.mb_per_s else ""
        taken, kept, *lost = line.counted()[: len(titles)]
        fates = [Text(count, style="yellow" if count not in ("", "0") else "") for count in lost]
        timed = (f"{line.seconds:,.2f}", speed)[: len(speeds)]
        table.add_row(Text(line.name), taken, kept, *fates, *timed)
    return table


def quarantine_line(result: Result) -> str:
    """How many records failed and how to see them; empty if none did."""
    count = sum(record.records for record in result.quarantined())
    if not count:
        return ""
    where = result.run_dir
    advice = f"see: gristmill quarantine list {shlex.quote(where)}" if where else "use --run-dir to keep them"
    return f"{count_noun(count)} failed and {'is' if count == 1 else 'are'} not included; {advice}"


def _attached_paths(result: Result) -> list[str]:
    """The files in folders of the output, such as clips."""
    files = [file for task in result if isinstance(task, WrittenFiles) for file in task.written if file.attached]
    return list(dict.fromkeys(path for file in files for path in file.all_sizes() if path != file.path))


def _output_lines(files: Iterable[str]) -> list[str]:
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(posixpath.dirname(file) or ".", []).append(posixpath.basename(file))
    shown = []
    for folder, names in folders.items():
        count = count_noun(len(names), "file")
        listed = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
        shown.append(f"wrote {count} to {folder}: {listed}")
    return shown


def print_remaining(changes: Sequence[str], left: Sequence[tuple[Lineage, str]], done: int) -> None:
    """What a resumed run would do."""
    out = console()
    for change in changes:
        out.print(f"changed: {printable(change)}", soft_wrap=True)
    for lineage, why in left[:20]:
        out.print(f"to do: {printable(', '.join(lineage.files) or lineage.id)}: {why}", soft_wrap=True)
    if len(left) > 20:
        out.print(f"... and {len(left) - 20:,} more")
    is_done, is_left = ("is" if count == 1 else "are" for count in (done, len(left)))
    out.print(f"{count_noun(done, 'source')} {is_done} done, {len(left):,} {is_left} to do", style="bold")


def print_output_check(output: str, manifest: dict[str, Any], problems: Sequence[str]) -> None:
    """Whether the files of an output are complete and unchanged."""
    out = console()
    for problem in problems:
        out.print(problem, style="yellow", soft_wrap=True)
    files = manifest["files"]
    size = sum(entry["bytes"] for entry in files)
    verdict = count_noun(len(problems), "problem") if problems else "all complete and unchanged"
    out.print(f"{output}: {count_noun(len(files), 'file')}, {size:,} bytes: {verdict}", style="bold", soft_wrap=True)


def print_preview(preview: Preview) -> None:
    """Each row with its outcome, its scores and its columns."""
    out = console()
    for number, row in enumerate(preview, 1):
        fate = Text(printable(row.fate), "yellow" if row.dropped_by else "green" if row.kept else "")
        scores = "  ".join(f"{printable(name)}={one_line(value)}" for name, value in row.scores.items())
        out.print(Text(f"{number}  ", "bold") + fate + Text(f"  {scores}" if scores else ""), soft_wrap=True)
        for name, value in row.shown():
            out.print(Text("   ") + Text(f"{name}: ", "dim") + Text(value), soft_wrap=True)
    sentence = f"{sum(row.kept for row in preview)} kept"
    if waiting := [row.waits_for for row in preview if row.waits_for]:
        sentence = f"{len(waiting)} reached {printable(waiting[0])}, where a preview ends"
    out.print(f"{count_noun(len(preview), 'row')}, {sentence}" if len(preview) else "no rows", style="bold")
    for note in preview.notes:
        out.print(Text(printable(f"skipped: {note}"), "yellow"), soft_wrap=True)


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


def print_recipes(forms: dict[str, RecipeFile]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("name", "what it does", "variables"):
        table.add_column(title, overflow="fold")
    for name, form in forms.items():
        variables = [f"{key}=..." if value is None else f"{key}={value}" for key, value in form.vars.items()]
        table.add_row(Text(name, "bold"), Text(form.description or ""), Text(", ".join(variables), "dim"))
    console().print(table)
    console().print("`gristmill run NAME --set input=...` runs one", style="dim")
