"""Rows to tables and back, whatever the rows hold and however they are cut into blocks."""

from __future__ import annotations

import math
from datetime import date, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.core.arrow.table_conversion import (
    EXACT_FLOAT_LIMIT,
    JSON,
    MIXED,
    conform_to_schema,
    is_json,
    json_text,
    rows_to_table,
    table_to_rows,
    to_array,
    unify_schemas,
    without_views,
)

TEXT = st.text(max_size=8)
# Integers beyond 2**53 beside floats cannot be told from a schema alone; the writers keep book of them.
NUMBER = st.integers(-EXACT_FLOAT_LIMIT, EXACT_FLOAT_LIMIT) | st.floats(allow_nan=False, allow_infinity=False)
SCALAR = st.none() | st.booleans() | NUMBER | TEXT
NESTED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-EXACT_FLOAT_LIMIT, EXACT_FLOAT_LIMIT)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["text", "id", "meta", "late"])
ROWS = st.lists(st.dictionaries(NAMES, SCALAR | NESTED, max_size=4), max_size=8)


def with_all_fields(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


@given(ROWS)
@example([{"a": 1}, {"a": 2.5}, {"a": None}])
@example([{"a": 1}, {"a": True}])
@example([{"a": "\ud800"}, {"a": 2**70}, {"a": [2**70]}])
@example([{"a": 2**63}, {"a": 2**60}])
@example([{"a": {"b": [1, {"c": None}]}}, {"a": "text"}])
def test_rows_come_back_as_they_were(rows: list[dict[str, Any]]) -> None:
    table = rows_to_table(rows)
    table.validate(full=True)
    expected = with_all_fields(rows)
    assert table_to_rows(table) == (expected if table.num_columns else [])


def test_only_the_wanted_fields() -> None:
    table = rows_to_table([{"a": 1, "b": 2}, {"c": 3}], fields=["c", "a", "none"])
    assert table_to_rows(table) == [{"c": None, "a": 1, "none": None}, {"c": 3, "a": None, "none": None}]


@st.composite
def cut_rows(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    rows = draw(st.lists(st.dictionaries(NAMES, SCALAR | NESTED, min_size=1, max_size=4), min_size=1, max_size=8))
    cuts = sorted(draw(st.sets(st.integers(1, len(rows)))) | {0, len(rows)})
    return rows, [rows[start:end] for start, end in pairwise(cuts)]


@given(cut_rows())
@settings(max_examples=300)
@example(([{"a": 1}, {"a": "x"}], [[{"a": 1}], [{"a": "x"}]]))
@example(([{"a": 1}, {"a": 1.5}, {"a": "x"}], [[{"a": 1}, {"a": 1.5}], [{"a": "x"}]]))
@example(([{"a": -0.0}, {"a": "x"}], [[{"a": -0.0}], [{"a": "x"}]]))
@example(([{"a": None}, {"a": [1]}], [[{"a": None}], [{"a": [1]}]]))
@example(([{"a": 1e300}, {"a": True}], [[{"a": 1e300}], [{"a": True}]]))
def test_how_rows_are_cut_changes_nothing(cut: tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]) -> None:
    rows, blocks = cut
    whole = rows_to_table(rows)
    tables = [rows_to_table(block) for block in blocks]
    schema = unify_schemas([table.schema for table in tables])
    joined = pa.concat_tables([conform_to_schema(table, schema) for table in tables])
    assert schema == whole.schema
    joined.validate(full=True)
    assert joined.combine_chunks().equals(whole.combine_chunks())


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_unify_is_stable_and_forgets_no_field(blocks: list[list[dict[str, Any]]]) -> None:
    schemas = [rows_to_table(block).schema for block in blocks]
    once = unify_schemas(schemas)
    assert unify_schemas([once]) == once
    assert unify_schemas([once, *schemas]) == once
    assert set(once.names) == {name for block in blocks for row in block for name in row}


# values, type of the column
KINDS: list[tuple[list[Any], pa.DataType]] = [
    ([], pa.null()),
    ([None, None], pa.null()),
    (["a", None], pa.string()),
    ([1, None], pa.int64()),
    ([1, 2.5], pa.float64()),
    ([True, None], pa.bool_()),
    ([b"raw"], pa.binary()),
    ([date(2024, 1, 2)], pa.date32()),
    ([datetime(2024, 1, 2)], pa.timestamp("us")),
    ([{"a": 1}], JSON),
    ([[1, 2]], JSON),
    ([(1, 2)], JSON),
    ([1, "a"], MIXED),
    ([1, True], MIXED),
    ([b"raw", "text"], MIXED),
    ([date(2024, 1, 2), datetime(2024, 1, 2)], MIXED),
    ([2**60, 0.5], MIXED),
    ([2**64], MIXED),
    ([{"a": 1}, [2]], JSON),
    ([{"a": 1}, 2], MIXED),
]


@pytest.mark.parametrize(("values", "kind"), KINDS, ids=str)
def test_scalars_of_one_type_are_native_and_all_else_is_json(values: list[Any], kind: pa.DataType) -> None:
    column = to_array(values)
    column.validate(full=True)
    assert column.type == kind
    assert len(column) == len(values)


TEXTS: list[tuple[Any, str]] = [
    ({"b": 1, "a": None}, '{"b":1,"a":null}'),
    ("é", '"é"'),
    ([math.nan], "[null]"),
    (2**70, "1180591620717411303424"),
    ("\ud800", '"\\ud800"'),
    ({1: 2}, '{"1":2}'),
    ([b"raw"], '["cmF3"]'),
    ([date(2024, 1, 2)], '["2024-01-02"]'),
]


@pytest.mark.parametrize(("value", "text"), TEXTS, ids=str)
def test_json_text(value: Any, text: str) -> None:
    assert json_text(value) == text


def test_columns_that_are_missing_become_null() -> None:
    schema = pa.schema([("n", pa.int64()), ("j", JSON), ("t", pa.large_string())])
    table = conform_to_schema(pa.table({"t": ["a"]}), schema)
    assert table.schema == schema
    assert table_to_rows(table) == [{"n": None, "j": None, "t": "a"}]


def test_views_become_plain() -> None:
    table = pa.table({"t": pa.array(["a"], pa.string_view()), "b": pa.array([b"x"], pa.binary_view()), "n": [1]})
    assert without_views(table).schema.types == [pa.string(), pa.binary(), pa.int64()]
    assert is_json(JSON)
    assert not is_json(pa.string())
