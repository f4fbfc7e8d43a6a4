"""The command `gristmill whatif`: what other thresholds would keep, from the recorded scores."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gristmill.cli.commands.why import RunDirectory
from gristmill.cli.recipe_runner import ExecutorName, Quiet, Verbose, Workers, allow_local_modules, exit_on_error
from gristmill.core.errors import InputError, RecipeError
from gristmill.core.result import count_noun

if TYPE_CHECKING:
    from gristmill.report.whatif import KeptAmount, WhatIf

NEEDS_RECIPE = "the run was started from Python; change the pipeline there and run it again"


def whatif(
    run: RunDirectory,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A parameter, as Filter.parameter=value; Filter#2 is the second of them.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option("-n", min=0, help="How many rows to show of those that change.")] = 3,
    apply: Annotated[
        str | None, typer.Option("--apply", metavar="OUT", help="Run the recipe again with them, into this directory.")
    ] = None,
    executor: ExecutorName = None,
    workers: Workers = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show how many rows other thresholds would keep, from the recorded scores."""
    with exit_on_error(verbose):
        from gristmill.cli import console_output
        from gristmill.recipes import parse_settings
        from gristmill.report.whatif import whatif as ask

        allow_local_modules()
        if not settings:
            raise RecipeError(_what_to_set(run))
        changes = parse_settings(settings)
        found = ask(run, changes, samples)
        if as_json:
            typer.echo(console_output.format_json(asdict(found)))
        elif not quiet:
            print_whatif(found)
        if apply:
            rerun_with(run, settings, changes, apply, executor, workers, quiet or as_json)


def _what_to_set(run: str) -> str:
    """What is asked for without --set: the parameters that the filters of a run have."""
    from gristmill.report.recorded_filters import recorded_filters
    from gristmill.report.run_records import Records

    rules = [one for one in recorded_filters(Records(run)) if not one.needs_all_rows]
    filters = {label: text for one in rules for label, text in one.thresholds.items() if text}
    examples = [f"{label}.{text.partition(',')[0]}" for label, text in filters.items() if "=" in text.partition(",")[0]]
    shown = "".join(f"\n  {label}: {text}" for label, text in filters.items())
    return f"whatif needs --set, as in --set {(examples or ['WordCountFilter.min_words=20'])[0]}" + (
        f". The filters of this run:{shown}" if shown else ""
    )


def rerun_with(
    run: str,
    settings: Sequence[str],
    parameters: Mapping[str, Any],
    out: str,
    executor: str | None,
    workers: int | None,
    quiet: bool,
) -> None:
    """Run the recipe of a run again with other parameters, into another directory, with the scores that are known."""
    from gristmill.cli import console_output
    from gristmill.cli.recipe_runner import make_executor, recipe_of_run
    from gristmill.core.executor import SilentObserver
    from gristmill.core.records.run_location import records_beside, run_place
    from gristmill.core.records.run_record_store import RecordStore
    from gristmill.observe.progress_lines import default_progress
    from gristmill.report.run_records import Records
    from gristmill.report.score_reuse import changes_since_run, with_recorded_scores

    run = run_place(run)
    before = recipe_of_run(run, NEEDS_RECIPE).build()
    writers: list[Any] = [stage for stage in before.stages if hasattr(stage, "path")]
    if len(writers) != 1:
        raise InputError(
            f"--apply needs a recipe with exactly one writer; the recipe of {run} has {len(writers)}. Edit the recipe "
            "and run it instead"
        )
    if _real_path(out) in (_real_path(run), _real_path(str(writers[0].path))):
        raise InputError(f"--apply {out}: this directory belongs to the original run; choose another directory")
    changes = [
        re.sub(r" (\d+)(\.\w+=)", r"#\1\2", setting, count=1) for setting in settings
    ]  # as `why` names the second
    recipe = recipe_of_run(run, NEEDS_RECIPE, [*changes, f"{type(writers[0]).__name__}.path={out}"])
    pipeline, place = recipe.build(), records_beside(out)
    changed, recalled = changes_since_run(before, run), 0
    if not changed:
        pipeline, recalled = with_recorded_scores(pipeline, Records(run), parameters)
    if not quiet:
        since = f", because {changed[0]}" if changed else ""
        typer.echo(f"reusing the recorded scores of {count_noun(recalled, 'filter')}; others are computed again{since}")
    RecordStore(place).put("recipe.yaml", recipe.to_yaml().encode())
    observer = SilentObserver() if quiet else default_progress()
    result = pipeline.run(make_executor(recipe, executor, workers), run_dir=place, observer=observer)
    if not quiet:
        console_output.print_summary(result, place, place)


def _real_path(url: str) -> str:
    """A directory, whatever it is called."""
    from gristmill.io.storage.output_directory import OutputDirectory

    target = OutputDirectory(url)
    return os.path.realpath(target.url) if target.local else target.url


def print_whatif(found: WhatIf) -> None:
    from rich.text import Text

    from gristmill.cli.console_output import console
    from gristmill.core.errors import printable

    out = console()
    settings = ", ".join(f"{name}={value}" for name, value in found.settings.items())
    out.print(Text(printable(f"what if {settings}"), "bold"), soft_wrap=True)
    out.print(f"of {count_noun(found.rows, 'row')}")
    out.print(f"   kept now              {_amount(found.before)}")
    out.print(f"   kept with the change  {_amount(found.after)}   {_change(found.before.rows, found.after.rows)}")
    if found.unknown.rows:
        out.print(f"   unknown               {_amount(found.unknown)}")
    changed = {name: pair for name, pair in found.stages.items() if pair[0] != pair[1]}
    _print_pairs("dropped by", changed)
    _print_pairs("dropped by rule", {name: pair for name, pair in found.rules.items() if any(pair)})
    for group, pairs in found.groups.items():
        _print_pairs(group, dict(list(pairs.items())[:15]))
    _print_rows("would be kept", found.gained)
    _print_rows("would be dropped", found.lost)
    for note in found.notes:
        out.print(Text(printable(note), "yellow"), soft_wrap=True)


def _amount(amount: KeptAmount) -> str:
    parts = [f"{amount.rows:>12,} row{'' if amount.rows == 1 else 's'}"]
    parts += [f"{amount.chars:,} characters"] if amount.chars else []
    parts += [f"{amount.tokens:,} tokens"] if amount.tokens else []
    return ", ".join(parts)


def _change(before: int, after: int) -> str:
    share = f" ({(after - before) / before:+.1%})" if before else ""
    return f"{after - before:+,} rows{share}"


def _print_pairs(title: str, pairs: dict[str, tuple[int, int]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from gristmill.cli.console_output import console
    from gristmill.core.errors import printable

    if not pairs:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title, overflow="fold")
    for name in ("the run", "with this", "change"):
        table.add_column(name, justify="right")
    for name, (before, after) in pairs.items():
        table.add_row(Text(printable(name)), f"{before:,}", f"{after:,}", f"{after - before:+,}")
    console().print(table)


def _print_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    from rich.text import Text

    from gristmill.cli.console_output import console
    from gristmill.core.errors import printable
    from gristmill.core.run.preview import one_line

    if not rows:
        return
    out = console()
    out.print(f"some rows that {title}", style="bold")
    for row in rows:
        named = row["id"] or f"{row['file']}:{row['position']}"
        scores = "  ".join(f"{name}={one_line(value)}" for name, value in row["scores"].items())
        out.print(Text(printable(f"   {named}  {scores}")), soft_wrap=True)
        text = (row["row"] or {}).get("text")
        if text is not None:
            out.print(Text(f"      {one_line(text)}", "dim"), soft_wrap=True)
