"""Route: rows go along branches with stages and writers of their own, and each branch is as if it were alone."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Route
from gristmill.core.errors import ColumnError, StageError
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.manifest import check_manifest
from gristmill.recipes import load_recipe, recipe_of
from gristmill.text import (
    DocumentJoiner,
    Filter,
    JsonlReader,
    JsonlWriter,
    Modify,
    ParquetWriter,
    Score,
    ScoreFilter,
    UrlRemover,
    WordCountFilter,
)
from tests.conformance.executor_params import make, params
from tests.ray_cluster import ray_cluster

LANGUAGES = ["en", "de", "fr", None]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def write_corpus(folder: Path) -> Path:
    """Five files with 400 rows in some languages."""
    draw = random.Random(3)
    for file in range(5):
        rows: list[dict[str, Any]] = []
        for number in range(80):
            language = draw.choice(LANGUAGES[: 2 + file % 3])
            row = {"id": f"{file}-{number}", "language": language, "text": "grist " * draw.randrange(30), "n": number}
            rows.append(row | ({"late": [number]} if number > 60 else {}))
        (folder / f"part-{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_cluster(num_cpus=4) as mark:
        yield mark


@pytest.fixture(params=params("inline", "local-3-unfused"))
def executor(request: pytest.FixtureRequest) -> Any:
    return make(request)


def english(out: Path) -> list[Any]:
    return [Modify(UrlRemover()), ScoreFilter(WordCountFilter(5), score_field="words"), JsonlWriter(out)]


def german(out: Path) -> list[Any]:
    return [Score(len, "length"), ParquetWriter(out, target_file_size=2000)]


def routed(corpus: Path, out: Path, blocksize: int = 900, **options: Any) -> Pipeline:
    to = {"en": english(out / "en"), "de": german(out / "de")}
    route = Route("language", to, otherwise=JsonlWriter(out / "rest"), **options)
    return Pipeline("routed", stages=[JsonlReader(corpus, blocksize=blocksize), route])


def contents(folder: Path) -> dict[str, Any]:
    """All files of the outputs in a directory; of their manifests what is in them of files and rows."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.parent.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder.parent))
        if not name.startswith((f"{folder.name}/", f"{folder.name}.run/")):
            continue
        name = name.removeprefix(folder.name)
        if path.name == "manifest.json":
            manifest = orjson.loads(path.read_bytes())
            found[name] = manifest["rows"], manifest["files"]
        elif path.parent.suffix != ".run":
            found[name] = path.read_bytes()
    return found


def alone(corpus: Path, out: Path, wanted: Any, stages: list[Any]) -> dict[str, Any]:
    only = Filter(wanted, "language")
    Pipeline("alone", stages=[JsonlReader(corpus), only, *stages]).run(LocalExecutor(0))
    return contents(out)


def test_each_branch_gives_what_it_would_give_alone(corpus: Path, tmp_path: Path, executor: Any) -> None:
    result = routed(corpus, tmp_path / "out").run(executor)
    for name, wanted, stages in [
        ("en", lambda language: language == "en", english),
        ("de", lambda language: language == "de", german),
        ("rest", lambda language: language not in ("en", "de"), lambda out: [JsonlWriter(out)]),
    ]:
        expected = alone(corpus, tmp_path / "alone" / name, wanted, stages(tmp_path / "alone" / name))
        assert contents(tmp_path / "out" / name) == expected, name
        assert check_manifest(OutputDirectory(tmp_path / "out" / name))[1] == []
    assert sorted(result.files()) == sorted(
        str(path) for path in (tmp_path / "out").rglob("*") if path.is_file() and ".run/" not in str(path)
    )


def test_rows_are_counted_on_their_branch(corpus: Path, tmp_path: Path) -> None:
    summary = routed(corpus, tmp_path / "out").run(LocalExecutor(0)).summary()
    rows = [json.loads(line) for path in corpus.iterdir() for line in path.read_text().splitlines()]
    spoken = {name: sum(row["language"] == name for row in rows) for name in LANGUAGES}
    assert (summary["Route"].rows_in, summary["Route"].rows_out) == (400, 400)
    assert summary["en/WordCountFilter"].rows_in == spoken["en"]
    assert 0 < summary["en/WordCountFilter"].dropped < spoken["en"]
    assert summary["en/write_jsonl"].rows_in == summary["en/WordCountFilter"].rows_out
    assert summary["de/write_parquet"].rows_in == spoken["de"]
    assert summary["otherwise/write_jsonl"].rows_in == spoken["fr"] + spoken[None]
    assert summary.rows_out == 400 - summary["en/WordCountFilter"].dropped


