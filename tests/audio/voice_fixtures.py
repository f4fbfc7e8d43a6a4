"""A model of voices for tests: the weights of Resemblyzer, pinned by their hash, as ONNX."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

PRETRAINED = "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e"
HIDDEN, BANDS = 256, 40


def write_voice_model(path: Path) -> str:
    """Three recurrent layers over mel bands, and a linear one over the last state."""
    import onnx
    import torch

    spec = find_spec("resemblyzer")
    assert spec
    assert spec.submodule_search_locations
    file = Path(spec.submodule_search_locations[0]) / "pretrained.pt"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == PRETRAINED
    loaded = torch.load(file, weights_only=True, map_location="cpu")["model_state"]
    weights = {name: value.numpy() for name, value in loaded.items()}
    make, tensors, nodes = onnx.helper, {}, []
    nodes.append(make.make_node("Transpose", ["mel"], ["x0"], perm=[1, 0, 2]))
    for layer in range(3):
        tensors[f"w{layer}"] = _gates(weights[f"lstm.weight_ih_l{layer}"])[None]
        tensors[f"r{layer}"] = _gates(weights[f"lstm.weight_hh_l{layer}"])[None]
        biases = [_gates(weights[f"lstm.bias_{kind}_l{layer}"]) for kind in ("ih", "hh")]
        tensors[f"b{layer}"] = np.concatenate(biases)[None]
        given = [f"x{layer}", f"w{layer}", f"r{layer}", f"b{layer}"]
        nodes.append(make.make_node("LSTM", given, [f"y{layer}", f"h{layer}"], hidden_size=HIDDEN))
        nodes.append(make.make_node("Squeeze", [f"y{layer}", "one"], [f"x{layer + 1}"]))
    tensors |= {"one": np.array([1]), "zero": np.array([0]), "w": weights["linear.weight"], "b": weights["linear.bias"]}
    nodes.append(make.make_node("Squeeze", ["h2", "zero"], ["last"]))
    nodes.append(make.make_node("Gemm", ["last", "w", "b"], ["raw"], transB=1))
    nodes.append(make.make_node("Relu", ["raw"], ["voice"]))
    values = [onnx.numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in tensors.items()]
    sides = [("mel", [None, 160, BANDS]), ("voice", [None, HIDDEN])]
    ends = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in sides]
    graph = make.make_graph(nodes, "voices", ends[:1], ends[1:], values)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return str(path)


def _gates(stacked: Any) -> Any:
    """From the order input, forget, cell, output to input, output, forget, cell."""
    one, two, three, four = np.split(stacked, 4)
    return np.concatenate([one, four, two, three])
