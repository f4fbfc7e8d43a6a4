"""Which document of a cluster is kept."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.table import json_array
from gristmill.dedup.components import components
from gristmill.dedup.keep import Keep, choose_kept, removed


def kept(rank: pa.Array, ids: list[Any] | None = None) -> Any:
    table = pa.table({"id": ids or list(range(len(rank))), "cluster": [7] * len(rank), "rank": rank})
    [one] = choose_kept(table).filter(pa.compute.field("kept"))["id"].to_pylist()
    return one


@pytest.mark.parametrize(
    ("keep", "values", "wanted"),
    [
        (Keep(), ["b", "a", "c"], 0),
        (Keep("longest", "x"), ["b", "éé", "a" * 3, "bbb", None], 2),
        (Keep("highest", "x"), [0.5, None, 0.9, 0.9, float("nan")], 2),
        (Keep("highest", "x"), [3, 5, -1, 5], 1),
        (Keep("newest", "x"), ["2024-01-01", None, "2024-05-01T10:00:00Z", "2024-05-01T10:00:00+02:00", "soon"], 2),
        (Keep("newest", "x"), [datetime(2020, 1, 1), datetime(2021, 1, 1), None], 1),
        (Keep("newest", "x"), [date(2022, 1, 1), date(2021, 1, 1)], 0),
        (Keep("newest", "x"), [1, 3, 2], 1),
        (Keep("source", "x", ["wiki", "books"]), ["web", None, "books", "wiki", "wiki"], 3),
        (Keep("source", "x", ["wiki"]), ["web", "other"], 0),
    ],
)
def test_policies(keep: Keep, values: list[Any], wanted: int) -> None:
    assert kept(keep.rank(pa.table({"x": pa.array(values)}))) == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("best",), "'best' is unknown; it is one of first, longest"),
        (("highest",), "needs the column that it looks at"),
        (("source", "x"), "needs the values of its column"),
    ],
)
def test_policies_that_cannot_be_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Keep(*arguments)


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="'highest' looks at 'score'; there are id, text"):
        Keep("highest", "score").rank(pa.table({"id": [1], "text": ["a"]}))


def test_ids_may_be_strings() -> None:
    assert kept(pa.array([1.0, 2.0, 2.0]), ["a", "c", "b"]) == "b"


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=25),
    st.lists(st.integers(0, 3), min_size=16, max_size=16),
    st.randoms(),
)
def test_each_cluster_keeps_its_best_whatever_the_order(
    edges: list[tuple[int, int]], ranks: list[int], draw: Any
) -> None:
    pairs = pa.table(
        {
            "u": pa.array([min(edge) for edge in edges], pa.int64()),
            "v": pa.array([max(edge) for edge in edges], pa.int64()),
            "similarity": pa.array([1 / (1 + sum(edge)) for edge in edges], pa.float64()),
        }
    )
    clusters = components(pairs["u"], pairs["v"])
    clusters = clusters.append_column(
        "rank", pa.array([float(ranks[one]) for one in clusters["id"].to_pylist()], pa.float64())
    )
    order = list(range(len(clusters)))
    draw.shuffle(order)
    found = choose_kept(clusters, pairs)
    assert choose_kept(clusters.take(pa.array(order, pa.int64())), pairs).equals(found)
    members: dict[int, list[int]] = {}
    for row in clusters.to_pylist():
        members.setdefault(row["cluster"], []).append(row["id"])
    for row in found.to_pylist():
        best = min(members[row["cluster"]], key=lambda one: (-ranks[one], one))
        assert row["kept"] == (row["id"] == best)
        assert row["partner"] == (None if row["kept"] else best)
        compared = not row["kept"] and {(row["id"], best), (best, row["id"])} & set(edges)
        assert row["similarity"] == (1 / (1 + row["id"] + best) if compared else None)
    assert len(removed(found)) == len(clusters) - len(members)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), None])
def test_large_whole_numbers_are_told_apart(kind: pa.DataType | None) -> None:
    values = [0, 5, 2**53, 2**53 + 1, 2**53 + 2, 10**18, 10**18 + 1, 10**18 + 2, 2**62, 2**63 - 2**20]
    column = json_array(values) if kind is None else pa.array(values, kind)
    ranks = Keep("highest", "score").rank(pa.table({"score": column})).to_pylist()
    assert ranks == sorted(set(ranks))
    assert len(ranks) == len(values)


def test_ranks_do_not_depend_on_the_type_of_a_block() -> None:
    values = [-1e300, -(2**60), -3, 0, 2**53, 10**18, 2**62, 2**63 - 2**20, 2.0**63, 1e300, float("inf")]
    keep = Keep("highest", "score")
    floats = keep.rank(pa.table({"score": pa.array(map(float, values), pa.float64())})).to_pylist()
    assert floats == sorted(set(floats))
    whole = keep.rank(pa.table({"score": pa.array(values[1:8], pa.int64())})).to_pylist()
    assert whole == floats[1:8]
