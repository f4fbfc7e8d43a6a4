"""`gristmill run --json`: the events, and that nothing else is on standard output."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from gristmill.cli.main import app

OWN = "tests.recipes.user_stages"
ROOT = Path(__file__).parents[2]


def recipe(tmp_path: Path, *stages: str) -> str:
    path = tmp_path / "own.yaml"
    path.write_text("name: told\nstages:\n" + "".join(f"  - {OWN}:{stage}\n" for stage in stages))
    return str(path)


def events(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def test_a_run_is_told_from_start_to_finish(tmp_path: Path) -> None:
    slow = recipe(tmp_path, "MakeDocuments", "Slow: {seconds: 1.6, lines: 2}")
    command = [sys.executable, "-m", "gristmill.cli.main", "run", slow, "--workers", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    assert "printed by a stage, line 1" in done.stderr, "what stages print is not on standard output"
    output = events(done.stdout)
    start, *between, finish = output
    assert all(event["time"] <= later["time"] for event, later in pairwise(output))
    assert (start["event"], start["pipeline"]) == ("start", "told")
    assert [group["stages"] for group in start["plan"][0]["groups"]] == [["MakeDocuments"], ["Slow"]]
    progress = [event for event in between if event["event"] == "progress"]
    last = progress[-1]
    assert last["stages"][0].items() >= {"stage": "MakeDocuments", "kept": 4, "dropped": 0, "quarantined": 0}.items()
    assert last["pools"][1]["stages"] == ["Slow"]
    assert last["bottleneck"]["stage"] == "Slow"
    assert "(1 worker, " in last["bottleneck"]["text"]
    stages = [(event["stage"], event["kept"]) for event in between if event["event"] == "stage"]
    assert stages == [("MakeDocuments", 4), ("Slow", 4)]
    assert (finish["event"], finish["rows_out"], finish["quarantined"]) == ("finish", 4, 0)


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    failing = recipe(tmp_path, "MakeDocuments", "Fails")
    done = CliRunner().invoke(app, ["run", failing, "--workers", "0", "--json", "--on-error", "raise"])
    assert done.exit_code == 1
    output = events(done.stdout)
    assert [event["event"] for event in output] == ["start", "stage", "stage", "failed"]
    assert output[-1]["type"] == "StageError"
    assert "the mill has no wind" in output[-1]["error"]
    assert "Traceback" not in output[-1]["error"]
