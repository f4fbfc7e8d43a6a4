"""Reads the pages of MediaWiki dump files: XML in concatenated bz2 streams, from any offset.

A part of a file is all streams that begin in it. Streams are found by their first bytes, so no index is needed. Each
page is parsed on its own, so a bad page costs only itself; a damaged stream costs its pages after the damage. Both are
yielded as a `BadRecord` with a position. A page that continues in the next stream, as in files made by pbzip2, is
read to its end there.

Gives up: pages of more than 64 MiB, which no wiki has.
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
_MAX_PAGE_BYTES = 64 * 2**20
_PER_BYTE = 1024
"""The position of a page is the offset of its stream times this, plus its index there, so it increases."""

_PAGE_START = re.compile(rb"<page[ >]|<(?:p(?:a(?:ge?)?)?)?\Z")
_NAMESPACE = re.compile(r'<namespace key="(-?\d+)"[^>/]*>([^<]*)<')
_NAMED = ("-2", "6", "14")
"""The keys of the namespaces Media, File and Category."""


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
    """A stream that cannot be read to its end."""


def split_dump(path: str, size: int) -> Sequence[tuple[int, int]]:
    """The parts of a file of at most `size` bytes; none if it is small or has no bz2 streams."""
    total = Path(path).stat().st_size
    with open(path, "rb") as opened:
        if not _STREAM.match(opened.read(_MAGIC_BYTES)) or total <= size:
            return ()
    return [(start, min(start + size, total)) for start in range(0, total, size)]


def read_pages(path: str, start: int = 0, end: int | None = None) -> Iterator[WikiPage | BadRecord]:
    """The pages of the streams that begin at or after `start` and before `end`."""
    with open(path, "rb") as opened:
        if not _STREAM.match(opened.read(_MAGIC_BYTES)):
            opened.seek(0)
            first = opened.read(_PIECE)
            pieces = chain([first], iter(lambda: opened.read(_PIECE), b""))
            yield from _pages(pieces, 0, _namespace_names(first))
            return
        namespaces = _first_stream_namespaces(opened)
        offset = 0 if start == 0 else _next_stream(opened, start)
        while offset is not None and (end is None or offset < end):
            stream = _Stream(opened, offset)
            try:
                pieces = chain(stream, _following(opened, stream))
                yield from _pages(pieces, offset * _PER_BYTE, namespaces)
            except _Damaged as error:
                yield BadRecord(offset, f"{error}: the rest of this stream of pages is lost")
                offset = _next_stream(opened, offset + 1)
            else:
                offset = stream.next_offset


class _Stream:
    """Yields a bz2 stream in pieces. Then `next_offset` is the offset of the next one, None at the end of the file."""

    def __init__(self, opened: BinaryIO, offset: int) -> None:
        self.opened, self.offset = opened, offset
        self.next_offset: int | None = None

    def __iter__(self) -> Iterator[bytes]:
        reader = bz2.BZ2Decompressor()
        self.opened.seek(self.offset)
        at = self.offset
        while not reader.eof:
            block = self.opened.read(_READ) if reader.needs_input else b""
            if not block and reader.needs_input:
                raise _Damaged("the file is truncated: it ends within a bz2 stream")
            at += len(block)
            try:
                piece = reader.decompress(block, _PIECE)
            except (OSError, ValueError) as error:
                raise _Damaged(f"damaged bz2 data ({error})") from error
            if piece:
                yield piece
        end = at - len(reader.unused_data)
        self.opened.seek(end)
        head = self.opened.read(_MAGIC_BYTES)
        if not head:
            return
        self.next_offset = end if _STREAM.match(head) else _next_stream(self.opened, end)
        if self.next_offset is None:
            raise _Damaged("the data after it is not a bz2 stream")


def _following(opened: BinaryIO, stream: _Stream) -> Iterator[bytes]:
    """The data after a stream, for a page that continues beyond its end. An empty piece marks the end of the stream."""
    yield b""
    offset = stream.next_offset
    while offset is not None:
        following = _Stream(opened, offset)
        yield from following
        offset = following.next_offset


def _next_stream(opened: BinaryIO, start: int) -> int | None:
    """The offset of the first stream at or after `start`."""
    opened.seek(start)
    buffer, offset = b"", start
    while block := opened.read(_PIECE):
        buffer += block
        if match := _STREAM.search(buffer):
            return offset + match.start()
        offset += len(buffer) - _MAGIC_BYTES
        buffer = buffer[-_MAGIC_BYTES:]
    return None


def _first_stream_namespaces(opened: BinaryIO) -> tuple[str, ...]:
    try:
        first = next(iter(_Stream(opened, 0)), b"")
    except _Damaged:
        return ()
    return _namespace_names(first)


def _namespace_names(head: bytes) -> tuple[str, ...]:
    """The wiki's own names for media and categories, from the header of the dump."""
    text = head[: 2**16].decode("utf-8", "replace")
    return tuple(name for key, name in _NAMESPACE.findall(text) if key in _NAMED and name)


def _pages(pieces: Iterator[bytes], first: int, namespaces: tuple[str, ...]) -> Iterator[WikiPage | BadRecord]:
    for number, raw in enumerate(_split_pages(pieces)):
        try:
            yield parse_page(raw, first + number, namespaces)
        except (expat.ExpatError, ValueError) as error:
            where = f"page {number} of the stream at byte {first // _PER_BYTE:,}"
            yield BadRecord(first + number, f"a page is not valid XML: {error} ({where})", raw[:MAX_RAW_BYTES])


def _split_pages(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The bytes from each `<page>` to its `</page>`. Neither can occur in the text of a page, where `<` is escaped."""
    buffer, scanned = b"", 0
    stream_ended = False
    for piece in pieces:
        stream_ended = stream_ended or not piece
        buffer += piece
        done = 0
        while (end := buffer.find(b"</page>", max(scanned, done))) >= 0:
            begin = buffer.find(b"<page", done, end)
            if begin >= 0:
                yield buffer[begin : end + 7]
            done = end + 7
            if stream_ended:  # this was the page that continues beyond the stream; the next belongs to the next stream
                return
        buffer = buffer[done:]
        if stream_ended and not _PAGE_START.search(buffer):
            return
        scanned = max(0, len(buffer) - 6)
        if len(buffer) > _MAX_PAGE_BYTES:
            yield buffer[:MAX_RAW_BYTES]
            buffer, scanned = b"", 0
    if _PAGE_START.search(buffer):
        yield buffer


def parse_page(raw: bytes, position: int, namespaces: tuple[str, ...] = ()) -> WikiPage:
    """Parse one page. Document type declarations, which can define entities, are refused."""
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.buffer_size = 2**16
    path: list[str] = []
    texts: dict[str, list[str]] = {}

    def start(name: str, _: dict[str, str]) -> None:
        path.append(name)
        if name == "redirect":
            texts.setdefault("redirect", [])

    def text(data: str) -> None:
        texts.setdefault("/".join(path[1:]), []).append(data)

    def refuse(*_: object) -> None:
        raise ValueError("document type declarations are not allowed")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda name: path.pop()
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.Parse(raw, True)

    def field(name: str) -> str:
        return "".join(texts.get(name, ()))

    return WikiPage(
        title=field("title"),
        id=field("id"),
        namespace=int(field("ns") or 0),
        redirect="redirect" in texts,
        model=field("revision/model"),
        text=field("revision/text"),
        position=position,
        namespaces=namespaces,
    )
