"""Classifiers on Llama Guard: NVIDIA's Aegis, which names hazards in text, and Instruction Data Guard on top of it.

Both need PyTorch and transformers, and the weights of meta-llama/LlamaGuard-7b, for which the hub wants an account
(`hf_token`, or the environment variable HF_TOKEN). On a CPU a document takes minutes: they are made for GPUs.

The adapter of Aegis is merged into the weights here, so that nothing else need be installed. The prompt is a file if
`prompt_path` is given, with `{text}` where the document goes. The built-in one names the hazards in the form of Llama
Guard in words of our own; give the one of the model card for the labels that its publisher measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import InputError, require
from gristmill.models.model_files import Wanted
from gristmill.models.text.classifier_heads import HeadLayer
from gristmill.models.text.text_encoder import TextEncoder
from gristmill.models.text.text_tokenizer import TextTokenizer
from gristmill.models.weights import read_weights, weights_file
from gristmill.samples.batch import DocumentBatch
from gristmill.text.classifiers.distributed_data import LabelStage
from gristmill.text.classifiers.text_model_stage import tokenized, wanted_text_model
from gristmill.text.text_columns import batch_texts

if TYPE_CHECKING:
    from gristmill.core.stage import NodeInfo, WorkerMetadata
    from gristmill.models.model_loader import Array
    from gristmill.models.text.torch_text import TorchText

LLAMA_GUARD = "meta-llama/LlamaGuard-7b"
DEFENSIVE = "nvidia/Aegis-AI-Content-Safety-LlamaGuard-Defensive-1.0"
PERMISSIVE = "nvidia/Aegis-AI-Content-Safety-LlamaGuard-Permissive-1.0"
INSTRUCTION_DATA_GUARD = "nvidia/instruction-data-guard"
MOST_TOKENS, NEW_TOKENS = 4096, 100
UNKNOWN, SAFE, UNSAFE = "unknown", "safe", "unsafe"
HAZARDS = {
    "O1": "Violence", "O2": "Sexual content", "O3": "Criminal planning or confessions",
    "O4": "Guns and illegal weapons", "O5": "Controlled and regulated substances", "O6": "Suicide and self-harm",
    "O7": "Sexual content about minors", "O8": "Hate and identity hate", "O9": "Personal data and privacy",
    "O10": "Harassment", "O11": "Threats", "O12": "Profanity", "O13": "Needs caution",
}  # fmt: skip
_LISTED = "\n".join(f"{code}: {name}." for code, name in HAZARDS.items())
PROMPT = f"""[INST] Task: Check if there is unsafe content in 'User' messages in the conversation below, according to
our safety policy with the categories below.

<BEGIN UNSAFE CONTENT CATEGORIES>
{_LISTED}
<END UNSAFE CONTENT CATEGORIES>

<BEGIN CONVERSATION>

User: {{text}}

<END CONVERSATION>

Give your safety assessment for 'User' in the conversation above:
- The first line must be 'safe' or 'unsafe'.
- If it is unsafe, a second line must list the violated categories, separated by commas. [/INST]"""


class LlamaGuardStage(LabelStage):
    """A stage that runs Llama Guard with an adapter."""

    is_base: ClassVar[bool] = True

    aegis_variant: str
    base_model: str

    def _wanted_parts(self) -> list[Wanted]:
        """The base model, then the adapter, then what else is needed."""
        names = [self.base_model, self.aegis_variant]
        return [wanted_text_model(name, self.cache_dir, self.name, self.hf_token) for name in names]

    def check(self) -> None:
        for module in ("torch", "transformers"):
            require(module, "transformers", f"{self.name}, which runs Llama Guard")
        for wanted in self._wanted_parts():
            wanted.check()

    def setup_on_node(self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None) -> None:
        for wanted in self._wanted_parts():
            wanted.fetch()

    def _open(self, place: Path) -> None:
        from gristmill.models.text.torch_text import LANGUAGE_MODEL, TorchText

        base, adapter, *rest = [wanted.fetch() for wanted in self._wanted_parts()]
        model = TorchText(base, self._device, LANGUAGE_MODEL, self.autocast)
        model.merge_adapter(adapter)
        tokenizer = TextTokenizer(base, MOST_TOKENS, self.max_chars)
        run = self._runner(model, *rest)
        size = self.model_inference_batch_size if self._device.gpu else None
        self._text_encoder = TextEncoder(tokenizer, run, size, pad_left=True)

    def wanted(self) -> Wanted:
        return self._wanted_parts()[0]

    def _runner(self, model: TorchText, *rest: Path) -> Any:
        """What of the model's work on rows of tokens is used."""
        raise NotImplementedError

    def _values(self, encoder: TextEncoder, rows: Sequence[Sequence[int]]) -> list[Array]:
        return encoder.reduce_rows(rows, lambda values, _: values)


