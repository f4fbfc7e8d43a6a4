"""Builds ONNX graphs of text encoders directly from their published weights, without PyTorch.

    bert                    also sentence-transformers and embedders of this architecture; FineWeb-Edu
    roberta, xlm-roberta    the same with other positions
    deberta-v2              also DeBERTa v3: quality, domain and content type classifiers

A graph maps `input_ids` of (rows, length) to `last_hidden_state`. It has no mask: rows of a call have one length, as
`token_rows.py` gives them on a CPU. Relative positions of DeBERTa are projected once, when the graph is built.

Gives up: other architectures, for which a graph (`model.onnx`) must be given or PyTorch installed; and graphs of more
than 2 GB, the most that one ONNX file can hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import InputError, PlanError, require
from gristmill.models.clip_to_onnx import GraphOps
from gristmill.models.model_loader import Array
from gristmill.models.text.text_tokenizer import read_json
from gristmill.models.weights import Weights, read_weights, weights_file

OPSET, IR = 20, 10
OUTPUT = "last_hidden_state"
BERT, DEBERTA = ("bert", "roberta", "xlm-roberta", "camembert"), ("deberta-v2",)
_MAX_GRAPH_BYTES = 2_000_000_000

_DEBERTA_V3 = {
    "model_type": "deberta-v2", "hidden_act": "gelu", "layer_norm_eps": 1e-7, "max_position_embeddings": 512,
    "max_relative_positions": -1, "position_biased_input": False, "position_buckets": 256,
    "norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"], "relative_attention": True, "share_att_key": True,
    "type_vocab_size": 0, "pad_token_id": 0,
}  # fmt: skip
BASE_MODELS = {
    "deberta-v3-base": {**_DEBERTA_V3, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12},
    "mdeberta-v3-base": {**_DEBERTA_V3, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12},
    "deberta-v3-small": {**_DEBERTA_V3, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 6},
    "deberta-v3-large": {**_DEBERTA_V3, "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24},
}
"""Shapes of models that others name as their `base_model` without repeating its shape."""


@dataclass(frozen=True)
class EncoderWeights:
    """The weights of an encoder, with names as without a head, and its configuration."""

    config: Mapping[str, Any]
    weights: Weights
    root: str
    place: Path

    @classmethod
    def read(cls, place: Path) -> EncoderWeights:
        if not (place / "config.json").is_file():
            raise InputError(f"{place} has no config.json: give the directory of a model as saved by `transformers`")
        config = encoder_config(place)
        kind = config.get("model_type")
        if kind not in (*BERT, *DEBERTA):
            known = ", ".join((*BERT, *DEBERTA))
            raise InputError(
                f"{place}/config.json has model_type {kind!r}, and only {known} are built in: pip install "
                "'gristmill[transformers]' runs it with PyTorch, or put its graph there as model.onnx"
            )
        file = weights_file(place)
        if file is None:
            raise InputError(f"{place} has config.json, but no model.safetensors: download it again with its weights")
        weights = read_weights(file)
        return cls(config, weights, _root(weights, place), place)

    @property
    def width(self) -> int:
        return int(self.config["hidden_size"])

    def named(self, name: str) -> str:
        return f"{self.root}{name}"


def encoder_config(place: Path) -> dict[str, Any]:
    """The configuration of the encoder in a folder; that of its base model where the folder only names it."""
    config = read_json(place / "config.json")
    if config.get("model_type") in (*BERT, *DEBERTA) and "hidden_size" in config:
        return config
    base = config.get("base_model") or ""
    nested = place / "base_model_config.json"
    if nested.is_file():
        return read_json(nested)
    named = BASE_MODELS.get(str(base).rpartition("/")[2].lower())
    return {**config, **named} if named else config


def _root(weights: Weights, place: Path) -> str:
    """What stands before the names of the encoder's weights: "", "bert.", "model." ..."""
    end = "embeddings.word_embeddings.weight"
    found = [name.removesuffix(end) for name in weights if name.endswith(end)]
    if not found:
        raise InputError(f"{place}: its weights are not those of an encoder of text: there is no {end}")
    return min(found, key=len)


def build_encoder(encoder: EncoderWeights) -> Any:
    """The ONNX graph of an encoder."""
    onnx = require("onnx", "onnx", "building an ONNX graph")
    helper, ops = onnx.helper, EncoderOps(onnx, encoder)
    result = ops.deberta() if encoder.config["model_type"] in DEBERTA else ops.bert()
    ops.node("Identity", [result], out=OUTPUT)
    if ops.nbytes > _MAX_GRAPH_BYTES:
        raise PlanError(f"{encoder.place}: the encoder has {ops.nbytes:,} bytes, more than one ONNX file can hold")
    shape = ["rows", "length"]
    inputs = [helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, shape)]
    out = helper.make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, [*shape, encoder.width])
    graph = helper.make_graph(ops.nodes, "encoder", inputs, [out], list(ops.constants.values()))
    sets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=IR)


