"""Connected components of a graph of pairs. A component is named after its least id.

`components` works in memory, with 24 bytes for each id and edge, at some million edges a second.
`IncrementalComponents` takes edges in blocks, with 16 bytes for each node, and 24 while it joins some. For graphs of
too many nodes there are the two steps of the alternating algorithm of Kiveris et al. ("Connected Components in
MapReduce and Beyond", 2014). Each step needs only the edges that have a node in common, so edges can be partitioned by
node; a driver alternates the steps until neither changes anything:

    edges -> by both ends -> large_star -> by the larger end -> small_star -> edges

Then each id that is not the least of its component has exactly one edge, to the least one. The number of rounds grows
with the logarithm of the largest component.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.native_kernels import kernels
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, from_numbers, numbers
from gristmill.dedup.signatures.lsh import distinct_pairs

CLUSTERS = pa.schema([("id", pa.int64()), ("cluster", pa.int64())])


def components(u: Column, v: Column) -> pa.Table:
    """The `cluster` of each id that is in an edge: the least id it is connected with. Sorted by id."""
    left, right = numbers(u, np.int64), numbers(v, np.int64)
    if kernels is not None:
        data = kernels.components(np.ascontiguousarray(left), np.ascontiguousarray(right))
        nodes, roots = (np.frombuffer(part, np.int64) for part in data)
    else:
        root_of = reference.components(zip(left.tolist(), right.tolist(), strict=True))
        nodes, roots = np.array(list(root_of), np.int64), np.array(list(root_of.values()), np.int64)
    order = np.argsort(nodes)
    return pa.table([from_numbers(nodes[order]), from_numbers(roots[order])], schema=CLUSTERS)


class IncrementalComponents:
    """The components of the nodes 0 to `count`, from edges that come in blocks.

    `roots` has for each node the least node that it is connected with so far.
    """

    def __init__(self, count: int) -> None:
        self.roots: Numbers = np.arange(count)
        self._new_root: Numbers = np.arange(count)
        """The new root of each root while a block is added; the identity between blocks."""

    def add(self, u: Numbers, v: Numbers) -> None:
        one, other = self.roots[u], self.roots[v]
        new = one != other
        if not new.any():
            return
        joined = components(from_numbers(one[new]), from_numbers(other[new]))
        nodes = numbers(joined["id"])
        self._new_root[nodes] = numbers(joined["cluster"])
        self.roots = self._new_root[self.roots]
        self._new_root[nodes] = nodes


# -- rounds for graphs that do not fit into memory -----------------------------------------------------------


def by_both_ends(pairs: pa.Table) -> pa.Table:
    """Edges `u, v` in both directions, to be partitioned by `u`, for `large_star`."""
    u, v = _ends(pairs)
    return distinct_pairs(np.concatenate([u, v]), np.concatenate([v, u]))


def by_larger_end(pairs: pa.Table) -> pa.Table:
    """Edges `u > v`, to be partitioned by `u`, for `small_star`."""
    u, v = _ends(pairs)
    return distinct_pairs(np.maximum(u, v), np.minimum(u, v))


def large_star(pairs: pa.Table) -> tuple[pa.Table, int]:
    """Link each larger neighbour of a node to the least of the node and its neighbours.

    `pairs` has all edges of each `u` that is in it. Returns edges, and how many of them are new.
    """
    u, v, least = _neighbourhoods(pairs)
    larger = v > u
    u, v, least = u[larger], v[larger], least[larger]
    return distinct_pairs(v, least), int((least != u).sum())


def small_star(pairs: pa.Table) -> tuple[pa.Table, int]:
    """Link each smaller neighbour of a node, and the node, to the least of them.

    `pairs` has all edges to smaller nodes of each `u` that is in it. Returns edges, and how many of them are new.
    """
    u, v, least = _neighbourhoods(pairs)
    edges = distinct_pairs(np.concatenate([u, v]), np.concatenate([least, least]))
    return edges, int((v != least).sum())


def clusters_of(stars: pa.Table) -> pa.Table:
    """The result of `components`, from edges that rounds no longer change, partitioned by their smaller end."""
    u, v = _ends(stars)
    high, low = np.maximum(u, v), np.minimum(u, v)
    nodes, positions = np.unique(np.concatenate([high, low]), return_index=True)
    roots = np.concatenate([low, low])[positions]
    return pa.table([from_numbers(nodes), from_numbers(roots)], schema=CLUSTERS)


def _ends(pairs: pa.Table) -> tuple[Numbers, Numbers]:
    return numbers(pairs["u"], np.int64), numbers(pairs["v"], np.int64)


def _neighbourhoods(pairs: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
    """Edges, sorted and without repetitions, each with the least of `u` and all its neighbours."""
    ordered = distinct_pairs(*_ends(pairs))
    u, v = _ends(ordered)
    if not len(u):
        return u, v, u
    starts = np.flatnonzero(np.append(True, u[1:] != u[:-1]))
    least = np.minimum(v[starts], u[starts])  # neighbours are sorted: the first is the least
    return u, v, np.repeat(least, np.diff(np.append(starts, len(u))))
