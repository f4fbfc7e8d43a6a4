"""K-means on the CPU: assigns rows to cells, and finds rows near the border of another cell.

If two rows within a distance `r` of each other are in different cells, the plane halfway between the two centroids lies
between them, so at least one of them is within `r / 2` of that plane. If such rows are also sent to the other cell, all
pairs are found. Few pairs lie just across the plane, so a share of that distance finds nearly all of them.

Rows are processed in chunks of one size, and near ties are decided in float64, so the cell of a row does not depend on
the other rows of its block.

Gives up optimal clusters: iteration starts from random rows and ends early. Which pairs are found hardly depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.dedup.columns.arrow_numpy import Numbers

CHUNK = 512
"""The number of rows that are compared with all centroids at a time."""

NEAR_TIE = 1e-4
"""Squared distances that differ by less are computed again in float64."""

TABLE = 4096
"""Up to this many centroids, the distances between them are precomputed."""


def fit_centroids(sample: Numbers, k: int, seed: int, max_iter: int, tol: float) -> Numbers:
    """Up to `k` centroids of the rows of a sample."""
    as_bytes = np.ascontiguousarray(sample).view(np.dtype((np.void, 4 * sample.shape[1]))).reshape(-1)
    firsts = np.unique(as_bytes, return_index=True)[1]  # start from distinct rows
    start = np.random.default_rng(seed).permutation(np.sort(firsts))[:k]
    centroids: Numbers = sample[np.sort(start)].copy()
    before = np.inf
    for _ in range(max_iter):
        labels, distances = _nearest(sample, centroids)
        total = float(distances.sum(dtype=np.float64))
        if before - total <= tol * max(total, 1e-12):
            break
        before = total
        centroids = _means(sample, labels, centroids)
    return centroids


def principal_directions(sample: Numbers, count: int, seed: int) -> Numbers:
    """Orthonormal directions in which the rows of a sample have most of their length, by power iteration."""
    products = sample.T @ sample
    found = np.random.default_rng(seed).normal(size=(sample.shape[1], count))
    for _ in range(6):
        found = np.linalg.qr(products @ found.astype(np.float32))[0]
    directions: Numbers = np.ascontiguousarray(found.T, np.float32)
    return directions


def _nearest(rows: Numbers, centroids: Numbers) -> tuple[Numbers, Numbers]:
    lengths = np.einsum("ij,ij->i", centroids, centroids)
    labels, distances = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
    for start in range(0, len(rows), CHUNK):
        some = rows[start : start + CHUNK]
        found = lengths - 2 * (some @ centroids.T)
        labels[start : start + CHUNK] = best = found.argmin(axis=1)
        distances[start : start + CHUNK] = 1 + found[np.arange(len(some)), best]
    return labels, np.maximum(distances, 0)


def _means(rows: Numbers, labels: Numbers, before: Numbers) -> Numbers:
    """The mean of each cell. An empty cell takes the farthest row of one of the largest cells."""
    k = len(before)
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels, minlength=k)
    there = np.flatnonzero(sizes)
    means, ordered = before.copy(), rows[order]
    for cell, end in zip(there.tolist(), np.cumsum(sizes[there]).tolist(), strict=True):
        means[cell] = ordered[end - sizes[cell] : end].mean(axis=0)
    empty = np.flatnonzero(sizes == 0)
    for cell, large in zip(empty.tolist(), np.argsort(-sizes, kind="stable").tolist(), strict=False):
        mine = rows[labels == large]
        if len(mine) > 1:
            means[cell] = mine[np.argmax(((mine - means[large]) ** 2).sum(axis=1))]
    return means


@fast_dataclass
class CentroidCells:
    """Centroids; and `margin`, how near to the border of another cell a row must be to be sent there too."""

    centroids: Numbers
    margin: float
    most: int
    """The largest number of cells that a row is sent to."""

    def __post_init__(self) -> None:
        self._lengths = np.einsum("ij,ij->i", self.centroids, self.centroids)
        self._gaps = self._table() if len(self.centroids) <= TABLE else None

    def _table(self) -> Numbers:
        squares = self._lengths[:, None] + self._lengths[None, :] - 2 * (self.centroids @ self.centroids.T)
        gaps: Numbers = np.sqrt(np.maximum(squares, 0))
        return gaps

    def assign(self, rows: Numbers) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """For each chunk: the cell of each row; and pairs of a row of the chunk and another cell that it is sent to."""
        padded = np.zeros((CHUNK, rows.shape[1]), np.float32)
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            padded[: len(some)] = some
            found = (self._lengths - 2 * (padded @ self.centroids.T))[: len(some)]
            near = self._nearest(some, found)
            squares = np.take_along_axis(found, near, axis=1)
            across = (squares[:, 1:] - squares[:, :1]) <= 2 * self.margin * self._gap(near)
            row, place = np.nonzero(across[:, : self.most - 1])
            yield near[:, 0], row, near[row, place + 1]

    def _nearest(self, rows: Numbers, found: Numbers) -> Numbers:
        """The nearest cells of each row, the nearest first."""
        most = min(max(self.most, 2), found.shape[1])
        near = np.argpartition(found, most - 1, axis=1)[:, :most] if most < found.shape[1] else _all(found)
        order = np.lexsort((near, np.take_along_axis(found, near, axis=1)), axis=1)
        near = np.take_along_axis(near, order, axis=1)
        if most == 1:
            return near
        squares = np.take_along_axis(found, near, axis=1)
        for row in np.flatnonzero(squares[:, 1] - squares[:, 0] < NEAR_TIE).tolist():
            theirs = self.centroids[near[row]].astype(np.float64)
            exact = ((theirs - rows[row].astype(np.float64)) ** 2).sum(axis=1)
            near[row] = near[row][np.lexsort((near[row], exact))]
        return near

    def _gap(self, near: Numbers) -> Numbers:
        """The distance from the nearest centroid to each of the other near ones."""
        if self._gaps is not None:
            gaps: Numbers = self._gaps[near[:, :1], near[:, 1:]]
            return gaps
        between = self.centroids[near[:, 1:]] - self.centroids[near[:, :1]]
        found: Numbers = np.sqrt(np.einsum("ijk,ijk->ij", between, between))
        return found


def _all(found: Numbers) -> Numbers:
    return np.tile(np.arange(found.shape[1]), (len(found), 1))
