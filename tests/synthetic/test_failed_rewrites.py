"""Rewriting with an endpoint that refuses requests, and with nothing to rewrite: users hear of it; no row is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.cli.main import app
from gristmill.recipes import load_recipe
from tests.llm_server import FaultProxy

NOWHERE = "http://127.0.0.1:9/v1"
START = Callable[[str | None, str], tuple[FaultProxy, str]]


@pytest.fixture
def refusing() -> Iterator[START]:
    with ExitStack() as stack:

        def start(fault: str | None, target: str = NOWHERE) -> tuple[FaultProxy, str]:
            proxy = FaultProxy(
                target, lambda number, body: fault if "Number 0 " not in str(body) or target == NOWHERE else None
            )
            return proxy, stack.enter_context(proxy.running())

        yield start


def rewrite(folder: Path, url: str, rows: int, *more: str, code: int = 0) -> str:
    (folder / "in").mkdir(exist_ok=True)
    lines = [json.dumps({"text": f"Number {row} is a number.", "bucket": "low"}) for row in range(rows)]
    (folder / "in" / "a.jsonl").write_text("\n".join(lines) + "\n")
    settings = {"input": f"{folder}/in", "output": f"{folder}/out", "url": url, "model": "smollm2", "max_tokens": "8"}
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    result = CliRunner().invoke(app, ["run", "rewrite", *given, "--workers", "0", *more])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(("fault", "reason"), [("400", "status 400: no"), ("error", "no such model")])
def test_a_run_that_was_refused_everything_fails(tmp_path: Path, refusing: START, fault: str, reason: str) -> None:
    _, url = refusing(fault, NOWHERE)
    said = rewrite(tmp_path, url, 3, code=1)
    assert f"error: stage 'RewriteStage': {url} has refused all 3 requests: " in said
    assert reason in said
    assert "allow_failures" in said
    said = rewrite(tmp_path, url, 3, "--set", "allow_failures=true")
    assert f"3 not rewritten because: {'' if fault == '400' else 'an error instead of an answer: '}{reason}" in said
    [file] = (tmp_path / "out").glob("*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["text"] for row in rows] == [f"Number {row} is a number." for row in range(3)]


def test_a_run_stops_when_the_first_requests_are_refused(tmp_path: Path, refusing: START) -> None:
    proxy, url = refusing("400", NOWHERE)
    said = rewrite(tmp_path, url, 300, "--set", "at_once=4", code=1)
    assert "stage 'RewriteStage' failed on task" in said
    assert f"{url} has refused the first 20 requests: status 400: no." in said
    assert 20 <= len(proxy.bodies) <= 28, "and those that were in flight"
    rewrite(tmp_path, url, 300, "--set", "allow_failures=true")
    [file] = (tmp_path / "out").glob("*.jsonl")
    assert len(file.read_text().splitlines()) == 300


def test_what_passes_or_is_answered_once_stops_nothing(tmp_path: Path, refusing: START, llm_server: str) -> None:
    _, url = refusing("400", llm_server)
    said = rewrite(tmp_path, url, 40, "--set", "at_once=1")
    assert "39 not rewritten because: status 400: no" in said
    assert "refused" not in said


def test_no_row_of_the_bucket(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning) as caught:
        said = rewrite(tmp_path, NOWHERE, 3, "--set", "bucket=medium")
    assert "no row has bucket 'medium', so nothing was asked. There are rows with: bucket=low" in str(caught[0].message)
    assert "unselected" not in said


def test_the_recipe_has_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-mine")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")

    def key(**given: str) -> str | None:
        recipe = load_recipe("rewrite", {"input": str(tmp_path), "model": "m", **given})
        assert "sk-" not in recipe.to_yaml()
        found = recipe.build().stages[1]._client.api_key  # type: ignore[attr-defined]
        return found and str.__str__(found)

    assert key(api_key="${env:MY_KEY}") == "sk-mine"
    assert not key()
    assert key(url="https://api.openai.com/v1") == "sk-openai"
