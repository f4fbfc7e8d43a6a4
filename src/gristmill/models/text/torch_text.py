"""Runs text encoders and language models with PyTorch and `transformers`: on CUDA if the worker has a GPU, else on the
CPU. For architectures that `encoder_graph.py` does not know, and for GPUs.

Weights are read from the folder alone; code that comes with a model is never run.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from gristmill.core.errors import InputError, require
from gristmill.models.model_loader import Array, Device
from gristmill.models.text.encoder_graph import encoder_config
from gristmill.models.text.text_tokenizer import read_json
from gristmill.models.weights import read_weights

ENCODER, LANGUAGE_MODEL = "encoder", "language model"


class TorchText:
    """An encoder, which gives hidden states; or a language model, which gives logits."""

    def __init__(self, place: Path, device: Device, kind: str = ENCODER, autocast: bool = False) -> None:
        self.torch = require("torch", "torch", f"running the model in {place}")
        self.threads, self.autocast = device.threads, autocast
        self.device = "cuda" if device.gpu and self.torch.cuda.is_available() else "cpu"
        self.kind = kind
        half = kind == LANGUAGE_MODEL and self.device == "cuda"
        self.model = _load(place, kind, "bfloat16" if half else "float32").to(self.device).eval()

    def __call__(self, ids: Array, mask: Array) -> Array:
        """The last hidden states, or the logits: (rows, length, width)."""
        output = self._run(ids, mask)
        value = output.logits if self.kind == LANGUAGE_MODEL else output.last_hidden_state
        states: Array = value.float().cpu().numpy()
        return states

    def hidden_states(self, ids: Array, mask: Array, layer: int) -> Array:
        """The output of one layer, counted from 1; 0 are the embeddings, -1 is the last."""
        states: Array = self._run(ids, mask, output_hidden_states=True).hidden_states[layer].float().cpu().numpy()
        return states

    def generate(self, ids: Array, mask: Array, max_new_tokens: int) -> Array:
        """The most likely continuation of each row, without the row itself."""
        torch = self.torch
        self._use_threads()
        with torch.inference_mode():
            given = {"input_ids": self._tensor(ids), "attention_mask": self._tensor(mask)}
            found = self.model.generate(**given, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0)
        new: Array = found[:, ids.shape[1] :].cpu().numpy()
        return new

    def merge_adapter(self, place: Path) -> None:
        """Add a LoRA adapter, as `peft` writes it, to the weights."""
        config, file = read_json(place / "adapter_config.json"), adapter_file(place)
        scale = float(config["lora_alpha"]) / float(config["r"])
        weights = read_weights(file)
        layers = dict(self.model.named_modules())
        for name, down in weights.items():
            if ".lora_A." not in name:
                continue
            layer = name.removeprefix("base_model.model.").partition(".lora_A")[0]
            if layer not in layers:
                raise InputError(f"{file}: the model has no layer {layer!r} for this adapter")
            up = self.torch.tensor(weights[name.replace("lora_A", "lora_B")])
            added = (up @ self.torch.tensor(down)) * scale
            with self.torch.no_grad():
                own = layers[layer].weight
                own += added.to(own.dtype).to(own.device)

    def _run(self, ids: Array, mask: Array, **options: Any) -> Any:
        self._use_threads()
        with self.torch.inference_mode(), self._precision():
            return self.model(input_ids=self._tensor(ids), attention_mask=self._tensor(mask), **options)

    def _precision(self) -> AbstractContextManager[Any]:
        """Half precision where it is asked for and a GPU computes it."""
        if self.autocast and self.device == "cuda":
            context: AbstractContextManager[Any] = self.torch.autocast("cuda")
            return context
        return nullcontext()

    def _tensor(self, value: Array) -> Any:
        return self.torch.from_numpy(value).to(self.device)

    def _use_threads(self) -> None:
        if self.threads != self.torch.get_num_threads():  # a setting of the process, which may run several models
            self.torch.set_num_threads(self.threads)


def adapter_file(place: Path) -> Path:
    """The weights of an adapter."""
    found = [place / name for name in ("adapter_model.safetensors", "adapter_model.bin") if (place / name).is_file()]
    if not found or not (place / "adapter_config.json").is_file():
        raise InputError(f"{place} is not an adapter: it has no adapter_config.json with adapter_model.safetensors")
    return found[0]


def _load(place: Path, kind: str, dtype: str) -> Any:
    transformers = require("transformers", "transformers", f"running the model in {place}")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    loader = transformers.AutoModelForCausalLM if kind == LANGUAGE_MODEL else transformers.AutoModel
    options = {"local_files_only": True, "trust_remote_code": False, "dtype": dtype}
    try:
        if "model_type" in read_json(place / "config.json"):
            return loader.from_pretrained(str(place), **options)
        return _load_nested(transformers, place)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"transformers cannot load {place}: {error}. Download the model again") from error


def _load_nested(transformers: Any, place: Path) -> Any:
    """An encoder whose folder names only its base model: its weights stand beside those of a head."""
    torch = require("torch", "torch", f"running the model in {place}")
    config = encoder_config(place)
    weights = read_weights(place / "model.safetensors")
    end = "embeddings.word_embeddings.weight"
    root = next((name.removesuffix(end) for name in weights if name.endswith(end)), None)
    if root is None or "model_type" not in config:
        raise InputError(f"{place}/config.json has neither a model_type nor a base_model whose shape is known")
    own = {name.removeprefix(root): value for name, value in weights.items() if name.startswith(root)}
    config = {**config, "vocab_size": len(own[end])}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        shape = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModel.from_config(shape)
    missing = model.load_state_dict({name: torch.tensor(value) for name, value in own.items()}, strict=False)
    if [name for name in missing.missing_keys if "position_ids" not in name and not name.startswith("pooler")]:
        raise InputError(f"{place}: weights are missing: {', '.join(missing.missing_keys[:5])}")
    return model