class AegisClassifier(LlamaGuardStage):
    """The hazard in text, by NVIDIA's Aegis on Llama Guard: `safe`, one of O1 to O13, or `unknown`.

    `aegis_variant` is the Defensive model (the default) or the Permissive one, which says `safe` where it is not sure;
    `filter_by=["safe"]` keeps what is safe. With `keep_raw_output` the answer of the model is in `raw_output_field`.
    """

    def __init__(
        self,
        aegis_variant: str | Path = DEFENSIVE,
        cache_dir: str | Path | None = None,
        hf_token: str | bool | None = None,
        label_field: str = "aegis_pred",
        raw_output_field: str = "_aegis_raw_pred",
        keep_raw_output: bool = False,
        text_field: str = "text",
        filter_by: Sequence[str] | None = None,
        max_chars: int | None = 6000,
        *,
        sort_by_length: bool = True,
        model_inference_batch_size: int = 64,
        autocast: bool = True,
        base_model: str | Path = LLAMA_GUARD,
        prompt_path: str | Path | None = None,
    ) -> None:
        super().__init__(
            base_model,
            cache_dir,
            text_field=text_field,
            max_chars=None,  # of the prompt, which has the text inside
            sort_by_length=sort_by_length,
            model_inference_batch_size=model_inference_batch_size,
            autocast=autocast,
            hf_token=hf_token,
        )
        self.aegis_variant, self.base_model = str(aegis_variant), str(base_model)
        self.label_field, self.raw_output_field, self.filter_by = label_field, raw_output_field, filter_by
        self.keep_raw_output, self.text_chars = keep_raw_output, max_chars
        self.prompt_path = None if prompt_path is None else str(prompt_path)

    def check(self) -> None:
        super().check()
        if "{text}" not in self.prompt():
            raise InputError(f"{self.name}: {self.prompt_path} has no {{text}}, where the document goes")

    def prompt(self) -> str:
        return PROMPT if self.prompt_path is None else Path(self.prompt_path).expanduser().read_text("utf-8")

    def _batch_tokens(self, tokenizer: TextTokenizer, batch: DocumentBatch) -> list[list[int]]:
        before, after = self.prompt().split("{text}", 1)
        texts = batch_texts(self, batch, self.text_field).to_pylist()
        return tokenized(tokenizer, [f"{before}{(text or '')[: self.text_chars]}{after}" for text in texts])

    def _runner(self, model: TorchText, *rest: Path) -> Any:
        return lambda ids, mask: model.generate(ids, mask, NEW_TOKENS)

    def _column_names(self) -> list[str]:
        return [self.label_field, *([self.raw_output_field] if self.keep_raw_output else [])]

    def _label_columns(self, values: Sequence[Array]) -> dict[str, pa.Array]:
        assert self._text_encoder is not None, "loaded by setup"
        answers = [self._text_encoder.tokenizer.decode(row.tolist()) for row in values]
        columns = {self.label_field: make_array([hazard_of(answer) for answer in answers], pa.string())}
        if self.keep_raw_output:
            columns[self.raw_output_field] = make_array(answers, pa.string())
        return columns


