"""Write interleaved documents, in two steps as all writers do (`io/write/commit.py`).

InterleavedParquetWriterStage       Parquet with a row for each item, as NeMo Curator has it
InterleavedDocumentsWriter          Parquet with a row for each document, which holds all that there is
InterleavedWebdatasetWriterStage    tars of MINT-1T: a JSON with texts and images, and the pictures beside it
ChatJsonlWriter                     conversations: JSON lines with `messages`
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.table_conversion import POSITION, json_array, rows_to_table, table_to_rows
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.core.task import WrittenFiles
from gristmill.interleaved.batch import DOC_ID, METADATA, SOURCE, InterleavedBatch, as_interleaved
from gristmill.interleaved.explode import InterleavedExplodeStage
from gristmill.interleaved.forms.chat_messages import MESSAGES, conversations
from gristmill.interleaved.forms.mint_tar import MintTarFormat
from gristmill.interleaved.item_bytes import ERROR, ON_ERROR, InterleavedMaterializeStage
from gristmill.interleaved.placeholders import ITEMS_COLUMN, TEXT_COLUMN
from gristmill.io.storage.file_input import parse_size
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import WRITE_MODES, CommitFiles, OutputFormat, WriteFragments
from gristmill.io.write.jsonl_format import JsonlFormat
from gristmill.io.write.parquet_format import ParquetFormat
from gristmill.samples.argument_checks import check_choice, check_output_path, check_positive
from gristmill.samples.batch import DocumentBatch


class InterleavedWriter(CompositeStage[DocumentBatch, WrittenFiles]):
    """Base of the writers of interleaved documents."""

    _catalogue_kind = "writer"

    def __init__(
        self,
        path: str | os.PathLike[str],
        materialize_on_write: bool = True,
        mode: str = "ignore",
        on_materialize_error: str = ERROR,
        write_kwargs: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_output_path(self.name, path)
        check_choice(self.name, "mode", mode, WRITE_MODES)
        check_choice(self.name, "on_materialize_error", on_materialize_error, ON_ERROR)
        self.path, self.materialize_on_write, self.mode = path, materialize_on_write, mode
        self.on_materialize_error, self.write_kwargs, self.storage_options = (
            on_materialize_error, write_kwargs, storage_options,
        )  # fmt: skip

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        options = {**(self.write_kwargs or {}).get("storage_options", {}), **(self.storage_options or {})}
        form, target = self._format(), OutputDirectory(self.path, options)
        read = InterleavedMaterializeStage(None, self.on_materialize_error, options or None)
        first = [read] if self.materialize_on_write else []
        commit = CommitFiles(target, form, None, self.mode)
        return [*first, *self._conversion(), WriteFragments(target, form, None, self.mode), commit]

    def _conversion(self) -> list[ProcessingStage[Any, Any]]:
        return [SettleItems()]

    @abstractmethod
    def _format(self) -> OutputFormat:
        """How rows become files."""


class SettleItems(ProcessingStage[DocumentBatch, InterleavedBatch]):
    """Makes sure that text and items agree before they are written."""

    takes_empty = True

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [ITEMS_COLUMN]

    def process(self, task: DocumentBatch) -> InterleavedBatch:
        return as_interleaved(task)


class InterleavedParquetWriterStage(InterleavedWriter):
    """Writes Parquet with a row for each item, in the columns of NeMo Curator.

    Bytes that items refer to are read first, unless `materialize_on_write=False`; `on_materialize_error` is that of
    InterleavedMaterializeStage. `mode` is that of the other writers.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        materialize_on_write: bool = True,
        mode: str = "ignore",
        on_materialize_error: str = ERROR,
        write_kwargs: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        target_file_size: int | str | None = None,
        compression: str = "zstd",
    ) -> None:
        super().__init__(path, materialize_on_write, mode, on_materialize_error, write_kwargs, storage_options)
        self.target_file_size, self.compression = target_file_size, compression

    def _conversion(self) -> list[ProcessingStage[Any, Any]]:
        return [InterleavedExplodeStage()]

    def _format(self) -> OutputFormat:
        size = None if self.target_file_size is None else parse_size(self.target_file_size)
        return ParquetFormat(self.compression, target_file_size=size)


