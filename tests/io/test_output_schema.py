"""One schema for all files of an output: found over all sources, whatever the cuts, and loaded by other libraries."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Route
from gristmill.core.arrow.settled_types import json_structure, type_to_write, unite_types
from gristmill.core.arrow.table_conversion import JSON, MIXED, json_array
from gristmill.core.arrow.type_widening import convert_column
from gristmill.text import CsvReader, JsonlReader, JsonlWriter, ParquetReader, ParquetWriter, Score, WordCountFilter
from tests.io.fragment_writing import tree

HERE = LocalExecutor(0)

FILES: list[list[dict[str, Any]]] = [
    [{"id": 1, "text": "one", "n": 1, "meta": {"a": 1}}, {"id": 2, "text": "two", "n": 2, "meta": {"a": 2, "c": [1]}}],
    [{"id": "x7", "text": "three", "n": 2.5, "meta": {"b": "q"}, "late": True}],
    [{"id": None, "text": "four", "n": None, "meta": None, "odd": {"k": 1}}, {"id": 9, "text": "five", "odd": [2]}],
    [{"text": "six", "meta": {}, "n": 7}],
]
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("n", pa.float64()),
        ("meta", pa.struct([("a", pa.int64()), ("c", pa.list_(pa.int64())), ("b", pa.string())])),
        ("late", pa.bool_()),
        ("odd", pa.string()),
    ]
)
differs = pytest.mark.filterwarnings("ignore:.*differ from source to source")


def make_input(folder: Path, files: list[list[dict[str, Any]]] = FILES) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(files):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def schemas(folder: Path) -> set[pa.Schema]:
    return {pq.read_schema(path).remove_metadata() for path in folder.glob("*.parquet")}


def same(found: pa.Schema, wanted: pa.Schema) -> bool:
    """Equal but for the names of list items, which Parquet changes."""
    return found.names == wanted.names and all(
        one.type.equals(two.type) for one, two in zip(found, wanted, strict=True)
    )


@differs
def test_all_files_have_one_schema_and_no_value_is_lost(tmp_path: Path) -> None:
    stages = [JsonlReader(make_input(tmp_path / "in")), ParquetWriter(tmp_path / "out")]
    result = Pipeline(stages=stages).run(HERE)
    assert len(schemas(tmp_path / "out")) == 1
    table = pa.concat_tables([pq.read_table(path) for path in result.files()])
    assert same(table.schema, SCHEMA)
    assert table.column("id").to_pylist() == ["1", "2", "x7", None, "9", None]
    assert table.column("n").to_pylist() == [1.0, 2.0, 2.5, None, None, 7.0]
    assert table.column("odd").to_pylist() == [None, None, None, '{"k":1}', "[2]", None]
    assert table.column("meta").to_pylist() == [
        {"a": 1, "c": None, "b": None},
        {"a": 2, "c": [1], "b": None},
        {"a": None, "c": None, "b": "q"},
        None,
        None,
        {"a": None, "c": None, "b": None},
    ]
    for task in result:
        assert [Path(file.path).stat().st_size for file in task.written] == [file.size for file in task.written]


def test_columns_that_differ_in_type_are_named(tmp_path: Path) -> None:
    stages = [JsonlReader(make_input(tmp_path / "in")), ParquetWriter(tmp_path / "out")]
    with pytest.warns(RuntimeWarning, match=r"'id' \(int64, string\).*schema="):
        Pipeline(stages=stages).run(HERE)


@differs
def test_other_libraries_load_the_output(tmp_path: Path) -> None:
    datasets, duckdb, pandas, polars = map(pytest.importorskip, ["datasets", "duckdb", "pandas", "polars"])
    out = tmp_path / "out"
    Pipeline(stages=[JsonlReader(make_input(tmp_path / "in")), ParquetWriter(out)]).run(HERE)
    ids = {"1", "2", "x7", "9", None}
    assert set(pq.read_table(out).column("id").to_pylist()) == ids
    assert set(pandas.read_parquet(out).id.astype(object).where(lambda column: column.notna(), None)) == ids
    assert set(polars.scan_parquet(out / "*.parquet").collect()["id"]) == ids
    assert {row[0] for row in duckdb.sql(f"select id, meta.a from '{out}/*.parquet'").fetchall()} == ids
    files = [str(path) for path in sorted(out.glob("*.parquet"))]
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert set(loaded["id"]) == ids


@differs
@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_json_lines_have_one_schema_when_asked(tmp_path: Path, compression: str | None) -> None:
    reader = JsonlReader(make_input(tmp_path / "in"))
    Pipeline(stages=[reader, JsonlWriter(tmp_path / "out", compression=compression, one_schema=True)]).run(HERE)
    rows = Pipeline(stages=[JsonlReader(str(tmp_path / "out"))]).run(HERE)
    found = [row for batch in rows for row in batch.to_rows()]
    assert {tuple(name for name in row if not name.startswith("_")) for row in found} == {tuple(SCHEMA.names)}
    assert [row["id"] for row in found] == ["1", "2", "x7", None, "9", None]
    assert [row["n"] for row in found] == [1.0, 2.0, 2.5, None, None, 7.0]
    assert found[1]["meta"] == {"a": 2, "c": [1]}


@differs
@pytest.mark.parametrize("writer", [ParquetWriter, lambda path: JsonlWriter(path, one_schema=True)])
def test_the_bytes_do_not_depend_on_blocks_and_workers(tmp_path: Path, writer: Any) -> None:
    files = [[row for row in file for _ in range(40)] for file in FILES]
    folder = make_input(tmp_path / "in", files)
    found = []
    for number, (executor, block) in enumerate([(HERE, None), (HERE, 100), (LocalExecutor(2), 1000)]):
        out = tmp_path / f"out{number}"
        Pipeline(stages=[JsonlReader(folder, blocksize=block), writer(out)]).run(executor)
        found.append({name: data for name, data in tree(out).items() if not name.startswith("_")})
    assert found[1] == found[0]
    assert found[2] == found[0]


class DropByText(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops the rows that made columns mixed."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        texts = task.data.column("text").to_pylist()
        return task.keep(pa.array([text != "drop" for text in texts], pa.bool_()))


MIXTURES = [
    [1, "a"],
    [1, {"k": 2}],
    [1, 2.5],
    [{"k": 1}, {"k": "a"}],
    [{"k": 1}, [1]],
    [[1], ["a"]],
    [1, None],
]


@pytest.mark.parametrize("values", MIXTURES, ids=str)
def test_types_do_not_depend_on_whether_dropped_rows_shared_a_block(tmp_path: Path, values: list[Any]) -> None:
    for first, (kept, dropped) in enumerate(permutations(values)):
        rows = [{"text": "keep", "v": kept}, {"text": "drop", "v": dropped}, {"text": "keep", "v": None}]
        folder = make_input(tmp_path / f"in{first}", [rows])
        found = []
        for block in (1, 2**20):
            out = tmp_path / f"out{first}-{block}"
            Pipeline(stages=[JsonlReader(folder, blocksize=block), DropByText(), ParquetWriter(out)]).run(HERE)
            found.append({name: data for name, data in tree(out).items() if not name.startswith("_")})
        assert found[0] == found[1]


@differs
def test_stages_routes_and_parquet_input(tmp_path: Path) -> None:
    folder = make_input(tmp_path / "in")
    writers = {"1": ParquetWriter(tmp_path / "short"), "2": ParquetWriter(tmp_path / "long")}
    by = Route(by=lambda row: "1" if len(row["text"]) < 4 else "2", to=writers)
    count = Score(WordCountFilter(), score_field="words")
    result = Pipeline(stages=[JsonlReader(folder), count, by]).run(HERE, tmp_path / "run")
    for name, rows in (("short", 3), ("long", 3)):
        assert len(schemas(tmp_path / name)) == 1
        assert pq.read_table(tmp_path / name).num_rows == rows
        assert pq.read_table(tmp_path / name).column_names[-1] == "words"
    assert sum(task.rows for task in result) == 6
    before = tree(tmp_path / "long")
    Pipeline(stages=[JsonlReader(folder), count, by]).run(HERE, tmp_path / "run")
    assert tree(tmp_path / "long") == before
    inputs = tmp_path / "parquet"
    inputs.mkdir()
    pq.write_table(pa.table({"a": [1], "s": [{"x": 1}]}), inputs / "1.parquet")
    pq.write_table(pa.table({"b": ["t"], "s": [{"x": 2.5, "y": "z"}]}), inputs / "2.parquet")
    Pipeline(stages=[ParquetReader(str(inputs)), ParquetWriter(tmp_path / "out")]).run(HERE)
    assert pq.read_table(tmp_path / "out").to_pylist() == [
        {"a": 1, "s": {"x": 1.0, "y": None}, "b": None},
        {"a": None, "s": {"x": 2.5, "y": "z"}, "b": "t"},
    ]


@differs
def test_new_input_widens_the_files_that_are_there(tmp_path: Path) -> None:
    """A run over all input and a run that is resumed with more input end with the same bytes."""
    folder = Path(make_input(tmp_path / "in", FILES[:1]))
    stages = [JsonlReader(str(folder)), ParquetWriter(tmp_path / "out")]
    Pipeline(stages=stages).run(HERE, tmp_path / "run")
    first = tree(tmp_path / "out")
    for count in (2, 4):
        make_input(folder, FILES[:count])
        Pipeline(stages=stages).run(HERE, tmp_path / "run")
    assert len(schemas(tmp_path / "out")) == 1
    other = [JsonlReader(str(folder)), ParquetWriter(tmp_path / "other")]
    Pipeline(stages=other).run(HERE)
    files = {name: data for name, data in tree(tmp_path / "out").items() if name.endswith(".parquet")}
    assert files == {name: data for name, data in tree(tmp_path / "other").items() if name.endswith(".parquet")}
    assert files.items().isdisjoint(first.items())


KILLED = """
import os, signal, sys, warnings
from gristmill import LocalExecutor, Pipeline
from gristmill.io.write.parquet_format import ParquetFormat
from gristmill.text import JsonlReader, ParquetWriter

