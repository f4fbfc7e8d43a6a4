"""Joins: what pyarrow's give, whatever the keys; what is refused, and what is said then."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill import CountRows, DocumentBatch, Join, LocalExecutor, Pipeline
from gristmill.core.errors import GristmillError
from gristmill.io.exchange import exchange
from gristmill.io.join import key_matching, partitioned_join
from gristmill.recipes import load_recipe
from gristmill.text import CsvReader, JsonlReader

HERE = LocalExecutor(0)
PEER = {"inner": "inner", "left": "left outer", "semi": "left semi", "anti": "left anti"}


def write(path: Path, rows: list[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def joined(rows: Any, stage: Join) -> list[dict[str, Any]]:
    result = Pipeline("joined", stages=[stage]).run(HERE, initial_tasks=[DocumentBatch(rows)])
    found = [row for task in result for row in task.to_rows()]
    return [{name: value for name, value in row.items() if name != "__position__"} for row in found]


KINDS = [
    (pa.string(), st.sampled_from(["", "a", "hot", "é", "x" * 40])),
    (pa.int64(), st.integers(-3, 3) | st.just(2**60)),
    (pa.float64(), st.sampled_from([0.5, 1.0, -2.0, 1e300])),
    (pa.bool_(), st.booleans()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.binary(), st.sampled_from([b"", b"\xff", b"a"])),
]


@st.composite
def sides(draw: Any) -> tuple[pa.Table, pa.Table]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2))
    tables = []
    for column in ("mine", "theirs"):
        size = draw(st.integers(0, 12))
        keys = [pa.array([draw(st.none() | value) for _ in range(size)], kind) for kind, value in kinds]
        names = [f"k{number}" for number in range(len(kinds))]
        tables.append(pa.table([*keys, pa.array(range(size), pa.int64())], [*names, column]))
    return tables[0], tables[1]


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sides(), st.sampled_from(list(PEER)), st.booleans())
def test_rows_are_those_of_pyarrow(
    monkeypatch: pytest.MonkeyPatch, both: tuple[pa.Table, pa.Table], how: str, tight: bool
) -> None:
    mine, theirs = both
    keys = [name for name in mine.column_names if name != "mine"]
    wanted = mine.join(theirs, keys, join_type=PEER[how], use_threads=False)
    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as patch:
        if tight:  # blocks of a few rows, pairs and groups that are never held
            patch.setattr(key_matching, "MAX_PAIRS", 3)
            patch.setattr(key_matching, "MAX_PAIR_BYTES", 50)
            patch.setattr(partitioned_join, "MAX_GROUP_BYTES", 0)
            patch.setattr(partitioned_join, "tables_of_size", lambda pieces: exchange.tables_of_size(pieces, 60))
        pq.write_table(theirs, f"{folder}/other.parquet")
        small, large = (
            joined(mine, Join(f"{folder}/other.parquet", keys, how, broadcast=way, num_partitions=2))
            for way in (True, False)
        )
    for rows in (small, large):
        found = pa.Table.from_pylist(rows, wanted.schema) if rows else wanted.schema.empty_table()
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))
    assert [row["mine"] for row in small] == sorted(row["mine"] for row in small)


@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize(
    ("left", "right"),
    [([1, 2, 3], [2.0, 3.5, None]), ([2.0, 0.5], [2]), ([2**60 + 1], [float(2**60)]), ([float("nan")], [float("nan")])],
)
def test_numbers_are_compared_as_they_are(tmp_path: Path, left: Any, right: Any, broadcast: bool) -> None:
    pq.write_table(pa.table({"k": right}), tmp_path / "other.parquet")
    rows = joined(pa.table({"k": left}), Join(tmp_path / "other.parquet", "k", "semi", broadcast=broadcast))
    assert [row["k"] for row in rows] == [key for key in left if key in right and key == key]


@pytest.mark.parametrize("broadcast", [True, False])
def test_an_empty_side(tmp_path: Path, broadcast: bool) -> None:
    nothing = write(tmp_path / "nothing.jsonl", [])
    other = write(tmp_path / "other.jsonl", [{"id": 1, "o": "a"}])
    rows = [{"id": 1}, {"id": 2}]
    assert joined(rows, Join(nothing, "id", broadcast=broadcast)) == []
    assert joined(rows, Join(nothing, "id", "left", ["o"], broadcast=broadcast)) == [{**row, "o": None} for row in rows]
    assert joined(rows, Join(nothing, "id", "anti", broadcast=broadcast)) == rows
    none = pa.table({"id": pa.nulls(0, pa.int64())})
    assert joined(none, Join(other, "id", broadcast=broadcast)) == []


@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize(("mine", "theirs"), [(pa.binary(), pa.binary(16)), (pa.binary(16), pa.large_binary())])
def test_bytes_are_equal_whatever_their_type(tmp_path: Path, mine: Any, theirs: Any, broadcast: bool) -> None:
    keys = [bytes([number]) * 16 for number in range(20)]
    pq.write_table(pa.table({"k": pa.array(keys, theirs)}), tmp_path / "other.parquet")
    stage = Join(tmp_path / "other.parquet", "k", "semi", broadcast=broadcast, num_partitions=5)
    assert len(joined(pa.table({"k": pa.array(keys, mine)}), stage)) == 20


@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize("columns", [None, ["o"]])
@pytest.mark.parametrize("keys", [[], [None]])
def test_columns_are_there_without_a_single_partner(tmp_path: Path, keys: Any, columns: Any, broadcast: bool) -> None:
    other = pa.table({"id": pa.array(keys, pa.int64()), "o": pa.array([0.5 for _ in keys], pa.float64())})
    pq.write_table(other, tmp_path / "other.parquet")
    stage = Join(tmp_path / "other.parquet", "id", "left", columns, broadcast=broadcast)
    [task] = Pipeline("joined", stages=[stage]).run(HERE, initial_tasks=[DocumentBatch([{"id": 1}])])
    assert task.data.column("o").type == pa.float64()
    assert task.data.column("o").to_pylist() == [None]


@pytest.mark.parametrize("broadcast", [True, False])
def test_columns_are_chosen_and_renamed(tmp_path: Path, broadcast: bool) -> None:
    other = write(tmp_path / "other.jsonl", [{"host": "a", "text": "about", "n": [1]}])
    row = {"domain": "a", "text": "mine"}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"columns": ["n"]}, {"n": [1]}),
        ({"columns": {"text": "about"}}, {"about": "about"}),
        ({"suffix": "_o"}, {"text_o": "about", "n_o": [1]}),
        ({"columns": []}, {}),
    ]
    for given_, added in cases:
        assert joined([row], Join(other, {"domain": "host"}, broadcast=broadcast, **given_)) == [{**row, **added}]


def test_the_other_side_may_be_anywhere_and_of_any_format(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/join/other.jsonl", b'{"id": "1", "o": "a"}\n')
    (tmp_path / "other.csv").write_text("id,o\n1,a\n")
    for other in ("memory://join/other.jsonl", CsvReader(str(tmp_path / "other.csv"))):
        for broadcast in (True, False):
            assert joined([{"id": "1"}, {"id": "2"}], Join(other, "id", broadcast=broadcast)) == [{"id": "1", "o": "a"}]
    memory.rm("/join", recursive=True)


def test_small_files_are_looked_up_and_large_ones_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write(tmp_path / "other.jsonl", [{"id": 1, "o": "a"}])
    stages = [JsonlReader(write(tmp_path / "a.jsonl", [{"id": 1}])), Join(other, "id")]
    assert "segment" not in str(Pipeline("p", stages=stages).plan())
    monkeypatch.setattr("gristmill.io.join.join_stage.BROADCAST_BYTES", 10)
    assert "in 3 segments" in str(Pipeline("p", stages=stages).plan())


def test_a_recipe_joins(tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", [{"id": 2, "o": "x"}])
    mine = write(tmp_path / "mine" / "a.jsonl", [{"id": 1}, {"id": 2}])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"name: joined\nstages:\n  - JsonlReader: {{file_paths: {mine}}}\n"
        f"  - Join: {{other: {other}, on: id, how: left, columns: {{o: owner}}}}\n"
    )
    result = load_recipe(recipe).build().run(HERE)
    assert [row["owner"] for task in result for row in task.to_rows()] == [None, "x"]


REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    ([{"id": "1", "o": 1}], {}, r"'Join'.*'id' holds numbers \(int64\).*other.jsonl holds text.*before the join"),
    ([{"id": 1}, {"id": "x"}], {}, r"'Join': column 'id' of .*other.jsonl cannot be a key: .*several types"),
    ([{"id": [1]}], {}, r"'Join': column 'id' of .*other.jsonl cannot be a key"),
    ([{"id": 1, "text": "a"}], {}, r"'Join'.* column 'text' already.*other.jsonl.*columns=\[...\].*suffix"),
    ([{"name": 1}], {}, r"'Join': .*other.jsonl has no column 'id'. There are: name.*on=\{'ours': 'theirs'\}"),
    ([{"id": 1, "n": 1}], {"columns": ["m"]}, r"'Join': .*other.jsonl has no column 'm'. There are: id, n.*columns="),
    ([{"k": 1, "id": 2}], {"on": {"id": "k"}}, r"'Join': rows have a column 'id' already"),
    ([{"id": 1}], {"on": "uid"}, r"'Join.*' needs column 'uid'|other.jsonl has no column 'uid'"),
]


@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize(("other", "how", "message"), REFUSED)
def test_what_cannot_be_joined_is_said(
    tmp_path: Path, other: list[Any], how: dict[str, Any], message: str, broadcast: bool
) -> None:
    path = write(tmp_path / "other.jsonl", other)
    with pytest.raises(GristmillError, match=f"(?s){message}"):
        joined([{"id": 1, "text": "t"}], Join(path, **({"on": "id"} | how), broadcast=broadcast))


def test_settings_that_make_no_sense() -> None:
    for error, match, args in [
        (ValueError, "must be one of inner, left", {"how": "outer"}),
        (ValueError, "adds no columns", {"how": "semi", "suffix": "_o"}),
        (TypeError, r"must be a list of names: \['o'\]", {"columns": "o"}),
        (ValueError, "must be the name of a column", {"on": []}),
        (ValueError, "num_partitions", {"num_partitions": 0}),
        (TypeError, "must be a path or a reader", {"other": CountRows()}),
        (ValueError, "takes storage_options itself", {"other": JsonlReader("x"), "storage_options": {"a": 1}}),
    ]:
        with pytest.raises(error, match=match):
            Join(**({"other": "other.jsonl", "on": "id"} | args))


def test_bad_records_of_the_other_side(tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", [{"id": 1, "o": "a"}, "{bad", {"id": 2, "o": "b"}])
    mine = write(tmp_path / "mine" / "a.jsonl", [{"id": 1}, {"id": 2}])

    def run(broadcast: bool) -> Any:
        stages = [JsonlReader(mine), Join(other, "id", broadcast=broadcast)]
        return Pipeline("p", stages=stages).run(HERE, max_errors=5)

    with pytest.raises(GristmillError, match=r"other.jsonl, line 2.*broadcast=False"):
        run(True)
    result = run(False)
    assert sum(task.num_items for task in result) == 2
    (aside,) = result.quarantined()
    assert (aside.file, aside.position, aside.content) == ("other.jsonl", 20, "{bad")


@pytest.mark.parametrize("broadcast", [True, False])
def test_rows_without_a_partner_are_rejected_with_the_reason(tmp_path: Path, broadcast: bool) -> None:
    other = write(tmp_path / "other.jsonl", [{"id": 1}])
    mine = write(tmp_path / "mine" / "a.jsonl", [{"id": 1}, {"id": 2}, {"id": None}])
    stages = [JsonlReader(mine), Join(other, "id", broadcast=broadcast)]
    result = Pipeline("p", stages=stages).run(HERE, tmp_path / "run", rejected=str(tmp_path / "rejected"))
    (path,) = result.rejected()
    rows = pq.read_table(path).to_pylist() if path.endswith("parquet") else []
    assert [(row["id"], row["rejected_by"]) for row in rows] == [(2, "Join"), (None, "Join")]
    assert result.summary()["Join"].dropped == 2
