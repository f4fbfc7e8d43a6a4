"""The command `gristmill card`: a card for a dataset on the Hugging Face hub, from the report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli.commands.why import RunDirectory
from gristmill.cli.recipe_runner import exit_on_error


def card(
    run: RunDirectory,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file for it, such as README.md.")] = None,
) -> None:
    """Write a dataset card in Markdown from the report of a run."""
    with exit_on_error():
        from gristmill.report.run_report.dataset_card import dataset_card_of_run

        text = dataset_card_of_run(run)
        if out is None:
            typer.echo(text)
            return
        out.write_text(text, "utf-8")
        typer.echo(f"wrote {out}; add the licence and the origin of the data")