class InterleavedDocumentsWriter(InterleavedParquetWriterStage):
    """Writes Parquet with a row for each document: its text, its items and all other columns.

    Bytes stay where they are unless `materialize_on_write`, and the file has references to them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        materialize_on_write: bool = False,
        mode: str = "ignore",
        on_materialize_error: str = ERROR,
        write_kwargs: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        target_file_size: int | str | None = None,
        compression: str = "zstd",
    ) -> None:
        more = (write_kwargs, storage_options, target_file_size, compression)
        super().__init__(path, materialize_on_write, mode, on_materialize_error, *more)

    def _conversion(self) -> list[ProcessingStage[Any, Any]]:
        return [SettleItems()]


class InterleavedWebdatasetWriterStage(InterleavedWriter):
    """Writes tars as MINT-1T has them: for each document a JSON with `texts` and `images`, and its pictures.

    `samples_per_tar` is the number of documents in one. Bytes that items refer to are read first, unless
    `materialize_on_write=False`; an item without bytes is written with its address.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        materialize_on_write: bool = True,
        mode: str = "ignore",
        on_materialize_error: str = ERROR,
        write_kwargs: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        samples_per_tar: int = 1000,
    ) -> None:
        check_positive(self.name, "samples_per_tar", samples_per_tar)
        super().__init__(path, materialize_on_write, mode, on_materialize_error, write_kwargs, storage_options)
        self.samples_per_tar = samples_per_tar

    def _format(self) -> OutputFormat:
        return MintTarFormat(self.samples_per_tar)


class ChatJsonlWriter(InterleavedWriter):
    """Writes conversations as JSON lines with `messages`. Bytes become `data:` addresses; with
    `materialize_on_write=False` only those that the rows hold."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        materialize_on_write: bool = False,
        mode: str = "ignore",
        on_materialize_error: str = ERROR,
        write_kwargs: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        messages_field: str = MESSAGES,
        compression: str | None = None,
    ) -> None:
        super().__init__(path, materialize_on_write, mode, on_materialize_error, write_kwargs, storage_options)
        self.messages_field, self.compression = messages_field, compression

    def _conversion(self) -> list[ProcessingStage[Any, Any]]:
        return [ItemsToMessages(self.messages_field)]

    def _format(self) -> OutputFormat:
        return JsonlFormat(self.compression)


class ItemsToMessages(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Makes conversations of items. What is in `metadata` becomes columns again."""

    takes_empty = True

    def __init__(self, messages_field: str) -> None:
        super().__init__()
        self.messages_field = messages_field

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [DOC_ID, ITEMS_COLUMN]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        batch = as_interleaved(task)
        known = (DOC_ID, SOURCE, TEXT_COLUMN, ITEMS_COLUMN, METADATA, POSITION)
        others = [name for name in batch.get_columns() if name not in known]
        rows = []
        for row in table_to_rows(
            batch.data.select([name for name in (DOC_ID, METADATA) if name in batch.get_columns()])
        ):
            metadata = orjson.loads(row[METADATA]) if isinstance(row.get(METADATA), str) else {}
            rows.append({"id": row[DOC_ID], **metadata})
        table = rows_to_table(rows) if rows else pa.table({})
        messages = json_array(list(conversations(batch.items().to_pylist())))
        table = table.append_column(self.messages_field, messages)
        for name in others:
            table = (
                table.set_column(table.column_names.index(name), name, batch.data.column(name))
                if name in table.column_names
                else table.append_column(name, batch.data.column(name))
            )
        return DocumentBatch(table, dataset_name=task.dataset_name, metadata=dict(task.metadata))
