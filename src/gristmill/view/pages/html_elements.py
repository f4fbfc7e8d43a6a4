"""Build HTML safely: every string that was not built here is escaped, so data cannot become markup."""

from __future__ import annotations

from html import escape
from typing import Any

_SYMBOLS = {code: 0x2400 + code for code in range(32) if code not in b"\n\t\r"}
_VOID = frozenset(("br", "img", "input", "link", "meta", "source"))


class SafeHtml(str):
    """Text that is HTML already."""

    __slots__ = ()


def to_html(value: object) -> SafeHtml:
    """A value as HTML: escaped, unless it is HTML."""
    if isinstance(value, SafeHtml):
        return value
    if value is None:
        return SafeHtml("")
    if isinstance(value, list | tuple):
        return SafeHtml("".join(map(to_html, value)))
    return SafeHtml(escape(printable(str(value))))


def printable(text: str) -> str:
    """The text with symbols in place of what a page cannot hold: lone surrogates, and characters that control."""
    return text.encode("utf-8", "backslashreplace").decode().translate(_SYMBOLS)


def element(name: str, /, *children: object, **attributes: Any) -> SafeHtml:
    """An element. Names of attributes have `_` for `-`, and may end in one: `class_`. None and False leave one out."""
    attributes_html = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        plain = key.rstrip("_").replace("_", "-")
        attributes_html.append(f" {plain}" if value is True else f' {plain}="{escape(printable(str(value)))}"')
    opened = f"<{name}{''.join(attributes_html)}>"
    return SafeHtml(opened if name in _VOID else f"{opened}{to_html(children)}</{name}>")


def count_noun(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
