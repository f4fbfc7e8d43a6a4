"""Reads WARC files (also WET and WAT) record by record, plain or gzipped, from the start or any record boundary.

A damaged record is yielded as a `BadRecord` with its offset, and reading resumes at the next record. So is a record
larger than `max_record_bytes`, which is skipped; at most one record is in memory. A gzipped file is a sequence of
members, one per record, so it can be split where a member certainly begins (`certain_record_start`).

Gives up: records divided into several (`continuation`), LZ4 and Zstandard, and splitting plain files and files that are
a single gzip member.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gristmill.core.errors import require
from gristmill.io.storage.file_input import BadRecord

HEADER_READ_BYTES = 2**15
"""Bytes read at a time in search of the end of a header."""

MAX_HEADER_BYTES = 2**18
MAX_RECORD = 64 * 2**20
RAW_BYTES_KEPT = 4096
"""Bytes of a damaged record that go to quarantine, to recognise it."""

FEED_BYTES = 2**14
"""Compressed bytes passed to zlib at a time. Small, because zlib copies the unused input after each member."""

SCAN_BYTES = 2**20
"""Bytes read at a time to search for the start of a member."""

STORED_BLOCK = 2**16
"""A stored (uncompressed) block of deflate holds less than this."""

UNBROKEN_BYTES = 2**20
"""Bytes that look like a member and inflate without error for this long are one."""

MAGIC, SIGNATURE = b"\x1f\x8b\x08", b"WARC/"
_MAX_LENGTH_DIGITS = 18
_CHUNK = re.compile(rb"\r?\n([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\n]*)?\r?\n")


class DamagedMember(Exception):
    """A member or record that cannot be read. The message gives the reason."""


class SeekableFile(Protocol):
    def read(self, size: int = -1) -> bytes: ...
    def seek(self, offset: int, whence: int = 0) -> int: ...


@dataclass(slots=True)
class WarcRecord:
    """One record: its offset in the file, its headers (names in lower case) and its block."""

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
    """The HTTP response in a `response` record, with its body decoded."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


def read_warc(
    file: SeekableFile, start: int = 0, end: int | None = None, kinds: frozenset[str] | None = None,
    max_record_bytes: int = MAX_RECORD,
) -> Iterator[WarcRecord | BadRecord]:  # fmt: skip
    """The records of these `kinds` that begin between `start` and `end`, both of which must be record boundaries."""
    members = open_members(file)
    members.seek_to(start)
    reader = _Reader(members, kinds, max_record_bytes)
    while True:
        try:
            offset = members.begin()
            if offset is None or (end is not None and offset >= end):
                return
            yield from reader.records(offset)
        except DamagedMember as damage:
            damaged_at = reader.offset
            yield BadRecord(damaged_at, str(damage), reader.head[:RAW_BYTES_KEPT])
            offset = next_record_start(file, damaged_at + 1, isinstance(members, GzipMemberReader))
            if offset is None:
                return
            members.seek_to(offset)


