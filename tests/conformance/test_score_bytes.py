"""Scores are the same on every executor, whether stages share a worker or not, and along every branch of a Route."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, Route
from gristmill.report.run_records import Records
from gristmill.report.whatif import whatif
from gristmill.report.why import why
from gristmill.text import JsonlReader, JsonlWriter, MeanWordLengthFilter, ScoreFilter, WordCountFilter
from tests.conformance.executor_params import make, params


@pytest.fixture(params=[*params("inline-unfused", "local-3-unfused"), *params(suffix="-unfused")], ids=str)
def executor(request: pytest.FixtureRequest) -> Any:
    return make(request)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scores")
    for part in range(3):
        rows = [{"id": f"{part}-{n}", "text": "grist mill " * n, "lang": ("en", "de")[n % 2]} for n in range(40)]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def branching(corpus: Path, out: Path) -> Pipeline:
    words = [ScoreFilter(WordCountFilter(min_words=least)) for least in (10, 30, 20)]
    branches = {
        "en": [words[1], JsonlWriter(out / "en")],
        "de": [ScoreFilter(MeanWordLengthFilter(max_mean_word_length=6)), words[2], JsonlWriter(out / "de")],
    }
    return Pipeline("branches", stages=[JsonlReader(corpus, blocksize=1000), words[0], Route("lang", branches)])


def plain(corpus: Path, out: Path) -> Pipeline:
    filters = [
        WordCountFilter(min_words=20),
        MeanWordLengthFilter(max_mean_word_length=6),
        WordCountFilter(max_words=60),
    ]
    stages = [ScoreFilter(one) for one in filters]
    return Pipeline("plain", stages=[JsonlReader(corpus, blocksize=1000), *stages, JsonlWriter(out)])


def kept(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The scores of all rows, and the filters, with what they want."""
    scores = Records(str(run)).scores
    assert scores is not None
    rows = scores.table().to_pylist()
    found = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return sorted(found, key=lambda row: (row["file"], row["position"])), list(scores.stages)


@pytest.mark.parametrize("made", [plain, branching], ids=["plain", "branches"])
def test_scores_do_not_depend_on_where_it_runs(executor: Any, corpus: Path, tmp_path: Path, made: Any) -> None:
    here = made(corpus, tmp_path / "a").run(LocalExecutor(0, fuse=executor.fuse), tmp_path / "here", scores=True)
    there = made(corpus, tmp_path / "b").run(executor, tmp_path / "there", scores=True)
    assert here.summary().rows_out == there.summary().rows_out > 0
    expected, found = kept(tmp_path / "here"), kept(tmp_path / "there")
    assert len(found[0]) == 120
    assert found == expected
    assert sum("dropped_by" not in row for row in found[0]) == there.summary().rows_out


def test_a_branch_drops_its_own_rows_alone(corpus: Path, tmp_path: Path) -> None:
    made = branching(corpus, tmp_path / "out")
    made.run(LocalExecutor(0), tmp_path / "run", scores=True)
    rows, _ = kept(tmp_path / "run")
    assert {row["dropped_by"] for row in rows if "dropped_by" in row} == {
        "WordCountFilter",
        "en/WordCountFilter",
        "de/WordCountFilter",
    }
    assert all(row["language"] == "en" for row in rows if row.get("dropped_by") == "en/WordCountFilter")
    [story] = why(str(tmp_path / "run"), "0-6")
    assert (story.dropped_by, story.reason) == (
        "en/WordCountFilter",
        "12, below min_words=30",
    )
    found = whatif(str(tmp_path / "run"), {"en/WordCountFilter.min_words": 20})
    assert (found.before.rows, found.after.rows, found.unknown.rows) == (81, 90, 0)
