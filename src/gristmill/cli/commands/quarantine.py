"""The commands `gristmill quarantine`: list and show records that failed, and process them again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli.recipe_runner import (
    ExecutorName,
    Quiet,
    Verbose,
    Workers,
    exit_on_error,
    make_executor,
    parse_max_errors,
    recipe_of_run,
    run_recipe,
    side_output_options,
)
from gristmill.core.errors import InputError

if TYPE_CHECKING:
    from gristmill.core.records.quarantine import QuarantinedRecord
    from gristmill.core.records.run_directory import Run

app = typer.Typer(no_args_is_help=True, help="List, show and replay records that failed.")

RunDirectory = Annotated[str, typer.Argument(metavar="RUN", help="The directory of a run, or its output directory.")]


@app.command("list")
def list_records(
    run: RunDirectory,
    stage: Annotated[str | None, typer.Option("--stage", help="Only what this stage failed on.")] = None,
    most: Annotated[int, typer.Option("-n", min=0, help="How many to list; 0 lists all.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON, without rows and tracebacks.")] = False,
) -> None:
    """List the records in quarantine, and count them by cause."""
    with exit_on_error():
        from gristmill.cli import quarantine_output

        found = find_run(run)
        aside = found.quarantined() if found else iter(())
        wanted = (record for record in aside if stage in (None, record.stage))
        if as_json:
            typer.echo(quarantine_output.list_json(wanted))
        elif not quarantine_output.print_list(wanted, most):
            typer.echo(_nothing_in_quarantine(run, found, stage))


@app.command()
def show(
    run: RunDirectory,
    record_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The id of one, or how it begins.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each as one line of JSON.")] = False,
) -> None:
    """Show records in quarantine: the row as the stage got it, the error and the traceback."""
    with exit_on_error():
        from gristmill.cli import quarantine_output

        found = find_run(run)
        chosen = _records_with_id(found.quarantined() if found else (), record_id, run)
        count = quarantine_output.print_json(chosen) if as_json else quarantine_output.print_records(chosen, full)
        if not count and not as_json:
            typer.echo(_nothing_in_quarantine(run, found))


@app.command()
def replay(
    run: RunDirectory,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done, and why.")] = False,
    executor: ExecutorName = None,
    workers: Workers = None,
    max_errors: Annotated[
        str | None,
        typer.Option(
            "--max-errors",
            metavar="NUMBER|SHARE|none",
            help="Stop when more records fail; by default, when more fail than are in quarantine now.",
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Process the input files of quarantined records again, after the cause was fixed."""
    with exit_on_error(verbose):
        from gristmill.cli import console_output as shown
        from gristmill.cli import quarantine_output

        given = parse_max_errors(max_errors) if max_errors else None
        found = find_run(run)
        before = quarantine_output.QuarantineSummary.of(found.quarantined() if found else ())
        if found is None or not before.count:
            typer.echo(_nothing_in_quarantine(run, found))
            return
        where = found.url
        recipe = recipe_of_run(
            where, f"the run was started from Python: call pipeline.run(run_dir={where!r}, replay=True)"
        )
        if dry_run:
            shown.print_remaining(*recipe.build().left_to_do(where, replay=True))
            return
        budget = given if max_errors else before.count
        place = make_executor(recipe, executor, workers)
        options = {"replay": True, "max_errors": budget, **side_output_options(where)}
        result = run_recipe(recipe, place, where, quiet, **options)
        if not quiet:
            quarantine_output.print_replayed(before, quarantine_output.QuarantineSummary.of(result.quarantined()))


def find_run(where: str) -> Run | None:
    """The run that is kept in a directory, or that has written it. None: an output without records."""
    from gristmill.core.records import run_location
    from gristmill.core.records.run_directory import Run

    try:
        found = run_location.find_run(where)
        if found:
            return Run(found.url)
        is_output = bool(run_location.find_outputs(where))
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{where}: {error}") from error
    if is_output:
        return None
    raise InputError(f"{where} is not a run directory. Give the directory of a run, or its output directory")


def _records_with_id(aside: Iterable[QuarantinedRecord], prefix: str | None, where: str) -> Iterable[QuarantinedRecord]:
    if prefix is None:
        return aside
    chosen = [record for record in aside if record.id.startswith(prefix)]
    ids = sorted({record.id for record in chosen})
    if not ids:
        raise InputError(f"no quarantined record has the id {prefix}; list them: gristmill quarantine list {where}")
    if len(ids) > 1:
        some = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        raise InputError(f"{len(ids)} records have an id that begins with {prefix}: {some}")
    return chosen


def _nothing_in_quarantine(where: str, found: Run | None, stage: str | None = None) -> str:
    if found is None:
        return f"no quarantined records beside the output {where}; if the run had a --run-dir, give that"
    return f"no quarantined records of stage {stage!r}" if stage else "no quarantined records"
