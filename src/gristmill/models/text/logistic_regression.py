"""Logistic regression for several labels, on embeddings: fitted by L-BFGS in numpy, with the same result every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gristmill.models.model_loader import Array

MEMORY = 10
"""How many steps L-BFGS remembers."""


@dataclass(frozen=True)
class LogisticRegression:
    """A weight for each label and number, and a bias for each label."""

    weight: Array
    bias: Array

    def __call__(self, rows: Array) -> Array:
        """The probabilities of the labels of each row, computed one row at a time."""
        logits = np.einsum("ij,lj->il", rows.astype(np.float64), self.weight.astype(np.float64)) + self.bias
        raised = np.exp(logits - logits.max(axis=1, keepdims=True)) if len(rows) else logits
        shares: Array = raised / raised.sum(axis=1, keepdims=True) if len(rows) else raised
        return shares

    @classmethod
    def fit(cls, rows: Array, labels: Array, count: int, l2: float = 1e-6, rounds: int = 200) -> LogisticRegression:
        """Fit on rows and the numbers of their labels. `l2` keeps weights small."""
        width = rows.shape[1]
        x, hit = rows.astype(np.float64), np.eye(count)[labels]

        def loss(flat: Array) -> tuple[float, Array]:
            weight, bias = flat[: count * width].reshape(count, width), flat[count * width :]
            logits = x @ weight.T + bias
            logits -= logits.max(axis=1, keepdims=True)
            totals = np.log(np.exp(logits).sum(axis=1, keepdims=True))
            error = (np.exp(logits - totals) - hit) / len(x)
            value = -((logits - totals) * hit).sum() / len(x) + l2 * (weight**2).sum() / 2
            slope = np.concatenate([(error.T @ x + l2 * weight).ravel(), error.sum(axis=0)])
            return float(value), slope

        flat = minimise(loss, np.zeros(count * (width + 1)), rounds)
        weight = flat[: count * width].reshape(count, width)
        return cls(weight.astype(np.float32), flat[count * width :].astype(np.float32))


def minimise(loss: Callable[[Array], tuple[float, Array]], start: Array, rounds: int) -> Array:
    """The minimum of a smooth convex function, by L-BFGS with halved steps."""
    at, (value, slope) = start, loss(start)
    steps: list[tuple[Array, Array]] = []
    for _ in range(rounds):
        direction = -_curved(slope, steps)
        downhill = float(direction @ slope)
        if downhill > -1e-14:
            break
        size = 1.0 if steps else min(1.0, 1.0 / max(float(np.abs(slope).sum()), 1e-12))
        new_value, new_slope = loss(at + size * direction)
        while new_value > value + 1e-4 * size * downhill and size > 1e-10:
            size /= 2
            new_value, new_slope = loss(at + size * direction)
        moved, bent = size * direction, new_slope - slope
        if float(moved @ bent) > 1e-12:
            steps = [*steps[-(MEMORY - 1) :], (moved, bent)]
        converged = abs(value - new_value) < 1e-9 * max(1.0, abs(value))
        at, value, slope = at + moved, new_value, new_slope
        if converged:
            break
    return at


def _curved(slope: Array, steps: list[tuple[Array, Array]]) -> Array:
    """The slope times the inverse of the curvature, as the last steps show it."""
    turned, shares = slope.copy(), []
    for moved, bent in reversed(steps):
        share = float(moved @ turned) / float(moved @ bent)
        shares.append(share)
        turned -= share * bent
    if steps:
        moved, bent = steps[-1]
        turned *= float(moved @ bent) / float(bent @ bent)
    for (moved, bent), share in zip(steps, reversed(shares), strict=True):
        turned += (share - float(bent @ turned) / float(moved @ bent)) * moved
    return turned
