"""trafilatura's text without the work that cannot change it: a page takes half of its time.

trafilatura tries several extractors on a page and keeps the best text. For most pages the outcome of the dearest steps
is known before: readability's text is taken only where it is twice as long, and all is tried again only where the text
is a small share of the page. Neither has more text than the page, and to count that is cheap. Where jusText is asked,
its paragraphs are made by ours (`justext_paragraphs.py`), and the hash of its stop words is computed once.

Two modules of the library are loaded a second time, and names replaced in these copies: whoever else calls trafilatura
in this process gets all of it. Only versions that this was compared with are treated so; others are called as they are.
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
"""Versions of trafilatura that this gives the text of."""

_VIDEO = len(" VIDEO")
"""What readability may write into a frame."""

_REREAD = ("noembed", "noframes", "plaintext", "xmp")
"""Elements whose text may grow: readability's result is written as XML and parsed as HTML."""

_APPENDED = re.compile("infinite|mvp-post-add-|elementor-share-buttons")
"""In a class or id of all that trafilatura cuts off before anything else."""


class _PageState(threading.local):
    """What is known of the page at hand."""

    covered = False
    """Its text is no small share of it."""


class _ParagraphMaker:
    """In the place of jusText's."""

    @staticmethod
    def make_paragraphs(root: Any) -> list[Paragraph]:
        from justext import core

        return paragraphs_of(root, core.PARAGRAPH_TAGS)


@cache
def extract_function() -> Callable[..., str | None]:
    """`trafilatura.extract`, or what gives the same for less."""
    library = require("trafilatura", "web", "TrafilaturaExtractor")
    call: Callable[..., str | None] = library.extract
    return _patched_extract() if library.__version__ in VERIFIED_VERSIONS else call


def _patched_extract() -> Callable[..., str | None]:
    core, external = _module_copy("trafilatura.core"), _module_copy("trafilatura.external")
    _hash_once(external)
    _prune_where_needed(core)
    page = _compare_where_needed(core, external)

    def extract(html: str, **options: Any) -> str | None:
        page.covered = False  # that was of the page before
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
    """jusText finds lists of stop words by their hash. A set keeps it; that of a tuple, of the words of all languages,
    takes milliseconds for each page."""
    words_of_all = external.jt_stoplist_init

    def jt_stoplist_init() -> Any:
        external.JT_STOPLIST = frozenset(words_of_all())
        return external.JT_STOPLIST

    external.jt_stoplist_init, external.ParagraphMaker = jt_stoplist_init, _ParagraphMaker


def _compare_where_needed(core: Any, external: Any) -> _PageState:
    from lxml.etree import XPath

    page, unclean = _PageState(), XPath(external.SANITIZED_XPATH)
    compare, text_of = external.compare_extraction, core.html2txt

    def compare_extraction(cleaned: Any, raw: Any, body: Any, text: str, options: Any) -> tuple[Any, str]:
        most = _most_text(raw)
        if options.focus != "balanced" or unclean(body) or _may_lose(body, len(text), most, options):
            body, text = compare(cleaned, raw, body, text, options)
        page.covered = len(text) >= core.ESCALATION_PAGE_SHARE * most
        return body, text

    def html2txt(tree: Any) -> str:  # only to see whether it is far longer than the text
        return "" if page.covered else str(text_of(tree))

    core.compare_extraction, core.html2txt = compare_extraction, html2txt
    core.justext_rescue = external.justext_rescue
    return page


def _prune_where_needed(core: Any) -> None:
    """A regular expression called from XPath is dear; one over what it would see tells whether it can find anything."""
    prune = core.prune_unwanted_nodes

    def prune_unwanted_nodes(tree: Any, expressions: Any, with_backup: bool = False) -> Any:
        if expressions is core.RAW_TREE_PRUNE_XPATH and not any(map(_appended, tree.iter("div", "section", "aside"))):
            return tree
        return prune(tree, expressions, with_backup)

    core.prune_unwanted_nodes = prune_unwanted_nodes


def _appended(element: Any) -> bool:
    return bool(_APPENDED.search(element.get("class", "")) or _APPENDED.search(element.get("id", "")))


def _may_lose(body: Any, length: int, most: float, options: Any) -> bool:
    """Whether text of this length may give way to that of another extractor, which has at most so much."""
    if not length or length < options.min_extracted_size or most > 2 * length:
        return True
    if most <= 2 * options.min_extracted_size:
        return False
    return not _in_paragraphs()(body) or len(body.findall(".//table")) > len(body.findall(".//p"))


def _most_text(tree: Any) -> float:
    """Characters that an extractor can find in a page, white space as one space. Infinite where text may grow, or where
    characters make extractors fail."""
    from trafilatura.utils import INVALID_XML_CHARS

    if tree.tag in ("script", "style"):  # of a page that is nothing else
        return math.inf
    more = sum(_VIDEO if found.tag == "iframe" else math.inf for found in tree.iter("iframe", *_REREAD))
    text = " ".join(_texts()(tree))
    return math.inf if INVALID_XML_CHARS.search(text) else len(" ".join(text.split())) + more


@cache
def _texts() -> Any:
    from lxml.etree import XPath

    return XPath(".//text()[not(parent::script or parent::style)]", smart_strings=False)


@cache
def _in_paragraphs() -> Any:
    from lxml.etree import XPath

    return XPath("boolean(.//p//text())")
