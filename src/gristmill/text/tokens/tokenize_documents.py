"""From text to tokens, for writers of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.decision import Decision
from gristmill.core.errors import PlanError
from gristmill.core.stage import ProcessingStage
from gristmill.samples.batch import DocumentBatch
from gristmill.text.document_filter import check_count
from gristmill.text.text_columns import text_column
from gristmill.text.tokens.tokenizer import ENCODE_BATCH_DOCUMENTS, HubAccess, Tokenizer

if TYPE_CHECKING:
    from gristmill.core.stage import Columns, WorkerMetadata

TOKENS_COLUMN = "__tokens__"
"""The column that writers of tokens read."""

END_OF_DOCUMENT_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
"""What the end of a document is called, in the order in which it is looked for."""


class TokenizeDocuments(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds the tokens of each document as a column of numbers, and drops documents without any.

    Numbers are 16 bits wide where the vocabulary allows, else 32. With `append_eod`, the token of the end of a document
    is added to each: `eod_token`, its name or number, or the one that the tokenizer is found to have. `pad_token` is a
    number that a writer adds: like the end, it must be one of the vocabulary.
    """

    takes_empty = True

    def __init__(
        self,
        tokenizer: Any,
        text_field: str = "text",
        tokens_field: str = TOKENS_COLUMN,
        append_eod: bool = False,
        eod_token: str | int | None = None,
        pad_token: int | None = None,
        cache_dir: str | None = None,
        hf_token: str | None = None,
        tokenization_batch_size: int = ENCODE_BATCH_DOCUMENTS,
    ) -> None:
        super().__init__()
        for parameter, token in {"eod_token": eod_token, "pad_token": pad_token}.items():
            if token is not None and not (parameter == "eod_token" and isinstance(token, str)):
                check_count(self.name, parameter, token)
        self.tokenizer, self.text_field, self.tokens_field = tokenizer, text_field, tokens_field
        self.append_eod, self.eod_token, self.pad_token = append_eod, eod_token, pad_token
        self.cache_dir, self.hf_token, self.tokenization_batch_size = cache_dir, hf_token, tokenization_batch_size
        self._tokenizer = Tokenizer(
            tokenizer, self.name, False, tokenization_batch_size, HubAccess(hf_token, cache_dir)
        )

    def check(self) -> None:
        self._tokenizer.check()

    def setup(self, worker_metadata: WorkerMetadata) -> None:
        self._tokenizer.load()
        self.kind()

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.tokens_field]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return self.apply(task, self.decide(task))

    def decide(self, batch: DocumentBatch) -> Decision:
        texts = text_column(self, batch.data, self.text_field)
        tokens = self._encoded([text or "" for text in texts.to_pylist()])
        counts = make_array(map(len, tokens), pa.int64())
        column = pa.array(tokens, pa.large_list(self.kind()))
        keep = pc.greater(counts, literal(0, pa.int64()))
        return Decision(keep, {self.tokens_field: column, self.name: counts})

    def apply(self, batch: DocumentBatch, decision: Decision) -> DocumentBatch:
        return batch.with_column(self.tokens_field, decision.scores[self.tokens_field]).keep(decision.keep)

    def thresholds(self) -> dict[str, str]:
        return {self.name: "tokens=1"}

    def kind(self) -> pa.DataType:
        """The type of a token. Also sees that the end of a document is known, if it is needed."""
        size = self._tokenizer.vocabulary
        if size < 1:
            raise PlanError(f"stage {self.name!r}: the tokenizer does not say how many tokens it has (vocab_size)")
        for parameter, token in (
            ("eod_token", self.end() if self.append_eod else 0),
            ("pad_token", self.pad_token or 0),
        ):
            if token >= size:
                raise PlanError(
                    f"stage {self.name!r}: {parameter} is {token}, and the tokenizer has {size} tokens, numbered from "
                    "0: give one of them"
                )
        return pa.uint16() if size <= 2**16 else pa.int32()

    def end(self) -> int:
        """The number of the token that ends a document."""
        if isinstance(self.eod_token, int):
            return self.eod_token
        if self.eod_token is None and self._tokenizer.end is not None:
            return self._tokenizer.end
        names = END_OF_DOCUMENT_TOKENS if self.eod_token is None else [self.eod_token]
        for name in names:
            number = self._tokenizer.id_of(name)
            if number is not None:
                return number
        raise PlanError(
            f"stage {self.name!r}: the tokenizer has no token {' or '.join(names)}: name the one that ends a document "
            "with eod_token=..., or its number"
        )

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        ends = [self.end()] if self.append_eod else []
        return [[*tokens, *ends] if tokens else [] for tokens in self._tokenizer.encode(texts)]
