"""Split HTML into tags and text in one pass, in linear time for any input.

The parser of the standard library searches the rest of the page for the end of each unclosed comment or tag, and its
results differ between releases of Python. What is given up: attributes, which are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

TEXT, START, END, EMPTY = "text", "start", "end", "empty"

_OPENS = re.compile(r"<[a-zA-Z/!?]")
_NAME = r"<(/\s*+)?(?:([a-zA-Z][^\t\n\r\f />\x00]*+))"
_VALUE = r"""(?:(?!\s*["'])|\s*+"[^"]*+"|\s*+'[^']*+')"""
_TAG = re.compile(rf"{_NAME}[^>=]*+(?:={_VALUE}[^>=]*+)*>")
_SIMPLE = re.compile(rf"{_NAME}?[^>]*+>")
"""A tag, or something like it, that ends at the first bracket, even if that is quoted."""

_COMMENT = re.compile(r"<!.*?--!?\s*+>", re.DOTALL)
_SECTION = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_RAW = {name: re.compile(rf"</\s*+{name}[\s/>]", re.IGNORECASE) for name in ("script", "style")}


def read_tags(html: str) -> Iterator[tuple[str, str]]:
    """The parts of a page: (TEXT, the text), or the kind of a tag and its name in lower case.

    Unclosed markup is text. Scripts, styles and comments are skipped. CDATA sections are parsed like the rest.
    """
    at = 0
    missed: set[re.Pattern[str]] = set()
    while (start := html.find("<", at)) >= 0:
        if start > at:
            yield TEXT, unescape(html[at:start])
        markup = _markup(html, start, missed)
        if markup is None:
            yield TEXT, "<"
            at = start + 1
            continue
        at = markup.end()
        if markup.re is _SECTION:
            yield from read_tags(markup[1])
        elif markup.re is not _COMMENT and (name := markup[2]):
            name = name.lower()
            kind = END if markup[1] else EMPTY if html.endswith("/>", start, at) else START
            yield kind, name
            if kind == START and name in _RAW:
                closed = _RAW[name].search(html, at)
                at = closed.start() if closed else len(html)
    if at < len(html):
        yield TEXT, unescape(html[at:])


def _markup(html: str, at: int, missed: set[re.Pattern[str]]) -> re.Match[str] | None:
    """The markup that begins here. A form without an end has none further on either, so it is not searched again:
    that keeps the time linear."""
    forms: tuple[re.Pattern[str], ...] = ()
    if html.startswith("<!--", at):
        forms = (_COMMENT,)
    elif html.startswith("<![CDATA[", at):
        forms = (_SECTION, _SIMPLE)
    elif _OPENS.match(html, at):
        forms = (_SIMPLE,) if html[at + 1] in "!?/" else (_TAG, _SIMPLE)
    for form in forms:
        if form not in missed:
            if markup := form.match(html, at):
                return markup
            missed.add(form)
    return None
