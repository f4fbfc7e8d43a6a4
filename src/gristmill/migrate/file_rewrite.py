"""Rewrite files: Python, notebooks, YAML. Nothing is written here; the command does that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from gristmill.core.errors import InputError
from gristmill.migrate.name_map import CURATOR, find_name
from gristmill.migrate.script_rewrite import (
    ERROR,
    Finding,
    Rewrite,
    is_stage,
    parameter_problem,
    rewrite_paths,
    rewrite_script,
)

SUFFIXES = (".py", ".ipynb", ".yaml", ".yml")


def source_files(path: Path) -> Iterator[Path]:
    """The file itself, or all scripts, notebooks and YAML files below a folder."""
    if path.is_file():
        yield path
    elif path.is_dir():
        found = (one for one in sorted(path.rglob("*")) if one.suffix in SUFFIXES and one.is_file())
        yield from (one for one in found if not any(part.startswith(".") for part in one.relative_to(path).parts))
    else:
        raise InputError(f"{path}: there is no such file or folder")


def rewrite_file(path: Path) -> Rewrite:
    """The content of a file for Gristmill, with what differs or is missing."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text: convert it first") from None
    if path.suffix == ".ipynb":
        return _rewrite_notebook(text, path)
    return _rewrite_yaml(text) if path.suffix in (".yaml", ".yml") else rewrite_script(text)


def _rewrite_yaml(text: str) -> Rewrite:
    lines, findings = [], []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        new, missing = rewrite_paths(line)
        lines.append(new)
        findings += [Finding(number, ERROR, one) for one in missing]
    try:
        findings += _unknown_parameters(yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        findings += [Finding(1, ERROR, f"not YAML that can be read: {error}")] if CURATOR in text else []
    return Rewrite("".join(lines), sorted(findings, key=lambda one: one.line))


def _unknown_parameters(node: yaml.Node | None) -> Iterator[Finding]:
    """Parameters of a configuration that the class in `_target_` has not."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _unknown_parameters(item)
    if not isinstance(node, yaml.MappingNode):
        return
    target = next((value.value for key, value in node.value if key.value == "_target_"), "")
    module, _, name = str(target).rpartition(".")
    place = find_name(module, name) if module.partition(".")[0] in (CURATOR, "gristmill") else None
    for key, value in node.value:
        settings = ("_target_", "resources") if place and is_stage(place) else ("_target_",)
        if place and key.value not in settings and (problem := parameter_problem(place, str(key.value))):
            yield Finding(key.start_mark.line + 1, ERROR, problem)
        yield from _unknown_parameters(value)


def _rewrite_notebook(text: str, path: Path) -> Rewrite:
    """Each cell of code, with what the cells before it have imported. Lines are counted within the cell."""
    try:
        notebook = json.loads(text)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not a notebook: it has no list of cells") from None
    state, findings, changed = Rewrite(""), list[Finding](), False
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        state = rewrite_script(source, state)
        findings += [replace(one, text=f"cell {number}: {one.text}") for one in state.findings]
        if state.text != source:
            lines = state.text.splitlines(keepends=True)
            cell["source"], changed = lines if isinstance(cell["source"], list) else state.text, True
    return Rewrite(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n" if changed else text, findings)
