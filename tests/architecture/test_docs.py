"""The documents are true: their code runs, and prints what they say it prints.

    python   all blocks of a document are one program, run where `examples/` is and nothing else
    bash     a block that starts with `gristmill` (or `make demo`, which is the same) is run after the program
    yaml     a recipe; it must build a pipeline
    text     right after python or bash: what that printed. `...` stands for anything, and times may differ

A block whose first line is a comment with a file name (`# first.yaml`) is also that file.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gristmill.recipes import load_recipe

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "ARCHITECTURE.md",
    *sorted((ROOT / "docs").glob("*.md")),
]

DEMO = "gristmill run examples/demo/recipe.yaml --scores --rejected"
MARK = "@@@ block "


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line that its text starts at, and the output shown after it."""

    language: str
    text: str
    line: int
    output: str | None

    @property
    def file(self) -> str | None:
        named = re.match(r"# ([\w./-]+\.(?:py|yaml))\n", self.text)
        return named[1] if named else None

    @property
    def command(self) -> str | None:
        """What to run, for a block of bash that is to be run."""
        if self.language != "bash":
            return None
        if self.text.strip() == "make demo":
            return DEMO
        return self.text if self.text.startswith("gristmill ") else None


def blocks_of(document: Path) -> list[Block]:
    text = document.read_text()
    fences = list(re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    found = []
    for index, fence in enumerate(fences):
        after = fences[index + 1] if index + 1 < len(fences) else None
        shown = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        line = text.count("\n", 0, fence.start(2)) + 1
        found.append(Block(fence[1], fence[2], line, after[2] if after is not None and shown else None))
    return found


def program_of(blocks: list[Block]) -> str:
    """All Python of a document, at the lines where the document has it, so that a traceback can be read."""
    lines: list[str] = []
    for block in blocks:
        if block.language == "python":
            lines += [""] * (block.line - 2 - len(lines))
            lines += [f"print({MARK + str(block.line)!r}, flush=True)", *block.text.splitlines()]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Place:
    """A directory to run a document in."""

    path: Path

    def run(self, command: list[str]) -> str:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GRISTMILL_PROGRESS": "off",
            "COLUMNS": "200",
        }
        done = subprocess.run(
            command,
            cwd=self.path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return Place(tmp_path)


def check_output(document: Path, block: Block, printed: str) -> None:
    if block.output is None:
        return
    wanted, got = block.output, printed
    if "MB/s" in wanted:  # a summary: its times are those of one run
        wanted, got = (re.sub(r"\d[\d,]*\.\d+", "#", text) for text in (wanted, got))
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    same = doctest.OutputChecker().check_output(wanted, got, flags)
    assert same, f"{document.name}, line {block.line} prints\n{printed}\nand not\n{block.output}"


CLUSTERS = ("deploy.md", "executors.md")
"""What they show is run with all that needs a cluster."""


@pytest.mark.parametrize(
    "document",
    [pytest.param(path, marks=pytest.mark.ray) if path.name in CLUSTERS else path for path in DOCUMENTS],
    ids=[path.name for path in DOCUMENTS],
)
def test_what_a_document_shows_runs(document: Path, place: Place) -> None:
    blocks = blocks_of(document)
    for block in blocks:
        if block.file:
            (place.path / block.file).write_text(block.text)
    program = program_of(blocks)
    (place.path / f"{document.stem}.py").write_text(program)
    printed = place.run([sys.executable, f"{document.stem}.py"]) if program.strip() else ""
    outputs = dict(part.partition("\n")[::2] for part in printed.split(MARK)[1:])
    for block in blocks:
        if block.language == "python":
            check_output(document, block, outputs[str(block.line)])
        elif block.command:
            check_output(document, block, place.run(["sh", "-ec", block.command]))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_recipes_in_documents_build(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    blocks = blocks_of(document)
    for block in blocks:
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    for block in blocks:
        if block.language == "yaml":
            path = tmp_path / (block.file or f"line-{block.line}.yaml")
            path.write_text(block.text)
            assert load_recipe(str(path)).build().stages


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_says_what_it_is(document: Path) -> None:
    assert {block.language for block in blocks_of(document)} <= {"python", "bash", "yaml", "text"}
    assert document.read_text().count("```") == 2 * len(blocks_of(document))


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_files_that_are_named_are_there(document: Path) -> None:
    """Below the source, or from the top."""
    named = set(re.findall(r"`([\w./-]+/[\w-]+\.(?:py|c|md|toml))`", document.read_text()))
    assert [
        path
        for path in named
        if "/x." not in f"/{path}" and not ((ROOT / path).exists() or (ROOT / "src" / "gristmill" / path).exists())
    ] == []


def test_make_demo_is_the_command_that_is_shown() -> None:
    assert f"$(BIN)/{DEMO}\n" in (ROOT / "Makefile").read_text()
