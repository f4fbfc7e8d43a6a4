"""Rows of one cell, compared with each other, in the order of their rank.

Each row is compared with rows before it, block by block: a product of two matrices of float32. Of long rows a short
form is compared first: where they point in the directions that matter, and the length of the rest. By it no two rows
are less similar than they are, so that only pairs that it lets pass need to be looked at. Pairs that lie just at the
threshold are computed once more in float64. Of the rows before it that are near, a row is linked with all that
would be kept if this cell were all there is, and with some of the others: what is kept in the end depends on other
cells too (`greedy_selection.py`).

What is given up: of a cell with thousands of rows that are near each other, links with those that others stand for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from gristmill.dedup.columns.arrow_numpy import Numbers

BLOCK, STORE = 1024, 4096
"""Rows that are compared at a time, and with so many."""

SLACK = 1e-6
"""What a similarity may lie below the threshold: so much is lost when numbers are rounded to float32."""

FEW = 0.005
"""Up to this share of pairs, those that the short form lets pass are looked at one by one."""

NEAR = 1e-5
"""Similarities of float32 that are so near to the threshold are computed in float64."""

SAME = 1 - 2e-6
OTHERS = 16
"""Of rows that would not be kept, a row is linked with so many, the most similar ones."""

REMEMBERED = 4096
"""So many rows of a cell that would not be kept are compared with others."""


def exact_similarity(one: Numbers, other: Numbers) -> Numbers:
    """The similarity of the rows of two matrices, in float64. It does not depend on which rows are beside them."""
    found: Numbers = np.einsum("ij,ij->i", one.astype(np.float64), other.astype(np.float64))
    return found


def short_form(rows: Numbers, basis: Numbers) -> Numbers:
    """A short form of rows of unit length, whose products are not below those of the rows themselves."""
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
    """Pairs of a row and another with at least such a similarity; with `before`, others are the rows before it."""
    low = np.float32(least - NEAR)
    if short is not None:
        v, u = _above(short[0] @ short[1].T, low, before)
        if len(v) <= FEW * len(rows) * len(others):
            parts = [
                exact_similarity(rows[v[at : at + STORE]], others[u[at : at + STORE]]) for at in range(0, len(v), STORE)
            ]
            scores = np.concatenate([np.zeros(0), *parts])
            return v[scores >= least], u[scores >= least], scores[scores >= least]
    found = rows @ others.T
    v, u = _above(found, low, before)
    scores = found[v, u].astype(np.float64)
    unsure = np.flatnonzero(scores < least + NEAR)
    for start in range(0, len(unsure), STORE):
        some = unsure[start : start + STORE]
        scores[some] = exact_similarity(rows[v[some]], others[u[some]])
    sure = scores >= least
    return v[sure], u[sure], scores[sure]


def _above(found: Numbers, low: np.float32, before: bool) -> tuple[Numbers, Numbers]:
    if not found.size or found.max() < low:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    v, u = np.divmod(np.flatnonzero(found >= low), found.shape[1])
    return (v[u < v], u[u < v]) if before else (v, u)


class CellLinks:
    """The rows of a cell, which come in the order of their rank, and the links between them."""

    def __init__(self, number: int, least: float, greedy: bool, most_bytes: int, basis: Numbers | None = None) -> None:
        """Without `greedy`, a row that is not kept is as good a reason to drop others as one that is. `basis` are the
        directions of the short form."""
        self.basis = basis if basis is not None and len(basis) else None
        self.number, self.least, self.greedy, self.most_bytes = number, least, greedy, most_bytes
        self.rows = self.others = 0
        self._links: list[SimilarPairs] = []
        self._stores: list[_RowStore] = []

    def add(self, rows: Numbers) -> None:
        for start in range(0, len(rows), BLOCK):
            self._block(rows[start : start + BLOCK])

    def links(self) -> SimilarPairs:
        """Pairs of rows `u` before `v`, by their numbers in the cell, and how similar they are."""
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
        """Links that matter, with their similarity to the last digit."""
        some = best_links(v, scores, stands, u) if self.greedy else best_links(v, scores, np.zeros_like(stands), u, 1)
        v, u, stands = v[some], u[some], stands[some]
        parts = [
            exact_similarity(rows[v[at : at + STORE]], others[u[at : at + STORE]]) for at in range(0, len(v), STORE)
        ]
        return v + self.rows, numbers[u], np.concatenate([np.zeros(0), *parts]), stands

    def _hold_links(self, found: Sequence[tuple[Numbers, Numbers, Numbers, Numbers]]) -> None:
        v, u, scores, stands = (np.concatenate(part) for part in zip(*found, strict=True))
        some = best_links(v, scores, stands, u) if self.greedy else best_links(v, scores, np.zeros_like(stands), u, 1)
        if len(some):
            self._links.append((v[some], u[some], scores[some]))

    def _store_rows(
        self, rows: Numbers, short: Numbers | None, keeps: Numbers, same: Numbers, numbers: Numbers
    ) -> None:
        """What later rows are compared with."""
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
            some, chosen = np.split(chosen, [self._stores[-1].capacity])
            self._stores[-1].add(rows[some], None if short is None else short[some], keeps[some], numbers[some])


def _both(one: Numbers | None, other: Numbers | None) -> tuple[Numbers, Numbers] | None:
    return None if one is None or other is None else (one, other)


def best_links(v: Numbers, scores: Numbers, stands: Numbers, u: Numbers, most: int = OTHERS) -> Numbers:
    """Of the links of each row, those with rows that stand, and the best of the others."""
    order = np.lexsort((u, -scores, stands, v))
    group = v[order] * 2 + stands[order]
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
    place = np.arange(len(group)) - np.repeat(first, np.diff(np.append(first, len(group))))
    found: Numbers = order[stands[order] | (place < most)]
    return found


class _RowStore:
    """Rows that others are compared with; on disk, if there are too many."""

    def __init__(self, width: int, short: int, on_disk: bool) -> None:
        self._rows: Numbers = np.empty((0 if on_disk else STORE, width), np.float32)
        if on_disk:
            with tempfile.TemporaryFile(prefix="gristmill-cell-") as file:  # its pages stay as long as they are used
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
