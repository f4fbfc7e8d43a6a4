"""The heads of published classifiers of text: what turns hidden states into logits, and logits into probabilities.

    first token     dropout and one linear layer on the first token: `fc`, as NVIDIA's classifiers of quality, domain
                    and content type have it
    sequence        a *ForSequenceClassification model of `transformers`: BERT, RoBERTa, DeBERTa
    mean, several   several linear layers on the mean of all tokens: `head_0.fc` ..., NVIDIA's classifier of prompts

They are computed in numpy, one row at a time, so that a score depends neither on other rows nor on threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import InputError
from gristmill.models.model_loader import Array
from gristmill.models.text.text_tokenizer import read_json
from gristmill.models.weights import Weights, read_weights, weights_file

SOFTMAX, SIGMOID, NONE = "softmax", "sigmoid", "none"


@dataclass(frozen=True)
class HeadLayer:
    """A linear layer and what comes before it."""

    weight: Array
    bias: Array
    activation: str = NONE

    def __call__(self, row: Array) -> Array:
        out: Array = np.einsum("oi,i->o", self.weight, row.astype(np.float32, copy=False)) + self.bias
        if self.activation == "tanh":
            out = np.tanh(out)
        if self.activation == "gelu":
            out = _gelu(out)
        if self.activation == "relu":
            out = np.maximum(out, 0)
        return out


@dataclass(frozen=True)
class ClassifierHead:
    """Logits from hidden states, or from the output of a graph that has the head inside."""

    labels: Sequence[str]
    output: str
    branches: Sequence[Sequence[HeadLayer]]
    """Layers in sequence, for each of the outputs; none: the model gives logits."""
    mean: bool = False
    """The row is the mean of all tokens, not the first one."""

    @classmethod
    def read(cls, place: Path) -> ClassifierHead:
        folder = place.parent if place.is_file() else place
        config = read_json(folder / "config.json") or read_json(folder.parent / "config.json")
        labels, output = labels_of(config), _output_of(config)
        file = weights_file(folder)
        if file is None:  # a graph, which has its head inside
            return cls(labels, output, ())
        weights = read_weights(file)
        if "head_0.fc.weight" in weights:
            count = sum(name.startswith("head_") and name.endswith(".fc.weight") for name in weights)
            branches = [[_layer(weights, f"head_{number}.fc")] for number in range(count)]
            return cls(labels, SOFTMAX, branches, mean=True)
        return cls(labels, output, [_sequence_layers(weights, config, folder)])

    def logits(self, states: Array, mask: Array) -> list[list[Array]]:
        """The logits of each row, by branch."""
        if not self.branches:
            return [[row.astype(np.float32, copy=False)] for row in (states if states.ndim == 2 else states[:, 0])]
        rows = [self._row(*pair) for pair in zip(states, mask, strict=True)]
        return [[_through(layers, row) for layers in self.branches] for row in rows]

    def __call__(self, states: Array, mask: Array) -> Array:
        """The probabilities of each row, or for a regression its score; branches one after the other."""
        found = [np.concatenate([activated(one, self.output) for one in row]) for row in self.logits(states, mask)]
        return np.stack(found)

    def _row(self, states: Array, mask: Array) -> Array:
        own = states[mask.astype(bool)]
        if not self.mean:
            first: Array = own[0]
            return first
        mean: Array = (own.sum(axis=0, dtype=np.float64) / len(own)).astype(np.float32)
        return mean


def activated(logits: Array, output: str) -> Array:
    """Logits as probabilities."""
    wide: Array = logits.astype(np.float64)
    if output == SOFTMAX:
        raised: Array = np.exp(wide - wide.max())
        wide = raised / raised.sum()
    elif output == SIGMOID:
        wide = 1 / (1 + np.exp(-wide))
    return wide.astype(np.float32)


def labels_of(config: Mapping[str, Any]) -> list[str]:
    """The labels of a classifier, by number."""
    named = config.get("id2label") or {}
    if named:
        return [str(named[key]) for key in sorted(named, key=int)]
    numbered = config.get("label2id") or {}
    return sorted(numbered, key=lambda label: int(numbered[label]))


def _output_of(config: Mapping[str, Any]) -> str:
    kind = config.get("problem_type")
    if kind == "regression" or (kind is None and config.get("num_labels") == 1) or len(labels_of(config)) == 1:
        return NONE
    return SIGMOID if kind == "multi_label_classification" else SOFTMAX


def _sequence_layers(weights: Weights, config: Mapping[str, Any], folder: Path) -> list[HeadLayer]:
    """The layers of a head on the first token, by the names of its weights."""
    if "fc.weight" in weights:
        return [_layer(weights, "fc")]
    if "classifier.out_proj.weight" in weights:
        return [_layer(weights, "classifier.dense", "tanh"), _layer(weights, "classifier.out_proj")]
    pooler = next((name.removesuffix(".weight") for name in weights if name.endswith("pooler.dense.weight")), None)
    if "classifier.weight" not in weights:
        raise InputError(f"{folder} is not a classifier: its weights have neither fc, classifier nor head_0.fc")
    if pooler is None:
        return [_layer(weights, "classifier")]
    activation = str(config.get("pooler_hidden_act", "gelu")) if pooler == "pooler.dense" else "tanh"
    return [_layer(weights, pooler, activation), _layer(weights, "classifier")]


def _layer(weights: Weights, name: str, activation: str = NONE) -> HeadLayer:
    weight = np.ascontiguousarray(weights[f"{name}.weight"], np.float32)
    bias = weights.get(f"{name}.bias")
    bias = np.zeros(len(weight), np.float32) if bias is None else np.asarray(bias, np.float32)
    return HeadLayer(weight, bias, activation)


def _through(layers: Sequence[HeadLayer], row: Array) -> Array:
    for layer in layers:
        row = layer(row)
    return row


def _gelu(x: Array) -> Array:
    from math import erf

    return np.array([0.5 * one * (1 + erf(one / 2**0.5)) for one in x.astype(np.float64).tolist()], np.float32)
