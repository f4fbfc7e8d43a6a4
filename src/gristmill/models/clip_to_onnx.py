"""Exports CLIP models to ONNX graphs directly from their weights, without PyTorch.

`export(DIR, OUT)` writes `vision_model.onnx` and `text_model.onnx`, the names that other tools use, and copies the
configuration and tokenizer files.

Gives up: graphs of more than 2 GB, which one ONNX file cannot hold. CLIP ViT-L/14 has 1.2 GB.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import InputError, PlanError, require
from gristmill.models.clip_architecture import OUTPUTS, ClipWeights, EncoderShape
from gristmill.models.model_loader import IMAGE, TEXT

OPSET, IR = 18, 9
COPIED_FILES = ("config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
_MASKED = -3.0e38
_MAX_GRAPH_BYTES = 2_000_000_000


def export(place: str | Path, out: str | Path) -> list[Path]:
    """Export the model in `place` to ONNX files in `out`, which then works without PyTorch. Returns the files."""
    source, target = Path(place).expanduser(), Path(out).expanduser()
    if not (source / "config.json").is_file():
        raise InputError(
            f"{source} has no config.json: give the directory of a CLIP model, or of a model of text, as saved by "
            "`transformers`"
        )
    onnx = require("onnx", "onnx", "writing ONNX files")
    clip = ClipWeights.read(source)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for part in (IMAGE, TEXT):
        written.append(target / f"{part}_model.onnx")
        onnx.save(build_graph(clip, part), str(written[-1]))
    for name in COPIED_FILES:
        if (source / name).is_file() and source.resolve() != target.resolve():
            written.append(Path(shutil.copyfile(source / name, target / name)))
    return written


def build_graph(clip: ClipWeights, part: str) -> Any:
    """The ONNX graph of one encoder of a CLIP model."""
    onnx = require("onnx", "onnx", "building an ONNX graph")
    model_input, helper = clip.input(part), onnx.helper
    kind = onnx.TensorProto.FLOAT if part == IMAGE else onnx.TensorProto.INT64
    ops = GraphOps(onnx, clip)
    result = clip.run(ops, part, model_input.name)
    ops.node("Identity", [result], out=OUTPUTS[part])
    if ops.nbytes > _MAX_GRAPH_BYTES:
        raise PlanError(f"{clip.place}: the {part} encoder has {ops.nbytes:,} bytes, more than one ONNX file can hold")
    shape = ["rows", *(size or "length" for size in model_input.shape[1:])]
    out = helper.make_tensor_value_info(OUTPUTS[part], onnx.TensorProto.FLOAT, ["rows", None])
    inputs = [helper.make_tensor_value_info(model_input.name, kind, shape)]
    graph = helper.make_graph(ops.nodes, f"clip_{part}", inputs, [out], list(ops.constants.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)


class GraphOps:
    """The steps of CLIP as nodes of a graph. A tensor is represented by its name."""

    def __init__(self, onnx: Any, clip: ClipWeights) -> None:
        self.onnx, self.weights = onnx, clip.weights
        self.max_tokens = (clip.config.get("text_config") or {}).get("max_position_embeddings", 77)
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.nbytes = 0

    def node(self, kind: str, inputs: list[str], out: str = "", **attributes: Any) -> str:
        out = out or f"x{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [out], name=out, **attributes))
        return out

    def constant(self, name: str, value: Any) -> str:
        if name not in self.constants:
            array = np.asarray(value, order="C")  # unlike ascontiguousarray, keeps scalars scalar
            self.constants[name] = self.onnx.numpy_helper.from_array(array, name)
            self.nbytes += array.nbytes
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name])

    def numbers(self, *values: int) -> str:
        return self.constant(f"numbers_{'_'.join(map(str, values))}", np.array(values, np.int64))

    def number(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, np.float32))

    def patches(self, x: str, weight: str) -> str:
        count, _, size, _ = self.weights[weight].shape
        x = self.node("Conv", [x, self.weight(weight)], strides=[size, size])
        x = self.node("Reshape", [x, self.numbers(0, count, -1)])
        return self.node("Transpose", [x], perm=[0, 2, 1])

    def look_up(self, ids: str, table: str) -> str:
        return self.node("Gather", [self.weight(table), ids])

    def prepend(self, x: str, vector: str) -> str:
        value = self.weights[vector].reshape(1, 1, -1)
        rows = self.node("Shape", [x], start=0, end=1)
        shape = self.node("Concat", [rows, self.numbers(1, value.shape[-1])], axis=0)
        row = self.node("Expand", [self.constant(vector, value), shape])
        return self.node("Concat", [row, x], axis=1)

    def add_positions(self, x: str, table: str) -> str:
        length = self.node("Shape", [x], start=1, end=2)
        return self.node("Add", [x, self.node("Slice", [self.weight(table), self.numbers(0), length])])

    def add(self, x: str, y: str) -> str:
        return self.node("Add", [x, y])

    def norm(self, x: str, name: str, eps: float) -> str:
        inputs = [x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias")]
        return self.node("LayerNormalization", inputs, axis=-1, epsilon=eps)

    def linear(self, x: str, name: str, bias: bool = True) -> str:
        x = self.node("MatMul", [x, self.constant(f"{name}.weight", self.weights[f"{name}.weight"].T)])
        return self.node("Add", [x, self.weight(f"{name}.bias")]) if bias else x

    def activate(self, x: str, kind: str) -> str:
        if kind == "quick_gelu":
            gate = self.node("Sigmoid", [self.node("Mul", [x, self.number("quick", 1.702)])])
            return self.node("Mul", [x, gate])
        if kind == "gelu":
            erf = self.node("Erf", [self.node("Div", [x, self.number("root_two", 2**0.5)])])
            half = self.node("Mul", [x, self.number("half", 0.5)])
            return self.node("Mul", [half, self.node("Add", [erf, self.number("one", 1.0)])])
        raise PlanError(f"hidden_act={kind!r} is not supported for CLIP models, must be quick_gelu or gelu")

    def attend(self, q: str, k: str, v: str, half: EncoderShape, causal: bool) -> str:
        width, heads = half.width, half.heads
        scale = self.number(f"scale_{width // heads}", (width // heads) ** -0.5)
        per_head = self.numbers(0, 0, heads, width // heads)
        q, k, v = (self.node("Reshape", [x, per_head]) for x in (self.node("Mul", [q, scale]), k, v))
        q, v = (self.node("Transpose", [x], perm=[0, 2, 1, 3]) for x in (q, v))
        scores = self.node("MatMul", [q, self.node("Transpose", [k], perm=[0, 2, 3, 1])])
        if causal:
            mask = self.constant("later", np.triu(np.full((self.max_tokens, self.max_tokens), _MASKED, np.float32), 1))
            ends = self.node("Shape", [scores], start=2, end=4)
            scores = self.node("Add", [scores, self.node("Slice", [mask, self.numbers(0, 0), ends])])
        x = self.node("MatMul", [self.node("Softmax", [scores], axis=-1), v])
        x = self.node("Transpose", [x], perm=[0, 2, 1, 3])
        return self.node("Reshape", [x, self.numbers(0, 0, width)])

    def first(self, x: str) -> str:
        return self.node("Gather", [x, self.constant("zero", np.array(0, np.int64))], axis=1)

    def pick(self, x: str, ids: str, end: int | None) -> str:
        if end is not None:
            is_end = self.node("Equal", [ids, self.constant("end", np.array(end, np.int64))])
            ids = self.node("Cast", [is_end], to=self.onnx.TensorProto.INT32)
        position = self.node("ArgMax", [ids], axis=1, keepdims=1)
        return self.node("GatherND", [x, position], batch_dims=1)

    def unit(self, x: str) -> str:
        return self.node("Div", [x, self.node("ReduceL2", [x, self.numbers(-1)], keepdims=1)])
