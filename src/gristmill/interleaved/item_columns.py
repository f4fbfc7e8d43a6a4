"""Items: the parts of a document, and how its text is made of them.

    kind      string        "text", "image", "audio", "video" ...
    text      string        of an item of text
    ref       struct        where the bytes are: path, member, offset, size, frame
    bytes     large_binary  the bytes, where they are not left in their file
    mime      string        "image/jpeg"
    width     int32         of a picture, where it is known
    height    int32
    start     float64       seconds, in a recording or a film
    end       float64
    meta      string        what else is known of the item: a JSON object

The text of a document is the text of its items, with `PLACEHOLDER` for each that is no text, and `SEPARATOR` between
them. A placeholder that a text has of its own becomes a space: it would stand for an item that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import ColumnError, printable

PLACEHOLDER = "\ufffc"
"""Stands for an item that is no text: Unicode's object replacement character."""
SEPARATOR = "\n\n"

TEXT, IMAGE, AUDIO, VIDEO = "text", "image", "audio", "video"

REF = pa.struct(
    [
        ("path", pa.string()),
        ("member", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("frame", pa.int32()),
    ]
)
ITEM = pa.struct(
    [
        ("kind", pa.string()),
        ("text", pa.string()),
        ("ref", REF),
        ("bytes", pa.large_binary()),
        ("mime", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("start", pa.float64()),
        ("end", pa.float64()),
        ("meta", pa.string()),
    ]
)
ITEMS = pa.list_(ITEM)
NAMES = tuple(field.name for field in ITEM)

_BUILT = {pa.int32(): pa.int64()}
"""Types that are built as another, for which no pandas is imported."""


class BadDocument(ValueError):
    """A record of which no document can be made, and why."""


def build_items(documents: Iterable[Sequence[Mapping[str, Any]]]) -> pa.ListArray:
    """The items of several documents, from dictionaries. `meta` may be a dictionary, `ref` too."""
    listed = [list(items) for items in documents]
    flat = [item for items in listed for item in items]
    for item in flat:
        if unknown := item.keys() - set(NAMES):
            raise ColumnError(f"an item has no field {sorted(unknown)[0]!r}. There are: {', '.join(NAMES)}")
    columns = [_column(field, [item.get(field.name) for item in flat]) for field in ITEM]
    return lists_of(struct_of(ITEM, columns), [len(items) for items in listed])


def _column(field: pa.Field, values: list[Any]) -> pa.Array:
    if field.name == "ref":
        return _refs(values)
    if field.name == "meta":
        values = [orjson.dumps(value).decode() if isinstance(value, Mapping) else value for value in values]
    elif field.name == "text":
        values = [value.replace(PLACEHOLDER, " ") if isinstance(value, str) else value for value in values]
    return make_array(values, _BUILT.get(field.type, field.type)).cast(field.type)


def _refs(values: list[Any]) -> pa.Array:
    given = [value or {} for value in values]
    columns = [
        make_array([one.get(field.name) for one in given], _BUILT.get(field.type, field.type)).cast(field.type)
        for field in REF
    ]
    missing = make_array([not value for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(REF), mask=missing)


def struct_of(kind: pa.StructType, columns: Sequence[pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns), fields=list(kind))


def lists_of(flat: pa.Array, lengths: Sequence[int] | pa.Array) -> pa.ListArray:
    """Lists of these lengths, of the values one after the other."""
    counts = lengths if isinstance(lengths, pa.Array) else make_array(list(lengths), pa.int64())
    ends = pc.cumulative_sum(counts).cast(pa.int32())
    offsets = pa.concat_arrays([make_array([0], pa.int64()).cast(pa.int32()), ends])
    made = pa.ListArray.from_arrays(offsets, flat)
    return made if made.type == pa.list_(flat.type) else made.cast(pa.list_(flat.type))


def as_items(column: pa.Array | pa.ChunkedArray) -> pa.ListArray:
    """A column as a list of items: fields that are missing are null, and a document without items has none."""
    array = as_one_array(column)
    if array.type == ITEMS and not array.null_count:
        return array
    kind = array.type
    if pa.types.is_null(kind):
        return lists_of(build_items([]).flatten(), [0] * len(array))
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        raise ColumnError(f"column 'items' holds {printable(kind)}, and items are a list of records with a kind")
    if kind.value_type.get_field_index("kind") < 0:
        raise ColumnError(f"column 'items' holds {printable(kind)}: its records have no kind")
    return lists_of(_as_struct(array.flatten(), ITEM), item_counts(array))


def _as_struct(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    columns = []
    for field in kind:
        if array.type.get_field_index(field.name) < 0:
            columns.append(pa.nulls(len(array), field.type))
            continue
        column = pc.struct_field(array, field.name)
        nested = pa.types.is_struct(field.type) and not pa.types.is_null(column.type)
        columns.append(_as_ref(column) if nested else column.cast(field.type))
    return struct_of(kind, columns)


def _as_ref(column: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), _as_struct(column, REF), pa.nulls(len(column), REF))


def item_counts(items: pa.ListArray) -> pa.Array:
    """How many items each document has."""
    return pc.list_value_length(items).cast(pa.int64()).fill_null(literal(0, pa.int64()))


def item_field(items: pa.ListArray, name: str) -> pa.Array:
    """One field of all items, one after the other."""
    return pc.struct_field(items.flatten(), name)


def of_kind(items: pa.ListArray, kind: str) -> pa.Array:
    """For each item, one after the other, whether it is of this kind."""
    return pc.equal(item_field(items, "kind"), literal(kind, pa.string())).fill_null(literal(False, pa.bool_()))


def with_fields(items: pa.ListArray, **columns: pa.Array) -> pa.ListArray:
    """The same items with other values of some fields."""
    flat = items.flatten()
    parts = [columns.get(name, pc.struct_field(flat, name)) for name in NAMES]
    return lists_of(struct_of(ITEM, parts), item_counts(items))


def keep_items(items: pa.ListArray, mask: pa.Array) -> pa.ListArray:
    """The items for which the mask, which has one flag for each of them, is true."""
    kept = lists_of(mask.cast(pa.int64()), item_counts(items))
    return lists_of(items.flatten().filter(mask), sums_of(kept))


def sums_of(lists: pa.ListArray) -> pa.Array:
    """The sum of each list of numbers; 0 for an empty one."""
    zero = make_array([0], pa.int64())
    sums = pa.concat_arrays([zero, pc.cumulative_sum(lists.flatten().cast(pa.int64()))])
    ends = pc.cumulative_sum(item_counts(lists))
    starts = pa.concat_arrays([zero, ends[:-1]]) if len(ends) else ends
    return pc.subtract(sums.take(ends), sums.take(starts))


def documents_of(items: pa.ListArray) -> pa.Array:
    """For each item, one after the other, the number of its document."""
    return pc.list_parent_indices(items).cast(pa.int64())


def item_pieces(items: pa.ListArray) -> pa.Array:
    """What each item, one after the other, is in the text of its document."""
    texts = item_field(items, "text").fill_null(literal("", pa.string()))
    return pc.if_else(of_kind(items, TEXT), texts, literal(PLACEHOLDER, pa.string()))


def joined_text(items: pa.ListArray) -> pa.Array:
    """The text of each document."""
    pieces = lists_of(item_pieces(items), item_counts(items))
    return pc.binary_join(pieces, literal(SEPARATOR, pa.string()))


def without_own_placeholders(items: pa.ListArray) -> pa.ListArray:
    """The items, without placeholders in their texts."""
    texts = item_field(items, "text")
    found = pc.match_substring(texts, PLACEHOLDER)
    if not found.true_count:
        return items
    return with_fields(items, text=pc.replace_substring(texts, PLACEHOLDER, " "))
