"""Options of pandas in `read_kwargs` and `write_kwargs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.text import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter

LINES = '{"id": 1, "text": "hello"}\n{"id": 2, "text": "world"}\n'


def read(reader: JsonlReader | ParquetReader) -> pd.DataFrame:
    [task] = Pipeline("p", stages=[reader]).run(LocalExecutor(0))
    frame: pd.DataFrame = task.to_pandas()
    return frame


def write(rows: Any, writer: JsonlWriter | ParquetWriter) -> None:
    Pipeline("p", stages=[writer]).run(LocalExecutor(0), [DocumentBatch(rows)])


@pytest.mark.parametrize(
    "options",
    [
        {"lines": True},
        {"lines": True, "orient": "records", "engine": "ujson"},
        {"dtype_backend": "pyarrow", "dtype": False},
        {"encoding": "utf-8", "compression": "infer", "chunksize": None, "convert_dates": False},
    ],
)
def test_options_that_say_what_is_so_anyway_are_taken(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINES)
    assert read(JsonlReader(str(tmp_path), read_kwargs=options))["text"].tolist() == ["hello", "world"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lines": False}, "read_kwargs\\['lines'\\] can only be True"),
        ({"nrows": 5}, "can only be None"),
        ({"encoding": "latin-1"}, "can only be 'utf-8'"),
        ({"linse": True}, "read_kwargs has no 'linse'"),
    ],
)
def test_options_with_an_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JsonlReader("in", read_kwargs=options)


@pytest.mark.parametrize("dtype", [str, "str", "string", "object"])
def test_dtype_is_a_schema(dtype: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINES)
    assert read(JsonlReader(str(tmp_path), read_kwargs={"dtype": {"id": dtype}}))["id"].tolist() == ["1", "2"]


def test_columns_of_parquet_are_fields(tmp_path: Path) -> None:
    pd.DataFrame({"id": [1], "text": ["a"]}).to_parquet(tmp_path / "a.parquet")
    options = {"columns": ["text"], "engine": "pyarrow", "dtype_backend": "pyarrow"}
    assert "id" not in read(ParquetReader(str(tmp_path), read_kwargs=options))


@pytest.mark.parametrize("text", ["é", "日本 and 😀", "plain", 'quote " and \\ and \u2028'])
def test_force_ascii_escapes_what_is_not_ascii(text: str, tmp_path: Path) -> None:
    write([{"text": text, "é": {"ü": [text]}}], JsonlWriter(str(tmp_path), write_kwargs={"force_ascii": True}))
    [line] = next(tmp_path.glob("*.jsonl")).read_bytes().splitlines()
    assert line.isascii()
    assert json.loads(line) == {"text": text, "é": {"ü": [text]}}


def test_force_ascii_changes_lines_that_would_be_copied(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "é"}\n')
    writer = JsonlWriter(str(tmp_path / "out"), write_kwargs={"force_ascii": True})
    Pipeline("p", stages=[JsonlReader(str(tmp_path / "a.jsonl")), writer]).run(LocalExecutor(0))
    assert next((tmp_path / "out").glob("*.jsonl")).read_text() == '{"text":"\\u00e9"}\n'


@pytest.mark.parametrize("fixed", [{"force_ascii": True}, {"force_ascii": False}])
def test_columns_that_come_late_do_not_undo_force_ascii(fixed: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "é"}\n' * 50 + '{"text": "é", "ü": 1}\n' * 9 + '{"text": "é", "ü": 1.5}\n'
    )
    writer = JsonlWriter(str(tmp_path / "out"), write_kwargs=fixed)
    Pipeline("p", stages=[JsonlReader(str(tmp_path / "a.jsonl"), blocksize=64), writer]).run(LocalExecutor(0))
    written = next((tmp_path / "out").glob("*.jsonl")).read_bytes()
    assert written.isascii() is fixed["force_ascii"]
    assert {len(json.loads(line)) for line in written.splitlines()} == {2}


@pytest.mark.parametrize(
    ("writer", "names"),
    [
        (JsonlWriter("out", file_extension="json"), "*.json"),
        (JsonlWriter("out", file_extension=".ndjson", compression="gzip"), "*.ndjson.gz"),
        (JsonlWriter("out", write_kwargs={"compression": "gzip"}), "*.jsonl.gz"),
        (ParquetWriter("out", file_extension="pq"), "*.pq"),
    ],
)
def test_files_have_the_extension_that_is_asked_for(
    writer: JsonlWriter | ParquetWriter, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write([{"text": "a"}], writer)
    assert len(list(Path("out").glob(f"[!_]{names}"))) == 1
    assert len([path for path in Path("out").iterdir() if path.is_file() and path.name[0] != "_"]) == 1
    again = type(writer)("out", file_extension=writer.file_extension, compression=writer.compression, mode="overwrite")
    write([{"text": "b"}], again)
    assert len([path for path in Path("out").iterdir() if path.is_file() and path.name[0] != "_"]) == 1


@pytest.mark.parametrize(
    "options", [{"lines": True, "orient": "records"}, {"index": False}, {"storage_options": {}}, {"date_format": "iso"}]
)
def test_options_of_to_json_that_are_so_anyway_are_taken(options: dict[str, Any], tmp_path: Path) -> None:
    write([{"text": "a"}], JsonlWriter(str(tmp_path), write_kwargs=options))
    assert next(tmp_path.glob("*.jsonl")).read_text() == '{"text":"a"}\n'
