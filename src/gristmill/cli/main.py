"""The command `gristmill`: run, plan and preview recipes; list stages and recipes.

Heavy libraries are imported inside the commands, so that `gristmill --help` answers at once.

Exit codes: 0 done, 1 the run failed, 2 the recipe or the pipeline cannot work as written, 130 interrupted,
143 terminated.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gristmill import __version__
from gristmill.core.errors import GristmillError, InputError, PlanError, RecipeError, StageError

if TYPE_CHECKING:
    from gristmill.core.executor import Executor
    from gristmill.recipes import Recipe

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
ExecutorName = Annotated[str | None, typer.Option("--executor", help="Where to run, for example local.")]
Workers = Annotated[int | None, typer.Option("--workers", min=0, help="How many workers; 0 runs in this process.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show tracebacks of stages that fail.")]


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
    settings: Settings = None,
    executor: ExecutorName = None,
    workers: Workers = None,
    run_dir: Annotated[str | None, typer.Option("--run-dir", help="Where to keep the records of the run.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    verbose: Verbose = False,
) -> None:
    """Run a recipe and say what it did."""
    with _errors(verbose):
        loaded = _load(recipe, settings)
        _run(loaded, _executor(loaded, executor, workers), run_dir, quiet, as_json)


def _run(loaded: Recipe, place: Executor | None, run_dir: str | None, quiet: bool, as_json: bool) -> None:
    from gristmill.cli import show
    from gristmill.core.executor import Silent
    from gristmill.core.run import Store
    from gristmill.observe.progress import default_progress

    pipeline = loaded.build()
    if run_dir:
        Store(run_dir).put("recipe.yaml", loaded.to_yaml().encode())
    with _terminable():
        result = pipeline.run(place, run_dir, observer=Silent() if quiet else default_progress())
    if as_json:
        typer.echo(show.summary_json(result.summary(), result.files(), run_dir))
    elif not quiet:
        show.print_summary(result.summary(), result.files(), run_dir)


@app.command()
def resume(
    run_dir: Annotated[str, typer.Argument(metavar="RUN", help="The directory of a run that was stopped.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done, and why.")] = False,
    executor: ExecutorName = None,
    workers: Workers = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    verbose: Verbose = False,
) -> None:
    """Go on with a run that was stopped, from the recipe that it was started with."""
    with _errors(verbose):
        from gristmill.cli import show

        loaded = _recipe_of(run_dir)
        if dry_run:
            show.print_left(*loaded.build().left_to_do(run_dir))
            return
        _run(loaded, _executor(loaded, executor, workers), run_dir, quiet, as_json=False)


@app.command()
def verify(
    output: Annotated[str, typer.Argument(metavar="OUT", help="A directory that a run has written.")],
    verbose: Verbose = False,
) -> None:
    """Check that the files of an output are all there and unchanged."""
    with _errors(verbose):
        from gristmill.cli import show
        from gristmill.io.manifest import check_manifest
        from gristmill.io.target import Target

        manifest, problems = check_manifest(Target(output))
        show.print_verdict(manifest, problems)
        if problems:
            raise typer.Exit(1)


@app.command()
def plan(
    recipe: RecipeName,
    settings: Settings = None,
    executor: ExecutorName = None,
    workers: Workers = None,
    verbose: Verbose = False,
) -> None:
    """Show what would run, after checking that it can."""
    with _errors(verbose):
        loaded = _load(recipe, settings)
        pipeline = loaded.build()
        place = _executor(loaded, executor, workers)
        planned = pipeline.plan(fuse=place.fuse if place else True)
        if place:
            place.check(planned)
        typer.echo(str(planned))


@app.command()
def preview(
    recipe: RecipeName,
    n: Annotated[int, typer.Option("-n", min=1, help="How many rows.")] = 5,
    settings: Settings = None,
    verbose: Verbose = False,
) -> None:
    """Run a few rows here and show each one's scores and fate. Nothing is written."""
    with _errors(verbose):
        from gristmill.cli import show

        show.print_preview(_load(recipe, settings).build().preview(n))


@app.command()
def stages(
    name: Annotated[str | None, typer.Argument(help="Show the parameters of this one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the catalogue as JSON.")] = False,
) -> None:
    """List stages, filters and modifiers, or show one."""
    with _errors():
        from gristmill.cli import show
        from gristmill.recipes.catalogue import catalogue, find, schema

        if as_json:
            typer.echo(show.to_json([entry for entry in schema() if name in (None, entry["name"])]))
        elif name is None:
            show.print_catalogue(list(catalogue().values()))
        else:
            _allow_own_modules()
            show.print_entry(find(name, "gristmill stages", "stage, filter or modifier"))


@app.command()
def recipes() -> None:
    """List the bundled recipes."""
    with _errors():
        from gristmill.cli import show
        from gristmill.recipes.recipe import bundled

        show.print_recipes(bundled())


def _load(recipe: str, settings: list[str] | None) -> Recipe:
    from gristmill.recipes import load_recipe, parse_settings

    _allow_own_modules()
    return load_recipe(recipe, parse_settings(settings or []))


def _recipe_of(run_dir: str) -> Recipe:
    """The recipe that a run was started with."""
    import tempfile

    from gristmill.core.run import Store

    text = Store(run_dir).get("recipe.yaml")
    if text is None:
        raise InputError(f"{run_dir} has no recipe.yaml: it is not the directory of a `gristmill run --run-dir`")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_bytes(text)
        return _load(str(path), None)


def _allow_own_modules() -> None:
    """`package.module:ClassName` is looked for in the current directory too, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _executor(recipe: Recipe, name: str | None, workers: int | None) -> Executor | None:
    params: dict[str, Any] = {} if workers is None else {"num_workers": workers}
    return recipe.executor(name, **params)


class _Terminated(KeyboardInterrupt):
    """SIGTERM. Nobody takes it for a failure of a stage, as they would a SystemExit."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: workers are stopped and the terminal is put right."""

    def stop(*_: object) -> NoReturn:
        raise _Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _errors(verbose: bool = False) -> Iterator[None]:
    """Errors that Gristmill raises on purpose are messages, not tracebacks."""
    try:
        yield
    except GristmillError as error:
        message = str(error)
        if isinstance(error, StageError) and error.details and not verbose:
            message = message.removesuffix(f"\n\n{error.details}") + "\n(-v shows the traceback)"
        _complain(f"error: {message}")
        raise typer.Exit(2 if isinstance(error, RecipeError | PlanError) else 1) from None
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, _Terminated) else signal.SIGINT
        _complain("terminated" if number == signal.SIGTERM else "interrupted")
        raise typer.Exit(128 + number) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at its end
        raise typer.Exit(1) from None


def _complain(message: str) -> None:
    head, mark, rest = message.partition(":")
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    typer.echo(typer.style(head, fg="red", bold=True) + mark + rest if coloured else message, err=True)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
