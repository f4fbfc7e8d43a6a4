"""From documents to rows of items and back.

    InterleavedExplodeStage               a row for each item, in the columns of NeMo Curator (`item_rows.py`)
    InterleavedImplodeStage               the documents again, wherever their rows are
    InterleavedMediaDeduplicationStage    drops pictures, sound and film whose bytes are in an earlier document

Between the two, any stage may drop or change rows. What is given up: the order of documents, which is that of their ids
in partitions, as after every stage that brings rows of a key together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.dedup.exact.exact_stage import ExactDeduplicationStage
from gristmill.interleaved.batch import DOC_ID, InterleavedBatch, as_interleaved
from gristmill.interleaved.forms.item_rows import (
    ITEM_HASH,
    ITEM_POSITION,
    METADATA_ROW,
    MODALITY,
    SAMPLE_ID,
    documents_of_rows,
    rows_of_documents,
)
from gristmill.interleaved.item_bytes import ItemBytes, bytes_of
from gristmill.interleaved.item_columns import TEXT, of_kind
from gristmill.interleaved.placeholders import ITEMS_COLUMN, TEXT_COLUMN, with_settled_items
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.samples.batch import BadSample, DocumentBatch

HASHED_AT_ONCE = 64
"""Items whose bytes are in memory at a time."""


class InterleavedExplodeStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Makes a row of each item, and one of the metadata of each document.

    With `hash_items` the column `item_hash` has a hash of the bytes of each item that is no text; null for one whose
    bytes cannot be read.
    """

    takes_empty = True

    def __init__(self, hash_items: bool = False, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.hash_items, self.storage_options = hash_items, storage_options

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [DOC_ID, ITEMS_COLUMN]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [SAMPLE_ID, ITEM_POSITION, MODALITY, *([ITEM_HASH] if self.hash_items else [])]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        batch = as_interleaved(task)
        items = batch.items()
        rows = rows_of_documents(batch.data, items)
        if self.hash_items:
            is_item = pc.not_equal(rows.column(MODALITY), literal(METADATA_ROW, pa.string())).combine_chunks()
            hashes = pa.nulls(rows.num_rows, pa.string())
            found = make_array(self._hashes(items), pa.string())
            rows = rows.append_column(ITEM_HASH, pc.replace_with_mask(hashes, is_item, found))
        return DocumentBatch(rows, dataset_name=task.dataset_name, metadata=dict(task.metadata))

    def _hashes(self, items: pa.ListArray) -> list[str | None]:
        reader = ItemBytes(self.storage_options)
        places = pc.indices_nonzero(pc.invert(of_kind(items, TEXT))).to_pylist()
        hashes: list[str | None] = [None] * len(items.flatten())
        for at in range(0, len(places), HASHED_AT_ONCE):
            some = places[at : at + HASHED_AT_ONCE]
            for place, data in zip(some, bytes_of(items, some, reader), strict=True):
                hashes[place] = _hash(data)
        reader.close()
        if unread := sum(hashes[place] is None for place in places):
            self.count("unread_items", unread)
        return hashes


def _hash(data: bytes | BadSample) -> str | None:
    return None if isinstance(data, BadSample) else hashlib.blake2b(data, digest_size=16).hexdigest()


class InterleavedImplodeStage(KeyedStage):
    """Makes a document of the rows with one `sample_id`, in the order of their positions."""

    key = SAMPLE_ID
    order = (ITEM_POSITION,)

    def process_groups(self, table: pa.Table) -> pa.Table:
        return with_settled_items(documents_of_rows(table))

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [DOC_ID, TEXT_COLUMN, ITEMS_COLUMN]


class InterleavedMediaDeduplicationStage(CompositeStage[DocumentBatch, InterleavedBatch]):
    """Drops pictures, sound and film whose bytes are the same as those of an item before them, in any document.

    Documents stay, also without items. They are brought together again by `doc_id`, which must be different for each.
    """

    def __init__(self, num_partitions: int | None = None, storage_options: Mapping[str, Any] | None = None) -> None:
        self.num_partitions, self.storage_options = num_partitions, storage_options

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        implode = InterleavedImplodeStage()
        implode.num_partitions = self.num_partitions
        return [
            InterleavedExplodeStage(hash_items=True, storage_options=self.storage_options),
            ExactDeduplicationStage(text_field=ITEM_HASH, num_partitions=self.num_partitions),
            implode,
        ]
