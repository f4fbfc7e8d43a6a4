"""The shape of the source: which package may import which, how deep, how large, and what files are called."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from gristmill import ProcessingStage
from gristmill.core.curator.stage_calls import StageCalls

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gristmill"
FILES = sorted(SOURCE.rglob("*.py"))

MAX_LINES = 650
MAX_FUNCTION = 50
MAX_MODULES = 15
VAGUE = {"utils", "util", "common", "helpers", "helper", "misc", "base"}
IN_EVERY_MODALITY = {"batch", "decode", "download", "embed", "filters", "read", "score", "to_documents", "write"}
SAME_IDEA = {"kernel_reference", "whatif", *IN_EVERY_MODALITY}
"""File names that mean the same idea wherever they stand. Commands of the CLI are named after what they show."""


def packages() -> list[str]:
    return sorted(path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.glob("*/__init__.py"))


@pytest.mark.parametrize("config", ["pyproject.toml", "rooms.importlinter.toml"])
def test_imports_point_down(config: str) -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", config]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* kept, 0 broken", done.stdout)


def test_every_room_has_its_layer() -> None:
    contracts = tomllib.loads((ROOT / "rooms.importlinter.toml").read_text())["tool"]["importlinter"]["contracts"]
    placed = {
        f"{container}.{name.strip()}"
        for contract in contracts
        for container in contract["containers"]
        for layer in contract["layers"]
        for name in layer.split("|")
    }
    rooms = {".".join(["gristmill", *path.parent.relative_to(SOURCE).parts]) for path in SOURCE.glob("*/*/__init__.py")}
    alone = {room for room in rooms if sum(other.rpartition(".")[0] == room.rpartition(".")[0] for other in rooms) == 1}
    assert rooms - alone <= placed


def test_every_package_has_its_layer() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [contract] = config["tool"]["importlinter"]["contracts"]
    placed = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    assert sorted(placed) == [f"gristmill.{package}" for package in packages()]


def test_folders_are_at_most_two_deep() -> None:
    folders = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*") if path.is_file()}
    deep = [folder for folder in folders if len([part for part in folder.parts if part != "__pycache__"]) > 2]
    assert not deep


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert not [path for path in SOURCE.rglob("*") if path.stem in VAGUE]


def test_no_folder_is_crowded() -> None:
    counts = Counter(path.parent.relative_to(SOURCE).as_posix() for path in FILES if path.stem != "__init__")
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}


def test_a_file_name_means_one_thing() -> None:
    named = [path for path in FILES if path.stem != "__init__" and path.parent.name != "commands"]
    counts = Counter(path.stem for path in named if path.stem not in SAME_IDEA)
    assert {name: count for name, count in counts.items() if count > 1} == {}


def test_a_public_class_name_means_one_thing() -> None:
    found = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(SOURCE).as_posix())
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_a_stage_author_has_little_to_read() -> None:
    """At most 12 public methods and 10 public attributes; one method to write. What is only there for code from NeMo
    Curator stands in a class of its own."""
    public = [name for name in dir(ProcessingStage) if not name.startswith("_") and name not in dir(StageCalls)]
    methods = [name for name in public if callable(getattr(ProcessingStage, name))]
    assert len(methods) <= 12, methods
    assert len(public) - len(methods) <= 10, sorted(set(public) - set(methods))


def test_files_are_short() -> None:
    lengths = {path.relative_to(SOURCE).as_posix(): len(path.read_text().splitlines()) for path in FILES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_functions_are_short() -> None:
    found = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > MAX_FUNCTION:
                    found[f"{path.relative_to(SOURCE)}:{node.name}"] = length
    assert found == {}


def test_every_file_opens_with_what_it_is() -> None:
    empty = [
        path.relative_to(SOURCE).as_posix() for path in FILES if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert empty == []


def test_the_tree_in_the_readme_is_the_tree() -> None:
    readme = (ROOT / "README.md").read_text()
    tree = re.search(r"```text\nsrc/gristmill/\n(.*?)```", readme, re.DOTALL)
    assert tree, "README.md shows no tree of src/gristmill"
    lines = re.findall(r"^[├└]── (\w+)/ +(\S.*)$", tree[1], re.MULTILINE)
    assert sorted(name for name, _ in lines) == packages()
    assert len(lines) == len(tree[1].splitlines()), "one line per folder, each with what it holds"
