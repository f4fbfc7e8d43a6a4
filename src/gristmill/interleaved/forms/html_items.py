"""HTML to items: the paragraphs of a page that are content, with the pictures that stand among them.

Each picture is marked in the page before jusText looks at it. A picture in a paragraph that is content stays there; one
between paragraphs stays if both are content, so that logos and the pictures of menus go.
"""

from __future__ import annotations

import html as html_entities
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

from gristmill.core.errors import BadRecordError
from gristmill.download.web.charset import decode_page
from gristmill.download.web.html_extractors import JusTextExtractor
from gristmill.download.web.stop_lists import get_stop_list_dict
from gristmill.interleaved.item_columns import IMAGE, TEXT, BadDocument

_IMG = re.compile(r"<img\b([^<>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([a-zA-Z-]+)\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s\"'>]+)")
_MARK = re.compile("\ue0f0(\\d+)\ue0f1")
_ADDRESSES = ("src", "data-src", "data-original", "data-lazy-src")


class HtmlItems:
    """How pages are read: the language of the stop words, and what relative addresses are relative to."""

    def __init__(self, language: str = "ENGLISH", base_url: str | None = None) -> None:
        if language not in get_stop_list_dict():
            raise ValueError(f"language is {language!r}: there is no list of stop words for it")
        self.language, self.base_url = language, base_url
        self.extractor = JusTextExtractor()


def items_of_html(page: bytes | str, algorithm: HtmlItems, base_url: str | None = None) -> list[dict[str, Any]]:
    """The items of one page. Raises a BadDocument for one that cannot be read."""
    html = decode_page(page) if isinstance(page, bytes) else page
    pictures: list[dict[str, Any]] = []

    def mark(found: re.Match[str]) -> str:
        picture = _picture(found[1], base_url or algorithm.base_url)
        if picture is None:
            return ""
        pictures.append(picture)
        return f"\ue0f0{len(pictures) - 1}\ue0f1"

    marked = _IMG.sub(mark, html.replace("\ue0f0", "").replace("\ue0f1", ""))
    try:
        paragraphs = algorithm.extractor.paragraphs(marked)
    except BadRecordError as error:
        raise BadDocument(str(error)) from error
    return list(_items(paragraphs, pictures, algorithm))


def _picture(attributes: str, base_url: str | None) -> dict[str, Any] | None:
    found = {name.lower(): html_entities.unescape(value.strip("\"'")) for name, value in _ATTRIBUTE.findall(attributes)}
    address = next(
        (found[name] for name in _ADDRESSES if found.get(name) and not found[name].startswith("data:")), None
    )
    if address is None:
        return None
    item: dict[str, Any] = {"kind": IMAGE, "ref": {"path": urljoin(base_url, address) if base_url else address}}
    if found.get("alt"):
        item["meta"] = {"alt": found["alt"]}
    sizes = {name: int(found[name]) for name in ("width", "height") if found.get(name, "").isdecimal()}
    return item | {name: size for name, size in sizes.items() if 0 < size < 2**31}


def _items(paragraphs: list[Any], pictures: list[dict[str, Any]], algorithm: HtmlItems) -> Iterator[dict[str, Any]]:
    marked = [paragraph.text for paragraph in paragraphs]
    for paragraph in paragraphs:
        paragraph.text = _MARK.sub("", paragraph.text).strip()
    with_text = [paragraph for paragraph in paragraphs if paragraph.text]
    chosen = _chosen(algorithm, with_text)
    flags: list[bool | None] = [chosen.pop(0) if paragraph.text else None for paragraph in paragraphs]
    after = _next_flags(flags)
    before = True
    for text, flag, following in zip(marked, flags, after, strict=True):
        if flag or (flag is None and before and following):
            yield from _split(text, pictures)
        before = before if flag is None else flag


def _chosen(algorithm: HtmlItems, paragraphs: list[Any]) -> list[bool]:
    stop_words = get_stop_list_dict()[algorithm.language]
    algorithm.extractor.chosen(paragraphs, stop_words, "")
    return [not paragraph.is_boilerplate for paragraph in paragraphs]


def _next_flags(flags: list[bool | None]) -> list[bool]:
    """For each paragraph whether the next one with text is content; true after the last."""
    found: list[bool] = []
    last = True
    for flag in reversed(flags):
        found.append(last)
        last = last if flag is None else flag
    return found[::-1]


def _split(text: str, pictures: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for at, piece in enumerate(_MARK.split(text)):
        if at % 2:
            yield pictures[int(piece)]
        elif piece.strip():
            yield {"kind": TEXT, "text": piece.strip()}