class _Reader:
    """Reads the records of a member: as a rule there is one, but there may be more."""

    def __init__(self, members: MemberReader, kinds: frozenset[str] | None, max_bytes: int) -> None:
        self.members, self.kinds, self.max_bytes = members, kinds, max_bytes
        self.offset = 0
        self.head = b""

    def records(self, offset: int) -> Iterator[WarcRecord | BadRecord]:
        """All records of a member. Those after the first get the offsets that follow, so that each has its own."""
        rest = b""
        self.offset = offset
        while True:
            self.head = b""
            record, rest = self._record(rest)
            if isinstance(self.members, PlainMemberReader):
                self.members.push_back(rest)
                rest = b""
            else:  # read to the end of the member: zlib verifies the checksum there
                rest = rest.lstrip(b"\r\n")
                while not rest and (more := self.members.read(HEADER_READ_BYTES)):
                    rest = more.lstrip(b"\r\n")
            if record is not None:
                yield record
            if not rest:
                return
            self.offset += 1

    def _record(self, rest: bytes) -> tuple[WarcRecord | BadRecord | None, bytes]:
        """One record, or None if it is of another kind, and the bytes that were read beyond it."""
        head, block = self._head(rest)
        lowered = head.lower()
        length, kind = _field(head, lowered, b"\ncontent-length:"), _field(head, lowered, b"\nwarc-type:")
        if length is None or not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
            value = length[:40].decode("utf-8", "replace") if length else ""
            raise DamagedMember(f"the Content-Length of a record is {value!r}")
        size = int(length)
        wanted = self.kinds is None or (kind is not None and kind.decode("utf-8", "replace") in self.kinds)
        if not wanted or size > self.max_bytes:
            self._skip(size - len(block))
            too_large = f"a record of {size:,} bytes, more than max_record_bytes={self.max_bytes:,}"
            return (BadRecord(self.offset, too_large, head[:RAW_BYTES_KEPT]) if wanted else None), block[size:]
        missing = size - len(block)
        if missing > 0:
            block += self.members.read(missing)
        if len(block) < size:
            raise DamagedMember(f"a record ends after {len(block):,} of {size:,} bytes")
        return WarcRecord(self.offset, _headers(head), block[:size]), block[size:]

    def _skip(self, size: int) -> None:
        """Skip bytes without holding them in memory."""
        while size > 0:
            piece = self.members.read(min(size, HEADER_READ_BYTES * 8))
            if not piece:
                raise DamagedMember(f"a record ends {size:,} bytes too early")
            size -= len(piece)

    def _head(self, rest: bytes) -> tuple[bytes, bytes]:
        """The header of a record, and the part of its block that was read with it."""
        self.head = rest or self.members.read(2048)
        if not self.head.startswith(SIGNATURE):
            raise DamagedMember("no WARC record begins here" if self.head else "an empty gzip member")
        while not (end := end_of_head(self.head)):
            more = self.members.read(HEADER_READ_BYTES) if len(self.head) < MAX_HEADER_BYTES else b""
            if not more:
                raise DamagedMember("the header of a record has no end")
            self.head += more
        return self.head[: end[0]], self.head[end[1] :]


class MemberReader:
    """Reads one member after the other: `begin` starts the next, `read` returns its bytes until its end."""

    def __init__(self, file: SeekableFile, start: int = 0) -> None:
        self.file = file
        self.seek_to(start)

    def seek_to(self, offset: int) -> None:
        self.file.seek(offset)
        self._at, self._input = offset, b""

    @property
    def offset(self) -> int:
        """The offset in the file of the next unread byte."""
        return self._at - len(self._input)

    def _fill(self) -> bool:
        if not self._input:
            self._input = self.file.read(FEED_BYTES)
            self._at += len(self._input)
        return bool(self._input)

    def begin(self) -> int | None:
        """Start the next member. Returns its offset, or None at the end of the file."""
        raise NotImplementedError

    def read(self, size: int) -> bytes:
        """The next bytes of the member; fewer than `size` only at its end."""
        raise NotImplementedError


class PlainMemberReader(MemberReader):
    """An uncompressed file, which is one member: records end where their lengths say."""

    def begin(self) -> int | None:
        while self._fill():
            self._input = self._input.lstrip(b"\r\n")  # blank lines between records
            if self._input:
                return self.offset
        return None

    def read(self, size: int) -> bytes:
        pieces = []
        while size > 0 and self._fill():
            piece, self._input = self._input[:size], self._input[size:]
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def push_back(self, more: bytes) -> None:
        """Return bytes that were read beyond the end of a record."""
        self._input = more + self._input


