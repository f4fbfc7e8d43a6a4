"""Runs models with ONNX Runtime: on CUDA if the worker has a GPU and the runtime can use it, else on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill.core.errors import InputError, require
from gristmill.models.model_loader import Array, Device, ModelInput

_TYPES = {
    "tensor(float)": "float32", "tensor(float16)": "float16", "tensor(uint8)": "uint8",
    "tensor(int64)": "int64", "tensor(int32)": "int32",
}  # fmt: skip


class OnnxModel:
    """A model given as an ONNX file or its bytes."""

    def __init__(self, graph: Path | bytes, device: Device) -> None:
        runtime = require("onnxruntime", "onnx", "running an ONNX model")
        runtime.set_default_logger_severity(3)  # its warnings are about things that users cannot change
        options = runtime.SessionOptions()
        options.intra_op_num_threads = device.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other workers need the cores
        preferred = ["CUDAExecutionProvider"] if device.gpu else []
        providers = [name for name in preferred if name in runtime.get_available_providers()] + ["CPUExecutionProvider"]
        source = str(graph) if isinstance(graph, Path) else graph
        try:
            self._session = runtime.InferenceSession(source, options, providers=providers)
        except Exception as error:
            name = source if isinstance(source, str) else "the graph built from the weights"
            raise InputError(f"ONNX Runtime cannot load {name}: {error}. Export or download it again") from error
        self.inputs = tuple(map(_input, self._session.get_inputs()))
        self.outputs = tuple(output.name for output in self._session.get_outputs())

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(self.outputs, self._session.run(None, dict(arrays)), strict=True))


def _input(argument: Any) -> ModelInput:
    shape = tuple(size if isinstance(size, int) and size > 0 else None for size in argument.shape)
    return ModelInput(argument.name, shape, _TYPES.get(argument.type, argument.type))
