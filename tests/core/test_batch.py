"""Batches: rows in Arrow, and objects that belong to the rows."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import Batch, DocumentBatch
from gristmill.core.batch import column_cache, stored_rows
from gristmill.core.errors import ContractError, MissingDependencyError
from gristmill.core.task import Lineage

ROWS = [{"text": "a", "n": 1}, {"text": "b", "n": 2}, {"text": None, "n": 3}]


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        pa.Table.from_pylist(ROWS),
        pa.RecordBatch.from_pylist(ROWS),
        {"text": ["a", "b", None], "n": [1, 2, 3]},
        pd.DataFrame({"text": pd.Series(["a", "b", None], dtype=object), "n": [1, 2, 3]}),
        pl.DataFrame(ROWS),
    ],
    ids=lambda data: f"{type(data).__module__.partition('.')[0]}-{type(data).__name__}",
)
def test_it_is_built_from_what_users_have(data: Any) -> None:
    batch = DocumentBatch(data=data, dataset_name="d")
    assert isinstance(batch.data, pa.Table)
    assert batch.to_rows() == ROWS
    assert (batch.num_items, batch.num_rows, batch.get_columns()) == (3, 3, ["text", "n"])
    assert batch.nbytes > 0
    assert batch.data.schema.metadata is None
    assert batch.to_pyarrow() is batch.data


@pytest.mark.parametrize("data", [7, "text", None, {1, 2}], ids=str)
def test_what_is_no_table_is_refused(data: Any) -> None:
    with pytest.raises(ContractError, match=r"rows must be an Arrow table, .* not "):
        DocumentBatch(data=data)


def test_frames() -> None:
    batch = DocumentBatch([{"text": "a", "meta": {"k": [1]}}, {"text": "b", "meta": None}])
    assert batch.to_pandas()["meta"].tolist() == [{"k": [1]}, None]
    assert batch.to_polars()["meta"].to_list() == ['{"k":[1]}', None]
    again = batch.with_data(batch.to_pandas())
    assert again.to_rows()[0]["text"] == "a"


@pytest.mark.parametrize(("library", "method"), [("pandas", "to_pandas"), ("polars", "to_polars")])
def test_a_frame_library_that_is_missing_is_named(library: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError, match=rf"pip install 'gristmill\[{library}\]'"):
        getattr(DocumentBatch(ROWS), method)()


def named(batch: Batch) -> Batch:
    return batch.named(Lineage("a.1", "a"))


def test_row_operations_keep_the_rest() -> None:
    batch = named(DocumentBatch(ROWS, dataset_name="d", metadata={"file": "x"}))
    others = [
        batch.with_data(ROWS[:1]),
        batch.keep(pa.array([True, False, None])),
        batch.take([0]),
        batch.slice(0, 1),
        batch.slice(0, 1),
        DocumentBatch.concat([batch.slice(0, 1), batch.slice(0, 0)]),
    ]
    for other in others:
        assert type(other) is DocumentBatch
        assert other.to_rows() == ROWS[:1]
        assert (other.id, other.dataset_name, other.metadata) == ("a.1", "d", {"file": "x"})
    assert batch.num_items == 3


def test_objects_must_line_up() -> None:
    with pytest.raises(ContractError, match=r"objects\['frames'\] has 1 entries for 3 rows"):
        DocumentBatch(ROWS, objects={"frames": [object()]})
    batch = DocumentBatch(ROWS, objects={"frames": [1, 2, 3]})
    with pytest.raises(ContractError, match="use keep, take or slice"):
        batch.with_data(ROWS[:2])


@given(st.lists(st.booleans() | st.none(), max_size=12), st.integers(1, 5), st.data())
def test_rows_and_objects_never_come_apart(flags: list[bool | None], size: int, data: st.DataObject) -> None:
    numbers = list(range(len(flags)))
    batch = DocumentBatch(pa.table({"n": pa.array(numbers, pa.int64())}), objects={"o": list(numbers)})
    picks = data.draw(st.lists(st.sampled_from(numbers))) if numbers else []
    mask = pa.array(flags, pa.bool_())
    results = [
        (batch.keep(mask), [n for n, flag in zip(numbers, flags, strict=True) if flag]),
        (batch.take(picks), picks),
        (batch.slice(1, size), numbers[1 : 1 + size]),
        (batch.slice(size), numbers[size:]),
    ]
    pieces = [batch.slice(offset, size) for offset in range(0, batch.num_items, size)]
    assert all(piece.num_items <= size for piece in pieces)
    if pieces:
        results.append((DocumentBatch.concat(pieces), numbers))
    for result, expected in results:
        assert result.data.column("n").to_pylist() == result.objects["o"] == expected
    plain = DocumentBatch(batch.data).keep(mask)
    assert plain.data.column("n").to_pylist() == results[0][1]


def test_batches_whose_columns_differ_are_joined() -> None:
    joined = DocumentBatch.concat([DocumentBatch([{"a": 1, "j": [1]}]), DocumentBatch([{"b": "x", "j": None}])])
    assert joined.to_rows() == [{"a": 1, "j": [1], "b": None}, {"a": None, "j": None, "b": "x"}]
    # Not so yet for columns of different types (1 and 1.5, 1 and "x"): pyarrow's error comes through.


def test_rows_that_are_dropped_are_marked_and_copied_when_looked_at() -> None:
    batch = DocumentBatch(ROWS)
    first = batch.keep(pa.array([True, False, True]))
    second = first.with_column("m", pa.array([5, 6])).keep(pa.array([None, True]))
    assert (first.num_items, second.num_items, second.get_columns()) == (2, 1, ["text", "n", "m"])
    assert 0 < second.nbytes <= batch.nbytes + 100
    table, rows = stored_rows(second)
    assert table.column("m").to_pylist() == [5, None, 6]
    assert rows is not None
    assert rows.to_pylist() == [False, False, True]
    assert second.to_rows() == [{"text": None, "n": 3, "m": 6}]
    assert stored_rows(second)[1] is None
    assert first.to_rows() == [ROWS[0], ROWS[2]]
    assert batch.to_rows() == ROWS
    with pytest.raises(AttributeError, match="no attribute 'rows'"):
        _ = second.rows


def test_what_is_known_of_a_column_goes_with_its_rows_and_no_further() -> None:
    batch = DocumentBatch(ROWS)
    column_cache(batch)["text"] = "known"
    kept = batch.keep(pa.array([True, False, True]))
    assert column_cache(kept) == {"text": "known"}
    column_cache(kept)["n"] = "more"
    assert column_cache(batch) == {"text": "known"}
    assert column_cache(kept.with_column("text", pa.array(["x", "y"]))) == {"n": "more"}
    assert column_cache(kept.with_data(ROWS)) == {}
    assert column_cache(kept.slice(0, 1)) == {}
    kept.data = kept.data.slice(1)
    assert (column_cache(kept), kept.num_items, kept.to_rows()) == ({}, 1, [ROWS[2]])


def test_a_table_that_a_user_puts_in_place_of_marked_rows_counts() -> None:
    kept = DocumentBatch(ROWS).keep(pa.array([True, False, True]))
    kept.data = pa.table({"text": ["x"]})
    assert (kept.num_items, kept.get_columns(), kept.keep(pa.array([True])).to_rows()) == (1, ["text"], [{"text": "x"}])
    assert pickle.loads(pickle.dumps(kept)).to_rows() == [{"text": "x"}]


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=4))
def test_keeping_step_by_step_is_keeping_at_once(masks: list[list[bool]]) -> None:
    marked: Any = DocumentBatch(ROWS)
    rows = list(ROWS)
    for mask in masks:
        flags = mask[: len(rows)]
        marked = marked.keep(pa.chunked_array([flags], pa.bool_()))
        rows = [row for row, flag in zip(rows, flags, strict=True) if flag]
        assert marked.num_items == len(rows)
    assert marked.to_rows() == rows


@given(st.lists(st.sampled_from(["keep", "replace", "append", "look", "own"]), max_size=6))
def test_bytes_are_those_of_the_table_whatever_was_done_to_it(steps: list[str]) -> None:
    batch = DocumentBatch(pa.table({"text": ["one", "three", "eleven"] * 3, "id": range(9)}))
    for step in steps:
        assert batch.nbytes > 0
        if step == "keep":
            batch = batch.keep(pa.array([index % 4 > 0 for index in range(batch.num_items)]))
        elif step in ("replace", "append"):
            values = pa.array([step * index for index in range(batch.num_items)])
            batch = batch.with_column("text" if step == "replace" else "more", values)
        elif step == "look":
            assert batch.data.num_rows == batch.num_items
        else:
            batch.data = batch.data.slice(0, 5)
    table, rows = stored_rows(batch)
    assert batch.nbytes == (table.nbytes if rows is None else table.nbytes * rows.true_count // len(rows))
    assert len(pickle.dumps(batch)) == len(pickle.dumps(DocumentBatch(batch.data)))


def test_a_column_of_a_name_that_is_there_twice_is_replaced_whether_bytes_were_counted_or_not() -> None:
    table = pa.table([pa.array([1, 2]), pa.array([3, 4])], names=["a", "a"])
    for counted in (False, True):
        batch = DocumentBatch(table)
        assert not counted or batch.nbytes
        changed = batch.with_column("a", pa.array([5, 6]))
        assert [column.to_pylist() for column in changed.data.columns] == [[5, 6], [3, 4]]
        assert changed.nbytes == changed.data.nbytes