def routes_of(values: list[Any], tmp_path: Path, **options: Any) -> dict[str, list[Any]]:
    """Which values end up on which branch."""
    to = {name: JsonlWriter(tmp_path / name) for name in options.pop("names")}
    route = Route(to=to, otherwise=JsonlWriter(tmp_path / "rest"), **options)
    batch = DocumentBatch([{"id": number, "v": value} for number, value in enumerate(values)])
    Pipeline("p", stages=[route]).run(LocalExecutor(0), initial_tasks=[batch])
    found = {}
    for name in [*to, "rest"]:
        lines = [line for path in (tmp_path / name).glob("*.jsonl") for line in path.read_text().splitlines()]
        found[name] = [values[json.loads(line)["id"]] for line in lines]
    return found


CHOICES: list[tuple[list[Any], dict[str, Any], dict[str, Any]]] = [
    (["a", "b", None, "c", ""], {"names": "ab"}, {"a": ["a"], "b": ["b"], "rest": [None, "c", ""]}),
    ([1, 2, None, 3], {"names": "12"}, {"1": [1], "2": [2], "rest": [None, 3]}),
    ([True, False, None], {"names": ["True", "False"]}, {"True": [True], "False": [False], "rest": [None]}),
    ([1, "x", [2], {}], {"names": ["1", "x", "[2]"]}, {"1": [1], "x": ["x"], "[2]": [[2]], "rest": [{}]}),
    (
        [0.1, 0.3, 0.69, 0.7, 9.0, None],
        {"names": "lmh", "thresholds": [0.3, 0.7]},
        {"l": [0.1], "m": [0.3, 0.69], "h": [0.7, 9.0], "rest": [None]},
    ),
    ([1, 5], {"names": "lh", "thresholds": [5]}, {"l": [1], "h": [5], "rest": []}),
    (["aa", "b"], {"by": lambda row: len(row["v"]), "names": "12"}, {"1": ["b"], "2": ["aa"], "rest": []}),
]


@pytest.mark.parametrize(("values", "options", "expected"), CHOICES, ids=range(len(CHOICES)))
def test_what_chooses_the_branch(values: list[Any], options: Any, expected: Any, tmp_path: Path) -> None:
    assert routes_of(values, tmp_path, **{"by": "v", **options}) == expected


def test_rows_without_a_branch_are_set_aside_with_the_way_out(corpus: Path, tmp_path: Path) -> None:
    route = Route("language", {"en": JsonlWriter(tmp_path / "en"), "de": JsonlWriter(tmp_path / "de")})
    pipeline = Pipeline("p", stages=[JsonlReader(corpus), route])
    result = pipeline.run(LocalExecutor(2), tmp_path / "run", max_errors=None)
    lost = result.quarantined()
    assert {record.row["language"] for record in lost if record.row} == {"fr", None}
    assert lost[0].stage == "Route"
    assert "there is no branch for language='fr': add one to `to`, or give `otherwise`" in {one.error for one in lost}
    assert all(record.file and record.position is not None for record in lost)
    line = result.summary()["Route"]
    assert (line.rows_in, line.dropped, line.quarantined) == (400, 0, len(lost))
    with pytest.raises(StageError, match=r"there is no branch for language="):
        pipeline.run(LocalExecutor(0), on_error="raise")


class Poison(ProcessingStage[Any, Any]):
    max_retries = 0

    def process(self, task: Any) -> Any:
        if any(number % 40 == 7 for number in task.data["n"].to_pylist()):
            raise ValueError("poison")
        return DocumentBatch(task.data)  # without the metadata, which must not matter to the way it goes


