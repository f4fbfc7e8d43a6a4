"""Filters and modifiers of text say the same of interleaved documents as of plain ones, and no medium is ever lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from gristmill.interleaved import InterleavedBatch, InterleavedModify, PlaceholderError
from gristmill.interleaved.item_columns import PLACEHOLDER
from gristmill.recipes.stage_catalogue import catalogue
from gristmill.samples.batch import DocumentBatch
from gristmill.text import DocumentFilter, DocumentModifier, Modify, ScoreFilter
from tests.text.test_filters import ALL as FILTERS

TEXTS = [
    [
        "The mill by the river has stood there for a hundred years.",
        None,
        "It still turns, and it grinds corn.\n\nDaily.",
    ],
    [None, "A picture comes before this; see https://example.com/mill and write to ann@example.com.", None, None],
    ["Menu | Home | Login", None, "• one\n• two\n• three", "  spaces   and\ttabs  ", None],
    ["# Heading\n\nSome *marked* text &amp; <b>bold</b> words “quoted” â€œbrokenâ€.", "Lorem ipsum dolor.", None],
    ["Just a text without any picture at all, of a few words."],
    [None],
    [],
]

ARGUMENTS: dict[str, tuple[Any, ...]] = {"LineRemover": (["Daily."],)}
NEED_MODELS = {"FastTextLabelModifier"}


def documents() -> InterleavedBatch:
    def item(one: str | None) -> dict[str, Any]:
        return {"kind": "image", "ref": {"path": "a.png"}} if one is None else {"kind": "text", "text": one}

    return InterleavedBatch([{"doc_id": str(at), "items": list(map(item, items))} for at, items in enumerate(TEXTS)])


def media(batch: Any) -> list[int]:
    return [sum(item["kind"] != "text" for item in items) for items in batch.items().to_pylist()]


def modifiers() -> list[DocumentModifier]:
    classes = {name: one.cls for name, one in sorted(catalogue().items()) if issubclass(one.cls, DocumentModifier)}
    return [cls(*ARGUMENTS.get(name, ())) for name, cls in classes.items() if name not in NEED_MODELS]


@pytest.mark.parametrize("one", FILTERS, ids=lambda one: f"{one.name}{FILTERS.index(one)}")
def test_filters_decide_as_on_plain_text(one: DocumentFilter) -> None:
    batch = documents()
    plain = DocumentBatch(batch.data.select(["doc_id", "text"]))
    stage = ScoreFilter(one, score_field="score")
    kept, wanted = stage.process(batch), stage.process(plain)
    assert kept.data.column("doc_id").to_pylist() == wanted.data.column("doc_id").to_pylist()
    assert kept.data.column("score").equals(wanted.data.column("score"))
    assert isinstance(kept, InterleavedBatch)
    before = dict(zip(batch.data.column("doc_id").to_pylist(), batch.items().to_pylist(), strict=True))
    assert kept.items().to_pylist() == [before[name] for name in kept.data.column("doc_id").to_pylist()]


@pytest.mark.parametrize("one", modifiers(), ids=lambda one: one.name)
def test_modifiers_keep_each_medium_or_are_refused(one: DocumentModifier) -> None:
    batch = documents()
    stage = Modify(one)
    stage.setup()
    for at, name in enumerate(batch.data.column("doc_id").to_pylist()):
        row = batch.slice(at, 1)
        plain = stage.process(DocumentBatch(row.data.select(["text"]))).data.column("text")[0].as_py()
        try:
            changed = stage.process(row)
        except PlaceholderError:
            assert (plain or "").count(PLACEHOLDER) != media(row)[0], name
            continue
        assert media(changed) == media(row), name
        found = changed.data.column("text")[0].as_py()
        assert "".join(found.replace(PLACEHOLDER, "").split()) == "".join(plain.replace(PLACEHOLDER, "").split())


@pytest.mark.parametrize("one", modifiers(), ids=lambda one: one.name)
def test_modifiers_of_items_lose_no_medium_and_change_each_text_by_itself(one: DocumentModifier) -> None:
    batch = documents()
    stage = InterleavedModify(one, keep_empty=True)
    stage.setup()
    changed = stage.process(batch)
    assert media(changed) == media(batch)
    column = pa.array([text for items in TEXTS for text in items if text is not None])
    wanted = one.modify_batch(column).to_pylist()
    found = [item["text"] for items in changed.items().to_pylist() for item in items if item["kind"] == "text"]
    assert found == [text.replace(PLACEHOLDER, " ") for text in wanted]


def test_which_modifiers_are_refused_is_known() -> None:
    """Those that drop lines; the documentation says so."""
    refused = set()
    for one in modifiers():
        stage = Modify(one)
        stage.setup()
        for at in range(len(TEXTS)):
            try:
                stage.process(documents().slice(at, 1))
            except PlaceholderError:
                refused.add(one.name)
    assert refused == {"BoilerPlateStringModifier", "LineCleaner", "ParagraphCleaner"}
