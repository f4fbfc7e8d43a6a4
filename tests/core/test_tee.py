"""Tee: every row goes along all branches, in one pass, and each output is as if its branch ran alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, Route, Tee
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.manifest import check_manifest
from gristmill.recipes import load_recipe, recipe_of
from gristmill.text import JsonlReader, JsonlWriter, Modify, ParquetWriter, ScoreFilter, UrlRemover, WordCountFilter
from tests.conformance.executor_params import make, params
from tests.core.test_route import contents, write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(params=params("inline", "local-3-unfused"))
def executor(request: pytest.FixtureRequest) -> Any:
    return make(request)


def branches(out: Path) -> dict[str, Any]:
    return {
        "rows": JsonlWriter(out / "rows"),
        "clean": [
            Modify(UrlRemover()),
            ScoreFilter(WordCountFilter(5), score_field="words"),
            JsonlWriter(out / "clean"),
        ],
        "table": ParquetWriter(out / "table", target_file_size=2000),
    }


def teed(corpus: Path, out: Path) -> Pipeline:
    return Pipeline(
        "teed", stages=[JsonlReader(corpus, blocksize=900), ScoreFilter(WordCountFilter(1)), Tee(branches(out))]
    )


def test_each_branch_gives_what_it_would_give_alone(corpus: Path, tmp_path: Path, executor: Any) -> None:
    teed(corpus, tmp_path / "out").run(executor)
    for name, branch in branches(tmp_path / "alone").items():
        stages = branch if isinstance(branch, list) else [branch]
        Pipeline("alone", stages=[JsonlReader(corpus), ScoreFilter(WordCountFilter(1)), *stages]).run(LocalExecutor(0))
        assert contents(tmp_path / "out" / name) == contents(tmp_path / "alone" / name), name
        assert check_manifest(OutputDirectory(tmp_path / "out" / name))[1] == []


def test_rows_are_counted_on_each_branch(corpus: Path, tmp_path: Path) -> None:
    summary = teed(corpus, tmp_path / "out").run(LocalExecutor(0)).summary()
    kept = summary["WordCountFilter"].rows_out
    assert 0 < kept < 400
    assert (summary["Tee"].rows_in, summary["Tee"].rows_out, summary["Tee"].dropped) == (kept, 3 * kept, 0)
    assert summary["rows/write_jsonl"].rows_in == summary["table/write_parquet"].rows_in == kept
    clean = summary["clean/WordCountFilter"]
    assert clean.rows_in == kept
    assert clean.rows_out == summary["clean/write_jsonl"].rows_out < kept
    assert summary.rows_out == 2 * kept + clean.rows_out  # rows written, in all outputs together


def test_a_list_of_branches_is_numbered(corpus: Path, tmp_path: Path) -> None:
    tee = Tee([JsonlWriter(tmp_path / "a"), JsonlWriter(tmp_path / "b")])
    summary = Pipeline("p", stages=[JsonlReader(corpus), tee]).run(LocalExecutor(0)).summary()
    assert [line.name for line in summary.stages[2:]] == ["Tee", "1/write_jsonl", "2/write_jsonl", "commit_branches"]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_tee_and_route_nest(corpus: Path, tmp_path: Path) -> None:
    route = Route("language", {"en": JsonlWriter(tmp_path / "en")}, otherwise=JsonlWriter(tmp_path / "rest"))
    Pipeline("p", stages=[JsonlReader(corpus), Tee({"all": JsonlWriter(tmp_path / "all"), "split": route})]).run(
        LocalExecutor(0)
    )

    def ids(name: str) -> list[str]:
        files = sorted((tmp_path / name).glob("*.jsonl"))
        return [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]

    assert len(ids("all")) == 400
    assert sorted(ids("en") + ids("rest")) == sorted(ids("all"))


def test_a_record_that_fails_on_one_branch_stays_on_the_others(corpus: Path, tmp_path: Path) -> None:
    def fail(text: str) -> str:
        if text == "":
            raise ValueError("empty")
        return text

    tee = Tee({"fails": [Modify(fail), JsonlWriter(tmp_path / "fails")], "all": JsonlWriter(tmp_path / "all")})
    result = Pipeline("p", stages=[JsonlReader(corpus), tee]).run(LocalExecutor(0), max_errors=None)
    failed = result.quarantined()
    assert {record.stage for record in failed} == {"fails/fail"}
    assert len(failed) > 0
    rows = {
        name: sum(len(file.read_text().splitlines()) for file in (tmp_path / name).glob("*.jsonl"))
        for name in ("fails", "all")
    }
    assert rows == {"fails": 400 - len(failed), "all": 400}


def test_a_tee_is_written_to_a_recipe_and_read_again(corpus: Path, tmp_path: Path) -> None:
    teed(corpus, tmp_path / "out").run(LocalExecutor(0))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_of(teed(corpus, tmp_path / "again")).to_yaml())
    load_recipe(recipe).build().run(LocalExecutor(0))
    for name in branches(tmp_path):
        assert contents(tmp_path / "again" / name) == contents(tmp_path / "out" / name)


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ([], "two branches or more"),
        ([JsonlWriter("a")], "two branches or more"),
        (JsonlWriter("a"), "two branches or more"),
        ("a", "two branches or more"),
        ([JsonlWriter("a"), Modify(UrlRemover())], "must end with a writer"),
        ([JsonlWriter("a"), JsonlWriter("a/")], "both write to "),
        ({"a/b": JsonlWriter("a"), "c": JsonlWriter("c")}, "without a slash"),
        ([JsonlWriter("a"), 3], "must be a writer"),
    ],
)
def test_a_tee_that_cannot_work_is_refused(to: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words) as error:
        Tee(to)
    assert "Tee: " in str(error.value)
