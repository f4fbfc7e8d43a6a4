"""The command `gristmill card`: a card for a dataset on the Hugging Face hub, from the report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli.start import errors
from gristmill.cli.why import RunPlace


def card(
    run: RunPlace,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file for it, such as README.md.")] = None,
) -> None:
    """Write a dataset card in Markdown from the report of a run."""
    with errors():
        from gristmill.report.card import card_of

        text = card_of(run)
        if out is None:
            typer.echo(text)
            return
        out.write_text(text, "utf-8")
        typer.echo(f"wrote {out}: add a licence and where the data comes from")
