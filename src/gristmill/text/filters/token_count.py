"""TokenCountFilter: keeps documents by their number of tokens."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.samples.argument_checks import check_bounds
from gristmill.text.document_filter import BoundedFilter
from gristmill.text.tokens.tokenizer import Tokenizer, check_no_kwargs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.text.text_columns import Texts


class TokenCountFilter(BoundedFilter):
    """The number of tokens, including those that the tokenizer adds to every text, such as a start token.

    `tokenizer` is a Hugging Face `tokenizer.json`, a directory with one, a SentencePiece `.model` file, the name of a
    tiktoken encoding ("o200k_base"), or an object with `encode`. `hf_model_name` instead names a model on the Hugging
    Face hub, from which workers download the tokenizer, with `hf_token` if it needs one.
    """

    score_type = pa.int64()
    _not_pickled = ("_tokenizer",)

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

    def score_document(self, text: str) -> int:
        return len(self._tokenizer.encode([text])[0])

    def score_batch(self, texts: Texts) -> pa.Array:
        documents = [text or "" for text in texts.to_pylist()]
        return make_array([len(tokens) for tokens in self._tokenizer.encode(documents)], pa.int64())

    def bounds(self) -> tuple[float, float]:
        return self.min_tokens, self.max_tokens


def _tokenizers_class() -> Any:
    from gristmill.core.errors import require

    return require("tokenizers", "tokenizers", "TokenCountFilter").Tokenizer
