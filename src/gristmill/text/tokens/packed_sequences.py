"""Writes tokens in sequences of equal length: documents are concatenated and split every `sequence_length` tokens.

Documents are packed within their partition, in the order of the input, so the bytes do not depend on workers or blocks.
The last sequence of a partition is padded or dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import WrittenFiles
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import WRITE_MODES, CommitFiles, OutputFormat, WriteFragments
from gristmill.samples.argument_checks import check_choice, check_count, check_output_path
from gristmill.samples.batch import DocumentBatch
from gristmill.text.tokens.megatron import (
    little_endian_bytes,
    read_token_fragments,
    write_token_fragment,
)
from gristmill.text.tokens.tokenize_documents import TOKENS_COLUMN, TokenizeDocuments

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from gristmill.io.write.commit import Fragment, OutputFiles

TOKENS_PER_WRITE = 2**22
"""About the number of tokens of a Parquet row group."""

_NPY_TYPE_CODES = {pa.uint16(): "<u2", pa.int32(): "<i4"}


class PackedSequenceWriter(CompositeStage[DocumentBatch, WrittenFiles]):
    """Tokenizes documents and writes them as sequences of `sequence_length` tokens, as `.npy` or Parquet files.

    Documents are concatenated, each followed by `eod_token` (a name or an id; by default it is found in the tokenizer),
    and split. The last sequence of a partition is padded with the id `pad_token`, or with the end token;
    `remainder="drop"` drops it. A `.npy` file holds a table with one row per sequence; Parquet has a column
    `input_ids`. `tokenizer` is the `model_identifier` of `MegatronTokenizerWriter`, and `mode` that of `JsonlWriter`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tokenizer: Any,
        sequence_length: int = 2048,
        text_field: str = "text",
        file_format: Literal["npy", "parquet"] = "npy",
        append_eod: bool = True,
        eod_token: str | int | None = None,
        pad_token: int | None = None,
        remainder: Literal["pad", "drop"] = "pad",
        mode: str = "ignore",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_output_path(self.name, path)
        check_choice(self.name, "mode", mode, WRITE_MODES)
        check_choice(self.name, "file_format", file_format, ("npy", "parquet"))
        check_choice(self.name, "remainder", remainder, ("pad", "drop"))
        check_count(self.name, "sequence_length", sequence_length, least=1)
        if pad_token is not None:
            check_count(self.name, "pad_token", pad_token)
        if remainder == "pad" and pad_token is None and not append_eod:
            raise ValueError(
                f"{self.name}: remainder='pad' needs a pad_token or append_eod: give one of them, or remainder='drop'"
            )
        self.path, self.tokenizer, self.sequence_length, self.text_field = path, tokenizer, sequence_length, text_field
        self.file_format, self.append_eod, self.eod_token = file_format, append_eod, eod_token
        self.pad_token, self.remainder, self.mode, self.storage_options = pad_token, remainder, mode, storage_options

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        target = OutputDirectory(self.path, self.storage_options)
        form = PackedFormat(self.sequence_length, self.file_format, self.pad_token, self.remainder == "pad")
        return [
            TokenizeDocuments(
                self.tokenizer, self.text_field, TOKENS_COLUMN, self.append_eod, self.eod_token, self.pad_token
            ),
            WriteFragments(target, form, [TOKENS_COLUMN], self.mode),
            CommitFiles(target, form, [TOKENS_COLUMN], self.mode),
        ]


@dataclass(frozen=True)
class PackedFormat(OutputFormat):
    """Sequences of equal length. Without a `pad_token`, the last token of the partition, an end token, is used."""

    length: int
    kind: str = "npy"
    pad_token: int | None = None
    pad: bool = True
    target_file_size: int | None = None

    @property
    def name(self) -> str:
        return f"packed_{self.kind}"

    @property
    def extension(self) -> str:
        return f".{self.kind}"

    @property
    def extensions(self) -> tuple[str, ...]:
        return (self.extension,)

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        write_token_fragment(table, file)

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        token = schema.field(TOKENS_COLUMN).type.value_type
        if self.kind == "npy":
            tokens = sum(len(lists.flatten()) for lists in read_token_fragments(fragments, parts.target))
            with parts.create() as file:
                file.write(npy_header(_NPY_TYPE_CODES[token], self._sequences(tokens), self.length))
                for piece in self._pieces(fragments, parts):
                    file.write(little_endian_bytes(piece))
            return
        import pyarrow.parquet as pq

        kind = pa.schema([("input_ids", pa.list_(token))])
        with parts.create() as file, pq.ParquetWriter(file, kind, compression="zstd") as writer:
            for piece in self._pieces(fragments, parts):
                offsets = make_array(range(0, len(piece) + 1, self.length), pa.int64()).cast(pa.int32())
                rows = pa.table([pa.ListArray.from_arrays(offsets, piece)], schema=kind)
                writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    def _sequences(self, tokens: int) -> int:
        full, rest = divmod(tokens, self.length)
        return full + bool(rest and self.pad)

    def _pieces(self, fragments: Sequence[Fragment], parts: OutputFiles) -> Iterator[pa.Array]:
        """The tokens in pieces of complete sequences. Where pieces end does not depend on the fragments."""
        size = max(1, TOKENS_PER_WRITE // self.length) * self.length
        waiting: list[pa.Array] = []
        count = 0
        for lists in read_token_fragments(fragments, parts.target):
            waiting.append(lists.flatten())
            count += len(waiting[-1])
            while count >= size:
                tokens = pa.concat_arrays(waiting)
                yield tokens.slice(0, size)
                waiting, count = [tokens.slice(size)], count - size
        if count:
            yield from self._last(pa.concat_arrays(waiting))

    def _last(self, tokens: pa.Array) -> Iterator[pa.Array]:
        missing = -len(tokens) % self.length
        if missing and not self.pad:
            tokens = tokens.slice(0, len(tokens) - len(tokens) % self.length)
        elif missing:
            filler = tokens[-1].as_py() if self.pad_token is None else self.pad_token
            tokens = pa.concat_arrays([tokens, pc.cast(make_array([filler] * missing, pa.int64()), tokens.type)])
        if len(tokens):
            yield tokens


def npy_header(code: str, rows: int, columns: int) -> bytes:
    """The header of a `.npy` file of version 1.0, padded to a multiple of 64 bytes."""
    text = f"{{'descr': '{code}', 'fortran_order': False, 'shape': ({rows}, {columns}), }}"
    length = -(-(10 + len(text) + 1) // 64) * 64 - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"
