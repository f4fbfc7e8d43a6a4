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

from gristmill.models.text.pooling import POOLINGS, Pooling
from gristmill.samples.argument_checks import check_choice
from gristmill.samples.batch import DocumentBatch
from gristmill.text.classifiers.text_model_stage import (
    INPUT_ID_FIELD,
    TextModelStage,
    rows_of_batches,
)

if TYPE_CHECKING:
    from gristmill.core.stage import Columns
    from gristmill.models.model_loader import Array
    from gristmill.models.text.text_encoder import TextEncoder

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
