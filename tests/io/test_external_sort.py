"""Sorting out of memory, grouping and partitioning give what sorting in memory gives."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.arrow.hash_partitioning import partition_numbers, split_by_partition
from gristmill.core.batch import as_table
from gristmill.core.errors import ColumnError
from gristmill.io.exchange.external_sort import group_starts, sort_tables, whole_groups

KEYS: dict[str, Any] = {
    "texts": (st.none() | st.sampled_from(["", "a", "b", "ab", "é", "水"]), pa.string()),
    "floats": (st.none() | st.sampled_from([0.0, -1.5, math.inf, math.nan, 3.0]), pa.float64()),
    "integers": (st.none() | st.integers(-3, 3), pa.int64()),
    "flags": (st.none() | st.booleans(), pa.bool_()),
    "hashes": (st.none() | st.sampled_from([b"a" * 16, b"b" * 16, b"ba" * 8]), pa.binary(16)),
    "nothing": (st.none(), pa.null()),
}


def cut(table: pa.Table, cuts: list[int]) -> list[pa.Table]:
    places = [0, *sorted(min(place, table.num_rows) for place in cuts), table.num_rows]
    return [table.slice(start, end - start) for start, end in pairwise(places)]


def place(value: Any, descending: bool) -> Any:
    """What Python sorts by: nulls are last, after NaN."""
    if value is None:
        return (2, 0)
    if isinstance(value, float) and math.isnan(value):
        return (1, 0)
    if isinstance(value, bytes):
        value = int.from_bytes(value, "big")
    if isinstance(value, str):
        value = tuple(-code if descending else code for code in [*value.encode(), -1])
        return (0, value)
    return (0, -value if descending else value)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(list(KEYS)), st.sampled_from(list(KEYS)), st.booleans())
def test_sorting_on_disk_is_sorting_in_memory(data: st.DataObject, one: str, two: str, descending: bool) -> None:
    count = data.draw(st.integers(0, 40))
    columns = [data.draw(st.lists(KEYS[name][0], min_size=count, max_size=count)) for name in (one, two)]
    arrays = [pa.array(values, KEYS[name][1]) for values, name in zip(columns, (one, two), strict=True)]
    table = pa.table([*arrays, pa.array(range(count), pa.int64())], ["a", "b", "n"])
    pieces = cut(table, data.draw(st.lists(st.integers(0, 40), max_size=5)))
    most = data.draw(st.sampled_from([1, 50, 300, 10**9]))
    wanted = sorted(
        range(count), key=lambda row: (place(columns[0][row], descending), place(columns[1][row], descending))
    )
    found = list(sort_tables(iter(pieces), ["a", "b"], most, descending))
    assert [row for piece in found for row in piece.column("n").to_pylist()] == wanted


@pytest.mark.parametrize("most", [1, 100, 300, 10**9])
def test_rows_that_nobody_wants_are_the_same_in_memory_and_on_disk(most: int, tmp_path: Path) -> None:
    values = [7, 3, 5, 3, 9, 7, 1, 7, 8, 3, 2]
    table = pa.table({"a": values, "n": list(range(len(values)))})

    def not_alone(rows: pa.Table) -> pa.Table:
        mine = rows.column("a").to_pylist()
        return rows.filter(pa.array([mine.count(value) > 1 for value in mine], pa.bool_()))

    pieces = iter(cut(table, [2, 5, 8]))
    found = [
        row
        for piece in sort_tables(pieces, ["a"], most, folder=str(tmp_path), wanted=not_alone)
        for row in piece.to_pylist()
    ]
    few = [row for row in found if values.count(row["a"]) > 1]
    assert [row["n"] for row in few] == [1, 3, 9, 0, 5, 7]
    assert most < 10**9 or few == found  # a value that is a range of its own is not looked at


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(list(KEYS)))
def test_groups_are_whole(data: st.DataObject, name: str) -> None:
    values = data.draw(st.lists(KEYS[name][0], max_size=40))
    table = pa.table([pa.array(values, KEYS[name][1]), pa.array(range(len(values)), pa.int64())], ["a", "n"])
    pieces = list(sort_tables(iter([table]), ["a"], 10**9))
    pieces = cut(pieces[0], data.draw(st.lists(st.integers(0, 40), max_size=5))) if pieces else []
    groups = list(whole_groups(pieces, ["a"], data.draw(st.sampled_from([1, 60, 10**9]))))
    assert sum(group.num_rows for group in groups) == len(values)
    seen: set[str] = set()
    for group in groups:
        assert group_starts(None, group, ["a"])[0].as_py()
        here = {str(value) for value in group.column("a").to_pylist()}
        assert not here & seen
        seen |= here
    assert seen == {str(value) for value in values}


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(list(KEYS)), st.integers(1, 9))
def test_partitions_hold_each_row_once_in_order_and_equal_keys_together(
    data: st.DataObject, name: str, count: int
) -> None:
    values = data.draw(st.lists(KEYS[name][0], max_size=40))
    table = pa.table([pa.array(values, KEYS[name][1]), pa.array(range(len(values)), pa.int64())], ["a", "n"])
    parts = split_by_partition(table, partition_numbers(table, ["a"], count))
    numbers = [number for number, _ in parts]
    assert numbers == sorted(set(numbers))
    assert all(0 <= number < count for number in numbers)
    home: dict[str, int] = {}
    rows: list[int] = []
    for number, part in parts:
        inside = part.column("n").to_pylist()
        assert inside == sorted(inside)
        rows += inside
        for value in part.column("a").to_pylist():
            assert home.setdefault(str(value), number) == number
    assert sorted(rows) == list(range(len(values)))


def test_a_value_has_one_home_whatever_the_type_of_its_column() -> None:
    """A column that is read in parts may be of integers in one, of floats in another and of mixed types in a third."""
    whole = as_table([{"k": value} for value in (5, 7, -1)])
    floats = as_table([{"k": value} for value in (5.0, 7.0, -1.0)])
    mixed = as_table([{"k": value} for value in (5, 7, -1, "x")])
    homes = [partition_numbers(table, ["k"], 1000).to_pylist()[:3] for table in (whole, floats, mixed)]
    assert homes[0] == homes[1] == homes[2]
    assert len(set(homes[0])) == 3


def test_files_of_a_sort_are_gone_when_it_is_over(tmp_path: Path) -> None:
    table = pa.table({"a": [index % 7 for index in range(1000)]})
    found = list(sort_tables(iter(cut(table, [100, 300])), ["a"], 100, folder=str(tmp_path)))
    assert sum(piece.num_rows for piece in found) == 1000
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_sorted_is_told() -> None:
    with pytest.raises(ColumnError, match="cannot be sorted by column 'a', which holds list"):
        list(sort_tables(iter([pa.table({"a": [[1], [2]]})]), ["a"], 100))
    with pytest.raises(ColumnError, match="no column 'b'. There are: a"):
        list(sort_tables(iter([pa.table({"a": [1, 2]})]), ["b"], 100))
