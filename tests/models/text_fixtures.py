"""Folders of small models of text with random weights, of published architectures, written without torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

WORDS = [
    "the", "a", "cat", "dog", "rights", "human", "beings", "are", "born", "free", "and", "equal", "in", "dignity",
    "news", "sport", "code", "value", "learn", "school",
]  # fmt: skip
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LETTERS = list("abcdefghijklmnopqrstuvwxyz")
VOCABULARY = [*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", ","]

BERT = {
    "model_type": "bert", "vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64, "type_vocab_size": 2,
    "hidden_act": "gelu", "layer_norm_eps": 1e-12, "pad_token_id": 0, "architectures": ["BertModel"],
}  # fmt: skip
DEBERTA = {
    "model_type": "deberta-v2", "vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64, "type_vocab_size": 0,
    "hidden_act": "gelu", "layer_norm_eps": 1e-7, "pad_token_id": 0, "relative_attention": True,
    "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False, "max_relative_positions": -1,
}  # fmt: skip


def write_encoder(folder: Path, shape: Mapping[str, Any] = BERT, seed: int = 0, **files: Any) -> Path:
    """A folder with an encoder: `weights` are more weights, `root` stands before the names of the encoder's, `config`
    replaces what config.json says."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    shapes = deberta_shapes(shape) if shape["model_type"] == "deberta-v2" else bert_shapes(shape)
    own = {f"{files.get('root', '')}{name}": random_weight(draw, name, size) for name, size in shapes.items()}
    more = {name: random_weight(draw, name, size) for name, size in files.get("weights", {}).items()}
    write_safetensors(folder / "model.safetensors", {**own, **more})
    (folder / "config.json").write_text(json.dumps(files.get("config", shape)))
    write_tokenizer(folder)
    return folder


def random_weight(draw: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    scale, middle = (0.05, 1.0) if "LayerNorm.weight" in name else (0.3 if len(shape) > 1 else 0.1, 0.0)
    return (middle + scale * draw.normal(size=shape)).astype(np.float32)


def bert_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    width = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        "pooler.dense.weight": (width, width),
        "pooler.dense.bias": (width,),
    }
    return {**shapes, **norm("embeddings.LayerNorm", width), **layers(config, ["query", "key", "value"])}


def deberta_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    width = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "encoder.rel_embeddings.weight": (2 * config["position_buckets"], width),
    }
    norms = {**norm("embeddings.LayerNorm", width), **norm("encoder.LayerNorm", width)}
    return {**shapes, **norms, **layers(config, ["query_proj", "key_proj", "value_proj"])}


def layers(config: Mapping[str, Any], projections: list[str]) -> dict[str, tuple[int, ...]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {}
    for number in range(config["num_hidden_layers"]):
        root = f"encoder.layer.{number}"
        for name in [*(f"attention.self.{one}" for one in projections), "attention.output.dense"]:
            shapes |= linear(f"{root}.{name}", width, width)
        shapes |= linear(f"{root}.intermediate.dense", width, inner) | linear(f"{root}.output.dense", inner, width)
        shapes |= norm(f"{root}.attention.output.LayerNorm", width) | norm(f"{root}.output.LayerNorm", width)
    return shapes


def linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    table, at, parts = {}, 0, []
    kinds = {"<f4": "F32", "<f2": "F16", "<i8": "I64"}
    for name, value in tensors.items():
        raw = np.ascontiguousarray(value).tobytes()
        table[name] = {
            "dtype": kinds[value.dtype.str], "shape": list(value.shape), "data_offsets": [at, at + len(raw)]
        }  # fmt: skip
        at += len(raw)
        parts.append(raw)
    head = json.dumps({"__metadata__": {"format": "pt"}, **table}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(parts))


def write_tokenizer(folder: Path) -> None:
    """A WordPiece tokenizer of a few words and all letters, with [CLS] and [SEP]."""
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    tool = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tool.normalizer = tokenizers.normalizers.BertNormalizer()
    tool.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    marks = [(mark, vocabulary[mark]) for mark in ("[CLS]", "[SEP]")]
    tool.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    tool.save(str(folder / "tokenizer.json"))


def texts(count: int, seed: int = 0, most: int = 40) -> list[str]:
    """Documents of random words, of different lengths, empty ones among them."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=draw.integers(0, most))) for _ in range(count)]