class EncoderOps(GraphOps):
    """The steps of encoders of text as nodes of a graph."""

    def __init__(self, onnx: Any, encoder: EncoderWeights) -> None:
        self.onnx, self.weights, self.encoder = onnx, encoder.weights, encoder
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.nbytes = 0
        config = encoder.config
        self.heads, self.eps = int(config["num_attention_heads"]), float(config.get("layer_norm_eps", 1e-12))
        self.size = encoder.width // self.heads
        self.layers, self.kind = int(config["num_hidden_layers"]), str(config.get("hidden_act", "gelu"))

    def bert(self) -> str:
        x, named = self._embedded(), self.encoder.named
        for number in range(self.layers):
            name = named(f"encoder.layer.{number}")
            q, k, v = (self.linear(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
            x = self._after_attention(x, self._attend_all(q, k, v), name)
        return x

    def _embedded(self) -> str:
        """The sum of the embeddings of words, positions and types, normalised."""
        named, config = self.encoder.named, self.encoder.config
        x = self.look_up("input_ids", named("embeddings.word_embeddings.weight"))
        first = int(config.get("pad_token_id") or 0) + 1 if config["model_type"] in BERT[1:] else 0
        positions = named("embeddings.position_embeddings.weight")
        if positions in self.weights and config.get("position_biased_input", True):
            table = self.constant(f"{positions}:", np.ascontiguousarray(self.weights[positions][first:]))
            length = self.node("Shape", ["input_ids"], start=1, end=2)
            x = self.add(x, self.node("Slice", [table, self.numbers(0), length]))
        types = named("embeddings.token_type_embeddings.weight")
        if types in self.weights:
            x = self.add(x, self.constant(f"{types}:0", np.ascontiguousarray(self.weights[types][0])))
        return self.norm(x, named("embeddings.LayerNorm"), self.eps)

    def _after_attention(self, x: str, attended: str, name: str) -> str:
        x = self.add(x, self.linear(attended, f"{name}.attention.output.dense"))
        x = self.norm(x, f"{name}.attention.output.LayerNorm", self.eps)
        y = self.activate(self.linear(x, f"{name}.intermediate.dense"), self.kind)
        return self.norm(self.add(x, self.linear(y, f"{name}.output.dense")), f"{name}.output.LayerNorm", self.eps)

    def activate(self, x: str, kind: str) -> str:
        approximations = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
        if kind in approximations:
            return self.node("Gelu", [x], approximate=approximations[kind])
        if kind in ("relu", "tanh"):
            return self.node(kind.title(), [x])
        raise PlanError(f"hidden_act={kind!r} is not supported, must be one of {', '.join(approximations)}, relu, tanh")

    def _attend_all(self, q: str, k: str, v: str) -> str:
        return self.node("MultiHeadAttention", [q, k, v], num_heads=self.heads, domain="com.microsoft")

    # -- DeBERTa: attention that knows how far tokens are from each other ---------------------------------------

    def deberta(self) -> str:
        config, named = self.encoder.config, self.encoder.named
        if config.get("conv_kernel_size") or not config.get("share_att_key") or not config.get("relative_attention"):
            raise PlanError(
                f"{self.encoder.place}: this variant of DeBERTa is not built in, only that of the v3 models: give its "
                "graph as model.onnx, or install 'gristmill[transformers]'"
            )
        x, relative = self._embedded(), self._relative_table()
        for number in range(self.layers):
            name = named(f"encoder.layer.{number}")
            x = self._after_attention(x, self._attend_relatively(x, f"{name}.attention.self", relative), name)
        return x

    def _relative_table(self) -> Array:
        """The embeddings of distances."""
        named, config = self.encoder.named, self.encoder.config
        table = self.weights[named("encoder.rel_embeddings.weight")]
        if "layer_norm" in str(config.get("norm_rel_ebd", "none")):
            weight, bias = (self.weights[named(f"encoder.LayerNorm.{part}")] for part in ("weight", "bias"))
            wide = table.astype(np.float64)
            centred = wide - wide.mean(axis=1, keepdims=True)
            deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + self.eps)
            table = (centred / deviation * weight + bias).astype(np.float32)
        return table

    def _attend_relatively(self, x: str, name: str, relative: Array) -> str:
        kinds = self.encoder.config.get("pos_att_type") or ()
        kinds = kinds.split("|") if isinstance(kinds, str) else kinds
        span, size = self._span(), self.size
        scale = self.number(f"scale_{size}", 1 / math.sqrt(size * (1 + len(kinds))))
        per_head = self.numbers(0, 0, self.heads, size)
        q, k, v = (self.linear(x, f"{name}.{part}_proj") for part in ("query", "key", "value"))
        q, k, v = (self.node("Reshape", [one, per_head]) for one in (q, k, v))
        q, k, v = (self.node("Transpose", [one], perm=[0, 2, 1, 3]) for one in (q, k, v))
        q = self.node("Mul", [q, scale])
        scores = self.node("MatMul", [q, self.node("Transpose", [k], perm=[0, 1, 3, 2])])
        rows = relative[: 2 * span]
        if "c2p" in kinds:
            keys = self._projected(rows, f"{name}.key_proj")
            scores = self.add(scores, self._gathered(self.node("MatMul", [q, keys]), self._distances(1)))
        if "p2c" in kinds:
            queries = self._projected(rows, f"{name}.query_proj")
            found = self.node("MatMul", [self.node("Mul", [k, scale]), queries])
            found = self._gathered(found, self._distances(-1))
            scores = self.add(scores, self.node("Transpose", [found], perm=[0, 1, 3, 2]))
        x = self.node("MatMul", [self.node("Softmax", [scores], axis=-1), v])
        x = self.node("Transpose", [x], perm=[0, 2, 1, 3])
        return self.node("Reshape", [x, self.numbers(0, 0, self.heads * size)])

    def _projected(self, rows: Array, name: str) -> str:
        """The embeddings of distances as a layer sees them, by head: (1, heads, size, distances)."""
        wide = rows.astype(np.float64) @ self.weights[f"{name}.weight"].astype(np.float64).T
        wide = wide + self.weights[f"{name}.bias"]
        by_head = wide.reshape(len(rows), self.heads, self.size).transpose(1, 2, 0)[None]
        return self.constant(f"{name}:distances", np.ascontiguousarray(by_head, np.float32))

    def _span(self) -> int:
        config = self.encoder.config
        most = int(config.get("max_relative_positions", -1))
        most = most if most > 0 else int(config["max_position_embeddings"])
        buckets = int(config.get("position_buckets", -1))
        return buckets if buckets > 0 else most

    def _distances(self, sign: int) -> str:
        """For each pair of tokens which row of the table their distance has: (1, 1, length, length)."""
        out = f"distances_{sign + 1}"
        if out not in {name for node in self.nodes for name in node.output}:
            config = self.encoder.config
            length = int(config.get("longest") or max(1024, int(config["max_position_embeddings"])))
            table = self.constant(f"{out}:table", _distance_table(length, sign, self._span(), config))
            used = self.node("Shape", ["input_ids"], start=1, end=2)
            square = self.node("Concat", [used, used], axis=0)
            axes = self.numbers(0, 1)
            part = self.node("Slice", [table, self.numbers(0, 0), square, axes])
            self.node("Unsqueeze", [part, axes], out=out)
        return out

    def _gathered(self, values: str, distances: str) -> str:
        """Of each row of values those of the distances."""
        shape = self.node("Shape", [values], start=0, end=3)
        length = self.node("Shape", ["input_ids"], start=1, end=2)
        wide = self.node("Expand", [distances, self.node("Concat", [shape, length], axis=0)])
        return self.node("GatherElements", [values, wide], axis=3)


def _distance_table(length: int, sign: int, span: int, config: Mapping[str, Any]) -> Array:
    """Distances between positions, the far ones in logarithmic buckets, as rows of the table of embeddings."""
    position = np.arange(length, dtype=np.int64)
    distance = position[:, None] - position[None, :]
    buckets = int(config.get("position_buckets", -1))
    most = int(config.get("max_relative_positions", -1))
    most = most if most > 0 else int(config["max_position_embeddings"])
    if buckets > 0 and most > 0:
        middle = buckets // 2
        near = np.abs(distance) < middle
        far = np.where(near, middle - 1, np.abs(distance)).astype(np.float64)
        wide = np.ceil(np.log(far / middle) / math.log((most - 1) / middle) * (middle - 1)) + middle
        distance = np.where(near, distance, (wide * np.sign(distance)).astype(np.int64))
    clipped: Array = np.clip(sign * distance + span, 0, 2 * span - 1)
    return clipped
