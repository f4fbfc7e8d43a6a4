"""Base of stages that run a model on text; and the stage that tokenises for several of them.

    TextModelStage    finds the model, tokenises the text, runs the model on rows of tokens
    TokenizerStage    adds a column of tokens, which stages after it use instead of tokenising again

The stored text is never changed: `max_chars` and `max_seq_length` say how much of it the model sees. What a document
gets does not depend on which others are in its batch (`models/text/token_rows.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from gristmill.core.errors import ContractError
from gristmill.core.resources import Resources
from gristmill.core.stage import ProcessingStage
from gristmill.models.model_files import Wanted
from gristmill.models.model_loader import ENGINES, Array, Device
from gristmill.models.text.text_encoder import TextEncoder, in_chunks
from gristmill.models.text.text_tokenizer import TextTokenizer
from gristmill.samples.argument_checks import check_choice, check_count
from gristmill.samples.batch import DocumentBatch
from gristmill.text.text_columns import as_array, batch_column, batch_texts

if TYPE_CHECKING:
    from gristmill.core.stage import Columns, NodeInfo, WorkerMetadata

INPUT_ID_FIELD = "input_ids"
"""The column of tokens."""

GPU_TASKS = 4
"""Tasks that are processed together on a GPU, so that its batches are full."""

TOKENS = pa.list_(pa.int32())


class TextModelStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """A stage that runs a model on text. A subclass writes `_open` and what it does with the rows of numbers."""

    takes_empty = True
    not_identity: ClassVar[tuple[str, ...]] = ("cache_dir", "hf_token", "sort_by_length", "model_inference_batch_size")
    default_gpus: ClassVar[float] = 1.0

    _device: Device = Device()

    def __init__(
        self,
        model_identifier: str | Path,
        cache_dir: str | Path | None = None,
        *,
        text_field: str = "text",
        max_chars: int | None = None,
        max_seq_length: int | None = None,
        padding_side: str = "right",
        sort_by_length: bool = True,
        model_inference_batch_size: int = 256,
        autocast: bool = True,
        hf_token: str | bool | None = None,
        keep_tokens: bool = False,
        use_existing_tokens: bool = False,
        engine: str = "auto",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_choice(name, "engine", engine, ENGINES)
        check_choice(name, "padding_side", padding_side, ("right", "left"))
        check_count(name, "model_inference_batch_size", model_inference_batch_size, 1)
        for what, number in (("max_chars", max_chars), ("max_seq_length", max_seq_length)):
            if number is not None:
                check_count(name, what, number, 1)
        self.model_identifier, self.cache_dir = str(model_identifier), None if cache_dir is None else str(cache_dir)
        self.text_field, self.max_chars, self.max_seq_length = text_field, max_chars, max_seq_length
        self.padding_side, self.sort_by_length, self.autocast = padding_side, sort_by_length, autocast
        self.model_inference_batch_size, self.hf_token, self.engine = model_inference_batch_size, hf_token, engine
        self.keep_tokens, self.use_existing_tokens = keep_tokens, use_existing_tokens
        self.resources = Resources(cpus=1.0, gpus=self.default_gpus, or_cpu=True)
        self.batch_size = GPU_TASKS

    @abstractmethod
    def _open(self, place: Path) -> None:
        """Load the model in a directory."""

    def with_(self, **settings: Any) -> Self:
        other = super().with_(**settings)
        if "batch_size" not in settings and not other.resources.requires_gpu:
            other.batch_size = 1  # on a CPU larger batches gain nothing, and single tasks balance better
        return other

    def wanted(self) -> Wanted:
        return wanted_text_model(self.model_identifier, self.cache_dir, self.name, self.hf_token)

    def check(self) -> None:
        self.wanted().check()

    def setup_on_node(self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None) -> None:
        self.wanted().fetch()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._device = Device(bool(worker_metadata and worker_metadata.gpus), max(1, int(self.resources.cpus)))
        self._open(self.wanted().fetch())

    def inputs(self) -> tuple[list[str], Columns]:
        if self.use_existing_tokens:
            return ["data"], [INPUT_ID_FIELD]
        return ["data"], {self.text_field: "string"}

    def _encoder(self, place: Path) -> TextEncoder:
        return TextEncoder.load(
            place,
            self._device,
            self.engine,
            max_tokens=self.max_seq_length,
            max_chars=self.max_chars,
            batch_size=self.model_inference_batch_size,
            pad_left=self.padding_side == "left",
            autocast=self.autocast,
        )

    def _tokens(self, encoder: TextEncoder, batches: Sequence[DocumentBatch]) -> list[list[list[int]]]:
        """The tokens of each row of each batch."""
        return [self._batch_tokens(encoder.tokenizer, batch) for batch in batches]

    def _batch_tokens(self, tokenizer: TextTokenizer, batch: DocumentBatch) -> list[list[int]]:
        if not self.use_existing_tokens:
            return tokenized(tokenizer, batch_texts(self, batch, self.text_field).to_pylist())
        column = batch_column(self, batch, INPUT_ID_FIELD)
        if not pa.types.is_list(column.type) or not pa.types.is_integer(column.type.value_type):
            raise ContractError(
                f"stage {self.name!r}: column {INPUT_ID_FIELD!r} holds {column.type}, and not lists of tokens: put "
                "TokenizerStage before it, or use_existing_tokens=False"
            )
        return [row or [] for row in column.to_pylist()]

    def _with_tokens(self, batch: DocumentBatch, tokens: Sequence[Sequence[int]]) -> DocumentBatch:
        """The batch with the column of tokens if it is to be kept, else without."""
        if self.keep_tokens:
            return batch.with_column(INPUT_ID_FIELD, token_column(tokens))
        return self._without_used_tokens(batch)

    def _without_used_tokens(self, batch: DocumentBatch) -> DocumentBatch:
        if self.use_existing_tokens and INPUT_ID_FIELD in batch.get_columns():
            return batch.with_data(batch.data.drop_columns([INPUT_ID_FIELD]))
        return batch


class TokenizerStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds the tokens of each document for a model, as the column `input_ids`.

    Stages with `use_existing_tokens=True` take them from there, so that several models with the same tokenizer tokenise
    once, and the stage of a GPU not at all. The text stays as it is.
    """

    takes_empty = True
    not_identity = ("cache_dir", "hf_token", "sort_by_length")

    _tokenizer: TextTokenizer | None = None

    def __init__(
        self,
        model_identifier: str | Path,
        cache_dir: str | Path | None = None,
        hf_token: str | bool | None = None,
        text_field: str = "text",
        max_chars: int | None = None,
        max_seq_length: int | None = None,
        padding_side: str = "right",
        sort_by_length: bool = True,
    ) -> None:
        super().__init__()
        check_choice(self.name, "padding_side", padding_side, ("right", "left"))
        self.model_identifier, self.cache_dir = str(model_identifier), None if cache_dir is None else str(cache_dir)
        self.hf_token, self.text_field, self.max_chars = hf_token, text_field, max_chars
        self.max_seq_length, self.padding_side, self.sort_by_length = max_seq_length, padding_side, sort_by_length

    def wanted(self) -> Wanted:
        return wanted_text_model(self.model_identifier, self.cache_dir, self.name, self.hf_token)

    def check(self) -> None:
        self.wanted().check()

    def setup_on_node(self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None) -> None:
        self.wanted().fetch()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._tokenizer = TextTokenizer(self.wanted().fetch(), self.max_seq_length, self.max_chars)

    def teardown(self) -> None:
        self._tokenizer = None

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [INPUT_ID_FIELD]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        assert self._tokenizer is not None, "loaded by setup"
        tokens = tokenized(self._tokenizer, batch_texts(self, task, self.text_field).to_pylist())
        return task.with_column(INPUT_ID_FIELD, token_column(tokens))


def wanted_text_model(given: str, cache_dir: str | None, purpose: str, token: str | bool | None = None) -> Wanted:
    """The model: a directory, a name on the hub, or one of the models in `cache_dir`."""
    if cache_dir is None or Path(given).expanduser().exists():
        return Wanted(given, purpose=purpose, token=token)
    return Wanted(cache_dir, given, purpose, nested=True, token=token)


def tokenized(tokenizer: TextTokenizer, texts: Sequence[str | None]) -> list[list[int]]:
    return [ids for some in in_chunks(texts) for ids in tokenizer(some)]


def token_column(tokens: Sequence[Sequence[int]]) -> pa.Array:
    return as_array(pa.array(tokens, TOKENS))


def rows_of_batches(values: Sequence[Array], counts: Sequence[int]) -> list[Sequence[Array]]:
    """Rows that were computed together, split into those of each batch."""
    starts = [sum(counts[:number]) for number in range(len(counts))]
    return [values[start : start + count] for start, count in zip(starts, counts, strict=True)]
