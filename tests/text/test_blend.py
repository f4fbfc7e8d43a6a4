"""Blend and Resample: the right number of documents of each kind, and the same ones in every run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.errors import GristmillError
from gristmill.recipes import load_recipe, recipe_of
from gristmill.text import (
    ArrowReader,
    Blend,
    CsvReader,
    JsonlReader,
    JsonlWriter,
    ParquetReader,
    Resample,
    TextReader,
)

COUNTS = {"web": 1000, "books": 200, "code": 50}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three inputs, two of which have files of the same name, and one bad line."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = {
        name: [{"id": f"{name}-{number}", "text": "x", "tokens": number % 7} for number in range(count)]
        for name, count in COUNTS.items()
    }
    for name in ("web", "books"):
        (folder / name).mkdir()
        half = len(rows[name]) // 2
        for number, some in enumerate([rows[name][:half], rows[name][half:]]):
            lines = [json.dumps(row) for row in some]
            (folder / name / f"part-{number}.jsonl").write_text("\n".join(lines) + ("\n{bad\n" if number else "\n"))
    (folder / "code").mkdir()
    pq.write_table(pa.Table.from_pylist(rows["code"]), folder / "code" / "part-0.parquet", row_group_size=20)
    return folder


def readers(corpus: Path, **options: Any) -> dict[str, Any]:
    kinds = {"web": JsonlReader, "books": JsonlReader, "code": ParquetReader}
    return {name: kind(corpus / name, **options) for name, kind in kinds.items()}


def run(blend: Any, out: Path, executor: Any = None, run_dir: Path | None = None) -> list[dict[str, Any]]:
    pipeline = Pipeline("p", stages=[blend, JsonlWriter(out)])
    pipeline.run(executor or LocalExecutor(0), run_dir, max_errors=None)
    return [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]


def per_source(rows: list[dict[str, Any]]) -> dict[str, int]:
    return dict(Counter(row["id"].partition("-")[0] for row in rows))


WEIGHTS = {"web": 0.5, "books": 0.3, "code": 0.2}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"weights": WEIGHTS, "documents": 400}, {"web": 200, "books": 120, "code": 80}),
        ({"weights": {"web": 1, "books": 1, "code": 1}, "documents": 100}, {"web": 34, "books": 33, "code": 33}),
        ({"weights": {"web": 0, "books": 1, "code": 3}, "documents": 1000}, {"books": 250, "code": 750}),
        ({"weights": WEIGHTS}, {"web": 125, "books": 75, "code": 50}),
        ({"factors": {"web": 0, "books": 1, "code": 3}}, {"books": 200, "code": 150}),
    ],
)
def test_a_mixture_has_so_many_documents(corpus: Path, tmp_path: Path, options: Any, expected: Any) -> None:
    rows = run(Blend(readers(corpus), **options), tmp_path / "out")
    assert per_source(rows) == expected
    for name in expected:
        times = Counter(Counter(row["id"] for row in rows if row["id"].startswith(name)).values())
        assert max(times) - min(times) <= 1  # repeated evenly
        if expected[name] <= COUNTS[name]:
            assert set(times) == {1}


def test_a_mixture_has_so_many_tokens(corpus: Path, tmp_path: Path) -> None:
    blend = Blend(readers(corpus), weights=WEIGHTS, tokens=1500, token_field="tokens", source_field="from")
    rows = run(blend, tmp_path / "out")
    tokens: Counter[str] = Counter()
    for row in rows:
        assert row["id"].startswith(row["from"])
        tokens[row["from"]] += row["tokens"]
    for name, weight in WEIGHTS.items():
        assert 1500 * weight - 7 < tokens[name] <= 1500 * weight


def test_a_mixture_does_not_depend_on_who_makes_it(corpus: Path, tmp_path: Path) -> None:
    def contents(out: Path, blend: Blend, executor: Any) -> dict[str, bytes]:
        run(blend, out, executor)
        return {path.name: path.read_bytes() for path in out.glob("*.jsonl")}

    first = contents(tmp_path / "a", Blend(readers(corpus), WEIGHTS, 400), LocalExecutor(0))
    assert len(first) == 5
    small = Blend(readers(corpus, blocksize=700), WEIGHTS, 400)
    assert contents(tmp_path / "b", small, LocalExecutor(2, fuse=False)) == first
    assert contents(tmp_path / "c", Blend(readers(corpus), WEIGHTS, 400, seed=1), LocalExecutor(0)) != first


def test_a_run_that_goes_on_keeps_its_count_and_a_new_input_is_another_mixture(corpus: Path, tmp_path: Path) -> None:
    copied = tmp_path / "in"
    for path in corpus.rglob("*.*"):
        (copied / path.parent.name).mkdir(parents=True, exist_ok=True)
        (copied / path.parent.name / path.name).write_bytes(path.read_bytes())
    before = run(Blend(readers(copied), WEIGHTS, 400), tmp_path / "out", run_dir=tmp_path / "run")
    pipeline = Pipeline("p", stages=[Blend(readers(copied), WEIGHTS, 400), JsonlWriter(tmp_path / "out")])
    assert pipeline.left_to_do(tmp_path / "run")[2] == 5
    next((tmp_path / "out").glob("web-part-1*")).unlink()
    assert run(Blend(readers(copied), WEIGHTS, 400), tmp_path / "out", run_dir=tmp_path / "run") == before
    (copied / "books" / "part-2.jsonl").write_text('{"id": "books-new", "text": "x", "tokens": 1}\n')
    changes, left, done = pipeline.left_to_do(tmp_path / "run")
    assert "population" in changes[0]
    assert (len(left), done) == (6, 0)


def test_bad_records_of_an_input_are_set_aside_once(corpus: Path, tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[Blend(readers(corpus), WEIGHTS, 400), JsonlWriter(tmp_path / "out")])
    result = pipeline.run(LocalExecutor(0), max_errors=None)
    assert sorted(record.file or "" for record in result.quarantined()) == ["books/part-1.jsonl", "web/part-1.jsonl"]
    assert result.summary()["read_blend"].rows_out == sum(COUNTS.values())
    assert result.summary().rows_out == 400


def test_every_reader_can_be_counted(tmp_path: Path) -> None:
    for name in "abcde":
        (tmp_path / name).mkdir()
    table = pa.table({"text": [f"row {number}" for number in range(30)]})
    (tmp_path / "a" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    pq.write_table(table, tmp_path / "b" / "b.parquet")
    (tmp_path / "c" / "c.csv").write_text("text\n" + "\n".join(table["text"].to_pylist()) + "\n")
    with pa.ipc.new_file(tmp_path / "d" / "d.arrow", table.schema) as file:
        file.write_table(table)
    for number in range(30):
        (tmp_path / "e" / f"{number}.txt").write_text(f"row {number}")
    kinds = {"a": JsonlReader, "b": ParquetReader, "c": CsvReader, "d": ArrowReader, "e": TextReader}
    sources = {name: kind(tmp_path / name) for name, kind in kinds.items()}
    rows = run(Blend(sources, dict.fromkeys(kinds, 1), 50, source_field="kind"), tmp_path / "out")
    assert Counter(row["kind"] for row in rows) == dict.fromkeys(kinds, 10)


def test_a_preview_counts_too(corpus: Path, tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[Blend(readers(corpus), WEIGHTS, 400), JsonlWriter(tmp_path / "out")])
    assert 0 < sum(row.fate == "kept" for row in pipeline.preview(200)) < 200


def test_an_empty_source_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(GristmillError, match=r"source 'a' has no documents: leave it out"):
        run(Blend({"a": JsonlReader(tmp_path / "a.jsonl")}, {"a": 1}), tmp_path / "out")


READER = JsonlReader("in")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Blend({}, {}), "must map names to readers"),
        (lambda: Blend({"a": "in"}, {"a": 1}), "must be a reader, such as"),  # type: ignore[dict-item]
        (lambda: Blend({"a": READER}), "give either weights"),
        (lambda: Blend({"a": READER}, {"a": 1}, factors={"a": 1}), "give either weights"),
        (lambda: Blend({"a": READER}, {"b": 1}), "one number for each of a, not for b"),
        (lambda: Blend({"a": READER}, {"a": -1}), "0 or more"),
        (lambda: Blend({"a": READER}, {"a": 0}), "all weights are 0"),
        (lambda: Blend({"a": READER}, {"a": 1}, 5, 5), "not both"),
        (lambda: Blend({"a": READER}, factors={"a": 1}, documents=5), "need weights"),
        (lambda: Blend({"a": READER}, {"a": 1}, tokens=5), "token_field"),
        (lambda: Blend({"a": READER}, {"a": 1}, documents=0), "1 or more"),
        (lambda: Resample("q", {"high": float("nan")}), "'high' is nan"),
        (lambda: Resample("q", {}, otherwise=-1), "'otherwise' is -1"),
    ],
)
def test_refusals(build: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        build()


def test_buckets_are_taken_more_or_less_often(tmp_path: Path) -> None:
    buckets = ["high", "middle", "low", None]
    rows = [{"id": number, "quality": buckets[number % 4]} for number in range(4000)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def taken(seed: int, blocksize: int) -> list[Any]:
        stages = [
            JsonlReader(tmp_path / "in.jsonl", blocksize=blocksize),
            Resample("quality", {"high": 2.5, "middle": 1, "low": 0.1}, otherwise=0, seed=seed),
            JsonlWriter(tmp_path / "out"),
        ]
        Pipeline("p", stages=stages).run(LocalExecutor(0))
        [written] = (tmp_path / "out").glob("*.jsonl")
        return [json.loads(line) for line in written.read_text().splitlines()]

    found = taken(0, 10**6)
    counts = Counter(row["quality"] for row in found)
    assert (counts["middle"], counts[None]) == (1000, 0)
    assert abs(counts["high"] - 2500) < 60
    assert abs(counts["low"] - 100) < 40
    assert [row["id"] for row in found] == sorted(row["id"] for row in found)
    assert taken(0, 900) == found
    assert taken(1, 900) != found


def test_objects_are_taken_with_their_rows() -> None:
    batch = DocumentBatch([{"q": "a"}, {"q": "b"}], objects={"frames": ["one", "two"]})
    taken = Resample("q", {"a": 0, "b": 3}).process(batch)
    assert (taken.to_rows(), taken.objects) == ([{"q": "b"}] * 3, {"frames": ["two"] * 3})


def test_a_blend_is_written_in_a_recipe(corpus: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "blend.yaml"
    recipe.write_text(
        f"""
stages:
  - Blend:
      sources:
        web: {{JsonlReader: {{file_paths: {corpus}/web}}}}
        books: {{JsonlReader: {{file_paths: {corpus}/books}}}}
      weights: {{web: 3, books: 1}}
      documents: 100
  - JsonlWriter: {{path: {tmp_path}/out}}
"""
    )
    pipeline = load_recipe(recipe).build()
    assert pipeline.run(LocalExecutor(0), max_errors=None).summary().rows_out == 100
    (tmp_path / "again.yaml").write_text(recipe_of(pipeline).to_yaml())
    assert len(load_recipe(tmp_path / "again.yaml").build().plan().stages) == len(pipeline.plan().stages)