warnings.simplefilter("ignore")
folder, left = sys.argv[1], int(sys.argv[2])
rewrite = ParquetFormat.rewrite

def rewrite_or_die(self, *arguments):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    rewrite(self, *arguments)

ParquetFormat.rewrite = rewrite_or_die
stages = [JsonlReader(folder + "/in"), ParquetWriter(folder + "/out")]
Pipeline(stages=stages).run(LocalExecutor(0), folder + "/run")
"""


@differs
def test_killed_while_files_are_rewritten(tmp_path: Path) -> None:
    make_input(tmp_path / "in")
    for left in (0, 1, 2):
        command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), str(left)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    stages = [JsonlReader(str(tmp_path / "in")), ParquetWriter(tmp_path / "out")]
    Pipeline(stages=stages).run(HERE, tmp_path / "run")
    Pipeline(stages=[stages[0], ParquetWriter(tmp_path / "whole")]).run(HERE)
    assert parquet_files(tmp_path / "out") == parquet_files(tmp_path / "whole")
    assert {path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith("_")} == set(
        parquet_files(tmp_path / "whole")
    )


def parquet_files(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(folder).items() if name.endswith(".parquet")}


# -- declared types --------------------------------------------------------------------------------------------


def test_rows_that_do_not_fit_a_declared_type_are_kept_in_quarantine(tmp_path: Path) -> None:
    folder = make_input(tmp_path / "in")
    writer = ParquetWriter(tmp_path / "out", fields=["id", "n"], schema={"id": "int64", "n": "float64"})
    result = Pipeline(stages=[JsonlReader(folder), writer]).run(HERE, tmp_path / "run", max_errors=None)
    assert pq.read_table(tmp_path / "out").column("id").to_pylist() == [1, 2, None, 9, None]
    [record] = result.quarantined()
    assert record.row == {"id": "x7", "text": "three", "n": 2.5, "meta": {"b": "q"}, "late": True}
    assert record.error == "column 'id' holds 'x7', which cannot be converted to int64, as schema= demands"
    writer = ParquetWriter(tmp_path / "out", fields=["id", "n"], schema={"id": "string", "n": "float64"})
    again = Pipeline(stages=[JsonlReader(folder), writer]).run(HERE, tmp_path / "run")
    assert again.quarantined() == []
    assert pq.read_table(tmp_path / "out").column("id").to_pylist() == ["1", "2", "x7", None, "9", None]


def test_a_reader_with_types_gives_them_to_stages(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,score,day\n1,2.5,2024-01-02\n2,oh,2024-01-03\n3,,\n")
    types = {"score": "float64", "day": "date32", "tags": ["string"], "meta": {"a": "int64"}}
    result = Pipeline(stages=[CsvReader(str(path), schema=types)]).run(HERE, max_errors=None)
    kinds = dict(zip(result[0].data.schema.names, result[0].data.schema.types, strict=True))
    assert kinds["score"] == pa.float64()
    assert kinds["meta"] == pa.struct([("a", pa.int64())])
    assert result[0].data.column("score").to_pylist() == [2.5, None]
    assert len(result.quarantined()) == 1


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"id": "strng"}, "the type of 'id' is 'strng', must be the name of an Arrow type"),
        ({"id": {"a": 3}}, "the type of 'id.a' is 3"),
        ("id", "must map columns to types"),
        ({}, "must map columns to types"),
    ],
)
def test_a_wrong_schema_is_an_error_at_once(tmp_path: Path, schema: Any, message: str) -> None:
    for make in (lambda: ParquetWriter(tmp_path, schema=schema), lambda: JsonlReader(str(tmp_path), schema=schema)):
        with pytest.raises((ValueError, TypeError), match=message):
            make()


# -- types -----------------------------------------------------------------------------------------------------

STRUCT = pa.struct([("a", pa.int64())])
UNIONS: list[tuple[list[pa.DataType], pa.DataType]] = [
    ([pa.null(), pa.int64()], pa.int64()),
    ([pa.int64(), pa.float64()], pa.float64()),
    ([pa.int64(), pa.float64(), pa.string()], pa.string()),
    ([pa.int8(), pa.int32()], pa.int64()),
    ([pa.int64(), pa.uint64()], pa.string()),
    ([pa.bool_(), pa.int64()], pa.string()),
    ([pa.string(), pa.large_string(), pa.int64()], pa.large_string()),
    ([pa.timestamp("s"), pa.timestamp("ms")], pa.timestamp("ms")),
    ([pa.date32(), pa.string()], pa.string()),
    ([pa.list_(pa.int64()), pa.list_(pa.float64(), 3)], pa.list_(pa.float64())),
    ([pa.list_(pa.null()), pa.list_(pa.string())], pa.list_(pa.string())),
    ([STRUCT, pa.struct([("a", pa.float64())])], pa.struct([("a", pa.float64())])),
    ([STRUCT, pa.struct([("a", pa.struct([("b", pa.int8())]))])], pa.struct([("a", pa.string())])),
    ([STRUCT, pa.list_(pa.int64())], pa.string()),
    ([STRUCT, pa.string()], pa.string()),
    ([STRUCT, JSON, pa.null()], STRUCT),
    ([pa.int64(), JSON], pa.string()),
    ([STRUCT, MIXED], pa.string()),
    ([JSON, pa.null()], pa.string()),
]


@pytest.mark.parametrize(("kinds", "wanted"), UNIONS, ids=str)
def test_types_are_widened_in_any_order(kinds: list[pa.DataType], wanted: pa.DataType) -> None:
    for order in permutations(kinds):
        united = pa.null()
        for kind in order:
            united = unite_types(united, kind)
        assert type_to_write(united) == wanted


@pytest.mark.parametrize(
    ("values", "kind", "wide"),
    [
        ([{"a": 1}, {"b": None}, None], pa.struct([("a", pa.int64()), ("b", pa.null())]), False),
        ([[1, 2.5], []], pa.list_(pa.float64()), False),
        ([{"a": 2**60}, {"a": 0.5}], pa.struct([("a", pa.float64())]), True),
        ([{"a": 2**70}], pa.struct([("a", pa.string())]), False),
        ([{"a": "\ud800"}], pa.string(), False),
        ([{f"k{i}": 1 for i in range(20_000)}], pa.string(), False),
        ([None], JSON, False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_structure_of_json(values: list[Any], kind: pa.DataType, wide: bool) -> None:
    assert json_structure(pa.chunked_array([json_array(values)])) == (kind, wide)


def test_many_keys_and_wide_integers_beside_floats_are_text() -> None:
    assert type_to_write(pa.struct([(f"k{i}", pa.int64()) for i in range(300)])) == pa.string()
    assert type_to_write(pa.struct([("a", pa.list_(pa.float64()))]), wide=True) == pa.string()
    assert type_to_write(pa.struct([("a", pa.struct([]))])) == pa.struct([("a", pa.string())])


@pytest.mark.parametrize(
    ("column", "kind", "wanted"),
    [
        (pa.array([1.0, 2.5, None]), pa.string(), ["1", "2.5", None]),
        (pa.array([True, None]), pa.string(), ["true", None]),
        (pa.array([{"b": 1, "a": None}, None]), pa.string(), ['{"b":1}', None]),
        (json_array(["a", 1, {"k": 2}], MIXED), pa.string(), ["a", "1", '{"k":2}']),
        (pa.array([[1], None, [], [2, 3]])[1:], pa.list_(pa.string()), [None, [], ["2", "3"]]),
        (pa.array([{"a": 1}, None, {"a": 2}])[1:], pa.struct([("b", pa.string()), ("a", pa.float64())]),
         [None, {"b": None, "a": 2.0}]),
        (json_array([{"a": 1}, None, {"a": "x"}]), pa.struct([("a", pa.string())]), [{"a": "1"}, None, {"a": "x"}]),
        (json_array([[{"t": [1]}], [{"t": {"u": 1}}]]), pa.list_(pa.struct([("t", pa.string())])),
         [[{"t": "[1]"}], [{"t": '{"u":1}'}]]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), pa.list_(pa.float64()), [[1.0, 2.0], [3.0, 4.0]]),
    ],
    ids=str,
)  # fmt: skip
def test_values_are_converted(column: pa.Array, kind: pa.DataType, wanted: list[Any]) -> None:
    converted = convert_column(column, kind)
    converted.validate(full=True)
    assert converted.type == kind
    assert converted.to_pylist() == wanted