def test_a_record_that_fails_on_a_branch_costs_only_itself(corpus: Path, tmp_path: Path) -> None:
    to = {"en": [Poison(), JsonlWriter(tmp_path / "en")], "de": JsonlWriter(tmp_path / "de")}
    route = Route("language", to, otherwise=JsonlWriter(tmp_path / "rest"))
    result = Pipeline("p", stages=[JsonlReader(corpus), route]).run(LocalExecutor(0), max_errors=None)
    lost = result.quarantined()
    assert {(record.stage, record.row["language"]) for record in lost if record.row} == {("en/Poison", "en")}
    assert len(lost) == result.summary()["en/Poison"].quarantined > 0
    assert result.summary().rows_out == 400 - len(lost)


def test_rejected_rows_name_the_stage_of_the_branch(corpus: Path, tmp_path: Path) -> None:
    result = routed(corpus, tmp_path / "out").run(LocalExecutor(0), rejected=tmp_path / "rejected")
    dropped = pq.read_table(tmp_path / "rejected").to_pylist()
    assert {(row["rejected_by"], row["language"]) for row in dropped} == {("en/WordCountFilter", "en")}
    assert len(dropped) == result.summary()["en/WordCountFilter"].dropped


def test_a_preview_shows_the_fate_on_the_branch(corpus: Path, tmp_path: Path) -> None:
    rows = routed(corpus, tmp_path / "out").preview(60)
    assert len(rows) == 60
    for row in rows:
        assert ("WordCountFilter" in row.scores) == (row.data["language"] == "en")
        assert ("length" in row.data) == (row.data["language"] == "de")
    assert "dropped by en/WordCountFilter" in {row.fate for row in rows}
    assert not (tmp_path / "out").exists()


def test_routes_lie_within_routes(corpus: Path, tmp_path: Path) -> None:
    def tree(out: Path) -> Route:
        sizes = {name: JsonlWriter(out / "en" / name) for name in ("short", "long")}
        inner = Route("words", sizes, thresholds=[9])
        return Route(
            "language",
            {"en": [Score(WordCountFilter(), "words"), inner], "de": JsonlWriter(out / "de")},
            otherwise=JsonlWriter(out / "rest"),
        )

    run = tmp_path / "run"
    whole = Pipeline("p", stages=[JsonlReader(corpus, blocksize=700), tree(tmp_path / "out")])
    summary = whole.run(LocalExecutor(0), run).summary()
    short, long = summary["en/short/write_jsonl"], summary["en/long/write_jsonl"]
    assert summary["en/Route"].rows_in == short.rows_in + long.rows_in
    before = contents(tmp_path / "out")
    assert before["/en/short.run/manifest.json"][0] == short.rows_in
    for line in (tmp_path / "out/en/long").glob("*.jsonl"):
        assert all(json.loads(text)["words"] >= 9 for text in line.read_text().splitlines())
    next((tmp_path / "out/en/short").glob("*.jsonl")).unlink()
    assert whole.run(LocalExecutor(0), run).summary(attempt=True)["read_jsonl"].rows_out == 80
    assert contents(tmp_path / "out") == before


