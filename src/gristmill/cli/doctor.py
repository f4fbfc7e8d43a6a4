"""`gristmill doctor`: what is installed and reachable, and what a recipe lacks, with the way out."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gristmill.cli.health import MISSING, NOTE, OK, PROBLEM, Finding, install, look_around
from gristmill.cli.start import allow_own_modules, errors
from gristmill.core.errors import GristmillError, MissingDependencyError, printable

if TYPE_CHECKING:
    from gristmill.recipes import Recipe

_MARKS = {
    OK: ("ok", "green"),
    NOTE: ("note", "yellow"),
    MISSING: ("missing", "bold red"),
    PROBLEM: ("wrong", "bold red"),
}
_EXECUTORS = {
    "RayActorPoolExecutor": (("ray", "ray"),),
    "RayDataExecutor": (("ray", "ray"), ("pandas", "ray")),
    "XennaExecutor": (("ray", "ray"), ("cosmos_xenna", "xenna"), ("tqdm", "xenna")),
}
_STORES = {"s3": ("s3fs", install("s3")), "gs": ("gcsfs", "pip install gcsfs"), "gcs": ("gcsfs", "pip install gcsfs")}
_STORES |= dict.fromkeys(("az", "abfs", "abfss"), ("adlfs", "pip install adlfs"))
_STORES["hf"] = ("huggingface_hub", "pip install huggingface_hub")
_STANDS_IN = "gristmill-doctor"
"""For variables of a recipe that were not given."""


def doctor(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Also say what this recipe lacks.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a variable or parameter of it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Say what is installed and what this machine has; for a recipe, what it lacks and how to get it."""
    with errors():
        found = list(look_around())
        if recipe:
            found += _recipe(recipe, settings or [])
        wrong = [finding for finding in found if finding.state in (MISSING, PROBLEM)]
        if as_json:
            from gristmill.cli.show import to_json

            typer.echo(to_json({"healthy": not wrong, "findings": [asdict(finding) for finding in found]}))
        else:
            _print(found, wrong, recipe)
        if wrong:
            raise typer.Exit(1)


def _print(found: Sequence[Finding], wrong: Sequence[Finding], recipe: str | None) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from gristmill.cli.show import console

    out = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    area = ""
    for finding in found:
        if area and finding.area != area:
            table.add_section()
        area = finding.area
        text = Text(printable(finding.text))
        if finding.fix:
            text.append(f"\n{printable(finding.fix)}", "dim")
        table.add_row(Text(*_MARKS[finding.state]), Text(printable(finding.name)), text)
    out.print(table)
    whose = f"for {recipe}" if recipe else "here"
    count = f"{len(wrong)} thing{'' if len(wrong) == 1 else 's'} to mend"
    out.print(f"{count} {whose}" if wrong else f"nothing is missing {whose}", style="bold")


# -- a recipe ------------------------------------------------------------------------------------------------


def _recipe(name: str, settings: list[str]) -> Iterator[Finding]:
    from gristmill.core.plan import decompose
    from gristmill.recipes.recipe import load_recipe

    given, stands_in = _given(name, settings)
    allow_own_modules()
    loaded = load_recipe(name, given)
    lacks = list(_lacking_stores(loaded)) + list(_lacking_executor(loaded))
    for stage in decompose(loaded.build().stages):
        try:
            stage.check()
        except MissingDependencyError as error:
            what, _, command = str(error).partition(", which is not installed: ")
            lacks.append(Finding("recipe", stage.name, MISSING, what, command))
        except (GristmillError, OSError) as error:
            if not stands_in:
                lacks.append(Finding("recipe", stage.name, PROBLEM, str(error)))
    yield from lacks or [Finding("recipe", name, OK, "all that it needs is installed")]


def _given(name: str, settings: list[str]) -> tuple[dict[str, Any], bool]:
    """The settings, with something in the place of variables that have no value, and whether there are any."""
    from gristmill.recipes import parse_settings
    from gristmill.recipes.form import read_form
    from gristmill.recipes.recipe import find_recipe

    given = parse_settings(settings)
    left = {key for key, value in read_form(find_recipe(name)).vars.items() if value is None} - given.keys()
    return {**dict.fromkeys(left, _STANDS_IN), **given}, bool(left)


def _lacking_stores(recipe: Recipe) -> Iterator[Finding]:
    used = {protocol for stage in recipe.stages for protocol in _protocols(stage.params)}
    for protocol in sorted(used & _STORES.keys()):
        library, command = _STORES[protocol]
        if importlib.util.find_spec(library) is None:
            yield Finding("recipe", f"{protocol}://", MISSING, f"needs {library!r}", command)


def _protocols(value: Any) -> Iterator[str]:
    if isinstance(value, str) and "://" in value:
        yield value.partition("://")[0].rpartition("::")[2]
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _protocols(inner)


def _lacking_executor(recipe: Recipe) -> Iterator[Finding]:
    name = type(recipe.executor()).__name__
    for library, extra in _EXECUTORS.get(name, ()):
        if importlib.util.find_spec(library) is None:
            yield Finding("recipe", name, MISSING, f"needs {library!r}", install(extra))
            return
