"""Runs CLIP models with PyTorch: on CUDA if the worker has a GPU and this PyTorch can use it, else on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gristmill.core.errors import PlanError, require
from gristmill.models.clip_architecture import OUTPUTS, ClipWeights, EncoderShape
from gristmill.models.model_loader import Array, Device, ModelInput


class TorchModel:
    """One encoder of a CLIP model."""

    def __init__(self, clip: ClipWeights, part: str, device: Device) -> None:
        self.torch = torch = require("torch", "torch", f"running the model in {clip.place}")
        self.threads = device.threads
        self.device = "cuda" if device.gpu and torch.cuda.is_available() else "cpu"
        self.clip, self.part = clip, part
        self.inputs: tuple[ModelInput, ...] = (clip.input(part),)
        self.outputs: tuple[str, ...] = (OUTPUTS[part],)
        roots = ("vision_model.", "visual_") if part == "vision" else ("text_",)
        weights = {name: value for name, value in clip.weights.items() if name.startswith(roots)}
        self.ops = TorchOps(torch, {name: self._tensor(value) for name, value in weights.items()})

    def _tensor(self, value: Array) -> Any:
        return self.torch.from_numpy(np.array(value)).to(self.device)  # a copy: the mapped file may be deleted

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        if self.threads != self.torch.get_num_threads():  # a setting of the process, which may run several models
            self.torch.set_num_threads(self.threads)
        with self.torch.inference_mode():
            x = self.torch.from_numpy(arrays[self.inputs[0].name]).to(self.device)
            embeddings = self.clip.run(self.ops, self.part, x).cpu().numpy()
        return {self.outputs[0]: embeddings}


class TorchOps:
    """The steps of CLIP on torch tensors."""

    def __init__(self, torch: Any, weights: Mapping[str, Any]) -> None:
        self.torch, self.f, self.w = torch, torch.nn.functional, weights

    def patches(self, x: Any, weight: str) -> Any:
        kernel = self.w[weight]
        return self.f.conv2d(x, kernel, stride=kernel.shape[-1]).flatten(2).transpose(1, 2)

    def look_up(self, ids: Any, table: str) -> Any:
        return self.w[table][ids]

    def prepend(self, x: Any, vector: str) -> Any:
        return self.torch.cat([self.w[vector].expand(len(x), 1, -1), x], 1)

    def add_positions(self, x: Any, table: str) -> Any:
        return x + self.w[table][: x.shape[1]]

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def norm(self, x: Any, name: str, eps: float) -> Any:
        return self.f.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"], eps)

    def linear(self, x: Any, name: str, bias: bool = True) -> Any:
        return self.f.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"] if bias else None)

    def activate(self, x: Any, kind: str) -> Any:
        if kind == "quick_gelu":
            return x * self.torch.sigmoid(1.702 * x)
        if kind == "gelu":
            return self.f.gelu(x)
        raise PlanError(f"hidden_act={kind!r} is not supported for CLIP models, must be quick_gelu or gelu")

    def attend(self, q: Any, k: Any, v: Any, half: EncoderShape, causal: bool) -> Any:
        q, k, v = (x.unflatten(-1, (half.heads, -1)).transpose(1, 2) for x in (q, k, v))
        x = self.f.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return x.transpose(1, 2).flatten(2)

    def first(self, x: Any) -> Any:
        return x[:, 0]

    def pick(self, x: Any, ids: Any, end: int | None) -> Any:
        position = (ids if end is None else (ids == end).int()).argmax(-1)
        return x[self.torch.arange(len(x), device=x.device), position]

    def unit(self, x: Any) -> Any:
        return x / self.torch.linalg.vector_norm(x, dim=-1, keepdim=True)
