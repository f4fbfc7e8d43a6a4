"""Stages that add embeddings of text as a column of float32 (or float16) lists.

EmbeddingCreatorStage      a model with a tokenizer, such as those of sentence-transformers
StaticEmbeddingStage       the mean of the vectors of words: thousands of times as fast (wordllama, model2vec)
EndpointEmbeddingStage     a server with `/v1/embeddings`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.errors import ContractError, require
from gristmill.core.stage import ProcessingStage
from gristmill.models.model_files import Wanted
from gristmill.models.text.embedding_client import EmbeddingClient
from gristmill.models.text.pooling import POOLINGS, Pooling
from gristmill.models.text.static_embeddings import StaticEmbeddings
from gristmill.samples.argument_checks import check_choice, check_count
from gristmill.samples.batch import DocumentBatch
from gristmill.text.classifiers.text_model_stage import (
    INPUT_ID_FIELD,
    TextModelStage,
    rows_of_batches,
    wanted_text_model,
)
from gristmill.text.text_columns import batch_texts

if TYPE_CHECKING:
    from gristmill.core.stage import Columns, NodeInfo, WorkerMetadata
    from gristmill.models.model_loader import Array
    from gristmill.models.text.text_encoder import TextEncoder

WORDLLAMA = "wordllama"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
DTYPES = ("float32", "float16")


class EmbeddingCreatorStage(TextModelStage):
    """Adds the embedding of each document, as a column of lists of one length.

    `model_identifier` is a folder or a name on the hub, also NAME@REVISION: with model.onnx, or config.json and
    model.safetensors. Pooling, dense layers and normalising follow its sentence-transformers files; with
    `use_sentence_transformer=False`, `embedding_pooling` ("mean_pooling", "last_token", "cls", "max") decides, and the
    embedding has length 1. A document is cut at `max_chars` and `max_seq_length` for the model only. It runs on one
    GPU if there is one, or a part of it (`.with_(resources=...)`), else on the CPU without padding.
    """

    default_gpus: ClassVar[float] = 1.0

    _text_encoder: TextEncoder | None = None
    _pooling: Pooling = Pooling()
    _width: int = 0

    def __init__(
        self,
        model_identifier: str | Path = MINILM,
        use_sentence_transformer: bool = True,
        text_field: str = "text",
        embedding_field: str = "embeddings",
        *,
        cache_dir: str | Path | None = None,
        max_chars: int | None = None,
        max_seq_length: int | None = None,
        padding_side: str = "right",
        embedding_pooling: str = "mean_pooling",
        model_inference_batch_size: int = 1024,
        autocast: bool = True,
        sort_by_length: bool = True,
        hf_token: str | None = None,
        transformers_init_kwargs: Mapping[str, Any] | None = None,
        normalize: bool | None = None,
        dtype: str = "float32",
        keep_tokens: bool = False,
        use_existing_tokens: bool = False,
        engine: str = "auto",
    ) -> None:
        super().__init__(
            model_identifier,
            cache_dir,
            text_field=text_field,
            max_chars=max_chars,
            max_seq_length=max_seq_length,
            padding_side=padding_side,
            sort_by_length=sort_by_length,
            model_inference_batch_size=model_inference_batch_size,
            autocast=autocast,
            hf_token=hf_token,
            keep_tokens=keep_tokens,
            use_existing_tokens=use_existing_tokens,
            engine=engine,
        )
        check_choice(self.name, "embedding_pooling", embedding_pooling, POOLINGS)
        check_choice(self.name, "dtype", dtype, DTYPES)
        if transformers_init_kwargs:
            raise ValueError(f"{self.name}: transformers_init_kwargs is not supported: weights are loaded without code")
        self.use_sentence_transformer, self.embedding_field = use_sentence_transformer, embedding_field
        self.embedding_pooling, self.normalize, self.dtype = embedding_pooling, normalize, dtype
        self.transformers_init_kwargs = transformers_init_kwargs

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.embedding_field, *([INPUT_ID_FIELD] if self.keep_tokens else [])]

    def _open(self, place: Path) -> None:
        if self.use_sentence_transformer:
            self._pooling = Pooling.read(place, normalise=self.normalize)
        else:
            self._pooling = Pooling(self.embedding_pooling, self.normalize is not False)
        self._text_encoder = self._encoder(place)
        [sample] = self._text_encoder.reduce_rows(self._text_encoder.tokenize(["a"]), self._pooling)
        self._width = len(sample)

    def teardown(self) -> None:
        self._text_encoder = None

    def process_batch(self, tasks: Sequence[DocumentBatch]) -> list[DocumentBatch]:
        encoder = self._text_encoder
        assert encoder is not None, "loaded by setup"
        tokens = self._tokens(encoder, tasks)
        values = encoder.reduce_rows([row for rows in tokens for row in rows], self._pooling)
        split = rows_of_batches(values, [len(rows) for rows in tokens])
        return [self._with_embeddings(*three) for three in zip(tasks, split, tokens, strict=True)]

    def _with_embeddings(
        self, batch: DocumentBatch, values: Sequence[Array], tokens: Sequence[Sequence[int]]
    ) -> DocumentBatch:
        batch = batch.with_column(self.embedding_field, vector_column(values, self._width, self.dtype))
        return self._with_tokens(batch, tokens)


def vector_column(values: Sequence[Array] | Array, width: int, dtype: str = "float32") -> pa.Array:
    """A column of lists of one length."""
    flat = np.ascontiguousarray(np.stack(list(values)) if len(values) else np.zeros((0, width)), dtype)
    kind = pa.float16() if dtype == "float16" else pa.float32()
    numbers = pa.Array.from_buffers(kind, flat.size, [None, pa.py_buffer(flat)])
    return pa.FixedSizeListArray.from_arrays(numbers, width)


class StaticEmbeddingStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds the mean of the vectors of the words of each document: no context, and thousands of documents per second.

    `model_identifier` is "wordllama" (`pip install 'gristmill[wordllama]'`), a folder of model2vec (model.safetensors,
    tokenizer.json) or a name on the hub. `dim` keeps the first numbers of a model that allows it, as wordllama does.
    """

    takes_empty = True
    not_identity = ("cache_dir",)

    _model: StaticEmbeddings | None = None

    def __init__(
        self,
        model_identifier: str | Path = WORDLLAMA,
        text_field: str = "text",
        embedding_field: str = "embeddings",
        cache_dir: str | Path | None = None,
        dim: int | None = None,
        normalize: bool | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        check_choice(self.name, "dtype", dtype, DTYPES)
        self.model_identifier, self.cache_dir = str(model_identifier), None if cache_dir is None else str(cache_dir)
        self.text_field, self.embedding_field = text_field, embedding_field
        self.dim, self.normalize, self.dtype = dim, normalize, dtype

    def wanted(self) -> Wanted:
        return wanted_text_model(self.model_identifier, self.cache_dir, self.name)

    def check(self) -> None:
        self.wanted().check()

    def setup_on_node(self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None) -> None:
        self.wanted().fetch()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._model = StaticEmbeddings(self.wanted().fetch(), self.dim, self.normalize)

    def teardown(self) -> None:
        self._model = None

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.embedding_field]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        model = self._model
        assert model is not None, "loaded by setup"
        values = model.embed(batch_texts(self, task, self.text_field))
        return task.with_column(self.embedding_field, vector_column(values, model.width, self.dtype))


class EndpointEmbeddingStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds embeddings that a server gives at `/v1/embeddings`, as OpenAI, vLLM, llama.cpp and others have it.

    `base_url` is the address up to `/v1`. The key is read from the environment variable `api_key_env` and never stored.
    `model_inference_batch_size` documents go into one request; a request that fails for a moment (429, 5xx, no
    connection) is repeated `max_retries_per_request` times. The dimension of the first answer holds for all.
    """

    takes_empty = True
    not_identity = ("base_url", "api_key_env", "model_inference_batch_size", "max_retries_per_request", "timeout")

    _client: EmbeddingClient | None = None

    def __init__(
        self,
        base_url: str,
        model: str,
        dim: int,
        text_field: str = "text",
        embedding_field: str = "embeddings",
        api_key_env: str = "OPENAI_API_KEY",
        max_chars: int | None = None,
        *,
        model_inference_batch_size: int = 64,
        max_retries_per_request: int = 5,
        timeout: float = 60.0,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        check_choice(self.name, "dtype", dtype, DTYPES)
        check_count(self.name, "dim", dim, 1)
        check_count(self.name, "model_inference_batch_size", model_inference_batch_size, 1)
        self.base_url, self.model, self.dim, self.max_chars = base_url, model, dim, max_chars
        self.text_field, self.embedding_field, self.api_key_env = text_field, embedding_field, api_key_env
        self.model_inference_batch_size, self.dtype = model_inference_batch_size, dtype
        self.max_retries_per_request, self.timeout = max_retries_per_request, timeout

    def check(self) -> None:
        require("urllib3", "download", f"{self.name}, which asks a server")

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._client = EmbeddingClient(
            self.base_url, self.model, self.api_key_env, self.max_retries_per_request, self.timeout
        )

    def teardown(self) -> None:
        self._client = None

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.embedding_field]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        assert self._client is not None, "opened by setup"
        texts = [(text or "")[: self.max_chars] for text in batch_texts(self, task, self.text_field).to_pylist()]
        size = self.model_inference_batch_size
        values = [
            row for start in range(0, len(texts), size) for row in self._client.embed(texts[start : start + size])
        ]
        if wrong := next((row for row in values if len(row) != self.dim), None):
            raise ContractError(f"stage {self.name!r}: {self.model} gives {len(wrong)} numbers, and dim is {self.dim}")
        rows = [np.array(row, np.float32) for row in values]
        return task.with_column(self.embedding_field, vector_column(rows, self.dim, self.dtype))
