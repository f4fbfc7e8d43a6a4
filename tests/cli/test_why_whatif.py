"""The commands that tell of rows: `why`, `whatif`, and `run --scores` that they rest on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill import LocalExecutor, Pipeline, Route
from gristmill.cli.main import app
from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter

STEERS = "\x1b[2Jgrist \x9b31m of the mill"


def gristmill(*arguments: str | Path, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def mill(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for file in range(2):
        texts = [f"{STEERS} " * (row % 9) + "flour." for row in range(60)]
        lines = [json.dumps({"id": f"{file}-{row}", "text": text}) for row, text in enumerate(texts)]
        (tmp_path / "data" / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    stages: list[Any] = [
        {"JsonlReader": {"file_paths": str(tmp_path / "data")}},
        {"ScoreFilter": {"filter_obj": {"WordCountFilter": {"min_words": 20}}}},
        {"ScoreFilter": {"filter_obj": {"MeanWordLengthFilter": {"max_mean_word_length": 4.5}}, "score_field": "mean"}},
        {"JsonlWriter": {"path": str(tmp_path / "out")}},
    ]
    (tmp_path / "recipe.yaml").write_text(json.dumps({"name": "mill", "stages": stages}))
    gristmill("run", tmp_path / "recipe.yaml", "--workers", "0", "--run-dir", tmp_path / "run", "--scores", "-q")
    return tmp_path


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


def test_why_shows_what_became_of_a_row(mill: Path) -> None:
    output = gristmill("why", mill / "run", "1-2").stdout
    assert "1-2  dropped by WordCountFilter: 11, below min_words=20" in output
    assert f"from: {mill}/data/1.jsonl, position " in output
    assert "MeanWordLengthFilter" in output  # which has scored it too
    assert "\x1b" not in output
    assert "\x9b" not in output
    kept = gristmill("why", mill / "run", "0-8").stdout
    assert f"in the output: {mill}/out/" in kept
    [story] = json.loads(gristmill("why", mill / "run", "0-8", "--json").stdout)
    assert (story["fate"], [one["kept"] for one in story["scores"]]) == ("kept", [True, True])
    assert "no row 'x' found in" in gristmill("why", mill / "run", "x", code=2).stderr


def test_whatif_counts_and_shows_what_would_change(mill: Path) -> None:
    output = gristmill("whatif", mill / "run", "--set", "WordCountFilter.min_words=10").stdout
    assert "what if WordCountFilter.min_words=10" in output
    assert "some rows that would be kept" in output
    assert "\x1b" not in output
    found = json.loads(gristmill("whatif", mill / "run", "--set", "WordCountFilter.min_words=10", "--json").stdout)
    assert found["after"]["rows"] > found["before"]["rows"] > 0
    assert (
        "Did you mean 'min_words'"
        in gristmill("whatif", mill / "run", "--set", "WordCountFilter.words=1", code=2).stderr
    )


def test_whatif_without_a_setting_names_those_that_there_are(mill: Path) -> None:
    output = gristmill("whatif", mill / "run", code=2).stderr
    assert output.startswith("error: whatif needs --set, as in --set WordCountFilter.min_words=20. The filters")
    assert "\n  MeanWordLengthFilter: min_mean_word_length=3, max_mean_word_length=4.5" in output


def test_whatif_apply_gives_what_a_run_gives_without_scoring_again(mill: Path) -> None:
    setting = ["--set", "WordCountFilter.min_words=10"]
    output = gristmill("whatif", mill / "run", *setting, "--apply", mill / "new", "--workers", "0").stdout
    assert "reusing the recorded scores of 2 filters" in output
    assert "120 scores recalled" in output
    elsewhere = ["--set", f"JsonlWriter.path={mill / 'truth'}"]
    gristmill("run", mill / "recipe.yaml", "--workers", "0", *setting, *elsewhere, "-q")
    assert written(mill / "new") == written(mill / "truth") != written(mill / "out")
    with (mill / "data" / "0.jsonl").open("a") as file:
        file.write(json.dumps({"id": "new", "text": "of mills " * 15}) + "\n")
    again = gristmill("whatif", mill / "run", *setting, "--apply", mill / "newer", "--workers", "0").stdout
    assert "reusing the recorded scores of 0 filters; others are computed again" in again
    assert "the input has changed" in again
    assert b'"new"' in b"".join(written(mill / "newer").values())


def test_whatif_apply_does_not_touch_what_the_run_has_written(mill: Path) -> None:
    before = written(mill / "out")
    for place in (f"{mill}/out/", mill / "data" / ".." / "out", mill / "run"):
        output = gristmill("whatif", mill / "run", "--set", "WordCountFilter.min_words=30", "--apply", place, code=2)
        assert "choose another directory" in output.stderr
    assert written(mill / "out") == before


def test_whatif_apply_with_json_prints_json_only(mill: Path) -> None:
    setting = ("--set", "WordCountFilter.min_words=30")
    done = gristmill("whatif", mill / "run", *setting, "--json", "--apply", mill / "new", "--workers", "0")
    assert json.loads(done.stdout)["before"]["rows"] > len(written(mill / "new"))


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_why_names_the_output_of_a_branch_also_if_it_is_compressed(tmp_path: Path, compression: str | None) -> None:
    rows = [{"id": f"{n}", "text": "a b", "part": "ab"[n % 2]} for n in range(20)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    branches = {part: JsonlWriter(tmp_path / "out" / part, compression=compression) for part in "ab"}
    stages = [JsonlReader(tmp_path / "in.jsonl"), Route("part", branches)]
    Pipeline("routed", stages=stages).run(LocalExecutor(0), tmp_path / "run", scores=True)
    shown = gristmill("why", tmp_path / "run", "7").stdout
    assert re.search(rf"in the output: {re.escape(str(tmp_path))}/out/b/in-\w+\.jsonl", shown)


def test_why_finds_ids_of_mixed_types(tmp_path: Path) -> None:
    rows = [{"id": 7, "text": "short"}, {"id": "a b", "text": "short"}, {"id": "c", "text": "one two three"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    filters = ScoreFilter(WordCountFilter(min_words=2))
    pipeline = Pipeline("mixed", stages=[JsonlReader(tmp_path / "in.jsonl"), filters, JsonlWriter(tmp_path / "out")])
    for name in ("scored", "rejected"):
        pipeline.run(LocalExecutor(0), tmp_path / name, scores=name == "scored", rejected=name == "rejected")
        for wanted in ("7", "a b"):
            [story] = json.loads(gristmill("why", tmp_path / name, wanted, "--json").stdout)
            assert (story["id"], story["fate"]) == (wanted, "dropped")
    gristmill("why", tmp_path / "rejected", "nothing", code=2)


def test_a_run_that_is_resumed_keeps_scores_as_it_did(mill: Path) -> None:
    before = {path.name: path.read_bytes() for path in (mill / "run" / "scores").glob("*.parquet")}
    for path in (mill / "run" / "scores").glob("*.parquet"):
        path.unlink()
    gristmill("resume", mill / "run", "--workers", "0", "-q")
    assert {path.name: path.read_bytes() for path in (mill / "run" / "scores").glob("*.parquet")} == before


def test_scores_lie_beside_the_output_when_there_is_no_run_directory(mill: Path) -> None:
    for _ in range(2):  # a second run does all again
        gristmill("run", mill / "recipe.yaml", "--workers", "0", "--scores", "--rejected", "-q")
        facts = json.loads((mill / "out.run" / "report.json").read_text())
        assert (facts["rows_in"], sum(facts["sources"]["before"].values()), facts["attempts"]) == (120, 120, 1)
    assert "dropped by WordCountFilter" in gristmill("why", mill / "out", "1-2").stdout
    found = json.loads(gristmill("whatif", mill / "out", "--set", "WordCountFilter.min_words=3", "--json").stdout)
    assert found["rows"] == 120
    stages = json.loads((mill / "recipe.yaml").read_text())["stages"][:-1]
    (mill / "dry.yaml").write_text(json.dumps({"name": "dry", "stages": stages}))
    assert "add --run-dir" in gristmill("run", mill / "dry.yaml", "--scores", code=2).stderr


def test_a_port_that_cannot_be_is_refused(mill: Path) -> None:
    for port in ("99999999", "0.0.0.0:65536", "here"):
        assert "such as 9464" in gristmill("run", mill / "recipe.yaml", "--metrics-port", port, code=2).stderr


def test_one_of_two_filters_of_a_class_can_be_changed(tmp_path: Path) -> None:
    rows = [{"id": n, "text": "grist " * n, "lang": None} for n in range(1, 31)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    count: list[Any] = [{"ScoreFilter": {"filter_obj": {"WordCountFilter": {"min_words": n}}}} for n in (10, 20)]
    stages = [{"JsonlReader": {"file_paths": str(tmp_path / "in.jsonl")}}, *count]
    stages.append({"JsonlWriter": {"path": str(tmp_path / "out")}})
    (tmp_path / "recipe.yaml").write_text(json.dumps({"name": "two", "stages": stages}))
    gristmill("run", tmp_path / "recipe.yaml", "--workers", "0", "--run-dir", tmp_path / "run", "--scores", "-q")

    def kept(setting: str) -> int:
        found = json.loads(gristmill("whatif", tmp_path / "run", "--set", setting, "--json").stdout)
        assert ("WordCountFilter#2.min_words" in str(found["notes"])) == (setting == "WordCountFilter.min_words=5")
        return int(found["after"]["rows"])

    settings = [f"{name}.min_words=5" for name in ("WordCountFilter", "WordCountFilter#1", "WordCountFilter#2")]
    assert [kept(setting) for setting in [*settings, "WordCountFilter 2.min_words=5"]] == [26, 11, 21, 21]
    for setting in ("WordCountFilter#2.min_words=5", "WordCountFilter 2.min_words=5"):
        gristmill("whatif", tmp_path / "run", "--set", setting, "--apply", tmp_path / setting, "--workers", "0", "-q")
        assert sum(text.count(b"\n") for text in written(tmp_path / setting).values()) == 21
    refused = gristmill("whatif", tmp_path / "run", "--set", "WordCountFilter#3.min_words=5", code=2)
    assert "the run has 2 filters WordCountFilter" in refused.stderr
    assert "lang:" not in gristmill("why", tmp_path / "run", "3").stdout
