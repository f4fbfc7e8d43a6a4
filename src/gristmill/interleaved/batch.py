"""The batch of interleaved documents: one row for each, with its text and its items.

`text` is what stages of text look at and change, and the items follow it (`placeholders.py`). Stages of items change
both at once (`with_items`). Other columns are those of the reader: usually `doc_id`, `source` and `metadata`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from gristmill.core.batch import as_table, stored_rows
from gristmill.interleaved.item_columns import as_items, item_field, joined_text, of_kind
from gristmill.interleaved.placeholders import ITEMS_COLUMN, TEXT_COLUMN, column_at, with_settled_items
from gristmill.samples.batch import DocumentBatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DOC_ID, SOURCE, METADATA = "doc_id", "source", "metadata"


class InterleavedBatch(DocumentBatch):
    """Documents of text, pictures, sound and film, one per row.

    Also built from rows with `items` alone, of which the text is made, and from a table with a row for each item, in
    the columns of NeMo Curator (`sample_id`, `position`, `modality` ...).
    """

    def __post_init__(self) -> None:
        from gristmill.interleaved.forms.item_rows import documents_of_rows, has_item_rows

        rows = self.__dict__.get("data")
        if isinstance(rows, list) and rows and isinstance(rows[0], dict) and ITEMS_COLUMN in rows[0]:
            self.data = _table_of(rows)
        table = as_table(self.data)
        self.data = documents_of_rows(table) if has_item_rows(table) else table
        super().__post_init__()
        self.__dict__["data"] = with_settled_items(self.data)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "data" and "objects" in self.__dict__:
            self.__dict__["data"] = with_settled_items(self.data)

    def with_column(self, name: str, column: pa.Array) -> Self:
        """The same rows with a column added or replaced. Items follow a new text, and text that they cannot follow is a
        PlaceholderError."""
        changed = super().with_column(name, column)
        if name not in (TEXT_COLUMN, ITEMS_COLUMN) or ITEMS_COLUMN not in changed.get_columns():
            return changed
        table, mask = stored_rows(changed)
        rows = table if mask is None else table.filter(mask)
        settled = with_settled_items(rows)
        return changed if settled is rows else changed._with_stored(settled, None, {})

    def with_items(self, items: pa.ListArray) -> Self:
        """The same documents with other items, and the text that follows from them."""
        return type(self)._settled(self, items, joined_text(items))

    def _settled(self, items: pa.ListArray, text: pa.Array) -> Self:
        table = self.data
        for name, column in ((ITEMS_COLUMN, items), (TEXT_COLUMN, text)):
            if name in table.column_names:
                table = table.set_column(column_at(table, name), name, column)
            else:
                table = table.append_column(name, column)
        return self._with_stored(table, None, {})

    def items(self) -> pa.ListArray:
        """The items of each document."""
        return as_items(self.data.column(ITEMS_COLUMN))

    def count(self, modality: str | None = None) -> int:
        """How many items there are, of all kinds or of one."""
        items = self.items()
        return len(items.flatten()) if modality is None else int(of_kind(items, modality).true_count or 0)

    def kinds(self) -> list[str]:
        """The kind of each item, one after the other."""
        found: list[str] = item_field(self.items(), "kind").to_pylist()
        return found


def as_interleaved(batch: DocumentBatch) -> InterleavedBatch:
    """A batch of documents as one of interleaved documents; its text and items are made to agree."""
    if isinstance(batch, InterleavedBatch):
        return batch
    other = InterleavedBatch(
        batch.data, objects=dict(batch.objects), dataset_name=batch.dataset_name, metadata=dict(batch.metadata)
    )
    other.lineage = batch.lineage
    return other


def _table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    from gristmill.core.arrow.table_conversion import rows_to_table
    from gristmill.interleaved.item_columns import build_items

    rest = rows_to_table([{name: value for name, value in row.items() if name != ITEMS_COLUMN} for row in rows])
    items = build_items([row.get(ITEMS_COLUMN) or () for row in rows])
    at = rest.column_names.index(TEXT_COLUMN) + 1 if TEXT_COLUMN in rest.column_names else rest.num_columns
    if not rest.num_columns:
        return pa.table({ITEMS_COLUMN: items})
    return rest.add_column(at, ITEMS_COLUMN, items)
