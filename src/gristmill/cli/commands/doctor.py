"""The command `gristmill doctor`: check what is installed and reachable, and what a recipe needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gristmill.cli.environment_checks import (
    MISSING,
    NOTE,
    OK,
    OPTIONAL,
    PROBLEM,
    DoctorFinding,
    check_environment,
    install_command,
)
from gristmill.cli.recipe_runner import allow_local_modules, exit_on_error
from gristmill.core.errors import GristmillError, MissingDependencyError, printable
from gristmill.core.result import count_noun

if TYPE_CHECKING:
    from gristmill.recipes import Recipe

_MARKS = {
    OK: ("ok", "green"),
    NOTE: ("note", "yellow"),
    OPTIONAL: ("optional", "yellow"),
    MISSING: ("missing", "bold red"),
    PROBLEM: ("problem", "bold red"),
}
_EXECUTOR_LIBRARIES = {
    "RayActorPoolExecutor": (("ray", "ray"),),
    "RayDataExecutor": (("ray", "ray"), ("pandas", "ray")),
    "XennaExecutor": (("ray", "ray"), ("cosmos_xenna", "xenna"), ("tqdm", "xenna")),
}
_STORAGE_LIBRARIES = {
    "s3": ("s3fs", install_command("s3")),
    "gs": ("gcsfs", "pip install gcsfs"),
    "gcs": ("gcsfs", "pip install gcsfs"),
}
_STORAGE_LIBRARIES |= dict.fromkeys(("az", "abfs", "abfss"), ("adlfs", "pip install adlfs"))
_STORAGE_LIBRARIES["hf"] = ("huggingface_hub", "pip install huggingface_hub")
_PLACEHOLDER = "gristmill-doctor"
"""For variables of a recipe that were not given."""


def doctor(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Also check what this recipe needs.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a variable or parameter of it.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="Also check a server of language models.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Check the installation and this machine; with a recipe, also what it needs and how to install it."""
    with exit_on_error():
        found = list(check_environment())
        if recipe:
            found += _check_recipe(recipe, settings or [])
        if endpoint:
            from gristmill.models.llm.openai_client import AsyncOpenAIClient

            found.append(_check_endpoint("endpoint", AsyncOpenAIClient(base_url=endpoint)))
        wrong = [finding for finding in found if finding.state in (MISSING, PROBLEM)]
        if as_json:
            from gristmill.cli.console_output import format_json

            typer.echo(format_json({"healthy": not wrong, "findings": [asdict(finding) for finding in found]}))
        else:
            _print(found, wrong, recipe)
        if wrong:
            raise typer.Exit(1)


def _print(found: Sequence[DoctorFinding], wrong: Sequence[DoctorFinding], recipe: str | None) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from gristmill.cli.console_output import console

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
    subject = f"{recipe}: " if recipe else ""
    out.print(f"{subject}{_summary(found, wrong)}", style="bold")


def _summary(found: Sequence[DoctorFinding], wrong: Sequence[DoctorFinding]) -> str:
    problems = f"{count_noun(len(wrong), 'problem') if wrong else 'no problems'} found"
    absent = [finding.name for finding in found if finding.state == OPTIONAL]
    if not absent:
        return problems
    features = f"{count_noun(len(absent), 'optional extra')} not installed: {', '.join(absent)}"
    return f"{problems}; {features}\n{install_command(*absent)}"


# -- a recipe ------------------------------------------------------------------------------------------------


def _check_recipe(name: str, settings: list[str]) -> Iterator[DoctorFinding]:
    from gristmill.core.plan.planner import decompose
    from gristmill.recipes.recipe import load_recipe

    given, stands_in = _settings_with_placeholders(name, settings)
    allow_local_modules()
    loaded = load_recipe(name, given)
    lacks = list(_missing_storage_libraries(loaded)) + list(_missing_executor_libraries(loaded))
    for stage in decompose(loaded.build().stages):
        try:
            stage.check()
        except MissingDependencyError as error:
            what, _, command = str(error).partition(", which is not installed: ")
            lacks.append(DoctorFinding("recipe", stage.name, MISSING, what, command))
        except (GristmillError, OSError) as error:
            if not stands_in:
                lacks.append(DoctorFinding("recipe", stage.name, PROBLEM, str(error)))
    endpoints = [] if stands_in else list(_check_endpoints(loaded))
    yield from endpoints
    yield from lacks or [DoctorFinding("recipe", name, OK, "everything it needs is installed")]


def _check_endpoints(recipe: Recipe) -> Iterator[DoctorFinding]:
    from gristmill.core.plan.planner import decompose
    from gristmill.models.llm.llm_stage import LLMStage
    from gristmill.models.llm.openai_client import AsyncOpenAIClient

    for stage in decompose(recipe.build().stages):
        if isinstance(stage, LLMStage) and isinstance(stage._client, AsyncOpenAIClient):
            yield _check_endpoint(stage.name, stage._client, stage.model_name)


def _check_endpoint(name: str, client: Any, model: str = "") -> DoctorFinding:
    """Whether a server of language models answers, and has the model."""
    import asyncio

    async def listed() -> list[str]:
        try:
            found: list[str] = await client.models()
            return found
        finally:
            client.close()

    try:
        models = asyncio.run(listed())
    except GristmillError as error:
        return DoctorFinding("endpoint", name, PROBLEM, str(error))
    shown = ", ".join(models[:5]) + (" ..." if len(models) > 5 else "")
    if model and models and model not in models:
        return DoctorFinding("endpoint", name, NOTE, f"{client.base_url} answers; it lists no {model!r}, but {shown}")
    return DoctorFinding("endpoint", name, OK, f"{client.base_url} answers: {shown or 'it lists no models'}")


def _settings_with_placeholders(name: str, settings: list[str]) -> tuple[dict[str, Any], bool]:
    """The settings, with something in the place of variables that have no value, and whether there are any."""
    from gristmill.recipes import parse_settings
    from gristmill.recipes.recipe import find_recipe
    from gristmill.recipes.recipe_file import read_recipe_file

    given = parse_settings(settings)
    left = {key for key, value in read_recipe_file(find_recipe(name)).vars.items() if value is None} - given.keys()
    return {**dict.fromkeys(left, _PLACEHOLDER), **given}, bool(left)


def _missing_storage_libraries(recipe: Recipe) -> Iterator[DoctorFinding]:
    used = {protocol for stage in recipe.stages for protocol in _protocols(stage.params)}
    for protocol in sorted(used & _STORAGE_LIBRARIES.keys()):
        library, command = _STORAGE_LIBRARIES[protocol]
        if importlib.util.find_spec(library) is None:
            yield DoctorFinding("recipe", f"{protocol}://", MISSING, f"needs {library!r}", command)


def _protocols(value: Any) -> Iterator[str]:
    if isinstance(value, str) and "://" in value:
        yield value.partition("://")[0].rpartition("::")[2]
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _protocols(inner)


def _missing_executor_libraries(recipe: Recipe) -> Iterator[DoctorFinding]:
    name = type(recipe.executor()).__name__
    for library, extra in _EXECUTOR_LIBRARIES.get(name, ()):
        if importlib.util.find_spec(library) is None:
            yield DoctorFinding("recipe", name, MISSING, f"needs {library!r}", install_command(extra))
            return
