"""The commands `gristmill models`: fetch a model before a run, list those that are there, write them as ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli.recipe_runner import exit_on_error

app = typer.Typer(no_args_is_help=True, help="Fetch and list models, and write them as ONNX files.")

ModelDirectory = Annotated[str, typer.Argument(metavar="DIR", help="A folder with config.json and model.safetensors.")]


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As on the Hugging Face hub; NAME@REVISION pins it.")],
    to: Annotated[str | None, typer.Option("--to", metavar="DIR", help="A directory for models.")] = None,
    checksum: Annotated[
        str | None, typer.Option("--checksum", metavar="sha256:HEX", help="Fail unless the weights have it.")
    ] = None,
) -> None:
    """Fetch a model, so that machines without a network can be given a copy."""
    with exit_on_error():
        from gristmill.core.errors import InputError
        from gristmill.models import Wanted
        from gristmill.models.text.cached_models import weights_checksum

        wanted = Wanted(to, name, f"fetching {name}", nested=True) if to else Wanted(name, purpose=f"fetching {name}")
        place = wanted.fetch()
        found = weights_checksum(place) if place.is_dir() else ""
        if checksum is not None and found != checksum:
            raise InputError(f"{place}: the checksum of its weights is {found}, and not {checksum}")
        typer.echo(f"{place}  {found}".rstrip())


@app.command("list")
def list_models(
    directory: Annotated[Path | None, typer.Argument(metavar="DIR", help="A directory for models.")] = None,
    checksums: Annotated[bool, typer.Option("--checksums", help="Read all weights, and show their checksum.")] = False,
) -> None:
    """List the models that were fetched, by default those in the cache."""
    with exit_on_error():
        from gristmill.models.model_files import cache
        from gristmill.models.text.cached_models import cached_models

        models = cached_models(directory)
        for model in models:
            end = f"  {model.checksum()}" if checksums else ""
            typer.echo(f"{model.name}  {model.nbytes / 1e6:,.1f} MB{end}")
        if not models:
            typer.echo(f"no models in {directory or cache()}: gristmill models fetch NAME")


@app.command()
def export(
    directory: ModelDirectory,
    onnx: Annotated[str, typer.Option("--onnx", metavar="OUT", help="Where the ONNX files go.")],
) -> None:
    """Write a model of text, or a CLIP model, as ONNX files, which run without PyTorch."""
    with exit_on_error():
        from gristmill.models import export as write_clip
        from gristmill.models.text.text_to_onnx import export_text_model
        from gristmill.models.text.text_tokenizer import read_json

        is_clip = read_json(Path(directory).expanduser() / "config.json").get("model_type") in ("clip", None)
        is_text = "base_model" in read_json(Path(directory).expanduser() / "config.json")
        write = write_clip if is_clip and not is_text else export_text_model
        for path in write(directory, onnx):
            typer.echo(f"{path}  {path.stat().st_size / 1e6:,.1f} MB")


@app.command()
def quantise(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A model of text, as ONNX or with its weights.")],
    to: Annotated[str, typer.Option("--to", metavar="OUT", help="Where the quantised model goes.")],
) -> None:
    """Write a model of text with 8-bit weights: a quarter of the size, faster on CPUs with VNNI instructions."""
    with exit_on_error():
        from gristmill.models.text.text_to_onnx import quantise_text_model

        agreement = quantise_text_model(directory, to)
        size = (Path(to).expanduser() / "model.onnx").stat().st_size
        typer.echo(f"{to}  {size / 1e6:,.1f} MB; lowest cosine of embeddings before and after: {agreement:.4f}")