def hazard_of(answer: str) -> str:
    """The label that an answer of the model stands for."""
    lines = [line.strip() for line in answer.strip().splitlines()]
    if lines and lines[0] == SAFE:
        return SAFE
    if len(lines) > 1 and lines[0] == UNSAFE:
        first = lines[1].split(",")[0].strip()
        return first if first in HAZARDS else UNKNOWN
    return UNKNOWN


class InstructionDataGuardClassifier(LlamaGuardStage):
    """How likely an instruction with its answer is poisoned, from 0 to 1, by NVIDIA's Instruction Data Guard.

    The text should read "Instruction: ... Input: ... Response: ...". `is_poisoned` is true from 0.5 on;
    `filter_by=[False]` keeps the others.
    """

    def __init__(
        self,
        cache_dir: str | Path | None = None,
        hf_token: str | bool | None = None,
        label_field: str = "is_poisoned",
        score_field: str = "instruction_data_guard_poisoning_score",
        text_field: str = "text",
        filter_by: Sequence[Any] | None = None,
        max_chars: int | None = None,
        sort_by_length: bool = True,
        model_inference_batch_size: int = 64,
        autocast: bool = True,
        *,
        base_model: str | Path = LLAMA_GUARD,
        aegis_variant: str | Path = DEFENSIVE,
        guard_model: str | Path = INSTRUCTION_DATA_GUARD,
    ) -> None:
        super().__init__(
            base_model,
            cache_dir,
            text_field=text_field,
            max_chars=max_chars,
            sort_by_length=sort_by_length,
            model_inference_batch_size=model_inference_batch_size,
            autocast=autocast,
            hf_token=hf_token,
        )
        self.aegis_variant, self.base_model = str(aegis_variant), str(base_model)
        self.guard_model, self.filter_by = str(guard_model), filter_by
        self.label_field, self.score_field = label_field, score_field

    def _wanted_parts(self) -> list[Wanted]:
        guard = wanted_text_model(self.guard_model, self.cache_dir, self.name, self.hf_token)
        return [*super()._wanted_parts(), guard]

    def _runner(self, model: TorchText, *rest: Path) -> Any:
        layers = guard_layers(rest[0])

        def run(ids: Array, mask: Array) -> Array:
            last = model.hidden_states(ids, mask, -1)[:, -1]  # rows are padded on the left
            return np.array([guard_score(layers, row) for row in last], np.float64)

        return run

    def _column_names(self) -> list[str]:
        return [self.score_field, self.label_field]

    def _score_names(self) -> list[str]:
        return [self.score_field, self.label_field]

    def _label_columns(self, values: Sequence[Array]) -> dict[str, pa.Array]:
        scores = [float(value) for value in values]
        return {
            self.score_field: make_array(scores, pa.float64()),
            self.label_field: make_array([score >= 0.5 for score in scores], pa.bool_()),
        }


def guard_layers(place: Path) -> list[HeadLayer]:
    file = weights_file(place)
    weights = {} if file is None else read_weights(file)
    names = ["input_layer", *(f"hidden_layer_{number}" for number in range(3))]
    if missing := [name for name in names if f"{name}.weight" not in weights]:
        raise InputError(f"{place} is not Instruction Data Guard: it has no {missing[0]}")
    activations = ["relu", "relu", "relu", "none"]
    pairs = zip(names, activations, strict=True)
    return [HeadLayer(weights[f"{name}.weight"], weights[f"{name}.bias"], kind) for name, kind in pairs]


def guard_score(layers: Sequence[HeadLayer], row: Array) -> float:
    """The probability for the hidden state of the last token."""
    value = row / max(float(np.sqrt(np.square(row, dtype=np.float64).sum())), 1e-12)
    for layer in layers:
        value = layer(value)
    return float(1 / (1 + np.exp(-float(value[0]))))
