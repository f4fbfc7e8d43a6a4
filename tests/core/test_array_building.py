"""Columns that are built from buffers must be what pyarrow would have built."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.core.arrow.array_building import make_array

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), TEXT),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
]


def typed_columns() -> st.SearchStrategy[tuple[pa.DataType, list[Any]]]:
    return st.one_of([st.tuples(st.just(kind), st.lists(st.none() | values, max_size=40)) for kind, values in VALUES])


@given(typed_columns())
@example((pa.string(), []))
@example((pa.string(), [None, ""]))
@example((pa.bool_(), [True] * 8 + [None] + [False] * 8))
@example((pa.int64(), [-(2**63), None, 2**63 - 1]))
@example((pa.uint64(), [0, None, 2**64 - 1]))
@example((pa.float64(), [-0.0, float("inf"), None]))
def test_it_is_what_pyarrow_builds(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    made, wanted = make_array(values, kind), pa.array(values, kind)
    made.validate(full=True)
    assert made.type == kind
    assert made.equals(wanted)
    assert made.null_count == wanted.null_count
    assert made.to_pylist() == values


@given(typed_columns(), st.integers(0, 40), st.integers(0, 40))
def test_slices_and_joins_are_whole(column: tuple[pa.DataType, list[Any]], start: int, length: int) -> None:
    kind, values = column
    made = make_array(values, kind)
    part = made.slice(min(start, len(values)), length)
    part.validate(full=True)
    assert part.to_pylist() == values[start : start + length]
    assert pa.concat_arrays([made, part]).to_pylist() == values + values[start : start + length]


def test_not_a_number_stays_one() -> None:
    made = make_array([float("nan"), None], pa.float64())
    assert str(made.to_pylist()) == "[nan, None]"


@pytest.mark.parametrize(
    "values", [(1, 2), range(3), iter([4, None]), (n for n in [5])], ids=["tuple", "range", "iterator", "generator"]
)
def test_any_iterable_will_do(values: Any) -> None:
    assert make_array(values, pa.int64()).null_count <= 1


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([b"a", None], pa.binary()),
        ([1, None], pa.int8()),
        (["a"], pa.large_string()),
        ([[1], None], pa.list_(pa.int8())),
    ],
    ids=str,
)
def test_other_types_go_to_pyarrow(values: list[Any], kind: pa.DataType) -> None:
    assert make_array(values, kind).equals(pa.array(values, kind))


@pytest.mark.parametrize(
    ("values", "kind", "error"),
    [
        ([2**63], pa.int64(), OverflowError),
        ([-(2**63) - 1], pa.int64(), OverflowError),
        ([2**64], pa.uint64(), OverflowError),
        ([-1], pa.uint64(), OverflowError),
        (["\ud800"], pa.string(), UnicodeEncodeError),
    ],
    ids=str,
)
def test_what_does_not_fit_raises_what_pyarrow_raises(values: list[Any], kind: pa.DataType, error: type) -> None:
    with pytest.raises(error):
        make_array(values, kind)
    with pytest.raises(error):
        pa.array(values, kind)
