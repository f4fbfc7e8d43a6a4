"""trafilatura's text for less work: the same for every page, and the library itself as it was."""

from __future__ import annotations

from typing import Any

import pytest
import trafilatura
from hypothesis import given, settings
from hypothesis import strategies as st
from trafilatura.deduplication import LRU_TEST
from trafilatura.readability_lxml import Document

from gristmill.download import TrafilaturaExtractor
from gristmill.download.web import trafilatura_shortcuts
from tests.download.warc_fixtures import MILL, english, page

LONG = page("The old mill", [MILL * 3, MILL * 2])
MENU = "".join(f'<div class="card"><a href="/{n}">More of this, number {n}, and of that</a></div>' for n in range(60))

NAMES = (
    "p", "div", "article", "main", "h2", "a", "br", "li", "ul", "table", "tr", "td", "span", "aside", "footer", "pre",
    "iframe", "iframe src='https://www.youtube.com/v'", "xmp", "noframes", "plaintext", "title", "textarea", "form",
    "div class='comments'", "div class='sidebar'", "div id='content'", "div class='infinite-scroll'", "style", "script",
    "section class='mvp-post-add-box'", "div class='elementor-share-buttons'", "div class='cookie-banner'", "section",
)  # fmt: skip
PIECES = st.one_of(
    st.sampled_from([f"<{name}>" for name in NAMES] + [f"</{name.split()[0]}>" for name in NAMES]),
    st.sampled_from([MILL, MILL * 4, "The mill, and the river. ", MENU, "word " * 60, "a < b &amp;&lt; c "]),
    st.sampled_from([" ", "\n\t", "\u00a0", "&#12;", "&#1;", "\u2028x", "©", "{", "\u3000磨坊"]),
)
AROUND = (
    "<html><body>{}</body></html>",
    "<!DOCTYPE html><html><head><title>x</title></head><body><nav>"
    + MENU
    + "</nav><article>{}</article></body></html>",
    "<html><body><p>" + MILL * 5 + "</p>{}</body></html>",
    "<style>html {}</style>",
    "{}",
)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"deduplicate": True},
    {"include_comments": False},
    {"favor_recall": True},
    {"favor_precision": True},
    {"fast": True, "include_tables": False},
    {"include_images": True, "include_links": True, "target_language": "en"},
)


def both(html: str, **options: Any) -> tuple[str | None, str | None]:
    LRU_TEST.clear()
    ours = trafilatura_shortcuts.extract_function()(html, **options)
    LRU_TEST.clear()
    return ours, trafilatura.extract(html, **options)


@settings(max_examples=150)
@given(st.lists(PIECES, max_size=40), st.sampled_from(AROUND), st.sampled_from(OPTIONS))
def test_the_text_of_any_page_is_that_of_the_library(pieces: list[str], around: str, options: dict[str, Any]) -> None:
    ours, theirs = both(around.replace("{}", "".join(pieces)), **options)
    assert ours == theirs


TABLE = "<table><tr><td>{}</td></tr></table>"
BODIES = {
    "an article": f"<article><p>{MILL * 6}</p></article>",
    "a short one beside a long menu": f"<nav>{MENU * 4}</nav><article><p>{MILL}</p></article>",
    "twice as much beside it": f"<p>{MILL * 2}<div class='comment'>{MILL[:20]}</div>{MILL * 5}</p>",
    "somewhat more beside it": f"<article><p>{MILL * 2}</p></article><div><p>{MILL}</p></div>",
    "short": f"<div class='text'>{TABLE.format(MILL)}</div><div><pre>{MILL[:120]}</pre></div>",
    "short, in divs": f"<div>{MILL}</div><div>{MENU}</div>",
    "in tables": f"<div><time>{MILL[:20]}</time>{TABLE.format(MILL[:20])}<p>{MILL[:20]}</p></div><div>"
    f"{TABLE.format(MILL[:150])}{TABLE.format(MILL + MILL[:60])}<p>{MILL + MILL[:100]}</p></div>",
    "in no paragraph": f"<article>{MILL[:20]}</article><pre>{MILL[:60]}{'&amp;' * 40}{MILL * 2}</pre>",
    "in another box": f"<article><p>{MILL * 2}</p></article><div class='x'>{f'<p>{MILL * 3}</p>' * 4}</div>",
    "text that grows": f"<article><p>{MILL}</p><p><noembed>{'&' * 100}</noembed></p></article>",
    "a form feed": f"<article><p>{MILL * 3}&#12;</p></article>",
    "appended": f"<main><p>{MILL * 3}</p><div id='infinite-scroll'><p>{MILL * 9}</p></div></main>",
    "of a theme": f"<main><p>{MILL * 3}</p><section class='mvp-post-add-box'><p>{MILL * 9}</p></section></main>",
    "shared": f"<main><p>{MILL}</p><div class='elementor-share-buttons'><p>{MILL * 9}</p></div></main>",
    "nothing": "",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("options", OPTIONS[:5], ids=str)
def test_pages_on_which_other_extractors_win(body: str, options: dict[str, Any]) -> None:
    ours, theirs = both(f"<html><head><title>A page</title></head><body>{body}</body></html>", **options)
    assert ours == theirs


def test_pages_after_each_other_do_not_disturb_each_other() -> None:
    pages = [f"<html><body>{body}</body></html>" for body in [*BODIES.values(), *reversed(BODIES.values())]]
    assert [both(html)[0] for html in pages] == [trafilatura.extract(html) for html in pages]
    odd = f"<html><body>{BODIES['a form feed']}</body></html>"
    trafilatura_shortcuts.extract_function()(f"<html><body>{BODIES['an article']}</body></html>")
    assert trafilatura_shortcuts.extract_function()(odd, fast=True) == trafilatura.extract(odd, fast=True)


@pytest.fixture
def readability(monkeypatch: pytest.MonkeyPatch) -> list[Document]:
    asked: list[Document] = []
    own = Document.summary
    monkeypatch.setattr(Document, "summary", lambda self: asked.append(self) or own(self))
    return asked


def test_readability_is_asked_only_where_its_text_may_be_taken(readability: list[Document]) -> None:
    html = english(3).decode()
    assert trafilatura_shortcuts.extract_function()(html)
    assert not readability
    trafilatura.extract(html)
    assert len(readability) == 1, "the library is as it was"
    trafilatura_shortcuts.extract_function()(
        f"<html><body><nav>{MENU}</nav><article><p>{MILL}</p></article></body></html>"
    )
    assert len(readability) > 1


def test_versions_that_it_was_not_compared_with_are_called_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trafilatura, "__version__", "9.0")
    trafilatura_shortcuts.extract_function.cache_clear()
    try:
        assert trafilatura_shortcuts.extract_function() is trafilatura.extract
    finally:
        trafilatura_shortcuts.extract_function.cache_clear()


@pytest.mark.parametrize(
    "more", [{}, {"deduplicate": False}, {"include_comments": False}, {"max_tree_size": 1}], ids=str
)
def test_settings_are_those_that_were_given(more: dict[str, Any]) -> None:
    extractor = TrafilaturaExtractor(0, min_extracted_size=100_000, **more)
    options = {"deduplicate": True, **{name: value for name, value in more.items() if name != "max_tree_size"}}
    for html in (LONG, f"<html><body>{BODIES['short, in divs']}</body></html>"):
        LRU_TEST.clear()
        theirs = trafilatura.extract(html, config=extractor.config(), **options)
        assert extractor.paragraphs(html) == [line for line in (theirs or "").split("\n") if line]
