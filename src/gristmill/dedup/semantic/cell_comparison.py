"""Compares the embeddings of one cell with each other, in the order of their rank.

Each row is compared with the rows before it, block by block, as a product of two float32 matrices. Long embeddings are
first compared in a short form: their components in the principal directions, and the length of the rest. The similarity
of short forms is never below the true one, so only pairs that it lets pass are compared in full. Pairs just at the
threshold are computed again in float64. Of the near rows before it, a row is linked with all that would be kept if this
cell were the whole input, and with some of the others: which rows are kept depends on other cells too
(`greedy_selection.py`).

Gives up some links in a cell with thousands of rows that are near each other: those with rows that would be dropped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from gristmill.dedup.columns.arrow_numpy import Numbers

BLOCK, STORE = 1024, 4096
"""The rows of a block, and of a store that blocks are compared with."""

SLACK = 1e-6
"""How far a similarity may lie below the threshold: rounding to float32 loses up to so much."""

FEW = 0.005
"""If the short form lets at most this share of pairs pass, they are compared one by one, and otherwise as matrices."""

NEAR = 1e-5
"""float32 similarities this close to the threshold are computed again in float64."""

SAME = 1 - 2e-6
OTHERS = 16
"""The number of rows that would be dropped, the most similar ones, that a row is linked with."""

REMEMBERED = 4096
"""The number of rows of a cell that would be dropped and are still compared with later rows."""


def exact_similarity(one: Numbers, other: Numbers) -> Numbers:
    """The similarity of the rows of two matrices, in float64. Unlike a matrix product, it is the same in any block."""
    similarity: Numbers = np.einsum("ij,ij->i", one.astype(np.float64), other.astype(np.float64))
    return similarity


def short_form(rows: Numbers, basis: Numbers) -> Numbers:
    """The short form of rows of unit length, whose products are never below those of the rows themselves."""
    inside = rows @ basis.T
    rest = np.sqrt(np.maximum(1 - np.einsum("ij,ij->i", inside, inside), 0))
    return np.concatenate([inside, rest[:, None]], axis=1)


SimilarPairs: TypeAlias = tuple[Numbers, Numbers, Numbers]


def near_pairs(
    rows: Numbers,
    others: Numbers,
    least: float,
    before: bool = False,
    short: tuple[Numbers, Numbers] | None = None,
) -> SimilarPairs:
    """Pairs of a row and another with a similarity of `least` or more; with `before`, only rows before it."""
    low = np.float32(least - NEAR)
    if short is not None:
        v, u = _above(short[0] @ short[1].T, low, before)
        if len(v) <= FEW * len(rows) * len(others):
            parts = [
                exact_similarity(rows[v[at : at + STORE]], others[u[at : at + STORE]]) for at in range(0, len(v), STORE)
            ]
            scores = np.concatenate([np.zeros(0), *parts])
            return v[scores >= least], u[scores >= least], scores[scores >= least]
    products = rows @ others.T
    v, u = _above(products, low, before)
    scores = products[v, u].astype(np.float64)
    unsure = np.flatnonzero(scores < least + NEAR)
    for start in range(0, len(unsure), STORE):
        part = unsure[start : start + STORE]
        scores[part] = exact_similarity(rows[v[part]], others[u[part]])
    sure = scores >= least
    return v[sure], u[sure], scores[sure]


def _above(products: Numbers, low: np.float32, before: bool) -> tuple[Numbers, Numbers]:
    """Row and column of the products from `low` on."""
    if not products.size or products.max() < low:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    v, u = np.divmod(np.flatnonzero(products >= low), products.shape[1])
    return (v[u < v], u[u < v]) if before else (v, u)


class CellLinks:
    """The rows of a cell, added in the order of their rank, and the links between them."""

    def __init__(self, number: int, least: float, greedy: bool, most_bytes: int, basis: Numbers | None = None) -> None:
        """Without `greedy`, a dropped row is as good a reason to drop others as a kept one. `basis` has the directions
        of the short form."""
        self.basis = basis if basis is not None and len(basis) else None
        self.number, self.least, self.greedy, self.most_bytes = number, least, greedy, most_bytes
        self.rows = self.others = 0
        self._links: list[SimilarPairs] = []
        self._stores: list[_RowStore] = []

    def add(self, rows: Numbers) -> None:
        for start in range(0, len(rows), BLOCK):
            self._block(rows[start : start + BLOCK])

    def links(self) -> SimilarPairs:
        """Pairs of rows `u` before `v`, by their numbers in the cell, and their similarity."""
        parts = [np.concatenate(part) for part in zip(*self._links, strict=True)] if self._links else []
        return (parts[1], parts[0], parts[2]) if parts else (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))

    def _block(self, rows: Numbers) -> None:
        short = None if self.basis is None else short_form(rows, self.basis)
        keeps = np.ones(len(rows), np.bool_)
        same = np.zeros(len(rows), np.bool_)
        found = []
        for store in self._stores:
            v, u, scores = near_pairs(rows, store.rows, self.least, short=_both(short, store.short))
            stands = store.keeps[u]
            keeps[v[stands]] = False
            same[v[stands & (scores > SAME)]] = True
            found.append(self._chosen(rows, store.rows, v, u, scores, stands, store.numbers))
        v, u, scores = near_pairs(rows, rows, self.least, before=True, short=_both(short, short))
        near = np.zeros((len(rows), len(rows)), np.bool_)
        near[v, u] = True
        for row in np.unique(v).tolist():
            keeps[row] = keeps[row] and not (near[row] & keeps).any()
        stands = keeps[u]
        same[v[stands & (scores > SAME)]] = True
        numbers = np.arange(self.rows, self.rows + len(rows))
        found.append(self._chosen(rows, rows, v, u, scores, stands, numbers))
        self._hold_links(found)
        self._store_rows(rows, short, keeps, same, numbers)
        self.rows += len(rows)

    def _chosen(
        self,
        rows: Numbers,
        others: Numbers,
        v: Numbers,
        u: Numbers,
        scores: Numbers,
        stands: Numbers,
        numbers: Numbers,
    ) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """The links to keep, with their exact similarity."""
        best = best_links(v, scores, stands, u) if self.greedy else best_links(v, scores, np.zeros_like(stands), u, 1)
        v, u, stands = v[best], u[best], stands[best]
        parts = [
            exact_similarity(rows[v[at : at + STORE]], others[u[at : at + STORE]]) for at in range(0, len(v), STORE)
        ]
        return v + self.rows, numbers[u], np.concatenate([np.zeros(0), *parts]), stands

    def _hold_links(self, found: Sequence[tuple[Numbers, Numbers, Numbers, Numbers]]) -> None:
        v, u, scores, stands = (np.concatenate(part) for part in zip(*found, strict=True))
        best = best_links(v, scores, stands, u) if self.greedy else best_links(v, scores, np.zeros_like(stands), u, 1)
        if len(best):
            self._links.append((v[best], u[best], scores[best]))

    def _store_rows(
        self, rows: Numbers, short: Numbers | None, keeps: Numbers, same: Numbers, numbers: Numbers
    ) -> None:
        """Store the rows that later rows are compared with."""
        more = ~keeps & ~same
        if self.greedy:
            more &= np.cumsum(more) <= REMEMBERED - self.others
        self.others += int(more.sum())
        chosen = np.flatnonzero(keeps | more)
        while len(chosen):
            if not self._stores or not self._stores[-1].capacity:
                held = len(self._stores) * STORE * rows.shape[1] * 4
                width = 0 if short is None else short.shape[1]
                self._stores.append(_RowStore(rows.shape[1], width, held > self.most_bytes))
            part, chosen = np.split(chosen, [self._stores[-1].capacity])
            self._stores[-1].add(rows[part], None if short is None else short[part], keeps[part], numbers[part])


def _both(one: Numbers | None, other: Numbers | None) -> tuple[Numbers, Numbers] | None:
    return None if one is None or other is None else (one, other)


def best_links(v: Numbers, scores: Numbers, stands: Numbers, u: Numbers, most: int = OTHERS) -> Numbers:
    """Of the links of each row, all with rows that are kept (`stands`), and the `most` best of the others."""
    order = np.lexsort((u, -scores, stands, v))
    group = v[order] * 2 + stands[order]
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
    position = np.arange(len(group)) - np.repeat(first, np.diff(np.append(first, len(group))))
    best: Numbers = order[stands[order] | (position < most)]
    return best


class _RowStore:
    """Rows that later rows are compared with, in memory or in a temporary file."""

    def __init__(self, width: int, short: int, on_disk: bool) -> None:
        self._rows: Numbers = np.empty((0 if on_disk else STORE, width), np.float32)
        if on_disk:
            with tempfile.TemporaryFile(prefix="gristmill-cell-") as file:  # unlinked, but mapped as long as it is used
                self._rows = np.memmap(file, np.float32, "w+", shape=(STORE, width))
        self._keeps, self._numbers = np.zeros(STORE, np.bool_), np.zeros(STORE, np.int64)
        self._short = np.empty((STORE, short), np.float32) if short else None
        self._count = 0

    @property
    def capacity(self) -> int:
        return STORE - self._count

    @property
    def rows(self) -> Numbers:
        return self._rows[: self._count]

    @property
    def short(self) -> Numbers | None:
        return None if self._short is None else self._short[: self._count]

    @property
    def keeps(self) -> Numbers:
        return self._keeps[: self._count]

    @property
    def numbers(self) -> Numbers:
        return self._numbers[: self._count]

    def add(self, rows: Numbers, short: Numbers | None, keeps: Numbers, numbers: Numbers) -> None:
        end = self._count + len(rows)
        if self._short is not None:
            self._short[self._count : end] = short
        self._rows[self._count : end] = rows
        self._keeps[self._count : end] = keeps
        self._numbers[self._count : end] = numbers
        self._count = end
