"""The commands `gristmill models`: fetch a model before a run, and write it as ONNX files."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.cli.recipe_runner import exit_on_error

app = typer.Typer(no_args_is_help=True, help="Fetch models, and write them as ONNX files.")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As on the Hugging Face hub; NAME@REVISION pins it.")],
    to: Annotated[str | None, typer.Option("--to", metavar="DIR", help="A directory for models.")] = None,
) -> None:
    """Fetch a model, so that machines without a network can be given a copy."""
    with exit_on_error():
        from gristmill.models import Wanted

        wanted = Wanted(to, name, f"fetching {name}", nested=True) if to else Wanted(name, purpose=f"fetching {name}")
        typer.echo(wanted.fetch())


@app.command()
def export(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A CLIP model: config.json and model.safetensors.")],
    onnx: Annotated[str, typer.Option("--onnx", metavar="OUT", help="Where the ONNX files go.")],
) -> None:
    """Write a CLIP model as ONNX files, which run without PyTorch."""
    with exit_on_error():
        from gristmill.models import export as write

        for path in write(directory, onnx):
            typer.echo(f"{path}  {path.stat().st_size / 1e6:,.1f} MB")
