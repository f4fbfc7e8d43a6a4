"""Score heads: the few linear layers that turn an embedding into a score, in numpy.

They are read from the files that LAION and others publish: `layers.0.weight`, `layers.0.bias`, ... for the aesthetic
predictor, `norm.mean`, `norm.variance`, `linear_1.weight`, ... for the detector of unsafe images.

Each row is computed on its own and without BLAS, so that its score depends neither on the other rows nor on the number
of threads. This gives up speed, which does not matter next to the cost of the embedding.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import InputError
from gristmill.models.model_loader import Array
from gristmill.models.weights import Weights, read_weights

_LAYER = re.compile(r"(?:^|.*\.)(?:layers|mlp|linear|fc|head|classifier)[._]?(\d*)\.weight$")


@dataclass(frozen=True)
class ScoreHead:
    """Linear layers in sequence, optionally with ReLU between them and a sigmoid at the end."""

    layers: Sequence[tuple[Array, Array]]
    mean: Array | None = None
    deviation: Array | None = None
    relu: bool = False
    sigmoid: bool = False

    @classmethod
    def read(cls, path: Path, relu: bool = False, sigmoid: bool = False) -> ScoreHead:
        return cls.of(read_weights(path), str(path), relu, sigmoid)

    @classmethod
    def of(cls, weights: Weights, place: str, relu: bool = False, sigmoid: bool = False) -> ScoreHead:
        named = [(match, name) for name in weights if (match := _LAYER.match(name)) and weights[name].ndim == 2]
        ordered = [name for _, name in sorted((int(match[1] or 0), name) for match, name in named)]
        layers = [(_f32(weights[name]), _bias(weights, name)) for name in ordered]
        chained = all(before[0].shape[0] == after[0].shape[1] for before, after in pairwise(layers))
        if not layers or not chained or layers[-1][0].shape[0] != 1:
            shapes = ", ".join(f"{name} {weights[name].shape}" for name in list(weights)[:12])
            raise InputError(
                f"{place} is not a score head: its weights are {shapes}. Give a file of linear layers, the last of "
                "which has one output"
            )
        mean, variance = weights.get("norm.mean"), weights.get("norm.variance")
        if mean is None or variance is None:
            return cls(layers, relu=relu, sigmoid=sigmoid)
        deviation = np.maximum(np.sqrt(_f32(variance).reshape(-1)), np.float32(1e-7))
        return cls(layers, _f32(mean).reshape(-1), deviation, relu, sigmoid)

    @property
    def width(self) -> int:
        """The length of the embeddings it expects."""
        return int(self.layers[0][0].shape[1])

    def __call__(self, embeddings: Array) -> Array:
        return np.array([self._score(row) for row in embeddings], np.float32)

    def _score(self, x: Array) -> float:
        if self.mean is not None and self.deviation is not None:
            x = (x - self.mean) / self.deviation
        for number, (weight, bias) in enumerate(self.layers):
            x = np.einsum("oi,i->o", weight, x) + bias
            if self.relu and number + 1 < len(self.layers):
                x = np.maximum(x, 0)
        score = float(x[0])
        return 1 / (1 + float(np.exp(-score))) if self.sigmoid else score


def _bias(weights: Weights, name: str) -> Array:
    bias = weights.get(name.removesuffix("weight") + "bias")
    return np.zeros(len(weights[name]), np.float32) if bias is None else _f32(bias)


def _f32(value: Array) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(value, np.float32)
