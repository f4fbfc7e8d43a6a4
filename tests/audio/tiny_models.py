"""Small ONNX models with the inputs and outputs of published ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def write_model(path: Path, nodes: list[Any], given: list[Any], made: list[str], values: dict[str, Any]) -> str:
    """A model with one input, of a shape, and outputs of any shape."""
    import onnx

    make = onnx.helper
    sides = [make.make_tensor_value_info("x", onnx.TensorProto.FLOAT, given)]
    ends = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in made]
    tensors = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    steps = [make.make_node(kind, inputs, outputs, **more) for kind, inputs, outputs, more in nodes]
    graph = make.make_graph(steps, "tiny", sides, ends, tensors)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return str(path)


def loudest_sample(path: Path, outputs: int = 1) -> str:
    """From samples (1, n) to their largest magnitude, as each of some outputs of shape (1)."""
    nodes: list[Any] = [("Abs", ["x"], ["a"], {}), ("ReduceMax", ["a"], ["y0"], {"axes": [1], "keepdims": 0})]
    nodes += [("Mul", ["y0", f"m{number}"], [f"y{number}"], {}) for number in range(1, outputs)]
    values = {f"m{number}": np.array([number + 1], np.float32) for number in range(1, outputs)}
    return write_model(path, nodes, [1, None], [f"y{number}" for number in range(outputs)], values)


def mean_power(path: Path) -> str:
    """From the three planes of a spectrum (1, 3, frames, bins) to seven numbers: the mean of the first, times 1 to
    7."""
    nodes = [
        ("Gather", ["x", "first"], ["p"], {"axis": 1}),
        ("ReduceMean", ["p"], ["m"], {"axes": [1, 2], "keepdims": 0}),
        ("Unsqueeze", ["m", "one"], ["u"], {}),
        ("Mul", ["u", "steps"], ["y"], {}),
    ]
    values = {"first": np.array(0), "one": np.array([1]), "steps": np.arange(1, 8, dtype=np.float32)[None]}
    return write_model(path, nodes, [1, 3, None, 481], ["y"], values)


def blocks_of_samples(path: Path, size: int) -> str:
    """From samples (1, n x size) to (1, n, size): every sample is the score of a class at a moment."""
    return write_model(path, [("Reshape", ["x", "s"], ["y"], {})], [1, None], ["y"], {"s": np.array([1, -1, size])})
