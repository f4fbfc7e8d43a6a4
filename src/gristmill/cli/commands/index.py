"""The commands `gristmill index`: show, check and clean up a document index."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.cli.recipe_runner import exit_on_error

app = typer.Typer(no_args_is_help=True, help="Look at an index for deduplication, check it, and remove old versions.")

IndexDirectory = Annotated[str, typer.Argument(metavar="INDEX", help="The directory of an index.")]


@app.command()
def info(
    index: IndexDirectory,
    version: Annotated[int | None, typer.Option("--version", help="Another version than the last.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what an index is for, and what has been added to it."""
    with exit_on_error():
        from gristmill.cli import console_output
        from gristmill.dedup import DedupIndex

        facts = DedupIndex(index, version=version).info()
        if as_json:
            typer.echo(console_output.format_json(facts))
            return
        typer.echo(f"{facts['path']}: version {facts['version']}, for {facts['kind']} deduplication")
        typer.echo(f"{facts['documents']:,} documents, {facts['bytes'] / 1e6:,.1f} MB")
        for one in facts["snapshots"]:
            typer.echo(f"  {one['snapshot']:<20} {one['documents']:>14,} documents   since version {one['version']}")
        typer.echo("made with " + ", ".join(f"{name}={value}" for name, value in facts["parameters"].items()))


@app.command()
def check(index: IndexDirectory) -> None:
    """Check that the files of an index are all there and unchanged."""
    with exit_on_error():
        from gristmill.dedup import DedupIndex

        found = DedupIndex(index)
        problems = found.check()
        for problem in problems:
            typer.echo(problem, err=True)
        if problems:
            raise typer.Exit(1)
        typer.echo(f"{found.url}: all files are there and unchanged")


@app.command()
def prune(
    index: IndexDirectory,
    keep: Annotated[int, typer.Option("--keep", min=1, help="How many versions to keep.")] = 1,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also remove files left by runs that did not finish.")
    ] = False,
) -> None:
    """Remove old versions. No run may be reading them or, with --unfinished, writing to the index."""
    with exit_on_error():
        from gristmill.dedup import DedupIndex

        gone = DedupIndex(index).prune(keep, unfinished)
        listed = f": {', '.join(map(str, gone))}" if gone else ""
        typer.echo(f"removed {len(gone)} version{'' if len(gone) == 1 else 's'}{listed}")
