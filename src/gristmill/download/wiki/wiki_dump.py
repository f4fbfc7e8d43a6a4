"""Dump files of MediaWiki: pages out of XML in concatenated bz2 streams, from any place in the file.

A part of a file is read from the first stream that begins in it to the last. Streams are found by their first bytes, so
no index is needed. Each page is parsed for itself, without entities of its own, so a bad one costs itself alone; a
damaged stream costs the pages after the damage up to the next stream. Both are told with their place. A page that goes
on in the next stream, as in files of pbzip2, is read to its end there.

It gives up pages of more than 64 MiB, which no wiki has.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple
from xml.parsers import expat

from gristmill.io.storage.file_input import MAX_RAW_BYTES, BadRecord

PART = 32 * 2**20
"""Bytes of a file that one task reads."""

_STREAM = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_MAGIC_BYTES = 10
_READ, _PIECE = 2**18, 2**20
_MOST_PAGE = 64 * 2**20
_PER_BYTE = 1024
"""A page's place is that of its stream times this, plus its number there: it goes up through the file."""

_BEGUN = re.compile(rb"<page[ >]|<(?:p(?:a(?:ge?)?)?)?\Z")
_NAMESPACE = re.compile(r'<namespace key="(-?\d+)"[^>/]*>([^<]*)<')
_NAMED = ("-2", "6", "14")


class WikiPage(NamedTuple):
    title: str
    id: str
    namespace: int
    redirect: bool
    model: str
    text: str
    position: int
    namespaces: tuple[str, ...]


class _Damaged(Exception):
    """A stream that cannot be read on."""


def split_dump(path: str, size: int) -> Sequence[tuple[int, int]]:
    """The parts of a file, if it can be cut."""
    total = Path(path).stat().st_size
    with open(path, "rb") as opened:
        if not _STREAM.match(opened.read(_MAGIC_BYTES)) or total <= size:
            return ()
    return [(start, min(start + size, total)) for start in range(0, total, size)]


def read_pages(path: str, start: int = 0, end: int | None = None) -> Iterator[WikiPage | BadRecord]:
    """The pages of the streams that begin from `start` to before `end`."""
    with open(path, "rb") as opened:
        if not _STREAM.match(opened.read(_MAGIC_BYTES)):
            opened.seek(0)
            head, pieces = _head(iter(lambda: opened.read(_PIECE), b""))
            yield from _pages(pieces, 0, head)
            return
        namespaces = _namespaces(opened)
        place = 0 if start == 0 else _next_stream(opened, start)
        while place is not None and (end is None or place < end):
            here = place
            stream = _Stream(opened, here)
            try:
                pieces = chain(stream, _continued(opened, stream))
                yield from _pages(pieces, here * _PER_BYTE, namespaces)
                place = stream.after
            except _Damaged as error:
                yield BadRecord(here, f"{error}: the rest of this stream of pages is lost")
                place = _next_stream(opened, here + 1)


class _Stream:
    """One bz2 stream, in pieces. When it is through, `after` is where the next one begins."""

    def __init__(self, opened: BinaryIO, place: int) -> None:
        self.opened, self.place = opened, place
        self.after: int | None = None

    def __iter__(self) -> Iterator[bytes]:
        reader = bz2.BZ2Decompressor()
        self.opened.seek(self.place)
        at = self.place
        while not reader.eof:
            block = self.opened.read(_READ) if reader.needs_input else b""
            if not block and reader.needs_input:
                raise _Damaged("the file ends within a bz2 stream, so it was cut off")
            at += len(block)
            try:
                piece = reader.decompress(block, _PIECE)
            except (OSError, ValueError) as error:
                raise _Damaged(f"damaged bz2 data ({error})") from error
            if piece:
                yield piece
        following = at - len(reader.unused_data)
        self.opened.seek(following)
        head = self.opened.read(_MAGIC_BYTES)
        if head and not _STREAM.match(head):
            found = _next_stream(self.opened, following)
            if found is None:
                raise _Damaged("what follows is no bz2 stream")
            self.after = found
        else:
            self.after = following if head else None


def _continued(opened: BinaryIO, stream: _Stream) -> Iterator[bytes]:
    """What comes after a stream, for a page that breaks off at its end. An empty piece says that it is over."""
    yield b""
    place = stream.after
    while place is not None:
        following = _Stream(opened, place)
        yield from following
        place = following.after


def _next_stream(opened: BinaryIO, start: int) -> int | None:
    """Where the first stream from `start` on begins."""
    opened.seek(start)
    held, place = b"", start
    while block := opened.read(_PIECE):
        held += block
        if found := _STREAM.search(held):
            return place + found.start()
        place += len(held) - _MAGIC_BYTES
        held = held[-_MAGIC_BYTES:]
    return None


def _namespaces(opened: BinaryIO) -> tuple[str, ...]:
    """What the wiki calls media and categories, as the first stream says."""
    try:
        first = next(iter(_Stream(opened, 0)), b"")
    except _Damaged:
        return ()
    return _named(first)


def _named(head: bytes) -> tuple[str, ...]:
    text = head[: 2**16].decode("utf-8", "replace")
    return tuple(name for key, name in _NAMESPACE.findall(text) if key in _NAMED and name)


def _head(pieces: Iterator[bytes]) -> tuple[tuple[str, ...], Iterator[bytes]]:
    first = next(pieces, b"")

    def again() -> Iterator[bytes]:
        yield first
        yield from pieces

    return _named(first), again()


def _pages(pieces: Iterator[bytes], first: int, namespaces: tuple[str, ...]) -> Iterator[WikiPage | BadRecord]:
    for number, raw in enumerate(_cut_pages(pieces)):
        try:
            yield parse_page(raw, first + number, namespaces)
        except (expat.ExpatError, ValueError) as error:
            where = f"page {number} of the stream at byte {first // _PER_BYTE:,}"
            yield BadRecord(first + number, f"a page that is no XML: {error} ({where})", raw[:MAX_RAW_BYTES])


def _cut_pages(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The bytes from each `<page>` to its `</page>`, which no text can hold: there they are escaped."""
    held, scanned = b"", 0
    over = False
    for piece in pieces:
        over = over or not piece
        held += piece
        done = 0
        while (end := held.find(b"</page>", max(scanned, done))) >= 0:
            begin = held.find(b"<page", done, end)
            if begin >= 0:
                yield held[begin : end + 7]
            done = end + 7
            if over:
                return
        held = held[done:]
        if over and not _BEGUN.search(held):
            return
        scanned = max(0, len(held) - 6)
        if len(held) > _MOST_PAGE:
            yield held[:MAX_RAW_BYTES]
            held, scanned = b"", 0
    if _BEGUN.search(held):
        yield held


def parse_page(raw: bytes, position: int, namespaces: tuple[str, ...] = ()) -> WikiPage:
    """One page. Declarations, and with them entities, are refused."""
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.buffer_size = 2**16
    path: list[str] = []
    found: dict[str, list[str]] = {}

    def start(name: str, _: dict[str, str]) -> None:
        path.append(name)
        if name == "redirect":
            found.setdefault("redirect", [])

    def text(data: str) -> None:
        found.setdefault("/".join(path[1:]), []).append(data)

    def refuse(*_: object) -> None:
        raise ValueError("it has a document type declaration")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda name: path.pop()
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.Parse(raw, True)

    def of(name: str) -> str:
        return "".join(found.get(name, ()))

    redirect = "redirect" in found
    namespace = int(of("ns") or 0)
    return WikiPage(
        of("title"), of("id"), namespace, redirect, of("revision/model"), of("revision/text"), position, namespaces
    )
