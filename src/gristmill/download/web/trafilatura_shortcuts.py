"""Speeds up trafilatura by skipping steps that cannot change its result: half the time per page, the same text.

trafilatura tries several extractors on a page and keeps the best text. For most pages the outcome of the most expensive
steps is known in advance: readability's text is used only if it is twice as long, and everything is tried again only if
the text is a small share of the page. Neither can have more text than the page, which is cheap to measure. Where
trafilatura falls back to jusText, the paragraphs come from `justext_paragraphs.py`, and the hash of the stop words is
computed once.

Two modules of the library are loaded a second time and patched, so other users of trafilatura in the process are not
affected.

Gives up: versions of trafilatura other than those in VERIFIED_VERSIONS, with which the results were compared. They are
called unpatched.
"""

from __future__ import annotations

import importlib.util
import math
import re
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from gristmill.core.errors import require
from gristmill.download.web.justext_paragraphs import Paragraph, paragraphs_of

VERIFIED_VERSIONS = frozenset({"2.3.1"})
"""Versions of trafilatura for which the patched functions were found to return the same text."""

_VIDEO = len(" VIDEO")
"""The length of the text that readability may add to an iframe."""

_REPARSED = ("noembed", "noframes", "plaintext", "xmp")
"""Elements whose text may grow, because readability's result is serialised as XML and parsed as HTML."""

_PRUNED = re.compile("infinite|mvp-post-add-|elementor-share-buttons")
"""Every element that trafilatura prunes first has one of these in its class or id."""


class _PageState(threading.local):
    """What is known about the current page."""

    covered = False
    """Whether the extracted text is too large a share of the page for a second attempt."""


class _ParagraphMaker:
    """Replaces the class of this name in jusText."""

    @staticmethod
    def make_paragraphs(root: Any) -> list[Paragraph]:
        from justext import core

        return paragraphs_of(root, core.PARAGRAPH_TAGS)


@cache
def extract_function() -> Callable[..., str | None]:
    """`trafilatura.extract`, patched if the version is verified."""
    library = require("trafilatura", "web", "TrafilaturaExtractor")
    call: Callable[..., str | None] = library.extract
    return _patched_extract() if library.__version__ in VERIFIED_VERSIONS else call


def _patched_extract() -> Callable[..., str | None]:
    core, external = _module_copy("trafilatura.core"), _module_copy("trafilatura.external")
    _hash_once(external)
    _prune_where_needed(core)
    page = _compare_where_needed(core, external)

    def extract(html: str, **options: Any) -> str | None:
        page.covered = False  # reset from the previous page
        text: str | None = core.extract(html, **options)
        return text

    return extract


def _module_copy(name: str) -> Any:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _hash_once(external: Any) -> None:
    """Use a frozenset for jusText's stop words, which are a cache key: a frozenset stores its hash, whereas hashing a
    tuple of the words of all languages takes milliseconds per page."""
    original_init = external.jt_stoplist_init

    def jt_stoplist_init() -> Any:
        external.JT_STOPLIST = frozenset(original_init())
        return external.JT_STOPLIST

    external.jt_stoplist_init, external.ParagraphMaker = jt_stoplist_init, _ParagraphMaker


def _compare_where_needed(core: Any, external: Any) -> _PageState:
    """Compare with other extractors only where they may win."""
    from lxml.etree import XPath

    page, unclean = _PageState(), XPath(external.SANITIZED_XPATH)
    compare, text_of = external.compare_extraction, core.html2txt

    def compare_extraction(cleaned: Any, raw: Any, body: Any, text: str, options: Any) -> tuple[Any, str]:
        page_length = _max_text_length(raw)
        if options.focus != "balanced" or unclean(body) or _may_lose(body, len(text), page_length, options):
            body, text = compare(cleaned, raw, body, text, options)
        page.covered = len(text) >= core.ESCALATION_PAGE_SHARE * page_length
        return body, text

    def html2txt(tree: Any) -> str:  # called only to compare its length with the text's
        return "" if page.covered else str(text_of(tree))

    core.compare_extraction, core.html2txt = compare_extraction, html2txt
    core.justext_rescue = external.justext_rescue
    return page


def _prune_where_needed(core: Any) -> None:
    """Prune only pages that have something to prune: regular expressions in XPath are slow, so classes and ids are
    searched first."""
    prune = core.prune_unwanted_nodes

    def prune_unwanted_nodes(tree: Any, expressions: Any, with_backup: bool = False) -> Any:
        if expressions is core.RAW_TREE_PRUNE_XPATH and not any(
            map(_may_be_pruned, tree.iter("div", "section", "aside"))
        ):
            return tree
        return prune(tree, expressions, with_backup)

    core.prune_unwanted_nodes = prune_unwanted_nodes


def _may_be_pruned(element: Any) -> bool:
    return bool(_PRUNED.search(element.get("class", "")) or _PRUNED.search(element.get("id", "")))


def _may_lose(body: Any, length: int, page_length: float, options: Any) -> bool:
    """Whether another extractor may replace a text of this length, given that it finds at most `page_length`."""
    if not length or length < options.min_extracted_size or page_length > 2 * length:
        return True
    if page_length <= 2 * options.min_extracted_size:
        return False
    return not _has_paragraph_text()(body) or len(body.findall(".//table")) > len(body.findall(".//p"))


def _max_text_length(tree: Any) -> float:
    """The maximum number of characters that an extractor can find in a page, with white space normalised. Infinite if
    the text may grow, or if it has characters that make extractors fail."""
    from trafilatura.utils import INVALID_XML_CHARS

    if tree.tag in ("script", "style"):  # a page that is only a script
        return math.inf
    added = sum(_VIDEO if element.tag == "iframe" else math.inf for element in tree.iter("iframe", *_REPARSED))
    text = " ".join(_text_nodes()(tree))
    return math.inf if INVALID_XML_CHARS.search(text) else len(" ".join(text.split())) + added


@cache
def _text_nodes() -> Any:
    from lxml.etree import XPath

    return XPath(".//text()[not(parent::script or parent::style)]", smart_strings=False)


@cache
def _has_paragraph_text() -> Any:
    from lxml.etree import XPath

    return XPath("boolean(.//p//text())")
