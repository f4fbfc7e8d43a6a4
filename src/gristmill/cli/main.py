"""The command `gristmill`: run, plan and preview recipes; list stages and recipes.

Heavy libraries are imported inside the commands, so that `gristmill --help` answers at once.

Exit codes: 0 done, 1 the run failed, 2 the recipe or the pipeline cannot work as written, 130 interrupted,
143 terminated.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill import __version__
from gristmill.cli.commands import card, index, llm, metrics, models, push, quarantine, whatif, why
from gristmill.cli.commands.doctor import doctor
from gristmill.cli.commands.migrate import migrate
from gristmill.cli.commands.shards import shards
from gristmill.cli.commands.train_classifier import train_classifier
from gristmill.cli.commands.view import view
from gristmill.cli.recipe_runner import (
    AsEvents,
    ExecutorName,
    MaxErrors,
    MetricsPort,
    OnError,
    Quiet,
    TracesTo,
    Verbose,
    WithEstimate,
    Workers,
    allow_local_modules,
    error_options,
    exit_on_error,
    load_with_settings,
    make_executor,
    recipe_of_run,
    run_recipe,
    side_output_options,
)

app = typer.Typer(
    name="gristmill",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a bundled recipe.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a variable, or a parameter as ClassName.parameter=value."),
]

app.add_typer(quarantine.app, name="quarantine")
app.add_typer(metrics.app, name="metrics")
app.command()(doctor)
app.command()(migrate)
app.add_typer(index.app, name="index")
app.add_typer(models.app, name="models")
app.add_typer(llm.app, name="llm")
app.command()(why.why)
app.command()(whatif.whatif)
app.command()(card.card)
app.command()(push.push)
app.command()(shards)
app.command()(train_classifier)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gristmill {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Raw data in, training data out."""


@app.command()
def run(
    recipe: RecipeName,
    *,
    settings: Settings = None,
    executor: ExecutorName = None,
    workers: Workers = None,
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", help="Directory for the run's records; needed to resume it.")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="N/COUNT|slurm",
            help="Do one of several parts of the input; all have the same --run-dir.",
        ),
    ] = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Keep the score each filter gave each row, for why and whatif.")
    ] = False,
    rejected: Annotated[bool, typer.Option("--rejected", help="Keep the rows that stages drop.")] = False,
    on_error: OnError = "quarantine",
    max_errors: MaxErrors = "1%",
    quiet: Quiet = False,
    as_json: AsEvents = False,
    metrics_port: MetricsPort = None,
    traces: TracesTo = None,
    estimate: WithEstimate = False,
    verbose: Verbose = False,
) -> None:
    """Run a recipe and print a summary."""
    with exit_on_error(verbose):
        policy = {**error_options(on_error, max_errors), "scores": scores, "rejected": rejected, "traces": traces}
        loaded = load_with_settings(recipe, settings)
        place = make_executor(loaded, executor, workers, verbose)
        run_recipe(loaded, place, run_dir, quiet, as_json, metrics_port, estimate, shard, **policy)


@app.command()
def resume(
    run_dir: Annotated[str, typer.Argument(metavar="RUN", help="The directory of a run that was stopped.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done, and why.")] = False,
    executor: ExecutorName = None,
    workers: Workers = None,
    on_error: OnError = "quarantine",
    max_errors: MaxErrors = "1%",
    quiet: Quiet = False,
    as_json: AsEvents = False,
    metrics_port: MetricsPort = None,
    traces: TracesTo = None,
    verbose: Verbose = False,
) -> None:
    """Resume a run that was stopped, with the recipe it was started with."""
    with exit_on_error(verbose):
        from gristmill.cli import console_output
        from gristmill.core.records.run_location import run_place

        policy = error_options(on_error, max_errors)
        run_dir = run_place(run_dir)
        loaded = recipe_of_run(run_dir)
        if dry_run:
            console_output.print_remaining(*loaded.build().left_to_do(run_dir))
            return
        policy |= {**side_output_options(run_dir), "traces": traces}
        place = make_executor(loaded, executor, workers, verbose)
        run_recipe(loaded, place, run_dir, quiet, as_json, metrics_port, **policy)


@app.command()
def verify(
    output: Annotated[
        str, typer.Argument(metavar="OUT", help="The directory of an output, or of the run that has written it.")
    ],
    verbose: Verbose = False,
) -> None:
    """Check that the files of an output are all there and unchanged."""
    with exit_on_error(verbose):
        from gristmill.cli import console_output
        from gristmill.core.records.run_location import find_outputs
        from gristmill.io.write.manifest import check_manifest, output_at

        whole = True
        for place in find_outputs(output) or [output]:
            manifest, problems = check_manifest(output_at(place))
            console_output.print_output_check(place, manifest, problems)
            whole = whole and not problems
        if not whole:
            raise typer.Exit(1)


@app.command()
def plan(
    recipe: RecipeName,
    settings: Settings = None,
    executor: ExecutorName = None,
    workers: Workers = None,
    estimate: WithEstimate = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Show the parts of each stage, groups and segments; full tracebacks."),
    ] = False,
) -> None:
    """Check a recipe and show what it would run."""
    with exit_on_error(verbose):
        from gristmill.core.executor import default_executor

        loaded = load_with_settings(recipe, settings)
        place = make_executor(loaded, executor, workers)
        text = loaded.build().plan(executor=place or default_executor()).describe(verbose)
        typer.echo(text if verbose else f"{text} (-v shows them)")
        if estimate:
            from gristmill.cli.print_estimate import make_estimate, print_estimate

            print_estimate(make_estimate(loaded, place))


@app.command()
def preview(
    recipe: RecipeName,
    n: Annotated[int, typer.Option("-n", min=1, help="How many rows.")] = 5,
    settings: Settings = None,
    verbose: Verbose = False,
) -> None:
    """Run a few rows in this process and show their scores and outcome. Writes nothing."""
    with exit_on_error(verbose):
        from gristmill.cli import console_output

        console_output.print_preview(load_with_settings(recipe, settings).build().preview(n))


@app.command()
def stages(
    name: Annotated[str | None, typer.Argument(help="Show the parameters of this one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the catalogue as JSON.")] = False,
) -> None:
    """List stages, filters and modifiers, or show one."""
    with exit_on_error():
        from gristmill.cli import console_output
        from gristmill.recipes.stage_catalogue import catalogue, find_entry, schema

        if as_json:
            typer.echo(console_output.format_json([entry for entry in schema() if name in (None, entry["name"])]))
        elif name is None:
            console_output.print_catalogue(list(catalogue().values()))
        else:
            allow_local_modules()
            console_output.print_entry(find_entry(name, "gristmill stages", "stage, filter or modifier"))


@app.command()
def recipes() -> None:
    """List the bundled recipes."""
    with exit_on_error():
        from gristmill.cli import console_output
        from gristmill.recipes.recipe import bundled

        console_output.print_recipes(bundled())


app.command()(view)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
