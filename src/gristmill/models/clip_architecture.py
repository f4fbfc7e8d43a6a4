"""The CLIP architecture, which embeds images and captions in one space. Written once, run by several engines.

The steps are those of the models that OpenAI, LAION and others publish in the format of `transformers` (`config.json`,
`model.safetensors`). An engine implements each step (`ClipOps`): torch computes it (`torch_engine.py`), the ONNX export
adds it to a graph (`clip_to_onnx.py`).

Gives up: other architectures, such as SigLIP. They must be given as ONNX files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gristmill.core.errors import InputError
from gristmill.models.model_loader import IMAGE, ModelInput
from gristmill.models.weights import Weights, read_weights, weights_file

OUTPUTS = {"vision": "image_embeds", "text": "text_embeds"}


class ClipOps(Protocol):
    """The steps. Names are names of weights; `x` is a tensor in the form that the engine uses."""

    def patches(self, x: Any, weight: str) -> Any: ...
    def look_up(self, ids: Any, table: str) -> Any: ...
    def prepend(self, x: Any, vector: str) -> Any: ...
    def add_positions(self, x: Any, table: str) -> Any: ...
    def add(self, x: Any, y: Any) -> Any: ...
    def norm(self, x: Any, name: str, eps: float) -> Any: ...
    def linear(self, x: Any, name: str, bias: bool = True) -> Any: ...
    def activate(self, x: Any, kind: str) -> Any: ...
    def attend(self, q: Any, k: Any, v: Any, half: EncoderShape, causal: bool) -> Any: ...
    def first(self, x: Any) -> Any: ...
    def pick(self, x: Any, ids: Any, end: int | None) -> Any: ...
    def unit(self, x: Any) -> Any: ...


@dataclass(frozen=True)
class EncoderShape:
    """The shape of the image or the text encoder."""

    width: int
    layers: int
    heads: int
    eps: float
    activation: str


@dataclass(frozen=True)
class ClipWeights:
    """The weights and the configuration of a CLIP model."""

    config: Mapping[str, Any]
    weights: Weights
    place: Path

    @classmethod
    def read(cls, place: Path) -> ClipWeights:
        config = json.loads((place / "config.json").read_text())
        if config.get("model_type") != "clip":
            raise InputError(
                f"{place}/config.json has model_type {config.get('model_type')!r}, but only 'clip' is built in: export "
                "the model to ONNX (vision_model.onnx, text_model.onnx) and put the files there"
            )
        file = weights_file(place)
        if file is None:
            raise InputError(f"{place} has config.json, but no model.safetensors: download it again with its weights")
        return cls(config, read_weights(file), place)

    def half(self, part: str) -> EncoderShape:
        config: Mapping[str, Any] = self.config.get(f"{part}_config") or {}
        image = part == IMAGE
        return EncoderShape(
            config.get("hidden_size", 768 if image else 512),
            config.get("num_hidden_layers", 12),
            config.get("num_attention_heads", 12 if image else 8),
            config.get("layer_norm_eps", 1e-5),
            config.get("hidden_act", "quick_gelu"),
        )

    def input(self, part: str) -> ModelInput:
        if part == IMAGE:
            size = (self.config.get("vision_config") or {}).get("image_size", 224)
            return ModelInput("pixel_values", (None, 3, size, size), "float32")
        return ModelInput("input_ids", (None, None), "int64")

    def run(self, ops: ClipOps, part: str, x: Any) -> Any:
        return self._image(ops, x) if part == IMAGE else self._text(ops, x)

    def _image(self, ops: ClipOps, pixels: Any) -> Any:
        half, root = self.half("vision"), "vision_model"
        x = ops.patches(pixels, f"{root}.embeddings.patch_embedding.weight")
        x = ops.prepend(x, f"{root}.embeddings.class_embedding")
        x = ops.add_positions(x, f"{root}.embeddings.position_embedding.weight")
        x = ops.norm(x, f"{root}.pre_layrnorm", half.eps)  # misspelt in every published file
        x = self._layers(ops, root, half, x, causal=False)
        x = ops.norm(ops.first(x), f"{root}.post_layernorm", half.eps)
        return ops.unit(ops.linear(x, "visual_projection", bias=False))

    def _text(self, ops: ClipOps, ids: Any) -> Any:
        half, root = self.half("text"), "text_model"
        x = ops.look_up(ids, f"{root}.embeddings.token_embedding.weight")
        x = ops.add_positions(x, f"{root}.embeddings.position_embedding.weight")
        x = self._layers(ops, root, half, x, causal=True)
        x = ops.norm(x, f"{root}.final_layer_norm", half.eps)
        end = (self.config.get("text_config") or {}).get("eos_token_id", 49407)
        x = ops.pick(x, ids, None if end == 2 else end)  # 2: an old mistake in configs; the end has the highest id
        return ops.unit(ops.linear(x, "text_projection", bias=False))

    @staticmethod
    def _layers(ops: ClipOps, root: str, half: EncoderShape, x: Any, causal: bool) -> Any:
        for number in range(half.layers):
            name = f"{root}.encoder.layers.{number}"
            y = ops.norm(x, f"{name}.layer_norm1", half.eps)
            q, k, v = (ops.linear(y, f"{name}.self_attn.{letter}_proj") for letter in "qkv")
            y = ops.attend(q, k, v, half, causal)
            x = ops.add(x, ops.linear(y, f"{name}.self_attn.out_proj"))
            y = ops.norm(x, f"{name}.layer_norm2", half.eps)
            y = ops.activate(ops.linear(y, f"{name}.mlp.fc1"), half.activation)
            x = ops.add(x, ops.linear(y, f"{name}.mlp.fc2"))
        return x
