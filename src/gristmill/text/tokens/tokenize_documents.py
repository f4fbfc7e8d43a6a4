"""TokenizeDocuments: adds the token ids of each document as a column, for writers of token files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import DecidingStage, Decision
from gristmill.core.errors import PlanError
from gristmill.samples.argument_checks import check_count
from gristmill.samples.batch import DocumentBatch
from gristmill.text.text_columns import TextFieldStage, text_column
from gristmill.text.tokens.tokenizer import ENCODE_BATCH_DOCUMENTS, HubAccess, Tokenizer

if TYPE_CHECKING:
    from gristmill.core.stage import Columns, WorkerMetadata

TOKENS_COLUMN = "__tokens__"
"""The column from which writers of token files read."""

END_OF_DOCUMENT_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
"""Names of the token that ends a document, in the order in which they are tried."""


class TokenizeDocuments(DecidingStage[DocumentBatch], TextFieldStage):
    """Adds the token ids of each document as a column, and drops documents without any.

    Ids are 16 bits wide if the vocabulary allows it, otherwise 32. With `append_eod`, each document ends with
    `eod_token`, given by name or id; by default it is found in the tokenizer. `pad_token` is an id that a writer adds;
    it must be in the vocabulary.
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

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._tokenizer.load()
        self.kind()

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.tokens_field]

    def decide(self, batch: DocumentBatch) -> Decision:
        texts = text_column(self, batch.data, self.text_field)
        tokens = self._encoded([text or "" for text in texts.to_pylist()])
        counts = make_array(map(len, tokens), pa.int64())
        column = pa.array(tokens, pa.large_list(self.kind()))
        keep = pc.greater(counts, literal(0, pa.int64()))
        return Decision(keep, {self.name: counts}, columns={self.tokens_field: column})

    def apply(self, batch: DocumentBatch, decision: Decision) -> DocumentBatch:
        return batch.with_column(self.tokens_field, decision.columns[self.tokens_field]).keep(decision.keep)

    def thresholds(self) -> dict[str, str]:
        return {self.name: "tokens=1"}

    def kind(self) -> pa.DataType:
        """The Arrow type of token ids. Raises if eod_token or pad_token is not in the vocabulary."""
        size = self._tokenizer.vocabulary
        if size < 1:
            raise PlanError(f"stage {self.name!r}: the tokenizer has no vocab_size: give one that has")
        for parameter, token in (
            ("eod_token", self.end() if self.append_eod else 0),
            ("pad_token", self.pad_token or 0),
        ):
            if token >= size:
                raise PlanError(
                    f"stage {self.name!r}: {parameter} is {token}, must be below the vocabulary size of {size}"
                )
        return pa.uint16() if size <= 2**16 else pa.int32()

    def end(self) -> int:
        """The id of the token that ends a document."""
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
            f"stage {self.name!r}: the tokenizer has no token {' or '.join(names)}: give the name or id of the one "
            "that ends a document as eod_token=..."
        )

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        ends = [self.end()] if self.append_eod else []
        return [[*tokens, *ends] if tokens else [] for tokens in self._tokenizer.encode(texts)]
