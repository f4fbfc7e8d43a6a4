"""A CLIP model as others are, but small: the files of a directory, made of random numbers of a seed."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, TEXT_WIDTH, LAYERS, PATCH, PROJECTION = 32, 24, 2, 56, 16
WORDS = ["a", "photo", "of", "cat", "dog", "red", "square", "the", "sea", "<start>", "<end>"]
PICTURES = {
    "do_resize": True,
    "size": {"shortest_edge": 224},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def write_safetensors(path: Path, tensors: dict[str, Any]) -> None:
    table, blobs, at = {}, [], 0
    for name, value in tensors.items():
        blob = np.asarray(value, "<f4").tobytes()
        table[name] = {"dtype": "F32", "shape": list(np.shape(value)), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    encoded = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + b"".join(blobs))


class _Weights(dict[str, Any]):
    def __init__(self, seed: int) -> None:
        self.numbers = np.random.default_rng(seed)

    def some(self, name: str, *shape: int) -> None:
        self[name] = self.numbers.normal(size=shape) / np.sqrt(np.prod(shape[1:]) or 1)

    def linear(self, name: str, out: int, into: int, bias: bool = True) -> None:
        self.some(f"{name}.weight", out, into)
        if bias:
            self[f"{name}.bias"] = self.numbers.normal(size=out) * 0.2

    def norm(self, name: str, width: int) -> None:
        self[f"{name}.weight"] = 1 + 0.2 * self.numbers.normal(size=width)
        self[f"{name}.bias"] = 0.2 * self.numbers.normal(size=width)

    def layers(self, root: str, width: int) -> None:
        for number in range(LAYERS):
            name = f"{root}.encoder.layers.{number}"
            for which in ("1", "2"):
                self.norm(f"{name}.layer_norm{which}", width)
            for which in ("q", "k", "v", "out"):
                self.linear(f"{name}.self_attn.{which}_proj", width, width)
            self.linear(f"{name}.mlp.fc1", 2 * width, width)
            self.linear(f"{name}.mlp.fc2", width, 2 * width)


def clip_weights(seed: int = 0) -> dict[str, Any]:
    made = _Weights(seed)
    root = "vision_model.embeddings"
    made.some(f"{root}.patch_embedding.weight", WIDTH, 3, PATCH, PATCH)
    made.some(f"{root}.class_embedding", WIDTH)
    made.some(f"{root}.position_embedding.weight", (224 // PATCH) ** 2 + 1, WIDTH)
    made.norm("vision_model.pre_layrnorm", WIDTH)
    made.layers("vision_model", WIDTH)
    made.norm("vision_model.post_layernorm", WIDTH)
    made.some("text_model.embeddings.token_embedding.weight", len(WORDS), TEXT_WIDTH)
    made.some("text_model.embeddings.position_embedding.weight", 77, TEXT_WIDTH)
    made.layers("text_model", TEXT_WIDTH)
    made.norm("text_model.final_layer_norm", TEXT_WIDTH)
    made.linear("visual_projection", PROJECTION, WIDTH, bias=False)
    made.linear("text_projection", PROJECTION, TEXT_WIDTH, bias=False)
    return made


def clip_config(activation: str = "quick_gelu", end: int = 2) -> dict[str, Any]:
    half = {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "hidden_act": activation}
    return {
        "model_type": "clip",
        "projection_dim": PROJECTION,
        "vision_config": {
            **half,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "image_size": 224,
            "patch_size": PATCH,
        },
        "text_config": {
            **half,
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": 2 * TEXT_WIDTH,
            "vocab_size": len(WORDS),
            "max_position_embeddings": 77,
            "bos_token_id": 9,
            "eos_token_id": end,
        },
    }


def small_clip(place: Path, activation: str = "quick_gelu", end: int = 2, seed: int = 0) -> Path:
    """The directory of a CLIP model, as `transformers` saves it."""
    place.mkdir(parents=True, exist_ok=True)
    write_safetensors(place / "model.safetensors", clip_weights(seed))
    (place / "config.json").write_text(json.dumps(clip_config(activation, end)))
    (place / "preprocessor_config.json").write_text(json.dumps(PICTURES))
    _tokenizer().save(str(place / "tokenizer.json"))
    return place


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="the"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", WORDS.index("<start>")), ("<end>", WORDS.index("<end>"))]
    )
    return made


def aesthetic_head(path: Path, width: int = PROJECTION) -> Path:
    """Five layers, in the shapes and under the names of LAION's predictor."""
    made = _Weights(5)
    for number, (out, into) in zip((0, 2, 4, 6, 7), ((64, width), (32, 64), (16, 32), (8, 16), (1, 8)), strict=True):
        made.linear(f"layers.{number}", out, into)
    write_safetensors(path, made)
    return path


def nsfw_head(path: Path, width: int = PROJECTION) -> Path:
    """A norm and four layers, under the names of LAION's detector."""
    made = _Weights(6)
    made["norm.mean"] = made.numbers.normal(size=width) * 0.1
    made["norm.variance"] = made.numbers.uniform(0.01, 0.1, size=width)
    for number, (out, into) in enumerate(((16, width), (32, 16), (16, 32), (1, 16)), 1):
        made.linear(f"linear_{number}", out, into)
    write_safetensors(path, made)
    return path


def picture(seed: int, height: int = 240, width: int = 320) -> np.ndarray[Any, Any]:
    """Something smooth, with edges: neither noise nor one colour."""
    from PIL import Image

    small = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
