"""WARC: the records of such files, one by one, each with its place. Also WET and WAT, which are WARC files.

What is damaged is told with its place, and reading goes on at the next record. A record that says to be larger than
`max_record_bytes` is told too, and passed over; no more than one record is in memory.

What is given up: records that are cut into several (`continuation`), and members of LZ4 or Zstandard.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gristmill.core.errors import require
from gristmill.download.web.warc_members import (
    SIGNATURE,
    DamagedMember,
    GzipMemberReader,
    MemberReader,
    PlainMemberReader,
    SeekableFile,
    next_record_start,
    open_members,
)
from gristmill.io.storage.file_input import BadRecord

HEAD = 2**15
"""Bytes that are looked at for the header of a record, and then as many again."""

MAX_HEAD = 2**18
MAX_RECORD = 64 * 2**20
RAW_BYTES_KEPT = 4096
"""So much of a damaged record is kept, to know it by."""

_MOST_DIGITS = 18


@dataclass(slots=True)
class WarcRecord:
    """One record: its place, its headers (names in lower case) and what it holds."""

    offset: int
    headers: Mapping[str, str]
    block: bytes = field(repr=False)

    @property
    def kind(self) -> str:
        return self.headers.get("warc-type", "")

    @property
    def id(self) -> str:
        return self.headers.get("warc-record-id", "").strip("<>").removeprefix("urn:uuid:")

    @property
    def url(self) -> str:
        return self.headers.get("warc-target-uri", "").strip("<>")


@dataclass(slots=True)
class HttpResponse:
    """The answer that a `response` record holds, with its body as it was before it was sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


def read_warc(
    file: SeekableFile, start: int = 0, end: int | None = None, kinds: frozenset[str] | None = None,
    max_record_bytes: int = MAX_RECORD,
) -> Iterator[WarcRecord | BadRecord]:  # fmt: skip
    """Records that begin from `start` up to `end`, which must be where records begin. Of other `kinds` none."""
    members = open_members(file)
    members.seek_to(start)
    reader = _Reader(members, kinds, max_record_bytes)
    place: int | None = start
    while True:
        try:
            place = members.begin()
            if place is None or (end is not None and place >= end):
                return
            yield from reader.records(place)
        except DamagedMember as damage:
            at = reader.at
            yield BadRecord(at, str(damage), reader.head[:RAW_BYTES_KEPT])
            place = next_record_start(file, at + 1, isinstance(members, GzipMemberReader))
            if place is None:
                return
            members.seek_to(place)


class _Reader:
    """Takes records out of members: as a rule one of each, else one after the other."""

    def __init__(self, members: MemberReader, kinds: frozenset[str] | None, most: int) -> None:
        self.members, self.kinds, self.most = members, kinds, most
        self.at = 0
        self.head = b""

    def records(self, place: int) -> Iterator[WarcRecord | BadRecord]:
        """All records of a member. Those after the first have places of their own, a byte after each other."""
        rest = b""
        self.at = place
        while True:
            self.head = b""
            found, rest = self._one(rest)
            if isinstance(self.members, PlainMemberReader):
                self.members.push_back(rest)
                rest = b""
            else:  # to the end, since only there its checksum is known
                rest = rest.lstrip(b"\r\n")
                while not rest and (more := self.members.read(HEAD)):
                    rest = more.lstrip(b"\r\n")
            if found is not None:
                yield found
            if not rest:
                return
            self.at += 1

    def _one(self, rest: bytes) -> tuple[WarcRecord | BadRecord | None, bytes]:
        """One record (None: of another kind), and what was read beyond it."""
        head, block = self._head(rest)
        lowered = head.lower()
        length, kind = _field(head, lowered, b"\ncontent-length:"), _field(head, lowered, b"\nwarc-type:")
        if length is None or not length.isdigit() or len(length) > _MOST_DIGITS:
            said = length[:40].decode("utf-8", "replace") if length else ""
            raise DamagedMember(f"a record whose Content-Length is {said!r}")
        size = int(length)
        wanted = self.kinds is None or (kind is not None and kind.decode("utf-8", "replace") in self.kinds)
        if not wanted or size > self.most:
            left = self._skip(size - len(block))
            too_large = f"a record of {size:,} bytes, more than max_record_bytes={self.most:,}"
            return (BadRecord(self.at, too_large, head[:RAW_BYTES_KEPT]) if wanted else None), block[size:] or left
        missing = size - len(block)
        if missing > 0:
            block += self.members.read(missing)
        if len(block) < size:
            raise DamagedMember(f"a record that ends after {len(block):,} of {size:,} bytes")
        return WarcRecord(self.at, _headers(head), block[:size]), block[size:]

    def _skip(self, size: int) -> bytes:
        """Pass over so many bytes without holding them."""
        while size > 0:
            piece = self.members.read(min(size, HEAD * 8))
            if not piece:
                raise DamagedMember(f"a record that ends {size:,} bytes too early")
            size -= len(piece)
        return b""

    def _head(self, rest: bytes) -> tuple[bytes, bytes]:
        """The header of a record, and what was read of its block."""
        self.head = rest or self.members.read(2048)
        if not self.head.startswith(SIGNATURE):
            raise DamagedMember("no WARC record begins here" if self.head else "an empty member")
        while not (end := end_of_head(self.head)):
            more = self.members.read(HEAD) if len(self.head) < MAX_HEAD else b""
            if not more:
                raise DamagedMember("a header without an end")
            self.head += more
        return self.head[: end[0]], self.head[end[1] :]


