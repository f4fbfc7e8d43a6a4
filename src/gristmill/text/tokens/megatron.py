"""Writes tokens in the format of Megatron: a `.bin` with all token ids, and a `.idx` with the start of each document.

Each partition of the input gives one pair; `merge_megatron` merges all pairs into one. The index is committed after the
tokens, so a pair with an index is complete.

    .idx    "MMIDIDX\\0\\0", version (8 bytes), type of a token (1), sequences (8), documents + 1 (8),
            tokens of each sequence (4 each), first byte of each (8 each), first sequence of each document (8 each)
"""

from __future__ import annotations

import os
import struct
from array import array
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import InputError
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import GatherTask, WrittenFiles
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import (
    WRITE_MODES,
    CommitFiles,
    OutputFiles,
    OutputFormat,
    WriteFragments,
    partition_name,
)
from gristmill.io.write.parquet_format import stream_batches
from gristmill.samples.argument_checks import check_choice, check_count, check_output_path
from gristmill.samples.batch import DocumentBatch
from gristmill.text.tokens.tokenize_documents import TOKENS_COLUMN, TokenizeDocuments
from gristmill.text.tokens.tokenizer import ENCODE_BATCH_DOCUMENTS, check_no_kwargs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gristmill.io.write.commit import Fragment

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<QBQQ")
MEGATRON_TYPE_CODES = {pa.uint16(): 8, pa.int32(): 4}
"""The codes of token types in the index."""

MERGE_CHUNK_BYTES = 2**22


