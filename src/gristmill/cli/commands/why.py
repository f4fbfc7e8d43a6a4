"""The command `gristmill why`: what happened to one row, and which filter dropped it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gristmill.cli.recipe_runner import allow_local_modules, exit_on_error

if TYPE_CHECKING:
    from rich.console import Console

    from gristmill.report.why import RowOutcome

RunDirectory = Annotated[str, typer.Argument(metavar="RUN", help="The directory of a run, or its output directory.")]


def why(
    run: RunDirectory,
    row: Annotated[
        str, typer.Argument(metavar="ID", help="Its id (of films clip_id or video_id), its row id, or FILE:POSITION.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show what happened to a row: its origin, its scores, what dropped it, and its duplicates."""
    with exit_on_error():
        from gristmill.cli import console_output
        from gristmill.report.why import why as ask

        allow_local_modules()
        stories = ask(run, row)
        if as_json:
            typer.echo(console_output.format_json([{**asdict(story), "row_id": story.row_id} for story in stories]))
            return
        for story in stories:
            print_outcome(story)


def print_outcome(story: RowOutcome) -> None:
    from rich.text import Text

    from gristmill.cli.console_output import console
    from gristmill.core.errors import printable

    out = console()
    colour = {"kept": "green", "dropped": "yellow", "quarantined": "red"}.get(story.fate, "")
    by = f" by {story.dropped_by}" if story.dropped_by else ""
    reason = f": {story.reason}" if story.reason else ""
    named = story.id or story.row_id or f"{story.file}:{story.position}"
    line = Text(printable(f"{named}  "), "bold") + Text(printable(f"{story.fate}{by}{reason}"), colour)
    out.print(line, soft_wrap=True)
    for name, value in _lines(story):
        out.print(Text("   ") + Text(f"{name}: ", "dim") + Text(printable(str(value))), soft_wrap=True)
    if story.scores:
        _print_scores(out, story)
    for note in story.missing:
        out.print(Text(f"   not recorded: {note}", "dim"), soft_wrap=True)


def _lines(story: RowOutcome) -> list[tuple[str, Any]]:
    from gristmill.core.run.preview import one_line

    lines: list[tuple[str, Any]] = []
    if story.file is not None:
        lines.append(("from", f"{story.path or story.file}, position {story.position} (row id {story.row_id})"))
    lines += list(story.facts.items())
    if story.cluster:
        lines += _cluster_lines(story.cluster)
    if story.quarantine:
        lines.append(("quarantined", f"{story.quarantine['id']}, by {story.quarantine['stage']}"))
    if story.redacted:
        spans = [f"{one['entity']} at {one['start']} to {one['end']}" for one in story.redacted]
        lines.append(("redacted", ", ".join(spans[:20]) + (" ..." if len(spans) > 20 else "")))
    if story.outputs:
        where = ", ".join(story.outputs[:3]) + (" ..." if len(story.outputs) > 3 else "")
        title = "in the output" if story.outputs_known else "in one of the outputs"
        lines.append((title, f"{where}, row {story.line:,}" if story.line else where))
    known = {"id", *story.facts}
    own = [(name, value) for name, value in (story.row or {}).items() if name not in known and value is not None]
    return lines + [(name, one_line(value)) for name, value in own]


def _cluster_lines(cluster: dict[str, Any]) -> list[tuple[str, Any]]:
    similar = f", similarity {cluster['similarity']:.3g}" if cluster["similarity"] is not None else ""
    if cluster["kept"]:
        sentence = f"cluster of {cluster['size']:,} rows; this one was kept"
    else:
        sentence = f"cluster of {cluster['size']:,} rows; {cluster['survivor']} was kept{similar}"
    others = ", ".join(cluster["members"][:5]) + (" ..." if cluster["size"] > 6 else "")
    return [("duplicates", sentence), ("the others", others)]


def _print_scores(out: Console, story: RowOutcome) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from gristmill.core.run.preview import one_line

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("stage", "filter", "score", "threshold", ""):
        table.add_column(title, overflow="fold", justify="right" if title == "score" else "left")
    for one in story.scores:
        verdict = {True: Text("keeps", "green"), False: Text("drops", "yellow"), None: Text("")}[one.kept]
        mark = Text(" ◀ dropped it here", "bold yellow") if _dropped_it(story, one) else Text("")
        table.add_row(Text(one.stage), Text(one.filter), one_line(one.score), Text(one.threshold), verdict + mark)
    out.print(table)


def _dropped_it(story: RowOutcome, one: Any) -> bool:
    return one.stage == story.dropped_by and one.kept is False
