"""Charset: the text of a page, from its bytes and from what was claimed of them.

A byte order mark decides. Then what the server said, what the page says of itself, and what the bytes look like are
tried in this order; a claim that the bytes contradict does not count. Names mean what browsers take them for:
ISO-8859-1 is Windows-1252.
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import Any

from gristmill.core.errors import require

HEAD_BYTES = 4096
"""Bytes in which a page may say its charset: browsers look at 1,024 of them."""

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_META = re.compile(rb"""<meta[^>]{0,500}?charset\s*=\s*["']?\s*([\w.:\-]{2,40})""", re.IGNORECASE)
_XML = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:\-]{2,40})""", re.IGNORECASE)
_HTTP = re.compile(r"""charset\s*=\s*["']?\s*([\w.:\-]{2,40})""", re.IGNORECASE)
_BROKEN = 0.002
"""Of the characters, so many may be broken before a claim does not count: pages are made of pieces."""


def decode_page(raw: bytes, content_type: str = "") -> str:
    """The text of a page. What no charset can read is replaced by U+FFFD."""
    for mark, name in _MARKS:
        if raw.startswith(mark):
            return raw[len(mark) :].decode(name, "replace")
    if raw.isascii() and b"\x1b" not in raw:  # an escape may begin ISO-2022-JP
        return raw.decode("ascii")
    names = list(dict.fromkeys(filter(None, map(_codec_name, _claims(raw, content_type)))))
    try:  # nothing but UTF-8 looks like UTF-8, whatever is claimed
        if not any(name.startswith(("utf-16", "iso2022")) for name in names):
            return raw.decode("utf-8")
    except UnicodeDecodeError:
        pass
    best, fewest = "", len(raw) + 1
    for name in [*names, _detect(raw)]:
        text = raw.decode(name, "replace")
        broken = text.count("\ufffd")
        if broken <= len(text) * _BROKEN:
            return text
        if broken < fewest:
            best, fewest = text, broken
    return best


def _claims(raw: bytes, content_type: str) -> list[str]:
    found = _HTTP.search(content_type)
    inside = _XML.search(raw[:HEAD_BYTES]) or _META.search(raw[:HEAD_BYTES])
    meta = inside[1].decode("ascii") if inside else ""
    if meta.lower().startswith("utf-16"):  # it was read as ASCII, so it cannot be
        meta = "utf-8"
    return [found[1] if found else "", meta]


@lru_cache(256)  # all that there are; what pages claim beside them is without end
def _codec_name(name: str) -> str | None:
    """The name that Python has for what browsers take a charset for."""
    if not name:
        return None
    mapped = _encodings().map_encoding_to_html5(name, fallback_utf8=False)
    try:
        return codecs.lookup(mapped or name).name
    except LookupError:
        return None


def _detect(raw: bytes) -> str:
    found: str = _encodings().detect_encoding(raw)
    return _codec_name(found) or "cp1252"


def _encodings() -> Any:
    return require("resiliparse.parse.encoding", "web", "reading pages")
