"""Clusters of voices: which windows of speech are of the same person.

Agglomerative: the two clusters whose voices are most alike on average are joined, as long as they are alike enough.
This takes the square of the number of windows, so of many only some are clustered, spread evenly, and the others go to
the nearest cluster.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_MOST_CLUSTERED = 1500


def cluster_voices(vectors: Any, least_similarity: float, most: int | None = None) -> Any:
    """A number for each vector, of length 1: that of its cluster, in the order of their first members. Clusters are
    joined while their mean cosine similarity is at least `least_similarity`, or there are more than `most`."""
    if not len(vectors):
        return np.zeros(0, np.int64)
    chosen = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), _MOST_CLUSTERED)).astype(int))
    labels = _agglomerated(vectors[chosen].astype(np.float64), least_similarity, most)
    centres = np.stack([vectors[chosen][labels == label].mean(axis=0) for label in range(labels.max() + 1)])
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-9)
    found = (vectors @ centres.T).argmax(axis=1)
    found[chosen] = labels
    return _in_order(found)


def _agglomerated(vectors: Any, least: float, most: int | None) -> Any:
    count = len(vectors)
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -np.inf)
    sizes, labels, alive = np.ones(count), np.arange(count), count
    best = likeness.argmax(axis=1)
    value = likeness[np.arange(count), best]
    while alive > 1:
        one = int(value.argmax())
        other = int(best[one])
        if value[one] < least and (most is None or alive <= most):
            break
        total = sizes[one] + sizes[other]
        joined = (sizes[one] * likeness[one] + sizes[other] * likeness[other]) / total
        joined[[one, other]] = -np.inf
        likeness[one], likeness[:, one] = joined, joined
        likeness[other], likeness[:, other] = -np.inf, -np.inf
        sizes[one], alive = total, alive - 1
        labels[labels == other] = one
        value[other] = -np.inf
        stale = np.flatnonzero((best == one) | (best == other) | (joined > value))
        stale = np.append(stale[np.isfinite(value[stale])], one)
        best[stale] = likeness[stale].argmax(axis=1)
        value[stale] = likeness[stale, best[stale]]
    return _in_order(labels)


def _in_order(labels: Any) -> Any:
    """The labels as numbers from 0, by their first place."""
    _, first, numbers = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[numbers]
