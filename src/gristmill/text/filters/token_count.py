"""Counting tokens."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.text.document_filter import DocumentFilter, check_bounds, within_bounds
from gristmill.text.tokens.tokenizer import Tokenizer, check_no_kwargs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.text.document_filter import Texts


class TokenCountFilter(DocumentFilter):
    """The number of tokens, with those that the tokenizer adds to every text, such as a mark of the beginning.

    `tokenizer` is a `tokenizer.json` file of Hugging Face, a directory with one, a `.model` file of SentencePiece, the
    name of a tiktoken encoding ("o200k_base"), or an object with `encode`. `hf_model_name` instead names a model on the
    Hugging Face hub, from which workers fetch its tokenizer, with `hf_token` if it takes one.
    """

    score_type = pa.int64()

    def __init__(
        self,
        tokenizer: Any = None,
        hf_model_name: str | None = None,
        hf_token: str | None = None,
        min_tokens: int = 0,
        max_tokens: float = math.inf,
        transformers_init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        check_no_kwargs("TokenCountFilter", transformers_init_kwargs)
        if (tokenizer is None) == (hf_model_name is None):
            raise ValueError("TokenCountFilter: give either tokenizer=... or hf_model_name=...")
        check_bounds("TokenCountFilter", "tokens", min_tokens, max_tokens)
        self.tokenizer, self.hf_model_name, self.hf_token = tokenizer, hf_model_name, hf_token
        self.min_tokens, self.max_tokens = min_tokens, max_tokens
        self.transformers_init_kwargs = transformers_init_kwargs

    def check(self) -> None:
        self._tokenizer.check() if self.hf_model_name is None else _tokenizers_class()

    def setup(self) -> None:
        self._tokenizer.load()

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        if self.hf_model_name is None:
            return Tokenizer(self.tokenizer, "TokenCountFilter")
        return Tokenizer(
            _tokenizers_class().from_pretrained(self.hf_model_name, token=self.hf_token), "TokenCountFilter"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_tokenizer"}

    def score_document(self, text: str) -> int:
        return len(self._tokenizer.encode([text])[0])

    def score_batch(self, texts: Texts) -> pa.Array:
        documents = [text or "" for text in texts.to_pylist()]
        return make_array([len(tokens) for tokens in self._tokenizer.encode(documents)], pa.int64())

    def keep_document(self, score: float) -> bool:
        return self.min_tokens <= score <= self.max_tokens

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within_bounds(scores, self.min_tokens, self.max_tokens)


def _tokenizers_class() -> Any:
    from gristmill.core.errors import require

    return require("tokenizers", "tokenizers", "TokenCountFilter").Tokenizer
