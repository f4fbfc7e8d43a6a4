"""The card of a dataset: numbers from the report, and text that stays text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gristmill import LocalExecutor, Pipeline
from gristmill.cli.main import app
from gristmill.core.errors import InputError
from gristmill.report.run_report.dataset_card import dataset_card_of_run
from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [{"text": "word " * n, "language": ["en", "de", "not a code: [x]"][n % 3]} for n in range(30)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader, writer = JsonlReader(tmp_path / "in.jsonl"), JsonlWriter(tmp_path / "out")
    made = Pipeline("a <b>card</b> | : of\nmine", stages=[reader, ScoreFilter(WordCountFilter(min_words=10)), writer])
    made.run(LocalExecutor(0), tmp_path / "run")
    return tmp_path / "run"


def test_a_card_tells_what_was_done(run: Path, tmp_path: Path) -> None:
    written = CliRunner().invoke(app, ["card", str(run), "--out", str(tmp_path / "README.md")])
    assert written.exit_code == 0, written.output
    text = (tmp_path / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    told = yaml.safe_load(front)
    assert told["pretty_name"] == "a <b>card</b> | : of\nmine"
    assert (set(told["language"]), told["size_categories"]) == ({"de", "en"}, ["n<1K"])
    assert "20 of 30 documents (66.7%)" in body
    assert r"| WordCountFilter | min\_words=10, max\_words=100000 | 30 | 10 | 33.33% |" in body
    assert "<b>" not in body.partition("## How it was made")[0]
    assert r"| not a code: \[x\] |" in body
    assert dataset_card_of_run(str(run)) == text


def test_without_a_report_there_is_no_card(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no report.json"):
        dataset_card_of_run(str(tmp_path))
