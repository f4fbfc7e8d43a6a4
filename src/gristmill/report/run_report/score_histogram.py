"""Histograms of scores, and the limits named by a threshold. The report and the what-if page draw both.

Gives up: the few that lie far out. They are in the first and the last bar.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

_VALUE = r"(-?[\d.]+(?:e[+-]?\d+)?)\b"
_NUMBER = re.compile(rf"(\w+)={_VALUE}")
_LEAST = re.compile(rf"(at least) {_VALUE}")


def limits_in_threshold(threshold: str) -> list[tuple[str, float]]:
    """The numbers of a threshold that a score is compared with, by name. Where that is not the parameter itself, it is
    told beside it: `radius=6, at least 0.90625`."""
    if least := _LEAST.findall(threshold):
        return [(name, float(value)) for name, value in least]
    found = [(name, float(value)) for name, value in _NUMBER.findall(threshold)]
    clear = [(name, value) for name, value in found if name.startswith(("min", "max"))]
    return clear or [(name, value) for name, value in found if name not in ("seed", "n")]


def build_histogram(numbers: Any, counts: Any = None, bins: int = 48) -> dict[str, Any]:
    """Bars of equal width, or of equal ratio where numbers of very different sizes meet. With `counts`, the numbers are
    those of a summary (`core/records/row_summary.py`), each as often as it was counted."""
    values = np.asarray(numbers, np.float64)
    often = np.ones(len(values), np.int64) if counts is None else np.asarray(counts, np.int64)
    finite = np.isfinite(values)
    values, often = values[finite], often[finite]
    if not len(values):
        return {"rows": 0, "least": 0.0, "most": 0.0, "middle": 0.0, "edges": [0.0, 1.0], "counts": [0], "whole": False}
    order = np.argsort(values, kind="stable")
    values, often = values[order], often[order]
    shares = np.cumsum(often) / often.sum()
    low, middle, most, high = (float(values[np.searchsorted(shares, share)]) for share in (0.002, 0.5, 0.9, 0.998))
    # numbers below 1 are shares, which are compared by their difference
    crowded = low > 0 and high > 1 and (high / low > 200 or (high / low > 20 and most - low < (high - low) / 10))
    whole = bool((values == np.floor(values)).all())
    unit = max(float(whole), 0.0 if counts is None else _bucket_width(max(abs(low), abs(high))))
    edges = np.geomspace(low, high, bins + 1) if crowded else _bin_edges(low, high, bins, unit)
    bars, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges, weights=often)
    return {
        "rows": int(often.sum()),
        "least": float(values[0]),
        "most": float(values[-1]),
        "middle": middle,
        "edges": [float(edge) for edge in edges],
        "counts": [int(bar) for bar in bars],
        "whole": whole,
    }


def _bucket_width(number: float) -> float:
    """How far apart the numbers of a summary are at this size, or nearer to zero."""
    return float(2.0 ** np.floor(np.log2(number)) / 32) if number else 0.0


def _bin_edges(low: float, high: float, bins: int, unit: float) -> Any:
    """Where bars begin and end. All are as many units wide, so that none is short of a number that others have; but
    there is no share of more than 1."""
    share = low >= 0 and high <= 1
    if share and unit == 1:  # 0 and 1
        return np.array([0.0, 0.5, 1.0])
    if not unit and low == high:
        return np.array([0.0, 1.0] if share else [low - 0.5, high + 0.5])
    if not unit:
        return np.linspace(low, high, bins + 1)
    step = unit * max(np.ceil((high - low) / unit / bins), 1.0)
    if share and high == 1:  # numbers below it are half a unit apart: with it, the last bar has as many as the others
        top = 1 + unit / 2
        return np.clip(top - step * np.arange(np.ceil((top - low) / step), -1, -1), 0.0, 1.0)
    low = float(np.floor(low / step) * step)
    edges = low + step * np.arange(int((high - low) // step) + 2)
    if unit < 1 and edges[-2] < high:
        edges[-1] = high
    return np.minimum(edges, 1.0) if share else edges
