"""One row for each item, in the columns of NeMo Curator, to and from one row for each document.

    sample_id        the id of the document
    position         of the item in it, from 0; -1 for a row of metadata
    modality         "text", "image", "metadata" ...
    content_type     "image/jpeg"
    text_content     the text; of a row of metadata, its JSON
    binary_content   the bytes
    source_ref       where the bytes are, as JSON: path, member, byte_offset, byte_size, frame_index
    materialize_error  why the bytes could not be had

`item_fields` is ours: what else is known of an item (width, height, start, end, meta), as JSON. All other columns
belong to the document, whose first row has their values. The rows of a document must follow each other.

Also here: the parallel lists of OBELICS, `texts` and `images`, one of which is null at each place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.interleaved.item_columns import (
    IMAGE,
    ITEM,
    TEXT,
    BadDocument,
    build_items,
    documents_of,
    item_counts,
    lists_of,
    struct_of,
)
from gristmill.interleaved.placeholders import ITEMS_COLUMN, TEXT_COLUMN

SAMPLE_ID, ITEM_POSITION, MODALITY = "sample_id", "position", "modality"
CONTENT_TYPE, TEXT_CONTENT, BINARY_CONTENT = "content_type", "text_content", "binary_content"
SOURCE_REF, ERROR, ITEM_FIELDS = "source_ref", "materialize_error", "item_fields"
RESERVED = (SAMPLE_ID, ITEM_POSITION, MODALITY, CONTENT_TYPE, TEXT_CONTENT, BINARY_CONTENT, SOURCE_REF, ERROR)
METADATA_ROW = "metadata"
ITEM_HASH = "item_hash"
"""A hash of the bytes of an item, in rows that are compared by it."""
DOC_ID, METADATA = "doc_id", "metadata"

_REF_NAMES = {
    "path": "path", "member": "member", "offset": "byte_offset", "size": "byte_size", "frame": "frame_index",
}  # fmt: skip
_EXTRA = ("width", "height", "start", "end", "meta")


def has_item_rows(table: pa.Table) -> bool:
    """Whether a table has a row for each item."""
    names = set(table.column_names)
    return {SAMPLE_ID, ITEM_POSITION, MODALITY} <= names and ITEMS_COLUMN not in names


# -- rows of items to documents ----------------------------------------------------------------------------------


def documents_of_rows(table: pa.Table) -> pa.Table:
    """One row for each document, from rows of items that follow each other."""
    ids = as_one_array(table.column(SAMPLE_ID)).cast(pa.string())
    numbers = _document_numbers(ids)
    order = pa.table({"document": numbers, "position": as_one_array(table.column(ITEM_POSITION)).cast(pa.int64())})
    if not _is_sorted(order):
        sorted_rows = pc.sort_indices(order, sort_keys=[("document", "ascending"), ("position", "ascending")])
        table, numbers, ids = table.take(sorted_rows), numbers.take(sorted_rows), ids.take(sorted_rows)
    table = table.combine_chunks()
    count = numbers[-1].as_py() + 1 if len(numbers) else 0
    starts = _starts(numbers)
    is_item = pc.not_equal(_text(table, MODALITY), literal(METADATA_ROW, pa.string()))
    items = _items_of_rows(table.filter(is_item))
    lengths = _counts(numbers.filter(is_item), count)
    first = table.take(starts)
    columns: dict[str, Any] = {DOC_ID: ids.take(starts), ITEMS_COLUMN: lists_of(items, lengths)}
    metadata = _first_metadata(table, numbers, is_item, count)
    left_out = (*RESERVED, ITEM_FIELDS, ITEM_HASH, POSITION, TEXT_COLUMN, DOC_ID)
    others = {name: first.column(name) for name in table.column_names if name not in left_out}
    if metadata.null_count < count or METADATA not in others:
        others[METADATA] = metadata
    position = {POSITION: first.column(POSITION)} if POSITION in table.column_names else {}
    return pa.table({**columns, **others, **position})


def _document_numbers(ids: pa.Array) -> pa.Array:
    if not len(ids):
        return make_array([], pa.int64())
    changes = pc.not_equal(ids[1:], ids[:-1]).fill_null(literal(False, pa.bool_())).cast(pa.int64())
    return pc.cumulative_sum(pa.concat_arrays([make_array([0], pa.int64()), changes]))


def _starts(numbers: pa.Array) -> pa.Array:
    if not len(numbers):
        return make_array([], pa.int64())
    changes = pc.not_equal(numbers[1:], numbers[:-1])
    flags = pa.concat_arrays([make_array([True], pa.bool_()), changes])
    return pc.indices_nonzero(flags).cast(pa.int64())


def _is_sorted(order: pa.Table) -> bool:
    positions, documents = order.column("position").combine_chunks(), order.column("document").combine_chunks()
    if len(positions) < 2:
        return True
    rising = pc.greater_equal(positions[1:], positions[:-1])
    begins = pc.not_equal(documents[1:], documents[:-1])
    return bool(pc.all(pc.or_(rising, begins)).as_py())


def _counts(numbers: pa.Array, count: int) -> list[int]:
    import numpy as np

    found: list[int] = np.bincount(numbers.to_numpy(zero_copy_only=False), minlength=count).tolist()
    return found[:count] if count else []


def _text(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        return pa.nulls(table.num_rows, pa.string())
    return as_one_array(table.column(name)).cast(pa.string())


def _items_of_rows(table: pa.Table) -> pa.StructArray:
    count = table.num_rows
    bytes_column = (
        as_one_array(table.column(BINARY_CONTENT)).cast(pa.large_binary())
        if BINARY_CONTENT in table.column_names
        else pa.nulls(count, pa.large_binary())
    )
    extra = [orjson.loads(text) if text else {} for text in _text(table, ITEM_FIELDS).to_pylist()]
    given = {
        "kind": _text(table, MODALITY),
        "text": _text(table, TEXT_CONTENT),
        "ref": _refs_of_json(_text(table, SOURCE_REF)),
        "bytes": bytes_column,
        "mime": _text(table, CONTENT_TYPE),
    }
    others = build_items([[{name: one.get(name) for name in _EXTRA} for one in extra]]).flatten()
    return struct_of(ITEM, [given.get(name, pc.struct_field(others, name)) for name in ITEM.names])


def _refs_of_json(texts: pa.Array) -> pa.Array:
    refs = [_ref_of_json(text) for text in texts.to_pylist()]
    return pc.struct_field(build_items([[{"ref": ref} for ref in refs]]).flatten(), "ref")


def _ref_of_json(text: str | None) -> dict[str, Any] | None:
    """A reference as our columns have it; None for one that says nothing, or is no JSON."""
    try:
        given = orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(given, Mapping) or not isinstance(given.get("path"), str):
        return None
    ref = {name: given.get(theirs) for name, theirs in _REF_NAMES.items()}
    whole = all(ref[name] is None or type(ref[name]) is int for name in ("offset", "size", "frame"))
    return ref if whole else None


def _first_metadata(table: pa.Table, numbers: pa.Array, is_item: pa.Array, count: int) -> pa.Array:
    """The JSON of the row of metadata of each document, null for one without."""
    found: list[str | None] = [None] * count
    rows = pc.invert(is_item)
    texts = _text(table, TEXT_CONTENT).filter(rows).to_pylist()
    for number, text in zip(numbers.filter(rows).to_pylist(), texts, strict=True):
        if found[number] is None:
            found[number] = text
    return make_array(found, pa.string())


# -- documents to rows of items ----------------------------------------------------------------------------------


def rows_of_documents(table: pa.Table, items: pa.ListArray) -> pa.Table:
    """A row for each item, after one of metadata for each document, so that one without items has a row too. The
    columns of the document are repeated."""
    flat, parents, counts = items.flatten(), documents_of(items), item_counts(items)
    ids = _text(table, DOC_ID)
    rows = pa.table(
        {
            SAMPLE_ID: ids.take(parents),
            ITEM_POSITION: _positions(counts),
            MODALITY: pc.struct_field(flat, "kind"),
            CONTENT_TYPE: pc.struct_field(flat, "mime"),
            TEXT_CONTENT: pc.struct_field(flat, "text"),
            BINARY_CONTENT: pc.struct_field(flat, "bytes"),
            SOURCE_REF: make_array([_ref_json(ref) for ref in pc.struct_field(flat, "ref").to_pylist()], pa.string()),
            ITEM_FIELDS: make_array(list(_extra_json(flat)), pa.string()),
            "document": parents,
        }
    )
    count = table.num_rows
    head = pa.table(
        {
            SAMPLE_ID: ids,
            ITEM_POSITION: pa.repeat(literal(-1, pa.int64()).cast(pa.int32()), count),
            MODALITY: pa.repeat(literal(METADATA_ROW, pa.string()), count),
            CONTENT_TYPE: pa.repeat(literal("application/json", pa.string()), count),
            TEXT_CONTENT: _text(table, METADATA),
            **{name: pa.nulls(count, rows.schema.field(name).type) for name in rows.column_names[5:8]},
            "document": make_array(list(range(count)), pa.int64()),
        }
    )
    both = pa.concat_tables([head, rows])
    keys = [("document", "ascending"), (ITEM_POSITION, "ascending")]
    order = pc.sort_indices(both.select(["document", ITEM_POSITION]), sort_keys=keys)
    both = both.take(order)
    documents = as_one_array(both.column("document"))
    both = both.drop_columns(["document"])
    left_out = (*RESERVED, ITEM_FIELDS, POSITION, TEXT_COLUMN, ITEMS_COLUMN, DOC_ID, METADATA)
    for name in table.column_names:
        if name not in left_out:
            both = both.append_column(name, table.column(name).take(documents))
    return both


def _positions(counts: pa.Array) -> pa.Array:
    import numpy as np

    each = counts.to_numpy(zero_copy_only=False)
    starts = np.repeat(np.cumsum(each) - each, each)
    numbers = (np.arange(int(each.sum())) - starts).astype(np.int32)
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])


def _ref_json(ref: Mapping[str, Any] | None) -> str | None:
    if ref is None:
        return None
    return orjson.dumps({theirs: ref[name] for name, theirs in _REF_NAMES.items()}).decode()


def _extra_json(flat: pa.StructArray) -> Iterator[str | None]:
    columns = {name: pc.struct_field(flat, name).to_pylist() for name in _EXTRA}
    for row in range(len(flat)):
        known = {name: values[row] for name, values in columns.items() if values[row] is not None}
        yield orjson.dumps(known).decode() if known else None


# -- parallel lists -----------------------------------------------------------------------------------------------


def items_of_lists(texts: Sequence[Any], images: Sequence[Any]) -> list[dict[str, Any]]:
    """The items of two parallel lists, of which one is usually null at each place. Raises a BadDocument for lists of
    unequal length, since which text stands beside which picture is not known."""
    if len(texts) != len(images):
        raise BadDocument(f"{len(texts):,} texts and {len(images):,} images: the lists must be of one length")
    items: list[dict[str, Any]] = []
    for text, image in zip(texts, images, strict=True):
        for value in (text, image):
            if value is not None and not isinstance(value, str):
                raise BadDocument(f"texts and images must hold text, not {type(value).__name__}")
        if text is not None:
            items.append({"kind": TEXT, "text": text, "mime": "text/plain"})
        if image is not None:
            items.append({"kind": IMAGE, "ref": {"path": image}})
    return items
