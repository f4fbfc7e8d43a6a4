"""The card of a dataset: numbers from the report, and text that stays text."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gristmill import LocalExecutor, Pipeline, Tee, processing_stage
from gristmill.cli.main import app
from gristmill.core.errors import InputError
from gristmill.dedup import FuzzyDeduplicationStage
from gristmill.report.run_report.dataset_card import dataset_card_of_run
from gristmill.text import JsonlReader, JsonlWriter, RedactPii, ScoreFilter, WordCountFilter


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
    facts = yaml.safe_load(front)
    assert facts["pretty_name"] == "a <b>card</b> | : of\nmine"
    assert (set(facts["language"]), facts["size_categories"]) == ({"de", "en"}, ["n<1K"])
    assert "20 of 30 documents (66.7%)" in body
    assert r"| WordCountFilter | min\_words=10, max\_words=100000 | 30 | 10 | 33.33% |" in body
    assert "<b>" not in body.partition("## How it was made")[0]
    assert r"| not a code: \[x\] |" in body
    assert dataset_card_of_run(str(run)) == text


def test_a_card_of_a_pipeline_in_python_has_its_recipe(run: Path, tmp_path: Path) -> None:
    made = dataset_card_of_run(str(run)).partition("## How it was made")[2].rpartition("\n\n")[0]
    recipe = yaml.safe_load(textwrap.dedent(made))
    assert [next(iter(stage)) for stage in recipe["stages"]] == ["JsonlReader", "ScoreFilter", "JsonlWriter"]
    stages = [JsonlReader(tmp_path / "in.jsonl"), processing_stage(lambda task: task), JsonlWriter(tmp_path / "two")]
    Pipeline("own", stages=stages).run(LocalExecutor(0), tmp_path / "own")
    assert "own: 3 stages" in dataset_card_of_run(str(tmp_path / "own")), "YAML cannot express a function"


def test_without_a_report_there_is_no_card(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no report.json"):
        dataset_card_of_run(str(tmp_path))


def test_a_card_and_a_report_have_no_line_that_says_nothing(tmp_path: Path) -> None:
    """No folder of this machine, no total of rows that a Tee wrote twice, no limit of a stage that drops nothing, and
    one seed for a stage however many parts it has."""
    (tmp_path / "in").mkdir()
    for part in "ab":
        rows = [{"id": f"{part}{n}", "text": f"page {n} of {part}, me@mill.org"} for n in range(5)]
        (tmp_path / "in" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tee = Tee({name: JsonlWriter(tmp_path / name) for name in ("one", "two")})
    stages = [JsonlReader(tmp_path / "in"), RedactPii(entities=["email"]), FuzzyDeduplicationStage(), tee]
    Pipeline("twice", stages=stages).run(LocalExecutor(0), tmp_path / "run")
    card = dataset_card_of_run(str(tmp_path / "run"))
    assert "| one | 10 |\n| two | 10 |\n\n" in card
    assert "| a.jsonl | 5 | 10 |\n| b.jsonl | 5 | 10 |" in card
    assert "drop=" not in card
    seeds = json.loads((tmp_path / "run" / "report.json").read_text())["seeds"]
    assert seeds == [{"stage": "FuzzyDeduplicationStage", "parameter": "seed", "seed": 42}]
