"""The commands `gristmill metrics`: write configuration for Prometheus and Grafana."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli.recipe_runner import exit_on_error
from gristmill.core.errors import cannot_write

app = typer.Typer(no_args_is_help=True, help="Files for Prometheus and Grafana.")


@app.callback()
def options() -> None:
    """Files for Prometheus and Grafana, to look at the metrics of runs (`gristmill run --metrics-port`)."""


@app.command()
def grafana(
    out: Annotated[Path, typer.Option("--out", help="A directory to write to.")],
    target: Annotated[str, typer.Option("--target", help="Where runs serve metrics.")] = "localhost:9464",
    prometheus: Annotated[str, typer.Option("--prometheus", help="Where Prometheus is.")] = "http://localhost:9090",
    on_ray: Annotated[bool, typer.Option("--ray", help="For the metrics that a Ray cluster exports.")] = False,
) -> None:
    """Write a dashboard for Grafana, and the settings of Grafana and Prometheus."""
    with exit_on_error():
        from gristmill.observe.grafana_files import grafana_files

        for name, content in grafana_files(target, prometheus, on_ray).items():
            path = out / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
            except OSError as error:
                raise cannot_write(str(path), error) from error
            typer.echo(path)