class GzipMemberReader(MemberReader):
    """A file of gzip members, as a rule one per record."""

    def begin(self) -> int | None:
        if not self._fill():
            return None
        self._inflate = zlib.decompressobj(31)
        return self.offset

    def read(self, size: int) -> bytes:
        inflate = self._inflate
        pieces: list[bytes] = []
        while size > 0 and not inflate.eof:
            if not self._fill():
                raise DamagedMember("the file ends in the middle of a gzip member")
            try:
                piece = inflate.decompress(self._input, size)
            except zlib.error as error:
                raise DamagedMember(f"damaged gzip member ({error})") from error
            self._input = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def is_gzip(file: SeekableFile) -> bool:
    file.seek(0)
    head = file.read(len(MAGIC))
    file.seek(0)
    return head == MAGIC


def open_members(file: SeekableFile) -> MemberReader:
    return GzipMemberReader(file) if is_gzip(file) else PlainMemberReader(file)


def next_record_start(file: SeekableFile, after: int, gzip: bool) -> int | None:
    """The offset at or after `after` where a record seems to begin, to resume after damage. None if there is none."""
    for offset in _find_marks(file, after, MAGIC if gzip else b"\r\nWARC/1."):
        if not gzip:
            return offset + 2
        if _inflates_to_record(file, offset):
            return offset
    return None


def certain_record_start(file: SeekableFile, after: int, size: int) -> int:
    """The first offset at or after `after` where a record certainly begins, or `size` if there is none. This is where a
    file can be split.

    Bytes that look like a member may lie inside another one, as in a stored copy of a WARC file. But a stored block
    holds less than 64 KiB, so a longer run of valid members cannot."""
    if after <= 0:
        return 0
    if not is_gzip(file):  # content may look like the start of a record, so the file is not split
        return size
    skip_to = after
    for offset in _find_marks(file, after, MAGIC):
        if offset < skip_to or not _inflates_to_record(file, offset):
            continue
        end_of_run = _end_of_short_run(file, offset, size)
        if end_of_run is None:
            return offset
        skip_to = end_of_run  # the members of a short run all lie inside the same stored block
    return size


def _find_marks(file: SeekableFile, start: int, mark: bytes) -> Iterator[int]:
    """The offsets of `mark` from `start` on. The caller may seek in the file between two of them."""
    at, overlap = start, len(mark) - 1
    while True:
        file.seek(at)
        block = file.read(SCAN_BYTES)
        found = block.find(mark)
        while found >= 0:
            yield at + found
            found = block.find(mark, found + 1)
        if len(block) < SCAN_BYTES:
            return
        at += len(block) - overlap


def _inflates_to_record(file: SeekableFile, offset: int) -> bool:
    file.seek(offset)
    try:
        return zlib.decompressobj(31).decompress(file.read(1024), len(SIGNATURE)).startswith(SIGNATURE)
    except zlib.error:
        return False


def _end_of_short_run(file: SeekableFile, start: int, size: int) -> int | None:
    """None if valid members follow each other from `start` for longer than a stored block, or to the end of the file;
    otherwise the offset where they stop."""
    members = GzipMemberReader(file, start)
    valid_until = start + 1
    while members.offset - start <= STORED_BLOCK and members.offset < size:
        valid_until = max(valid_until, members.offset)
        try:
            members.begin()
            if members.read(len(SIGNATURE)) != SIGNATURE:
                return valid_until
            while members.read(FEED_BYTES * 16):
                if members.offset - start > UNBROKEN_BYTES:
                    return None
        except DamagedMember:
            return valid_until
    return None


def end_of_head(head: bytes, limit: int | None = None) -> tuple[int, int] | None:
    """Where a header ends and where its body begins, that is, around the first empty line; lines end with LF or CRLF.
    Only the bytes before `limit` are searched."""
    end, size = head.find(b"\n\r\n", 0, limit), 3
    bare = head.find(b"\n\n", 0, limit if end < 0 else end + 1)
    if bare >= 0:
        end, size = bare, 2
    if end < 0:
        return None
    return end - (head[end - 1 : end] == b"\r"), end + size


