"""Documents as readers of interleaved data collect them, and the tables that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, json_text, rows_to_table
from gristmill.interleaved.batch import DOC_ID, METADATA, SOURCE
from gristmill.interleaved.item_columns import ITEMS, BadDocument, build_items, joined_text
from gristmill.interleaved.placeholders import ITEMS_COLUMN, TEXT_COLUMN

DOCUMENT_SCHEMA = pa.schema(
    [
        (DOC_ID, pa.string()),
        (SOURCE, pa.string()),
        (TEXT_COLUMN, pa.string()),
        (ITEMS_COLUMN, ITEMS),
        (METADATA, pa.string()),
        (POSITION, pa.int64()),
    ]
)
COLUMNS = [name for name in DOCUMENT_SCHEMA.names if name != POSITION]


@dataclass(slots=True)
class Document:
    """One document: its items as dictionaries, what is known of it, and columns of its own."""

    doc_id: str
    position: int
    items: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, Any] | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    nbytes: int = 0


def document_table(documents: Sequence[Document], source: str, fields: Sequence[str] = ()) -> pa.Table:
    """The rows of documents. `fields` are the columns of their own."""
    items = build_items([document.items for document in documents])
    own = rows_to_table([dict(document.columns) for document in documents], fields)
    columns: dict[str, Any] = {
        DOC_ID: make_array([document.doc_id for document in documents], pa.string()),
        SOURCE: make_array([source] * len(documents), pa.string()),
        TEXT_COLUMN: joined_text(items),
        ITEMS_COLUMN: items,
        METADATA: make_array([metadata_json(document.metadata) for document in documents], pa.string()),
        **{name: own.column(name) for name in fields},
        POSITION: make_array([document.position for document in documents], pa.int64()),
    }
    return pa.table(columns)


def metadata_json(metadata: Mapping[str, Any] | None) -> str | None:
    return json_text(metadata) if metadata else None


def parse_object(data: bytes | str) -> dict[str, Any]:
    """A JSON object. Raises a BadDocument that says what is wrong."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadDocument(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadDocument(f"JSON that is no object, but {type(value).__name__}")
    return value