def end_of_head(head: bytes, most: int | None = None) -> tuple[int, int] | None:
    """Where a header ends, and where what follows it begins: at the first line feed that another one follows, each with
    or without a carriage return before it. It ends before `most`."""
    found, size = head.find(b"\n\r\n", 0, most), 3
    bare = head.find(b"\n\n", 0, most if found < 0 else found + 1)
    if bare >= 0:
        found, size = bare, 2
    if found < 0:
        return None
    return found - (head[found - 1 : found] == b"\r"), found + size


def _field(head: bytes, lowered: bytes, name: bytes) -> bytes | None:
    """What the first line of a name says; None if there is none."""
    at = lowered.find(name)
    if at < 0:
        return None
    at += len(name)
    end = head.find(b"\n", at)
    return head[at : None if end < 0 else end].removesuffix(b"\r").strip(b" \t")


def _headers(head: bytes) -> dict[str, str]:
    """Names in lower case to values; a line that begins with a space goes on with the one before it."""
    text = head.decode("utf-8", "replace")
    if "\n " in text or "\n\t" in text:
        text = re.sub(r"\r?\n[ \t]+", " ", text)
    lines = (line.partition(":") for line in text.split("\n")[1:])
    return {name.strip().lower(): value.strip() for name, mark, value in lines if mark}


def http_response(block: bytes, max_bytes: int = MAX_RECORD) -> HttpResponse:
    """The answer in the block of a `response` record. Raises ValueError if there is none, or its body is broken."""
    end = end_of_head(block, MAX_HEAD)
    if end is None or not block.startswith(b"HTTP/"):
        raise ValueError("a response record without an HTTP header")
    headers = _headers(block[: end[0]])
    status = block[:40].split(None, 2)[1:2]
    body = block[end[1] :]
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = unchunk(body)
    for coding in reversed([part.strip() for part in headers.get("content-encoding", "").lower().split(",")]):
        if coding and coding != "identity" and body:
            body = _decoded(body, coding, max_bytes)
    return HttpResponse(int(status[0]) if status and status[0].isdigit() else 0, headers, body)


def unchunk(body: bytes) -> bytes:
    """A body that was sent in chunks. Some archives hold it whole, with the header as it was: then it is given back."""
    line = re.match(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\n]*)?\r?\n", body)
    if line is None:
        return body
    pieces: list[bytes] = []
    at = 0
    while line:
        size = int(line[1], 16)
        at = line.end()
        if size == 0:
            return b"".join(pieces)
        if at + size > len(body):
            raise ValueError(f"a chunk of {size:,} bytes, of which {len(body) - at:,} are there")
        pieces.append(body[at : at + size])
        line = _CHUNK.match(body, at + size)
    raise ValueError(f"a broken chunk at byte {at + len(pieces[-1]):,} of the body")


_CHUNK = re.compile(rb"\r?\n([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\n]*)?\r?\n")


def _decoded(body: bytes, coding: str, most: int) -> bytes:
    """A body without its compression. One that is not compressed, though it says so, is left as it is."""
    if coding in ("gzip", "x-gzip"):
        return _inflated(body, 31, most) if body.startswith(b"\x1f\x8b") else body
    if body.lstrip()[:1] == b"<" and body.isascii():
        return body
    if coding == "deflate":
        zlib_header = body[0] & 0x0F == 8 and len(body) > 1 and (body[0] * 256 + body[1]) % 31 == 0
        return _inflated(body, 15 if zlib_header else -15, most)
    if coding == "br":
        return _unbrotli(body, most)
    raise ValueError(f"a body with Content-Encoding {coding!r}, which is not known")


def _inflated(body: bytes, bits: int, most: int) -> bytes:
    try:
        inflate = zlib.decompressobj(bits)
        plain = inflate.decompress(body, most)
    except zlib.error as error:
        raise ValueError(f"a compressed body that is damaged ({error})") from error
    if inflate.unconsumed_tail:
        raise ValueError(f"a compressed body of more than {most:,} bytes")
    if not inflate.eof:
        raise ValueError("a compressed body that is not all there")
    return plain


def _unbrotli(body: bytes, most: int) -> bytes:
    library = require("brotli", "web", "reading a page that is compressed with Brotli")
    try:
        limit = {"output_buffer_limit": most + 1} if library.__version__ >= "1.2" else {}
        reader = library.Decompressor()
        plain: bytes = reader.process(body, **limit)
    except library.error as error:
        raise ValueError(f"a compressed body that is damaged ({error})") from error
    if len(plain) > most:
        raise ValueError(f"a compressed body of more than {most:,} bytes")
    if not reader.is_finished():
        raise ValueError("a compressed body that is not all there")
    return plain