def _field(head: bytes, lowered: bytes, name: bytes) -> bytes | None:
    """The value of the first header line with this name, or None."""
    start = lowered.find(name)
    if start < 0:
        return None
    start += len(name)
    end = head.find(b"\n", start)
    return head[start : None if end < 0 else end].removesuffix(b"\r").strip(b" \t")


def _headers(head: bytes) -> dict[str, str]:
    """Header values by name in lower case. A line that begins with white space continues the one before it."""
    text = head.decode("utf-8", "replace")
    if "\n " in text or "\n\t" in text:
        text = re.sub(r"\r?\n[ \t]+", " ", text)
    lines = (line.partition(":") for line in text.split("\n")[1:])
    return {name.strip().lower(): value.strip() for name, mark, value in lines if mark}


def http_response(block: bytes, max_bytes: int = MAX_RECORD) -> HttpResponse:
    """The HTTP response in the block of a record. Raises ValueError if there is none or its body is damaged."""
    end = end_of_head(block, MAX_HEADER_BYTES)
    if end is None or not block.startswith(b"HTTP/"):
        raise ValueError("a response record without an HTTP header")
    headers = _headers(block[: end[0]])
    status = block[:40].split(None, 2)[1:2]
    body = block[end[1] :]
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = unchunk(body)
    for coding in reversed([part.strip() for part in headers.get("content-encoding", "").lower().split(",")]):
        if coding and coding != "identity" and body:
            body = _decompress(body, coding, max_bytes)
    return HttpResponse(int(status[0]) if status and status[0].isdigit() else 0, headers, body)


def unchunk(body: bytes) -> bytes:
    """The body of a chunked response. Some archives store it already joined but keep the header; then it is returned
    unchanged."""
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
            raise ValueError(f"only {len(body) - at:,} bytes of a chunk of {size:,}")
        pieces.append(body[at : at + size])
        line = _CHUNK.match(body, at + size)
    raise ValueError(f"damaged chunk at byte {at + len(pieces[-1]):,} of the body")


def _decompress(body: bytes, coding: str, max_bytes: int) -> bytes:
    """The decompressed body. A body that is not compressed, although its header says so, is returned unchanged."""
    if coding in ("gzip", "x-gzip"):
        return _inflate(body, 31, max_bytes) if body.startswith(b"\x1f\x8b") else body
    if body.lstrip()[:1] == b"<" and body.isascii():
        return body
    if coding == "deflate":
        zlib_header = body[0] & 0x0F == 8 and len(body) > 1 and (body[0] * 256 + body[1]) % 31 == 0
        return _inflate(body, 15 if zlib_header else -15, max_bytes)
    if coding == "br":
        return _unbrotli(body, max_bytes)
    raise ValueError(f"unknown Content-Encoding {coding!r}")


def _inflate(body: bytes, bits: int, max_bytes: int) -> bytes:
    try:
        decompressor = zlib.decompressobj(bits)
        plain = decompressor.decompress(body, max_bytes)
    except zlib.error as error:
        raise ValueError(f"damaged compressed body ({error})") from error
    if decompressor.unconsumed_tail:
        raise ValueError(f"a compressed body of more than {max_bytes:,} bytes")
    if not decompressor.eof:
        raise ValueError("a compressed body is incomplete")
    return plain


def _unbrotli(body: bytes, max_bytes: int) -> bytes:
    library = require("brotli", "web", "reading pages compressed with Brotli")
    try:
        limit = {"output_buffer_limit": max_bytes + 1} if library.__version__ >= "1.2" else {}
        reader = library.Decompressor()
        plain: bytes = reader.process(body, **limit)
    except library.error as error:
        raise ValueError(f"damaged compressed body ({error})") from error
    if len(plain) > max_bytes:
        raise ValueError(f"a compressed body of more than {max_bytes:,} bytes")
    if not reader.is_finished():
        raise ValueError("a compressed body is incomplete")
    return plain
