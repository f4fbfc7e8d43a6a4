"""Splitting long texts for models, and putting them together again.

TokenSplitterStage    a row for each chunk of at most so many tokens, cut between paragraphs
ChunkMergeStage       one row for each document again, wherever its chunks are
CenterCropTextStage   only the middle of a text
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.samples.argument_checks import check_positive
from gristmill.samples.batch import DocumentBatch
from gristmill.text.text_columns import text_column
from gristmill.text.tokens.tokenizer import Tokenizer

NO_CONTENT = ("NO USEFUL CONTENT", '"NO USEFUL CONTENT"')


class TokenSplitterStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Splits each document into chunks of at most `max_length_tokens`, between paragraphs.

    A paragraph, with the `separator` after it, is never split: one that is longer is a chunk by itself. Blank
    paragraphs are left out. Chunks are numbered from 0 in `chunk_id_field`; `n_tokens_field` has their tokens. The
    tokenizer is a `tokenizer.json`, a folder with one, a `.model` file, or a name on the hub.
    """

    takes_empty = True

    def __init__(
        self,
        model_name: Any,
        max_length_tokens: int = 8000,
        separator: str = "\n\n",
        text_field: str = "text",
        chunk_id_field: str = "chunk_id",
        n_tokens_field: str = "n_tokens",
    ) -> None:
        super().__init__()
        check_positive("TokenSplitterStage", "max_length_tokens", max_length_tokens)
        if not separator:
            raise ValueError("TokenSplitterStage: the separator is empty: give the text between paragraphs")
        self.model_name, self.max_length_tokens, self.separator = model_name, max_length_tokens, separator
        self.text_field, self.chunk_id_field, self.n_tokens_field = text_field, chunk_id_field, n_tokens_field
        self._tokenizer = Tokenizer(model_name, self.name, special_tokens=False)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_field, self.chunk_id_field, self.n_tokens_field]

    def check(self) -> None:
        self._tokenizer.check()

    def setup(self, worker_metadata: Any = None) -> None:
        self._tokenizer.load()

    def process(self, task: DocumentBatch) -> DocumentBatch:
        texts = text_column(self, task.data, self.text_field).to_pylist()
        paragraphs = [list(self._paragraphs(text or "")) for text in texts]
        flat = [paragraph for some in paragraphs for paragraph in some]
        counts = iter([len(tokens) for tokens in self._tokenizer.encode(flat)] if flat else [])
        chunks = [list(self._chunks(some, counts)) for some in paragraphs]
        rows = task.take([row for row, some in enumerate(chunks) for _ in some])
        flat_chunks = [chunk for some in chunks for chunk in some]
        for name, values, kind in (
            (self.text_field, [text for text, _ in flat_chunks], pa.string()),
            (self.chunk_id_field, [number for some in chunks for number in range(len(some))], pa.int64()),
            (self.n_tokens_field, [count for _, count in flat_chunks], pa.int64()),
        ):
            rows = rows.with_column(name, make_array(values, kind))
        return rows

    def _paragraphs(self, text: str) -> Iterator[str]:
        pieces = text.split(self.separator)
        for at, piece in enumerate(pieces):
            if piece.strip():
                yield piece if at == len(pieces) - 1 else piece + self.separator

    def _chunks(self, paragraphs: Sequence[str], counts: Iterator[int]) -> Iterator[tuple[str, int]]:
        waiting: list[str] = []
        total = 0
        for paragraph in paragraphs:
            count = next(counts)
            if waiting and total + count > self.max_length_tokens:
                yield "".join(waiting), total
                waiting, total = [], 0
            waiting.append(paragraph)
            total += count
        if waiting:
            yield "".join(waiting), total


class ChunkMergeStage(KeyedStage):
    """Joins the chunks of each document in the order of `chunk_id_field`, wherever their rows are.

    Rows with the same `groupby_columns` are a document. Of chunks with one number the first counts; those that are
    empty or one of `no_content_markers` are left out. `text_field` and `raw_text_field` are joined by `separator`,
    `sum_columns` are added up, and of other columns the first value is kept. Documents without text, and those of more
    than `max_text_length` characters, are dropped and counted (`without_text`, `too_long`).
    """

    def __init__(
        self,
        text_field: str = "cleaned_text",
        raw_text_field: str | None = "text",
        chunk_id_field: str = "chunk_id",
        groupby_columns: Sequence[str] | None = None,
        no_content_markers: Sequence[str] | None = None,
        sum_columns: Sequence[str] | None = None,
        max_text_length: int = 900_000,
        separator: str = "\n",
        num_partitions: int | None = None,
        memory_gb: float | None = None,
    ) -> None:
        check_positive("ChunkMergeStage", "max_text_length", max_text_length)
        self.text_field, self.raw_text_field, self.chunk_id_field = text_field, raw_text_field, chunk_id_field
        self.groupby_columns, self.no_content_markers = groupby_columns, no_content_markers
        self.sum_columns, self.max_text_length, self.separator = sum_columns, max_text_length, separator
        self.num_partitions, self.memory_gb = num_partitions, memory_gb
        self.key, self.order = list(groupby_columns or ["url"]), [chunk_id_field]
        self._markers = set(NO_CONTENT if no_content_markers is None else no_content_markers) | {"", "\n"}
        self._sums = ["num_generated_tokens", "num_input_tokens"] if sum_columns is None else list(sum_columns)

    def reduce(self, key: Any, rows: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        chunks: dict[Any, dict[str, Any]] = {}
        for row in rows:
            chunks.setdefault(row.get(self.chunk_id_field), row)
        kept = [row for row in chunks.values() if isinstance(row.get(self.text_field), str)]
        kept = [row for row in kept if row[self.text_field] not in self._markers]
        if not kept:
            self.count("without_text")
            return None
        merged = {name: value for name, value in kept[0].items() if name not in (POSITION, self.chunk_id_field)}
        for name in (self.text_field, self.raw_text_field):
            if name is not None and name in merged:
                merged[name] = self.separator.join(str(row[name]) for row in kept if row[name] is not None)
        for name in self._sums:
            if name in merged:
                merged[name] = sum(row[name] or 0 for row in kept)
        if len(merged[self.text_field]) > self.max_text_length:
            self.count("too_long")
            return None
        return merged

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_field, self.chunk_id_field, *self.columns]


class CenterCropTextStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Keeps the middle of each text: `center_crop_chars` characters on either side of its centre. 0 keeps all."""

    takes_empty = True

    def __init__(self, text_field: str = "text", center_crop_chars: int = 10_000) -> None:
        super().__init__()
        self.text_field, self.center_crop_chars = text_field, max(0, int(center_crop_chars))

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if not self.center_crop_chars:
            return task
        texts = text_column(self, task.data, self.text_field)
        cropped = [None if text is None else self._middle(text) for text in texts.to_pylist()]
        return task.with_column(self.text_field, make_array(cropped, pa.string()))

    def _middle(self, text: str) -> str:
        centre = len(text) // 2
        return text[max(0, centre - self.center_crop_chars) : centre + self.center_crop_chars]
