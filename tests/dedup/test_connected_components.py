"""Components in memory and by rounds over partitions: both are what a plain search finds."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.dedup.clusters import connected_components as module
from gristmill.dedup.clusters.connected_components import (
    IncrementalComponents,
    by_both_ends,
    by_larger_end,
    clusters_of,
    components,
    large_star,
    small_star,
)

Edges = list[tuple[int, int]]

nodes = st.integers(0, 25) | st.integers(-(2**63), 2**63 - 1)
graphs = st.lists(st.tuples(nodes, nodes), max_size=50)
PATH = [(number, number + 1) for number in range(40)]


def search(edges: Edges) -> dict[int, int]:
    """Breadth first, from each node in order."""
    near = defaultdict(set)
    for u, v in edges:
        near[u].add(v)
        near[v].add(u)
    found: dict[int, int] = {}
    for start in sorted(near):
        waiting = [] if start in found else [start]
        while waiting:
            node = waiting.pop(0)
            if node not in found:
                found[node] = start
                waiting += near[node]
    return found


def table(edges: Edges) -> pa.Table:
    return pa.table({name: pa.array([edge[place] for edge in edges], pa.int64()) for place, name in enumerate("uv")})


def as_dict(clusters: pa.Table) -> dict[int, int]:
    return dict(zip(clusters["id"].to_pylist(), clusters["cluster"].to_pylist(), strict=True))


@settings(max_examples=80)
@given(graphs)
@example([])
@example([(1, 1)])
@example(PATH)
def test_components_are_what_a_search_finds(edges: Edges) -> None:
    pairs = table(edges)
    found = components(pairs["u"], pairs["v"])
    assert as_dict(found) == search(edges)
    assert found["id"].to_pylist() == sorted(found["id"].to_pylist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "kernels", None)
        assert found.equals(components(pairs["u"], pairs["v"]))


@settings(max_examples=80)
@given(graphs, st.integers(1, 12))
@example([], 1)
@example(PATH, 1)
@example(PATH[::-1], 3)
@example([(u, v) for u in range(9) for v in range(9)], 5)
def test_edges_that_come_in_parts_join_the_same(edges: Edges, size: int) -> None:
    names = np.array(sorted({node for edge in edges for node in edge}), np.int64)
    u, v = (np.searchsorted(names, np.array([edge[side] for edge in edges], np.int64)) for side in (0, 1))
    joining = IncrementalComponents(len(names))
    for start in range(0, len(edges), size):
        joining.add(u[start : start + size], v[start : start + size])
    assert dict(zip(names.tolist(), names[joining.roots].tolist(), strict=True)) == search(edges)


def partitioned(pairs: pa.Table, parts: int) -> list[pa.Table]:
    """What an exchange does: rows with the same `u` go to one partition."""
    u, v = pairs["u"].to_pylist(), pairs["v"].to_pylist()
    return [table([(a, b) for a, b in zip(u, v, strict=True) if hash(a) % parts == part]) for part in range(parts)]


def by_rounds(edges: Edges, parts: int) -> tuple[dict[int, int], int]:
    blocks = [table(edges[part::parts]) for part in range(parts)]
    for rounds in range(1, 60):
        changed = 0
        for prepare, step in ((by_both_ends, large_star), (by_larger_end, small_star)):
            done = [step(part) for part in partitioned(pa.concat_tables(map(prepare, blocks)), parts)]
            blocks = [block for block, _ in done]
            changed += sum(new for _, new in done)
        if not changed:
            by_least = pa.concat_tables(blocks).rename_columns(["v", "u"])
            clusters = pa.concat_tables(map(clusters_of, partitioned(by_least, parts)))
            assert len(set(clusters["id"].to_pylist())) == clusters.num_rows
            return as_dict(clusters), rounds
    raise AssertionError("the rounds do not end")


@settings(max_examples=40)
@given(graphs, st.integers(1, 4))
@example(PATH, 3)
@example([(0, number) for number in range(1, 30)], 2)
def test_rounds_over_partitions_find_the_same(edges: Edges, parts: int) -> None:
    alone = {u for u, v in edges if u == v} - {node for u, v in edges if u != v for node in (u, v)}
    found, _ = by_rounds(edges, parts)
    assert found | dict(zip(alone, alone, strict=True)) == search(edges)


def test_a_long_path_takes_few_rounds() -> None:
    names = random.Random(3).sample(range(10**6), 3000)
    edges = list(pairwise(names))
    found, rounds = by_rounds(edges, 2)
    assert set(found.values()) == {min(names)}
    assert rounds < 14


def test_a_million_edges() -> None:
    size = 10**6
    u, v = pa.array(range(size), pa.int64()), pa.array([number // 2 for number in range(size)], pa.int64())
    found = components(u, v)
    assert found.num_rows == size
    assert set(found["cluster"].to_pylist()) == {0}
