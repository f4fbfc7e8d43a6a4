"""Clusters: the connected components of a graph of pairs. A cluster is named after its least id.

`components` does it in memory: 24 bytes for each id and edge, some million edges a second. `IncrementalComponents` is given edges bit
by bit, and holds 16 bytes for each node, 24 while it joins some. For graphs of too many nodes, the rounds below are the
two steps of the alternating algorithm of Kiveris and others ("Connected components in MapReduce and beyond", 2014).
Each is a function of the edges that have a node in common, so that edges may be partitioned by node, and a driver can
alternate them until neither changes anything:

    edges -> by both ends -> large_star -> by the larger end -> small_star -> edges

Then each id that is not the least of its cluster has exactly one edge, to that least one. It takes about as many
rounds as the logarithm of the largest cluster.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.native_kernels import kernels
from gristmill.dedup.columns import reference
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, from_numbers, numbers
from gristmill.dedup.signatures.lsh import distinct_pairs

CLUSTERS = pa.schema([("id", pa.int64()), ("cluster", pa.int64())])


def components(u: Column, v: Column) -> pa.Table:
    """For each id in an edge, its `cluster`: the least id that it is connected with. In order of ids."""
    left, right = numbers(u, np.int64), numbers(v, np.int64)
    if kernels is not None:
        data = kernels.components(np.ascontiguousarray(left), np.ascontiguousarray(right))
        nodes, roots = (np.frombuffer(part, np.int64) for part in data)
    else:
        found = reference.components(zip(left.tolist(), right.tolist(), strict=True))
        nodes, roots = np.array(list(found), np.int64), np.array(list(found.values()), np.int64)
    order = np.argsort(nodes)
    return pa.table([from_numbers(nodes[order]), from_numbers(roots[order])], schema=CLUSTERS)


def spanning_edges(u: Numbers, v: Numbers) -> Numbers:
    """Whether each edge joins what the edges before it have not: those that do connect the same as all."""
    if kernels is not None:
        joins = kernels.forest(np.ascontiguousarray(u), np.ascontiguousarray(v))
        return np.frombuffer(joins, np.uint8).astype(np.bool_)
    return np.array(reference.forest(zip(u.tolist(), v.tolist(), strict=True)), np.bool_)


class IncrementalComponents:
    """The components of nodes from 0 to `count`, by edges that come in any number of parts. `roots` has the least node
    that each is connected with so far."""

    def __init__(self, count: int) -> None:
        self.roots: Numbers = np.arange(count)
        self._now: Numbers = np.arange(count)
        """What becomes of roots; all are themselves between two parts."""

    def add(self, u: Numbers, v: Numbers) -> None:
        one, other = self.roots[u], self.roots[v]
        new = one != other
        if not new.any():
            return
        found = components(from_numbers(one[new]), from_numbers(other[new]))
        nodes = numbers(found["id"])
        self._now[nodes] = numbers(found["cluster"])
        self.roots = self._now[self.roots]
        self._now[nodes] = nodes


# -- rounds for graphs that do not fit into memory -----------------------------------------------------------


def by_both_ends(pairs: pa.Table) -> pa.Table:
    """Edges `u, v` in both directions, to be partitioned by `u`: the input of `large_star`."""
    u, v = _ends(pairs)
    return distinct_pairs(np.concatenate([u, v]), np.concatenate([v, u]))


def by_larger_end(pairs: pa.Table) -> pa.Table:
    """Edges `u > v`, to be partitioned by `u`: the input of `small_star`."""
    u, v = _ends(pairs)
    return distinct_pairs(np.maximum(u, v), np.minimum(u, v))


def large_star(pairs: pa.Table) -> tuple[pa.Table, int]:
    """Link each larger neighbour of a node to the least of the node and its neighbours.

    The partition holds all edges of each `u` that it has any of. Returns edges, and how many are new.
    """
    u, v, least = _neighbourhoods(pairs)
    larger = v > u
    u, v, least = u[larger], v[larger], least[larger]
    return distinct_pairs(v, least), int((least != u).sum())


def small_star(pairs: pa.Table) -> tuple[pa.Table, int]:
    """Link each smaller neighbour of a node, and the node, to the least of them.

    The partition holds all edges to smaller nodes of each `u` that it has any of. Returns edges, and how many are new.
    """
    u, v, least = _neighbourhoods(pairs)
    found = distinct_pairs(np.concatenate([u, v]), np.concatenate([least, least]))
    return found, int((v != least).sum())


def clusters_of(stars: pa.Table) -> pa.Table:
    """What `components` would give, of edges that rounds change no more, partitioned by their smaller end."""
    u, v = _ends(stars)
    high, low = np.maximum(u, v), np.minimum(u, v)
    nodes, places = np.unique(np.concatenate([high, low]), return_index=True)
    roots = np.concatenate([low, low])[places]
    return pa.table([from_numbers(nodes), from_numbers(roots)], schema=CLUSTERS)


def _ends(pairs: pa.Table) -> tuple[Numbers, Numbers]:
    return numbers(pairs["u"], np.int64), numbers(pairs["v"], np.int64)


def _neighbourhoods(pairs: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
    """Edges in order, without repetitions, and with each the least of `u` and all its neighbours."""
    ordered = distinct_pairs(*_ends(pairs))
    u, v = _ends(ordered)
    if not len(u):
        return u, v, u
    starts = np.flatnonzero(np.append(True, u[1:] != u[:-1]))
    least = np.minimum(v[starts], u[starts])  # neighbours are in order, so the first is the least
    return u, v, np.repeat(least, np.diff(np.append(starts, len(u))))
