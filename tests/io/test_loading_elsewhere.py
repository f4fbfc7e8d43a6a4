"""Every folder that a run writes loads as one table, with its rows and nothing else, in other libraries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from gristmill import LocalExecutor, Pipeline, Route
from gristmill.core.stage import ProcessingStage
from gristmill.dedup import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow
from gristmill.image import ImageParquetWriter, WebDatasetReader
from gristmill.text import (
    JsonlReader,
    JsonlWriter,
    PackedSequenceWriter,
    ParquetWriter,
    ScoreFilter,
    WordCountFilter,
)
from tests.image.image_fixtures import archive, samples

HERE = LocalExecutor(0)
INTERNAL = ("__position__", "__row__")

Written = tuple[Path, int]
"""A folder, and how many rows there are in it."""


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*differ from source to source"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def corpus(folder: Path) -> Path:
    """Three files, one of which a filter empties, and one whose ids are text."""
    folder.mkdir()
    for number in range(3):
        rows = [
            {
                "id": f"x{row}" if number == 1 else row,
                "text": "short" if number == 2 else f"text {number} {row} " * 4,
                "language": "en" if row % 3 else "de",
                "meta": {"length": row} if row % 2 else {"tags": ["a"]},
            }
            for row in range(12)
        ]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(tmp_path: Path, *writer: ProcessingStage[Any, Any]) -> None:
    """One record goes to quarantine, dropped rows and scores are kept."""
    folder = corpus(tmp_path / "in")
    with (folder / "0.jsonl").open("a") as file:
        file.write('{"broken\n')
    stages = [JsonlReader(folder, blocksize=300), ScoreFilter(WordCountFilter(4), score_field="words"), *writer]
    Pipeline("loaded", stages=stages).run(HERE, max_errors=None, rejected=True, scores=True)


def written_by(make: Callable[[Path], Any]) -> Callable[[Path], Written]:
    def write(tmp_path: Path) -> Written:
        run(tmp_path, make(tmp_path / "out"))
        return tmp_path / "out", 24

    return write


def routed(name: str, rows: int) -> Callable[[Path], Written]:
    def write(tmp_path: Path) -> Written:
        to = {"en": ParquetWriter(tmp_path / "out" / "en"), "de": JsonlWriter(tmp_path / "out" / "de", one_schema=True)}
        run(tmp_path, Route("language", to))
        return tmp_path / "out" / name, rows

    return write


def deduplicated(workflow: Any, **options: Any) -> Callable[[Path], Written]:
    def write(tmp_path: Path) -> Written:
        workflow(corpus(tmp_path / "in"), tmp_path / "out", **options).run(HERE, rejected=True)
        assert list((tmp_path / "out.run" / "clusters").glob("*.parquet"))
        return tmp_path / "out", 25

    return write


class Letters:
    """A tokenizer that gives every byte as a token."""

    vocab_size, eos_token_id = 257, 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def tokens(tmp_path: Path) -> Written:
    run(tmp_path, PackedSequenceWriter(tmp_path / "out", Letters(), 64, file_format="parquet"))
    return tmp_path / "out", pads.dataset(tmp_path / "out").count_rows()


def images(tmp_path: Path) -> Written:
    (tmp_path / "in").mkdir()
    for number in range(2):
        archive(tmp_path / "in" / f"{number}.tar", samples(5))
    stages = [WebDatasetReader(str(tmp_path / "in")), ImageParquetWriter(str(tmp_path / "out"))]
    Pipeline("images", stages=stages).run(HERE, run_dir=tmp_path / "run")
    return tmp_path / "out", 10


PARQUET = {
    "parquet": written_by(ParquetWriter),
    "parquet in parts": written_by(lambda out: ParquetWriter(out, target_file_size="2KB")),
    "parquet with json": written_by(lambda out: ParquetWriter(out, nested="json")),
    "branch of parquet": routed("en", 16),
    "exact": deduplicated(ExactDeduplicationWorkflow, output_filetype="parquet"),
    "fuzzy": deduplicated(FuzzyDeduplicationWorkflow, output_filetype="parquet"),
    "tokens": tokens,
    "images": images,
}
LINES = {
    "lines": written_by(lambda out: JsonlWriter(out, one_schema=True)),
    "gzip": written_by(lambda out: JsonlWriter(out, one_schema=True, compression="gzip")),
    "branch of lines": routed("de", 8),
}


@pytest.mark.parametrize("kind", PARQUET)
def test_parquet_loads(tmp_path: Path, kind: str) -> None:
    datasets, duckdb, pandas, polars = map(pytest.importorskip, ["datasets", "duckdb", "pandas", "polars"])
    out, rows = PARQUET[kind](tmp_path)
    assert rows > 0
    table = pads.dataset(out).to_table()
    assert table.num_rows == rows
    assert not set(table.column_names) & set(INTERNAL)
    loaded = datasets.load_dataset(str(out), split="train", cache_dir=str(tmp_path / "cache"))
    assert (loaded.num_rows, loaded.column_names) == (rows, table.column_names)
    lazy = polars.scan_parquet(out)
    assert (lazy.collect().height, lazy.collect_schema().names()) == (rows, table.column_names)
    assert duckdb.sql(f"select count(*) from read_parquet('{out}/**')").fetchall() == [(rows,)]
    frame = pandas.read_parquet(out)
    assert (len(frame), list(frame.columns)) == (rows, table.column_names)


@pytest.mark.parametrize("kind", LINES)
def test_json_lines_load(tmp_path: Path, kind: str) -> None:
    datasets, duckdb, pandas, polars = map(pytest.importorskip, ["datasets", "duckdb", "pandas", "polars"])
    out, rows = LINES[kind](tmp_path)
    files = sorted(out.iterdir())
    columns = ["id", "text", "language", "meta", "words"]
    loaded = datasets.load_dataset(str(out), split="train", cache_dir=str(tmp_path / "cache"))
    assert (loaded.num_rows, loaded.column_names) == (rows, columns)
    assert duckdb.sql(f"select * from read_json('{out}/**', format='newline_delimited')").columns == columns
    assert duckdb.sql(f"select count(*) from read_json('{out}/**')").fetchall() == [(rows,)]
    frames = [pandas.read_json(path, lines=True) for path in files]
    assert sum(map(len, frames)) == rows
    assert {tuple(frame.columns) for frame in frames if len(frame)} == {tuple(columns)}
    if kind != "gzip":
        assert pads.dataset(out, format="json", schema=pa.schema({"id": pa.string()})).count_rows() == rows
        assert polars.scan_ndjson(out / "*.jsonl", infer_schema_length=None).select("text").collect().height == rows
