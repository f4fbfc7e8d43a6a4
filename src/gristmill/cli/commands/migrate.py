"""`gristmill migrate`: rewrite scripts, notebooks and configurations of NeMo Curator."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli.recipe_runner import Verbose, exit_on_error


def migrate(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A script, a notebook, a YAML file, or a folder.")],
    write: Annotated[bool, typer.Option("--write", help="Change the files in place.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the changed files here instead.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if something would not run.")] = False,
    verbose: Verbose = False,
) -> None:
    """Rewrite the imports of code for NeMo Curator, and say what differs. Prints a diff unless told to write."""
    with exit_on_error(verbose):
        from gristmill.migrate import rewrite_file, source_files

        if write and output:
            raise ValueError("give --write or --output, not both")
        errors = changed = 0
        for file in source_files(path):
            result, old = rewrite_file(file), file.read_text(encoding="utf-8")
            changed += result.text != old
            target = file if write else _target(path, file, output)
            if target and (result.text != old or output):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(result.text, encoding="utf-8")
            elif not target and not check:
                _print_diff(file, old, result.text)
            for finding in result.findings:
                typer.echo(f"{file}:{finding.line}: {finding.kind}: {finding.text}", err=True)
                errors += finding.kind == "error"
        did = "changed" if write or output else "to change"
        typer.echo(f"{changed} files {did}, {errors} problems", err=True)
    if check and errors:
        raise typer.Exit(1)


def _target(path: Path, file: Path, output: Path | None) -> Path | None:
    if output is None:
        return None
    return output / file.relative_to(path) if path.is_dir() else output


def _print_diff(file: Path, old: str, new: str) -> None:
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), str(file), str(file))
    typer.echo("".join(lines), nl=False)
