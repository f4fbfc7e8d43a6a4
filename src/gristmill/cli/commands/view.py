"""The command `gristmill view`: a page on this machine to look at the rows of a run or a dataset."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from gristmill.cli.recipe_runner import Verbose, exit_on_error


def view(
    place: Annotated[
        str, typer.Argument(metavar="RUN_OR_DATASET", help="The directory of a run, or a file or directory with data.")
    ],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0 takes a free one.")] = 0,
    text_field: Annotated[
        str | None, typer.Option("--text-field", help="The column with the text, if it is not found by its name.")
    ] = None,
    follow_paths: Annotated[
        bool,
        typer.Option(
            "--follow-paths",
            help="Also show files elsewhere that rows or the records of a run name, and fetch them. Only for data you "
            "trust.",
        ),
    ] = False,
    browse: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    verbose: Verbose = False,
) -> None:
    """Look at kept, dropped and quarantined rows in a browser, on this machine only."""
    with exit_on_error(verbose):
        from gristmill.view.server import View

        served = View(place, port, text_field, follow_paths=follow_paths)
        typer.echo(f"{served.url}\nThe address contains a secret key; anyone who has it can read the data.")
        typer.echo("Press Ctrl-C to stop.")
        if browse and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(served.url)
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            served.serve()
