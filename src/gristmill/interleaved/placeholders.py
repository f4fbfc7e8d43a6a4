"""Text and items: one source of truth, which is the text.

Stages of text change the column `text` and know nothing of items. After each of them the items follow: those around
which nothing changed stay as they are, and an item of text has the text that is now in its place.

    as many placeholders as before    the items between them follow, whatever happened to their text
    paragraphs as before              each item has its own
    some paragraphs gone or new       those that are still the same stay with their item; those between follow in order
    items run together                become one item, with the times from the first to the last
    placeholders gone, and an         the items are where the empty paragraphs are: UnicodeReformatter, which removes
    empty paragraph for each          some symbols, takes placeholders for such
    fewer or more placeholders        refused, with a `PlaceholderError`: which item is gone cannot be known

A modifier that drops lines may drop the placeholders, which are lines of their own. `InterleavedModify` gives it the
texts of the items one by one, and so never a placeholder.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.interleaved.item_columns import ITEM as ITEM_TYPE
from gristmill.interleaved.item_columns import (
    ITEMS,
    PLACEHOLDER,
    SEPARATOR,
    TEXT,
    as_items,
    item_counts,
    item_field,
    item_pieces,
    joined_text,
    lists_of,
    of_kind,
    struct_of,
    with_fields,
    without_own_placeholders,
)

TEXT_COLUMN, ITEMS_COLUMN = "text", "items"


class PlaceholderError(ValueError):
    """A text that does not have one placeholder for each item that is no text."""


class Followed(NamedTuple):
    """An item after a change of the text: the item that it was, the last that it took in, and its text (None: it is no
    text). -1 is no item: the text is new."""

    first: int
    last: int
    text: str | None


def with_settled_items(table: pa.Table) -> pa.Table:
    """The table with items that say what its text says. A text that is missing is made of the items."""
    if ITEMS_COLUMN not in table.column_names:
        return table
    column = table.column(ITEMS_COLUMN)
    items = as_items(column)
    if TEXT_COLUMN not in table.column_names:
        items = without_own_placeholders(items)
        return table.set_column(column_at(table, ITEMS_COLUMN), ITEMS_COLUMN, items).add_column(
            column_at(table, ITEMS_COLUMN), TEXT_COLUMN, joined_text(items)
        )
    text = as_one_array(table.column(TEXT_COLUMN)).cast(pa.string())
    joined = joined_text(items)
    same = pc.equal(text, joined).fill_null(literal(False, pa.bool_()))
    if same.true_count < len(same):
        items = _follow(items, text, same)
        text = joined_text(items)
    elif column.type == ITEMS and not column.null_count and pa.types.is_string(table.column(TEXT_COLUMN).type):
        return table
    table = table.set_column(column_at(table, TEXT_COLUMN), TEXT_COLUMN, text)
    return table.set_column(column_at(table, ITEMS_COLUMN), ITEMS_COLUMN, items)


def column_at(table: pa.Table, name: str) -> int:
    return int(table.column_names.index(name))


def _follow(items: pa.ListArray, text: pa.Array, same: pa.Array) -> pa.ListArray:
    """The items after the texts that are not the same were changed."""
    pieces, plain = item_pieces(items), of_kind(items, TEXT)
    counts = item_counts(items).to_pylist()
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    taken: list[int | None] = []
    lasts: list[int | None] = []
    new_texts: dict[int, str] = {}
    lengths = list(counts)
    for row, unchanged in enumerate(same.to_pylist()):
        start, end = starts[row], starts[row + 1]
        given = None if unchanged else text[row].as_py()
        if given is None or (not given and start == end):  # a null text says nothing
            taken += range(start, end)
            lasts += range(start, end)
            continue
        flags = plain[start:end].to_pylist()
        own = [one if flag else None for one, flag in zip(pieces[start:end].to_pylist(), flags, strict=True)]
        found = list(follow_text(own, given))
        lengths[row] = len(found)
        for one in found:
            if one.text is not None:
                new_texts[len(taken)] = one.text
            taken.append(start + one.first if one.first >= 0 else None)
            lasts.append(start + one.last if one.first >= 0 else None)
    return _changed(items, taken, lasts, new_texts, lengths)


def _changed(
    items: pa.ListArray,
    taken: list[int | None],
    lasts: list[int | None],
    new_texts: dict[int, str],
    lengths: list[int],
) -> pa.ListArray:
    moved = taken != list(range(len(taken))) or len(taken) != len(items.flatten())
    if moved:
        flat = items.flatten()
        columns = [pc.struct_field(flat, name).take(make_array(taken, pa.int64())) for name in ITEM_TYPE.names]
        if lasts != taken:
            columns[ITEM_TYPE.get_field_index("end")] = pc.struct_field(flat, "end").take(make_array(lasts, pa.int64()))
        kinds = ITEM_TYPE.get_field_index("kind")
        columns[kinds] = columns[kinds].fill_null(literal(TEXT, pa.string()))
        items = lists_of(struct_of(ITEM_TYPE, columns), lengths)
    if not new_texts:
        return items
    mask = [False] * len(taken)
    for at in new_texts:
        mask[at] = True
    values = make_array([new_texts[at] for at in sorted(new_texts)], pa.string())
    texts = pc.replace_with_mask(item_field(items, "text"), make_array(mask, pa.bool_()), values)
    return with_fields(items, text=texts)


# -- one document ------------------------------------------------------------------------------------------------


def follow_text(pieces: Sequence[str | None], text: str) -> Iterator[Followed]:
    """The items of one document after its text was changed. `pieces` are the texts that they had, None for one that is
    no text. Raises a PlaceholderError."""
    media = [at for at, piece in enumerate(pieces) if piece is None]
    runs = (text if PLACEHOLDER in text or not media else _restored(pieces, text)).split(PLACEHOLDER)
    if len(runs) != len(media) + 1:
        raise PlaceholderError(
            f"the text has {len(runs) - 1:,} placeholders (U+FFFC) for {len(media):,} items that are no text, so which "
            "belongs to which is not known. A stage must keep each placeholder: run a modifier that removes lines or "
            "characters with InterleavedModify, which gives it the texts of the items"
        )
    first = 0
    for number, (run, last) in enumerate(zip(runs, [*media, len(pieces)], strict=True)):
        shown = _without_separators(run, after=number > 0, before=number < len(media))
        own = [piece or "" for piece in pieces[first:last]]
        for one in _follow_run(own, shown):
            yield Followed(one.first + first if one.first >= 0 else -1, one.last + first, one.text)
        if last < len(pieces):
            yield Followed(last, last, None)
        first = last + 1


def _restored(pieces: Sequence[str | None], text: str) -> str:
    """The text with the placeholders that a modifier has removed, where it has left an empty paragraph for each. It may
    have left none at the ends, if it removed white space there. Else the text as it is."""
    media = [piece is None for piece in pieces for _ in (piece or "").split(SEPARATOR)]
    paragraphs = text.split(SEPARATOR)
    first = next((at for at, medium in enumerate(media) if not medium), len(media))
    last = next((at for at, medium in enumerate(reversed(media)) if not medium), len(media))
    if len(paragraphs) == len(media) - first - last:
        paragraphs = [*[""] * first, *paragraphs, *[""] * last]
    if len(paragraphs) != len(media) or any(
        paragraph.strip() for paragraph, medium in zip(paragraphs, media, strict=True) if medium
    ):
        return text
    pairs = zip(paragraphs, media, strict=True)
    return SEPARATOR.join([PLACEHOLDER if medium else paragraph for paragraph, medium in pairs])


def _without_separators(run: str, after: bool, before: bool) -> str:
    """The text between two placeholders, without what separates it from them."""
    if after:
        run = run[len(SEPARATOR) :] if run.startswith(SEPARATOR) else run.lstrip()
    if before:
        run = run[: -len(SEPARATOR)] if run.endswith(SEPARATOR) else run.rstrip()
    return run


def _follow_run(own: Sequence[str], run: str) -> Iterator[Followed]:
    """Items of text, with no other between them."""
    if SEPARATOR.join(own) == run:
        yield from (Followed(at, at, text) for at, text in enumerate(own))
    elif len(own) < 2:
        if run:
            yield Followed(len(own) - 1, len(own) - 1, run)
    elif run:
        yield from _follow_paragraphs(own, run)


def _follow_paragraphs(own: Sequence[str], run: str) -> Iterator[Followed]:
    old = [(at, paragraph) for at, text in enumerate(own) for paragraph in text.split(SEPARATOR)]
    new = run.split(SEPARATOR)
    owners = align([paragraph for _, paragraph in old], new)
    spans: list[tuple[int, int, list[str]]] = []
    for (first, last), paragraph in zip(owners, new, strict=True):
        item = old[first][0]
        if spans and spans[-1][0] <= item <= spans[-1][1]:
            spans[-1][2].append(paragraph)
            spans[-1] = (spans[-1][0], max(spans[-1][1], old[last][0]), spans[-1][2])
        else:
            spans.append((item, old[last][0], [paragraph]))
    for first, last, paragraphs in spans:
        yield Followed(first, last, SEPARATOR.join(paragraphs))


def align(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """For each new paragraph the old ones that it stands for, from the first to the last; in the order of the old. What
    is the same at the beginning, at the end and in between stays where it is, and the rest fills the gaps in order."""
    if len(old) == len(new):
        return [(at, at) for at in range(len(old))]
    most = min(len(old), len(new))
    head = next((at for at in range(most) if old[at] != new[at]), most)
    tail = next((at for at in range(most - head) if old[-1 - at] != new[-1 - at]), most - head)
    anchors = [*((at, at) for at in range(head)), *_anchors(old, new, head, tail)]
    anchors += [(len(new) - tail + at, len(old) - tail + at) for at in range(tail)]
    owners: list[tuple[int, int]] = []
    before = -1
    for to_new, to_old in [*anchors, (len(new), len(old))]:
        owners += _fill(before, to_old, to_new - len(owners), len(old))
        if to_new < len(new):
            owners.append((to_old, to_old))
        before = to_old
    return owners


def _anchors(old: Sequence[str], new: Sequence[str], head: int, tail: int) -> Iterator[tuple[int, int]]:
    """Paragraphs between head and tail that are the same, each with the next place where it was."""
    places: dict[str, list[int]] = {}
    for at in range(head, len(old) - tail):
        places.setdefault(old[at], []).append(at)
    least = head
    for to_new in range(head, len(new) - tail):
        found = places.get(new[to_new], ())
        at = bisect_left(found, least)
        if at < len(found):
            yield to_new, found[at]
            least = found[at] + 1


def _fill(before: int, after: int, count: int, total: int) -> Iterator[tuple[int, int]]:
    """Old paragraphs for `count` new ones between the old ones `before` and `after`."""
    gap = after - before - 1
    for number in range(count):
        if not gap:  # new text: it belongs to what stands before it
            owner = before if before >= 0 else min(after, total - 1)
            yield owner, owner
        elif number < gap:
            yield before + 1 + number, after - 1 if number == count - 1 else before + 1 + number
        else:
            yield after - 1, after - 1
