"""Items follow the text, whatever stages of text do to it; or the change is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.interleaved import InterleavedBatch, InterleavedModify, PlaceholderError
from gristmill.interleaved.item_columns import PLACEHOLDER, SEPARATOR, build_items, joined_text
from gristmill.interleaved.placeholders import align, follow_text
from gristmill.text import DocumentModifier, Modify

P = PLACEHOLDER


def document(*items: Any) -> dict[str, Any]:
    """A document of texts, and of pictures where there is None."""
    return {"doc_id": "d", "items": [_item(one) for one in items]}


def _item(one: Any) -> dict[str, Any]:
    return {"kind": "image", "ref": {"path": "a.png"}} if one is None else {"kind": "text", "text": one}


def shown(batch: InterleavedBatch) -> list[str | None]:
    return [item["text"] for item in batch.items().to_pylist()[0]]


@pytest.mark.parametrize(
    ("items", "text", "after"),
    [
        (("a", None, "b"), f"A\n\n{P}\n\nB", ("A", None, "B")),
        (("a", None, "b"), f"A {P} B", ("A", None, "B")),  # white space around a placeholder is not part of a text
        (("a", None, "b"), f"{P}\n\nB", (None, "B")),  # an item without text is gone
        ((None, None), f"{P}\n\nnew\n\n{P}", (None, "new", None)),
        (("a", "b", "c"), "a\n\nc", ("a", "c")),
        (("a", "b", "c"), "A\n\nB\n\nC", ("A", "B", "C")),
        (("a", "b\n\nb", "c"), "A\n\nB\n\nBB\n\nC", ("A", "B\n\nBB", "C")),
        (("a", "b", "c"), "a b c", ("a b c",)),
        (("a", "b", "c"), "a\n\nnew\n\nb\n\nc", ("a\n\nnew", "b", "c")),
        (("a",), "", ()),
        ((), "text", ("text",)),
        (("a", "b", "c", "d"), "b\n\nX", ("b", "X")),
        (("same", "same", "x"), "same\n\nx", ("same", "x")),
        (("a", None, "b"), "A\n\n\n\nB", ("A", None, "B")),  # a modifier that removes symbols
        ((None, "a", None, "b", None), "a\n\n\n\nb", (None, "a", None, "b", None)),
    ],
)
def test_items_follow_a_new_text(items: tuple[Any, ...], text: str, after: tuple[Any, ...]) -> None:
    changed = InterleavedBatch([document(*items)]).with_column("text", pa.array([text]))
    assert tuple(shown(changed)) == after
    assert changed.data.column("text").to_pylist() == joined_text(changed.items()).to_pylist()


@pytest.mark.parametrize("text", ["a\n\nb", f"{P}{P}", "", "a\n\nx\n\nb"])
def test_a_text_with_other_placeholders_is_refused(text: str) -> None:
    with pytest.raises(PlaceholderError, match="placeholders .* InterleavedModify"):
        InterleavedBatch([document("a", None, "b")]).with_column("text", pa.array([text]))


def test_times_cover_what_ran_together() -> None:
    items = [{"kind": "text", "text": t, "start": float(at), "end": at + 1.0} for at, t in enumerate("abc")]
    batch = InterleavedBatch([{"doc_id": "d", "items": items}])
    [item] = batch.with_column("text", pa.array(["a b c"])).items().to_pylist()[0]
    assert (item["text"], item["start"], item["end"]) == ("a b c", 0.0, 3.0)


def test_other_rows_and_dropped_rows_stay_as_they_are() -> None:
    batch = InterleavedBatch([document("a", None), document("b", None), document("c")])
    kept = batch.keep(pa.array([True, False, True]))
    changed = kept.with_column("text", pa.array([f"a\n\n{P}", "C"]))
    assert [[item["text"] for item in items] for items in changed.items().to_pylist()] == [["a", None], ["C"]]
    assert changed.items()[0].as_py() == batch.items()[0].as_py()


def test_a_placeholder_of_a_text_itself_is_a_space() -> None:
    batch = InterleavedBatch([document(f"a{P}b", None)])
    assert batch.data.column("text").to_pylist() == [f"a b\n\n{P}"]


def test_assigned_rows_are_settled_too() -> None:
    batch = InterleavedBatch([document("a", None)])
    batch.data = batch.data.set_column(batch.data.column_names.index("text"), "text", pa.array([f"A\n\n{P}"]))
    assert shown(batch) == ["A", None]
    with pytest.raises(PlaceholderError):
        batch.with_data(batch.data.set_column(batch.data.column_names.index("text"), "text", pa.array(["A\n\nB"])))


texts = st.text(st.sampled_from("ab \n"), max_size=6)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.none() | texts, max_size=8), st.data())
def test_no_medium_is_lost_and_the_text_is_that_of_the_items(pieces: list[str | None], data: st.DataObject) -> None:
    media = sum(piece is None for piece in pieces)
    runs = [data.draw(texts) for _ in range(media + 1)]
    found = list(follow_text(pieces, P.join(runs)))
    assert [one.first for one in found if one.text is None] == [at for at, piece in enumerate(pieces) if piece is None]
    assert [one.first for one in found if one.first >= 0] == sorted({one.first for one in found if one.first >= 0})
    built = build_items([[_item(one.text) for one in found]])
    again = joined_text(built).to_pylist()[0]
    assert "".join(again.split()) == "".join(P.join(runs).split())  # only white space may differ


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1), st.lists(st.sampled_from("abc"), min_size=1))
def test_every_new_paragraph_has_an_old_one_in_order(old: list[str], new: list[str]) -> None:
    owners = align(old, new)
    assert len(owners) == len(new)
    assert all(0 <= first <= last < len(old) for first, last in owners)
    assert [first for first, _ in owners] == sorted(first for first, _ in owners)


def test_aligning_takes_linear_time() -> None:
    old = [f"p{at % 97}" for at in range(100_000)]
    assert len(align(old, [*old[:50_000], "new", *old[50_500:]])) == 99_501


class DropShortLines(DocumentModifier):
    """Removes lines of fewer than three letters, as modifiers of web pages do."""

    def modify_document(self, text: str) -> str:
        return "\n".join(line for line in text.split("\n") if len(line) > 2)


def test_a_modifier_that_drops_placeholders_works_on_items() -> None:
    batch = InterleavedBatch([document("some text\nno", None, "x", None)])
    with pytest.raises(PlaceholderError):
        Modify(DropShortLines()).process(batch)
    assert shown(InterleavedModify(DropShortLines()).process(batch)) == ["some text", None, None]


def test_separator_and_placeholder_are_what_is_documented() -> None:
    assert (P, SEPARATOR) == ("\ufffc", "\n\n")
