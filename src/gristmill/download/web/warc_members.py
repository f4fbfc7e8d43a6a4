"""Members: the pieces that a WARC file is made of, plain or compressed with gzip, a member for each record.

A file is read front to back, with the place of each member. It can also be cut: `certain_record_start` finds the first member
at or after a byte that is certainly one. Bytes that look like a member may lie inside of another, as a stored copy of
a WARC file does; but a stored block of gzip holds less than 64 KiB, so a run of good members that is longer cannot.

What is given up: cutting files of one huge member. They are one stream.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

FEED_BYTES = 2**14
"""Compressed bytes that are given to zlib at a time: it copies what is left over after each member."""

SCAN_BYTES = 2**20
STORED_BLOCK = 2**16
"""More than a stored block can hold."""

UNBROKEN_BYTES = 2**20
"""A member that can be inflated so far is one."""

MAGIC, SIGNATURE = b"\x1f\x8b\x08", b"WARC/"


class DamagedMember(Exception):
    """What is here cannot be read."""


class SeekableFile(Protocol):
    def read(self, size: int = -1) -> bytes: ...
    def seek(self, offset: int, whence: int = 0) -> int: ...


class MemberReader:
    """The bytes of one member after the other. `begin` starts one, `read` gives of it until it is over."""

    def __init__(self, file: SeekableFile, start: int = 0) -> None:
        self.file = file
        self.seek_to(start)

    def seek_to(self, offset: int) -> None:
        self.file.seek(offset)
        self._at, self._input = offset, b""

    @property
    def offset(self) -> int:
        """The place of what comes next."""
        return self._at - len(self._input)

    def _fill(self) -> bool:
        if not self._input:
            self._input = self.file.read(FEED_BYTES)
            self._at += len(self._input)
        return bool(self._input)

    def begin(self) -> int | None:
        """Start the next member: its place, or None at the end of the file."""
        raise NotImplementedError

    def read(self, size: int) -> bytes:
        """The next bytes of the member; fewer than `size` only at its end."""
        raise NotImplementedError


class PlainMemberReader(MemberReader):
    """A file that is not compressed: one member, which a record's length divides."""

    def begin(self) -> int | None:
        while self._fill():
            self._input = self._input.lstrip(b"\r\n")  # between records
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
        """What was read beyond the end of a record."""
        self._input = more + self._input


class GzipMemberReader(MemberReader):
    """A file of gzip members."""

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
                raise DamagedMember(f"a gzip member that is damaged ({error})") from error
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
    """Where the next record seems to begin, at `after` or later: where to go on after damage. None: nowhere."""
    for offset in _find_marks(file, after, MAGIC if gzip else b"\r\nWARC/1."):
        if not gzip:
            return offset + 2
        if _inflates_to_record(file, offset):
            return offset
    return None


def certain_record_start(file: SeekableFile, after: int, size: int) -> int:
    """The first place at `after` or later where a record certainly begins; the file's size if there is none."""
    if after <= 0:
        return 0
    gzip = is_gzip(file)
    if not gzip:  # no length says where a record begins: such a file is one part
        return size
    passed = after
    for offset in _find_marks(file, after, MAGIC):
        if offset < passed or not _inflates_to_record(file, offset):
            continue
        broken = _first_break(file, offset, size)
        if broken is None:
            return offset
        passed = broken  # what follows each other up to there is of one kind
    return size


def _find_marks(file: SeekableFile, start: int, mark: bytes) -> Iterator[int]:
    """Where the mark is, from `start` on. The file may be moved in between."""
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


def _first_break(file: SeekableFile, start: int, size: int) -> int | None:
    """None if good members follow each other from `start` for longer than a stored block, or to the end; else the place
    where they do not."""
    members = GzipMemberReader(file, start)
    good = start + 1
    while members.offset - start <= STORED_BLOCK and members.offset < size:
        good = max(good, members.offset)
        try:
            members.begin()
            if members.read(len(SIGNATURE)) != SIGNATURE:
                return good
            while members.read(FEED_BYTES * 16):
                if members.offset - start > UNBROKEN_BYTES:
                    return None
        except DamagedMember:
            return good
    return None
