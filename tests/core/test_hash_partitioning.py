"""Which partition a key goes to: C and Python agree, and columns of one value go along."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.arrow import hash_partitioning as spreading
from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.hash_partitioning import (
    consecutive_integers,
    constant_column,
    partition_numbers,
    split_by_partition,
)
from gristmill.core.arrow.lazy_compute import pc

NUMBERS = st.integers(0, 9) | st.integers(2**20 - 2, 2**20) | st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(st.data(), st.sampled_from([8, 16, 20, 32]), st.integers(1, 2**32 - 1), st.integers(0, 5))
def test_hashes_go_where_python_says(data: st.DataObject, width: int, count: int, start: int) -> None:
    keys = data.draw(st.lists(st.binary(min_size=width, max_size=width), max_size=30))
    some, more = pa.array(keys, pa.binary(width)).slice(start), pa.array(keys[:3], pa.binary(width))
    for chunks in ([some], [some, more]):
        table = pa.table({"key": pa.chunked_array(chunks)})
        found = partition_numbers(table, ["key"], count)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spreading, "kernels", None)
            assert found == partition_numbers(table, ["key"], count)


def test_a_hash_that_is_null_has_a_partition() -> None:
    raw = b"1234567890123456" * 2 + bytes(16)  # what lies where a value is null does not matter
    keys = pa.Array.from_buffers(pa.binary(16), 3, [pa.py_buffer(b"\5"), pa.py_buffer(raw)])
    found = partition_numbers(pa.table({"key": keys}), ["key"], 1000).to_pylist()
    assert found[1] == found[2] != found[0]


@settings(deadline=None)
@given(st.lists(NUMBERS, max_size=40), st.integers(0, 3))
def test_rows_are_split_as_python_does(numbers: list[int], start: int) -> None:
    homes = pa.array(numbers, pa.uint64()).slice(start)
    value = literal("here", pa.string())
    table = pa.table(
        {"n": consecutive_integers(len(homes), 7), "home": homes, "where": constant_column(value, len(homes))}
    )
    found = split_by_partition(table, homes)
    for number, part in found:
        assert part["home"].to_pylist() == [number] * part.num_rows
        assert pc.run_end_decode(part["where"]).to_pylist() == ["here"] * part.num_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spreading, "kernels", None)
        result = split_by_partition(table, homes)
    assert [(number, part["n"].to_pylist()) for number, part in found] == [
        (number, part["n"].to_pylist()) for number, part in result
    ]


def test_a_column_of_several_runs_is_no_column_of_one_value() -> None:
    runs = pc.run_end_encode(pa.array(["a", "a", "b", "b"]))
    with pytest.raises(NotImplementedError):  # Arrow cannot move its rows, and neither can we
        split_by_partition(pa.table({"runs": runs}), pa.array([1, 0, 1, 0], pa.uint64()))


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_column_of_one_value_holds_it_once(count: int) -> None:
    column = constant_column(literal("value", pa.string()), count)
    column.validate(full=True)
    assert column.values.to_pylist() == ["value"]
    assert pc.run_end_decode(column).to_pylist() == ["value"] * count
