"""TextEncoder: a folder with a tokenizer and a model of text, run by the engine that fits.

    ONNX Runtime   a folder with model.onnx (or onnx/model.onnx), int8 when the file is; or with the weights of an
                   architecture that `encoder_graph.py` builds
    torch          any architecture of `transformers`, and whenever the worker has a GPU that this PyTorch can use

A worker loads it once, with as many threads as the stage has cores. ONNX Runtime maps the weights of a model that are
stored beside it (`model.onnx_data`, as `gristmill models export` writes them), so that the workers of a machine share
those that are looked up and not multiplied: for DeBERTa v3 three quarters of the file.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from gristmill.core.errors import InputError, MissingDependencyError, PlanError
from gristmill.models.model_loader import ENGINES, Array, Device
from gristmill.models.text.text_tokenizer import TextTokenizer
from gristmill.models.text.token_rows import run_in_buckets, run_one_by_one

ONNX_FILES = ("model.onnx", "onnx/model.onnx", "model_quantized.onnx", "onnx/model_quantized.onnx")

Reduce = Callable[[Array, Array], Array]
"""Maps hidden states (rows, length, width) and the mask to one row of numbers for each row."""


class StatesModel(Protocol):
    """Maps token ids and a mask to hidden states, or to what else a graph gives for each row."""

    def __call__(self, ids: Array, mask: Array, /) -> Array: ...


class OnnxText:
    """A graph that ONNX Runtime runs."""

    def __init__(self, graph: Path | bytes, device: Device) -> None:
        from gristmill.models.onnx_engine import OnnxModel

        self.model = OnnxModel(graph, device)
        names = [one.name for one in self.model.inputs]
        if "input_ids" not in names:
            raise InputError(f"{graph if isinstance(graph, Path) else 'the graph'} takes {names}, not input_ids")
        self.inputs = self.model.inputs
        preferred = ("logits", "last_hidden_state", "token_embeddings", "sentence_embedding")
        self.output = next((name for name in preferred if name in self.model.outputs), self.model.outputs[0])

    def __call__(self, ids: Array, mask: Array) -> Array:
        given: dict[str, Array] = {"input_ids": ids, "attention_mask": mask}
        if any(one.name == "token_type_ids" for one in self.inputs):
            given["token_type_ids"] = np.zeros_like(ids)
        if any(one.name == "position_ids" for one in self.inputs):
            given["position_ids"] = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        arrays = {one.name: given[one.name].astype(one.dtype, copy=False) for one in self.inputs if one.name in given}
        return self.model(arrays)[self.output]


class TextEncoder:
    """A tokenizer and a model. `reduce` makes one row of numbers of the model's output for a document.

    `batch_size` rows are padded to one length and run together, as is good for a GPU; with None each row runs alone.
    """

    def __init__(
        self, tokenizer: TextTokenizer, model: StatesModel, batch_size: int | None = None, pad_left: bool = False
    ) -> None:
        self.tokenizer, self.model, self.batch_size, self.pad_left = tokenizer, model, batch_size, pad_left

    @classmethod
    def load(
        cls,
        place: Path,
        device: Device | None = None,
        engine: str = "auto",
        *,
        max_tokens: int | None = None,
        max_chars: int | None = None,
        batch_size: int = 32,
        pad_left: bool = False,
        autocast: bool = False,
    ) -> TextEncoder:
        device = device or Device()
        tokenizer = TextTokenizer(place, max_tokens, max_chars)
        model = load_states_model(place, device, engine, autocast)
        return cls(tokenizer, model, batch_size if device.gpu and takes_padding(model) else None, pad_left)

    def tokenize(self, texts: Sequence[str | None]) -> list[list[int]]:
        return self.tokenizer(texts)

    def reduce_rows(self, rows: Sequence[Sequence[int]], reduce: Reduce) -> list[Array]:
        """What `reduce` gives for each row of tokens, whatever other rows there are."""
        usable = [row or [self.tokenizer.pad_id] for row in rows]

        def run(ids: Array, mask: Array) -> Array:
            return reduce(self.model(ids, mask), mask)

        if self.batch_size is not None:
            return run_in_buckets(run, usable, self.batch_size, self.tokenizer.pad_id, self.pad_left)
        return run_one_by_one(run, usable)


def load_states_model(place: Path, device: Device, engine: str = "auto", autocast: bool = False) -> StatesModel:
    """The model of text in a folder."""
    if engine not in ENGINES:
        raise PlanError(f"engine is {engine!r}, must be one of {', '.join(ENGINES)}")
    graph = text_graph(place)
    if engine == "torch" or (engine == "auto" and device.gpu and (place / "config.json").is_file() and _has_torch()):
        from gristmill.models.text.torch_text import TorchText

        return TorchText(place, device, autocast=autocast)
    if graph:
        return OnnxText(graph, device)
    from gristmill.models.text.encoder_graph import BERT, DEBERTA, EncoderWeights, build_encoder, encoder_config

    known = encoder_config(place).get("model_type") in (*BERT, *DEBERTA)
    if engine == "auto" and not known and _has_torch():
        from gristmill.models.text.torch_text import TorchText

        return TorchText(place, device, autocast=autocast)
    if known and not (_installed("onnx") and _installed("onnxruntime")):
        raise MissingDependencyError(
            f"the model in {place} needs 'onnx' and 'onnxruntime', or 'torch' and 'transformers', which are not "
            "installed: pip install 'gristmill[onnx]' or pip install 'gristmill[transformers]'"
        )
    return OnnxText(build_encoder(EncoderWeights.read(place)).SerializeToString(), device)


def takes_padding(model: StatesModel) -> bool:
    """Whether a model has a mask for padding. Graphs that were built from weights have none."""
    return not isinstance(model, OnnxText) or any(one.name == "attention_mask" for one in model.inputs)


def load_language_model(place: Path, device: Device) -> StatesModel:
    """A causal model that gives logits: its graph, or its weights in PyTorch."""
    graph = text_graph(place)
    if graph is None:
        from gristmill.models.text.torch_text import LANGUAGE_MODEL, TorchText

        return TorchText(place, device, LANGUAGE_MODEL)
    model = OnnxText(graph, device)
    if model.output != "logits":
        raise InputError(f"{graph} gives {model.output}, not logits: it is not a language model")
    return model


def text_graph(place: Path) -> Path | None:
    """The ONNX file of a model of text, if it has one."""
    if place.suffix == ".onnx":
        return place
    found = (place / name for name in ONNX_FILES)
    return next((file for file in found if file.is_file()), None)


def in_chunks(texts: Sequence[str | None], size: int = 256) -> Iterator[Sequence[str | None]]:
    """The texts, a few at a time."""
    for start in range(0, len(texts), size):
        yield texts[start : start + size]


def _has_torch() -> bool:
    return _installed("torch") and _installed("transformers")


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
