"""Pages that would take minutes: nested without end, or of thousands of short paragraphs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from justext import core

from gristmill.download.web.html_extractors import (
    JusTextExtractor,
    ParagraphExtractor,
    ResiliparseExtractor,
    TrafilaturaExtractor,
)
from gristmill.download.web.justext_paragraphs import Paragraph, revise_classes
from gristmill.download.web.page_limits import PageLimitError

EXTRACTORS = [JusTextExtractor(), ResiliparseExtractor(), TrafilaturaExtractor()]


@pytest.mark.parametrize("extractor", EXTRACTORS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("tag", ["div", "a", "b", "table", "made-up"])
@pytest.mark.parametrize("hidden", ["", "</i>", "<br>", "<!-- </div> -->", "<p>"])
def test_a_page_nested_without_end_is_set_aside(extractor: ParagraphExtractor, tag: str, hidden: str) -> None:
    with pytest.raises(PageLimitError, match=rf"nested elements \(max_depth\), the last one <{tag}>"):
        extractor.paragraphs(f"<{tag}>{hidden}" * 20_000)


@pytest.mark.parametrize("extractor", EXTRACTORS, ids=lambda one: type(one).__name__)
def test_a_long_page_is_read_whatever_is_not_closed(extractor: ParagraphExtractor) -> None:
    lines = "".join(f"<li><p>item {number}<br><img src=a><div>a <b>word</b></div>" for number in range(3000))
    assert isinstance(extractor.paragraphs(f"<html><body><ul>{lines}</ul>"), list)


def test_the_limit_is_a_parameter() -> None:
    page = "<div>" * 50 + "text"
    assert ResiliparseExtractor(main_content=False, max_depth=50).paragraphs(page) == ["text"]
    with pytest.raises(PageLimitError, match="more than 49 nested"):
        ResiliparseExtractor(max_depth=49).paragraphs(page)
    with pytest.raises(ValueError, match="max_depth"):
        ResiliparseExtractor(max_depth=0)


def paragraphs(kinds: list[tuple[str, bool, int]]) -> list[Any]:
    found = []
    for kind, heading, length in kinds:
        one = Paragraph("body.p", "x" * length, 0)
        one.cf_class, one.heading = kind, heading
        found.append(one)
    return found


KINDS = st.tuples(st.sampled_from(["good", "bad", "short", "neargood"]), st.booleans(), st.integers(1, 120))


@given(st.lists(KINDS, max_size=30), st.sampled_from([0, 50, 200]))
def test_classes_are_revised_as_justext_revises_them(kinds: list[tuple[str, bool, int]], distance: int) -> None:
    ours, theirs = paragraphs(kinds), paragraphs(kinds)
    revise_classes(ours, distance)
    core.revise_paragraph_classification(theirs, distance)
    assert [one.class_type for one in ours] == [one.class_type for one in theirs]


@pytest.mark.parametrize("kind", ["short", "neargood"])
def test_thousands_of_short_paragraphs_take_in_proportion_longer(kind: str) -> None:
    def seconds(count: int) -> float:
        found = []
        for _ in range(3):
            some = paragraphs([(kind, True, 1)] * count)
            began = time.process_time()
            revise_classes(some, 200)
            found.append(time.process_time() - began)
        return min(found)

    assert seconds(16_000) < 64 * seconds(1000)
