"""Turns the hidden states of a document into one embedding, as the files of a sentence-transformers folder say.

`modules.json` lists the steps after the encoder: how to pool, dense layers, normalising. A folder without it is pooled
by the mean and normalised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import InputError
from gristmill.models.model_loader import Array
from gristmill.models.text.text_tokenizer import read_json
from gristmill.models.weights import read_weights

MEAN, LAST, CLS, MAX = "mean_pooling", "last_token", "cls", "max"
POOLINGS = (MEAN, LAST, CLS, MAX)
_MODES = {
    "pooling_mode_cls_token": CLS, "pooling_mode_lasttoken": LAST,
    "pooling_mode_max_tokens": MAX, "pooling_mode_mean_tokens": MEAN,
}  # fmt: skip


@dataclass(frozen=True)
class DenseLayer:
    """A linear layer after the pooling."""

    weight: Array
    bias: Array | None = None
    tanh: bool = False

    def __call__(self, row: Array) -> Array:
        out: Array = np.einsum("oi,i->o", self.weight, row)
        out = out if self.bias is None else out + self.bias
        if self.tanh:
            out = np.tanh(out)
        return out


@dataclass(frozen=True)
class Pooling:
    """How an embedding is made of hidden states."""

    kind: str = MEAN
    normalise: bool = True
    dense: Sequence[DenseLayer] = field(default=())

    @classmethod
    def read(cls, place: Path, kind: str | None = None, normalise: bool | None = None) -> Pooling:
        """What the folder says; `kind` and `normalise` take precedence."""
        folder = place.parent if place.is_file() else place
        folder = folder.parent if folder.name == "onnx" else folder
        modules = _modules(folder)
        found = next((_mode(folder / path / "config.json") for path, name in modules if name == "Pooling"), MEAN)
        dense = [_dense(folder / path) for path, name in modules if name == "Dense"]
        unit = not modules or any(name == "Normalize" for _, name in modules)
        return cls(kind or found, unit if normalise is None else normalise, dense)

    def __call__(self, states: Array, mask: Array) -> Array:
        """One embedding for each row of (rows, length, width)."""
        if states.ndim == 2:  # a graph that pools already
            pooled = states.astype(np.float32, copy=False)
        else:
            pooled = np.stack([self._pooled(*pair) for pair in zip(states, mask, strict=True)])
        rows = [self._finished(row) for row in pooled]
        return np.stack(rows)

    def _pooled(self, states: Array, mask: Array) -> Array:
        own: Array = states[mask.astype(bool)]
        if self.kind == CLS:
            row = own[0]
        elif self.kind == LAST:
            row = own[-1]
        elif self.kind == MAX:
            row = own.max(axis=0)
        else:
            row = own.sum(axis=0, dtype=np.float64) / len(own)
        pooled: Array = row.astype(np.float32)
        return pooled

    def _finished(self, row: Array) -> Array:
        for layer in self.dense:
            row = layer(row)
        if not self.normalise:
            return row
        length = float(np.sqrt(np.square(row, dtype=np.float64).sum()))
        return (row / length if length > 0 else row).astype(np.float32)


def _modules(folder: Path) -> list[tuple[str, str]]:
    """The path and the last part of the type of each module of a sentence-transformers folder."""
    file = folder / "modules.json"
    if not file.is_file():
        return []
    import json

    listed = json.loads(file.read_text())
    known = {"Transformer", "Pooling", "Dense", "Normalize"}
    found = [(str(one["path"]), str(one["type"]).rpartition(".")[2]) for one in listed]
    if unknown := [name for _, name in found if name not in known]:
        raise InputError(f"{file}: the module {unknown[0]} is not supported, only {', '.join(sorted(known))}")
    if any(".." in Path(path).parts or Path(path).is_absolute() for path, _ in found):
        raise InputError(f"{file}: a module lies outside of the folder")
    return found


def _mode(file: Path) -> str:
    config: Mapping[str, Any] = read_json(file)
    if "pooling_mode" in config:
        given = str(config["pooling_mode"])
        names = {"mean": MEAN, "cls": CLS, "lasttoken": LAST, "max": MAX}
        if given not in names:
            raise InputError(f"{file}: pooling_mode {given!r} is not supported, only {', '.join(names)}")
        return names[given]
    chosen = [kind for name, kind in _MODES.items() if config.get(name)]
    if len(chosen) != 1:
        raise InputError(f"{file}: {len(chosen)} modes of pooling are set, must be one: mean, cls, last or max")
    return chosen[0]


def _dense(folder: Path) -> DenseLayer:
    config = read_json(folder / "config.json")
    weights = read_weights(next(iter(sorted(folder.glob("*.safetensors"))), folder / "pytorch_model.bin"))
    activation = str(config.get("activation_function", "")).rpartition(".")[2]
    if activation not in ("Identity", "Tanh", ""):
        raise InputError(f"{folder}/config.json: activation {activation} is not supported, only Identity and Tanh")
    return DenseLayer(weights["linear.weight"], weights.get("linear.bias"), activation == "Tanh")
