"""CLIP: how pictures and captions become vectors that can be compared. Written once, run by several engines.

The steps are those of the models that OpenAI, LAION and others published in the format of `transformers`
(`config.json`, `model.safetensors`). An engine says what each step is (`ClipOps`): torch computes (`torch_engine.py`), the
writer of ONNX graphs notes it down (`clip_to_onnx.py`).

What is given up: other architectures, such as SigLIP. Those come as ONNX files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gristmill.core.errors import InputError
from gristmill.models.model import IMAGE, ModelInput
from gristmill.models.weights import Weights, read_weights

OUTPUTS = {"vision": "image_embeds", "text": "text_embeds"}


class ClipOps(Protocol):
    """The steps. Names are those of weights; `x` is whatever the engine passes from step to step."""

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
    """The shape of the image or the text half."""

    width: int
    layers: int
    heads: int
    eps: float
    activation: str


@dataclass(frozen=True)
class ClipWeights:
    """The weights of a CLIP model, and what must be known to use them."""

    config: Mapping[str, Any]
    weights: Weights
    place: Path

    @classmethod
    def read(cls, place: Path) -> ClipWeights:
        config = json.loads((place / "config.json").read_text())
        if config.get("model_type") != "clip":
            raise InputError(
                f"{place}/config.json describes a model of type {config.get('model_type')!r}, and only CLIP is built "
                "in: export it to ONNX (vision_model.onnx, text_model.onnx) and put the files there"
            )
        names = ("model.safetensors", "pytorch_model.bin")
        found = next((place / name for name in names if (place / name).is_file()), None)
        if found is None:
            raise InputError(f"{place} has config.json, but no {names[0]}: fetch the model again, with its weights")
        return cls(config, read_weights(found), place)

    def half(self, part: str) -> EncoderShape:
        told: Mapping[str, Any] = self.config.get(f"{part}_config") or {}
        image = part == IMAGE
        return EncoderShape(
            told.get("hidden_size", 768 if image else 512),
            told.get("num_hidden_layers", 12),
            told.get("num_attention_heads", 12 if image else 8),
            told.get("layer_norm_eps", 1e-5),
            told.get("hidden_act", "quick_gelu"),
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
        x = ops.norm(x, f"{root}.pre_layrnorm", half.eps)  # spelt so in every published file
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
        x = ops.pick(x, ids, None if end == 2 else end)  # 2: an old mistake in configs; the end has the highest number
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
