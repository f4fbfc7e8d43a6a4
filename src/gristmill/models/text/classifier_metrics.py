"""How good a classifier is: calibration, precision and recall at every threshold, and the table of confusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gristmill.models.model_loader import Array
from gristmill.models.text.logistic_regression import LogisticRegression

LEAST = 1e-6
"""Probabilities are at least this far from 0 and 1 before they are calibrated."""


@dataclass(frozen=True)
class Calibration:
    """Turns what a model says into a probability: Platt's line through the log-odds."""

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, probabilities: Array) -> Array:
        odds = self.slope * _log_odds(probabilities) + self.offset
        calibrated: Array = 1 / (1 + np.exp(-odds))
        return calibrated

    @classmethod
    def fit(cls, probabilities: Array, hits: Array) -> Calibration:
        if len(hits) < 20 or hits.all() or not hits.any():
            return cls()
        fitted = LogisticRegression.fit(_log_odds(probabilities)[:, None], hits.astype(int), 2, l2=1e-3)
        slope = float(fitted.weight[1, 0] - fitted.weight[0, 0])
        return cls(slope, float(fitted.bias[1] - fitted.bias[0])) if slope > 0 else cls()


def _log_odds(probabilities: Array) -> Array:
    wide = np.clip(np.asarray(probabilities, np.float64), LEAST, 1 - LEAST)
    odds: Array = np.log(wide / (1 - wide))
    return odds


@dataclass(frozen=True)
class CurvePoint:
    """What is kept at a threshold: the share of it that is right, and the share of what is right that is kept."""

    threshold: float
    precision: float
    recall: float
    kept: float


def precision_recall(scores: Array, hits: Array) -> list[CurvePoint]:
    """A point for each score, from the highest threshold to the lowest."""
    order = np.argsort(-scores, kind="stable")
    ordered, found = scores[order], np.cumsum(hits[order])
    last = np.append(ordered[1:] != ordered[:-1], True) if len(ordered) else np.zeros(0, bool)
    total = max(1, int(found[-1])) if len(found) else 1
    return [
        CurvePoint(float(ordered[i]), float(found[i]) / (i + 1), float(found[i]) / total, (i + 1) / len(ordered))
        for i in np.flatnonzero(last).tolist()
    ]


def threshold_for(points: Sequence[CurvePoint], precision: float) -> CurvePoint | None:
    """The lowest threshold that has the precision; None if none has."""
    return next((point for point in reversed(points) if point.precision >= precision), None)


def confusion(wanted: Sequence[str], found: Sequence[str], labels: Sequence[str]) -> list[list[int]]:
    """How often each label, by row, was found to be each label, by column."""
    places = {label: place for place, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)), np.int64)
    for one, other in zip(wanted, found, strict=True):
        table[places[one], places[other]] += 1
    rows: list[list[int]] = table.tolist()
    return rows


def calibration_error(scores: Array, hits: Array, bins: int = 10) -> float:
    """By how much the probabilities are wrong on average, over bins of equal width."""
    places = np.minimum((scores * bins).astype(int), bins - 1)
    error = 0.0
    for place in range(bins):
        here = places == place
        if here.any():
            error += float(here.mean()) * abs(float(scores[here].mean()) - float(hits[here].mean()))
    return error