def test_a_branch_that_is_gone_is_written_again(corpus: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    routed(corpus, out).run(LocalExecutor(0), run)
    before = contents(out)
    assert routed(corpus, out, 400).run(LocalExecutor(0), run).summary(attempt=True)["read_jsonl"].rows_out == 0
    next((out / "de").glob("part-3*")).unlink()
    gone = [why for _, why in routed(corpus, out).left_to_do(run)[1]]
    assert gone == ["its output is gone"] * 2  # that file had the rows of two sources
    assert routed(corpus, out).run(LocalExecutor(0), run).summary(attempt=True)["read_jsonl"].rows_out == 160
    assert contents(out) == before


def test_other_branches_are_another_pipeline(corpus: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    routed(corpus, out).run(LocalExecutor(0), run)
    stages = [JsonlReader(corpus), Route("language", {"en": english(out / "en")}, otherwise=JsonlWriter(out / "rest"))]
    Pipeline("routed", stages=stages).run(LocalExecutor(0), run)
    assert len((out / "rest.run" / "manifest.json").read_bytes()) > 0
    rest = [json.loads(line) for path in (out / "rest").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert {row["language"] for row in rest} == {"de", "fr", None}


def test_the_plan_checks_every_branch(corpus: Path, tmp_path: Path) -> None:
    to = {"en": [ScoreFilter(WordCountFilter(), "body"), JsonlWriter(tmp_path)]}
    with pytest.raises(ColumnError, match=r"stage 'en/WordCountFilter' needs column 'body'"):
        Pipeline("p", stages=[JsonlReader(corpus), Route("language", to)]).plan()
    with pytest.raises(ColumnError, match=r"stage 'Route' needs column 'lang'.*Did you mean 'language'"):
        Pipeline("p", stages=[JsonlReader(corpus), Route("lang", {"en": JsonlWriter(tmp_path)})]).plan()
    made = {
        "en": [Score(len, "length"), JsonlWriter(tmp_path / "a")],
        "de": [Filter(bool, "length"), JsonlWriter(tmp_path)],
    }
    with pytest.raises(ColumnError, match=r"stage 'de/bool' needs column 'length'"):
        Pipeline("p", stages=[JsonlReader(corpus), Route("language", made)]).plan()


W = JsonlWriter("out")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Route("x", {}), "must map names"),
        (lambda: Route(3, {"a": W}), "a column, or a function"),  # type: ignore[arg-type]
        (lambda: Route("x", {"a/b": W}), "without a slash"),
        (lambda: Route("x", {"a": [Score(len, "n")]}), r"must end with a writer, such as JsonlWriter\('out/a'\)"),
        (lambda: Route("x", {"a": "out"}), "must be a writer, or a list of stages"),
        (lambda: Route("x", {"a": []}), "must end with a writer"),
        (lambda: Route("x", {"a": W, "b": JsonlWriter("out/")}), "branches 'a' and 'b' both write to"),
        (lambda: Route("x", {"a": [JsonlReader("in"), W]}), "lists input: put it before the Route"),
        (lambda: Route("x", {"a": [DocumentJoiner("text", "n"), W]}), "gathers whole sources: put it before the Route"),
        (lambda: Route("x", {"a": W}, thresholds=[1]), "1 thresholds make 2 branches, and `to` has 1"),
        (lambda: Route("x", {"a": W}, thresholds=[2, 1]), "each above the one before it"),
        (lambda: Route(len, {"a": W}, thresholds=[1]), "by is a function"),
    ],
)
def test_refusals(build: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        build()


def test_thresholds_need_numbers(tmp_path: Path) -> None:
    to = {"low": JsonlWriter(tmp_path / "low"), "high": JsonlWriter(tmp_path / "high")}
    pipeline = Pipeline("p", stages=[Route("v", to, thresholds=[1])])
    with pytest.raises(StageError, match=r"thresholds need numbers, and column 'v' holds string"):
        pipeline.run(LocalExecutor(0), initial_tasks=[DocumentBatch([{"v": "x"}])])


RECIPE = """
vars: {input: , output: }
stages:
  - JsonlReader: {file_paths: "${input}"}
  - Route:
      by: language
      to:
        en:
          - ScoreFilter: {filter_obj: {WordCountFilter: {min_words: 5}}, score_field: words}
            with: {name: long enough}
          - JsonlWriter: {path: "${output}/en"}
        de: {ParquetWriter: {path: "${output}/de"}}
      otherwise: {JsonlWriter: {path: "${output}/rest"}}
"""


def test_a_route_is_written_in_a_recipe_and_back(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "route.yaml").write_text(RECIPE)
    settings = {"input": str(corpus), "output": str(tmp_path / "out"), "WordCountFilter.min_words": 3}
    recipe = load_recipe(tmp_path / "route.yaml", settings)
    pipeline = recipe.build()
    summary = pipeline.run(LocalExecutor(0)).summary()
    assert summary["en/long enough"].rows_in > summary["en/write_jsonl"].rows_in > 0
    (tmp_path / "again.yaml").write_text(recipe_of(pipeline).to_yaml())
    again = load_recipe(tmp_path / "again.yaml").build()
    assert str(again.plan()).partition(":")[2] == str(pipeline.plan()).partition(":")[2]
    assert again.describe(verbose=True).partition(":")[2] == pipeline.describe(verbose=True).partition(":")[2]
    [route] = [stage for stage in again.stages if isinstance(stage, Route)]
    assert "min_words=3" in repr(route.to["en"][0].filter_obj)  # type: ignore[index,attr-defined]