class MegatronTokenizerWriter(CompositeStage[DocumentBatch, WrittenFiles]):
    """Tokenizes documents and writes them as `.bin` and `.idx` files for Megatron, a pair for each partition.

    `model_identifier` is a `tokenizer.json` or a directory with one, a SentencePiece `.model` file, the name of a
    tiktoken encoding, "owner/name" on the Hugging Face hub, or an object with `encode`. Token ids have 16 bits if the
    vocabulary has at most 65,536 of them, otherwise 32. With `append_eod`, each document ends with `eod_token`, given
    by name or id; by default it is found in the tokenizer. Documents without tokens are left out. `mode` is that of
    `JsonlWriter`. Tokenizers from the hub are downloaded with `hf_token`, if they need one, and kept in `cache_dir`.
    `tokenization_batch_size` documents are encoded at a time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model_identifier: Any,
        text_field: str = "text",
        append_eod: bool = False,
        eod_token: str | int | None = None,
        mode: str = "ignore",
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | None = None,
        hf_token: str | None = None,
        tokenization_batch_size: int = ENCODE_BATCH_DOCUMENTS,
        transformers_init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        check_output_path(self.name, path)
        check_choice(self.name, "mode", mode, WRITE_MODES)
        check_count(self.name, "tokenization_batch_size", tokenization_batch_size, least=1)
        check_no_kwargs(self.name, transformers_init_kwargs)
        self.cache_dir, self.hf_token, self.tokenization_batch_size = cache_dir, hf_token, tokenization_batch_size
        self.transformers_init_kwargs = transformers_init_kwargs
        self.path, self.model_identifier, self.text_field = path, model_identifier, text_field
        self.append_eod, self.eod_token, self.mode = append_eod, eod_token, mode
        self.storage_options = storage_options

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        target = OutputDirectory(self.path, self.storage_options)
        form = MegatronFormat()
        return [
            TokenizeDocuments(
                self.model_identifier,
                self.text_field,
                TOKENS_COLUMN,
                self.append_eod,
                self.eod_token,
                cache_dir=self.cache_dir,
                hf_token=self.hf_token,
                tokenization_batch_size=self.tokenization_batch_size,
            ),
            WriteFragments(target, form, [TOKENS_COLUMN], self.mode),
            CommitMegatron(target, form, [TOKENS_COLUMN], self.mode),
        ]


@dataclass(frozen=True)
class MegatronFormat(OutputFormat):
    """The files of a pair, one extension at a time."""

    extension: str = ".bin"
    extensions: tuple[str, ...] = (".bin", ".idx")
    name: str = "megatron"
    target_file_size: int | None = None

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        write_token_fragment(table, file)

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        raise NotImplementedError("a pair is joined by CommitMegatron")


class CommitMegatron(CommitFiles):
    """Joins the fragments of one partition into its `.bin` and `.idx`."""

    def process(self, task: GatherTask) -> WrittenFiles:
        everything: list[Any] = task.data
        fragments = [fragment for fragment in everything if fragment.rows]
        stem = partition_name(task) + self._generation
        run = everything[0].data.rpartition("/")[0].rpartition("/")[2] if everything else ""
        pair = [OutputFiles(self.target, run, stem, MegatronFormat(extension)) for extension in (".bin", ".idx")]
        if fragments and not self.target.exists(fragments[0].data):  # an earlier attempt has committed and removed them
            placed = [self._earlier_commit(parts) for parts in pair]
        else:
            if fragments:
                self._join(fragments, *pair)
            placed = [parts.move_into_place() for parts in pair]
        files = [path for paths in placed for path in paths]
        written = [file for parts, paths in zip(pair, placed, strict=True) for file in parts.written(paths, fragments)]
        temporary = [fragment.data for fragment in fragments]
        for path in temporary:
            self.target.remove(path)
        self.target.remove_drafts(run, [*files, *temporary])
        return WrittenFiles(
            files,
            rows=sum(fragment.rows for fragment in fragments),
            written=tuple(written),
            storage_options=self.target.storage_options,
            dataset_name=everything[0].dataset_name if everything else "",
            metadata=dict(everything[0].metadata) if everything else {},
        )

    def _join(self, fragments: Sequence[Fragment], tokens: OutputFiles, index: OutputFiles) -> None:
        sizes = array("i")
        kind = fragments[0].schema.field(TOKENS_COLUMN).type.value_type
        with tokens.create() as file:
            for lists in read_token_fragments(fragments, self.target):
                sizes.extend(pc.list_value_length(lists).to_pylist())
                file.write(little_endian_bytes(lists.flatten()))
        with index.create() as file:
            write_megatron_index(file, sizes, kind)


def write_token_fragment(table: pa.Table, file: BinaryIO) -> None:
    """Write a fragment of tokens as an Arrow stream."""
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(file, table.schema, options=options) as writer:
        writer.write_table(table)


def read_token_fragments(fragments: Sequence[Fragment], target: OutputDirectory) -> Iterator[pa.Array]:
    """The tokens of the documents, as list arrays, batch by batch."""
    for fragment in fragments:
        for batch in stream_batches(fragment, target):
            yield batch.column(TOKENS_COLUMN)


def little_endian_bytes(numbers: pa.Array) -> bytes:
    """The bytes of an array of numbers, little-endian."""
    width = numbers.type.bit_width // 8
    start = numbers.offset * width
    return bytes(memoryview(numbers.buffers()[1])[start : start + len(numbers) * width]) if len(numbers) else b""


def write_megatron_index(file: BinaryIO, sizes: array[int], kind: pa.DataType) -> None:
    """Write the index of documents that have one sequence each."""
    width = kind.bit_width // 8
    file.write(MAGIC + HEADER.pack(1, MEGATRON_TYPE_CODES[kind], len(sizes), len(sizes) + 1))
    file.write(sizes.tobytes())
    starts = accumulate(sizes, initial=0)
    file.write(array("q", [start * width for start, _ in zip(starts, sizes, strict=False)]).tobytes())
    file.write(array("q", range(len(sizes) + 1)).tobytes())


def read_megatron_index(path: Path) -> tuple[array[int], pa.DataType]:
    """The number of tokens in each document, and their type."""
    data = path.read_bytes()
    if data[:9] != MAGIC:
        raise InputError(f"{path} is not an index of Megatron: give the directory of .bin and .idx files")
    start = 9 + HEADER.size
    _, code, count, documents = HEADER.unpack_from(data, 9) if len(data) >= start else (0, 0, 0, 0)
    kind = next((kind for kind, known in MEGATRON_TYPE_CODES.items() if known == code), None)
    if kind is None or len(data) != start + 12 * count + 8 * documents:
        raise InputError(f"{path} is truncated, or not of MegatronTokenizerWriter: write the tokens again")
    return array("i", data[start : start + 4 * count]), kind


def _check_tokens(path: Path, tokens: int, kind: pa.DataType) -> None:
    size, expected = path.stat().st_size if path.is_file() else 0, tokens * kind.bit_width // 8
    if size != expected:
        raise InputError(
            f"{path} has {size} bytes instead of the {expected} of its index: it is missing or truncated. Write the "
            "tokens again"
        )


def merge_megatron(path: str | os.PathLike[str], prefix: str | os.PathLike[str]) -> None:
    """Merge all pairs in a directory into one, `prefix.bin` and `prefix.idx`, in the order of their names.

    The new pair must be in another directory, or the next merge would read it as input and repeat its tokens.
    """
    merged = Path(f"{os.fspath(prefix)}.idx").absolute()
    if merged.resolve().parent == Path(path).resolve():
        raise InputError(
            f"{os.fspath(prefix)} is in the directory that is merged, so the next merge would repeat its tokens: "
            f"choose a prefix outside of {os.fspath(path)}"
        )
    indexes = sorted(Path(path).absolute().glob("*.idx"))
    if not indexes:
        raise InputError(f"there are no .idx files in {os.fspath(path)}: write some with MegatronTokenizerWriter")
    read = [read_megatron_index(index) for index in indexes]
    for one, (sizes, kind) in zip(indexes, read, strict=True):
        _check_tokens(one.with_suffix(".bin"), sum(sizes), kind)
    kinds = {kind for _, kind in read}
    if len(kinds) > 1:
        raise InputError(
            f"{os.fspath(path)} holds tokens of several types, from different tokenizers: merge them separately"
        )
    target = OutputDirectory(merged.parent)
    target.create_directory()
    with target.create(str(merged.with_suffix(".bin"))) as tokens:
        for one in indexes:
            with one.with_suffix(".bin").open("rb") as file:
                while chunk := file.read(MERGE_CHUNK_BYTES):
                    tokens.write(chunk)
    with target.create(str(merged)) as index:
        write_megatron_index(index, array("i", [size for sizes, _ in read for size in sizes]), kinds.pop())
