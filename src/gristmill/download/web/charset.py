"""Decodes the bytes of a page.

A byte order mark decides. Otherwise the charset of the HTTP header, the one declared in the page and the one detected
from the bytes are tried in this order; one that the bytes contradict is ignored. Names are understood as browsers do:
ISO-8859-1 means Windows-1252.
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import Any

from gristmill.core.errors import require

HEAD_BYTES = 4096
"""Bytes at the start of a page that are searched for its charset. Browsers search 1,024."""

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_META = re.compile(rb"""<meta[^>]{0,500}?charset\s*=\s*["']?\s*([\w.:\-]{2,40})""", re.IGNORECASE)
_XML = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:\-]{2,40})""", re.IGNORECASE)
_HTTP = re.compile(r"""charset\s*=\s*["']?\s*([\w.:\-]{2,40})""", re.IGNORECASE)
_MAX_BROKEN_SHARE = 0.002
"""A charset is accepted with up to this share of undecodable characters: pages mix content from several sources."""


def decode_page(raw: bytes, content_type: str = "") -> str:
    """The text of a page. Bytes that no charset can decode become U+FFFD."""
    for mark, name in _MARKS:
        if raw.startswith(mark):
            return raw[len(mark) :].decode(name, "replace")
    if raw.isascii() and b"\x1b" not in raw:  # ISO-2022-JP is ASCII with escape sequences
        return raw.decode("ascii")
    names = list(dict.fromkeys(filter(None, map(_codec_name, _declared(raw, content_type)))))
    try:  # text that decodes as UTF-8 is UTF-8, whatever is declared
        if not any(name.startswith(("utf-16", "iso2022")) for name in names):
            return raw.decode("utf-8")
    except UnicodeDecodeError:
        pass
    best, fewest = "", len(raw) + 1
    for name in [*names, _detect(raw)]:
        text = raw.decode(name, "replace")
        broken = text.count("\ufffd")
        if broken <= len(text) * _MAX_BROKEN_SHARE:
            return text
        if broken < fewest:
            best, fewest = text, broken
    return best


def _declared(raw: bytes, content_type: str) -> list[str]:
    """The charsets declared by the HTTP header and by the page."""
    header = _HTTP.search(content_type)
    declaration = _XML.search(raw[:HEAD_BYTES]) or _META.search(raw[:HEAD_BYTES])
    in_page = declaration[1].decode("ascii") if declaration else ""
    if in_page.lower().startswith("utf-16"):  # the declaration itself was readable as ASCII
        in_page = "utf-8"
    return [header[1] if header else "", in_page]


@lru_cache(256)  # more than there are charsets; pages declare any number of invalid names
def _codec_name(name: str) -> str | None:
    """Python's name of the codec that browsers use for a charset, or None if they know none."""
    if not name:
        return None
    mapped = _encodings().map_encoding_to_html5(name, fallback_utf8=False)
    try:
        return codecs.lookup(mapped or name).name
    except LookupError:
        return None


def _detect(raw: bytes) -> str:
    detected: str = _encodings().detect_encoding(raw)
    return _codec_name(detected) or "cp1252"


def _encodings() -> Any:
    return require("resiliparse.parse.encoding", "web", "reading pages")
