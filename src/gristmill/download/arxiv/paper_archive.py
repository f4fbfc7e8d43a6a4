"""Archives of papers: a tar of papers, each gzipped, each one file or a tar of files. Nothing is unpacked to disk.

It gives up what is too large to be a paper: more than 1 GiB unpacked, or 32 MiB of source. Such a paper is told as bad,
with its place, as is one whose gzip or tar is damaged; the others are read.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from gristmill.io.storage.file_input import BadRecord

SOURCE, PDF, OTHER = "source", "pdf", "other"
MOST_UNPACKED, MOST_SOURCE = 2**30, 32 * 2**20

_TEXTS = (".tex", ".ltx", ".latex", ".sty", ".cls", ".txt")
_BLOCK = 512
_FAULTS = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)


class ArxivPaper(NamedTuple):
    name: str
    kind: str
    files: dict[str, str]
    position: int


class _BoundedStream:
    """A stream that may not go on for ever: a megabyte of gzip can hold a gigabyte."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.left = stream, MOST_UNPACKED

    def read(self, size: int = -1) -> bytes:
        data: bytes = self.stream.read(size if size >= 0 else self.left + 1)
        self.left -= len(data)
        if self.left < 0:
            raise ValueError(f"more than {MOST_UNPACKED:,} bytes when unpacked")
        return data


def read_papers(path: str) -> Iterator[ArxivPaper | BadRecord]:
    """The papers of an archive, in their order, with their places in the file."""
    size = Path(path).stat().st_size
    place = 0
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                place = member.offset_data
                if member.isfile() and member.name.lower().endswith((".gz", ".pdf", ".tex")):
                    yield _read(archive, member)
            place = archive.offset
        if not _ends_at(path, place):
            yield BadRecord(size, "the archive has no end mark, so it was cut off")
    except tarfile.TarError as error:
        yield BadRecord(place, f"the archive cannot be read on: {error}. Remove it and fetch it again")


def _ends_at(path: str, place: int) -> bool:
    """Whether the mark of an archive's end is there."""
    with open(path, "rb") as opened:
        opened.seek(place)
        return opened.read(_BLOCK) == bytes(_BLOCK)


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> ArxivPaper | BadRecord:
    if member.name.lower().endswith(".pdf"):
        return ArxivPaper(member.name, PDF, {}, member.offset_data)
    try:
        opened = archive.extractfile(member)
        assert opened is not None  # it is a file
        with opened:
            files = _unpack(opened)
    except _FAULTS as error:
        return BadRecord(member.offset_data, f"{member.name}: {type(error).__name__}: {error}")
    return ArxivPaper(member.name, SOURCE if files else OTHER, files, member.offset_data)


def _unpack(opened: IO[bytes]) -> dict[str, str]:
    """The texts of one paper by their names; none if there is no source."""
    zipped = opened.read(2) == b"\x1f\x8b"
    opened.seek(0)
    stream: Any = _BoundedStream(gzip.GzipFile(fileobj=opened) if zipped else opened)
    head = stream.read(_BLOCK)
    opened.seek(0)
    stream = _BoundedStream(gzip.GzipFile(fileobj=opened) if zipped else opened)
    if not _is_tar(head):
        if head.startswith((b"%PDF", b"%!PS", b"PK\x03\x04", b"<?xml", b"<html")):
            return {}
        return {"main.tex": decode_source(_limited(stream, MOST_SOURCE))}
    files: dict[str, str] = {}
    left = MOST_SOURCE
    with tarfile.open(fileobj=stream, mode="r|") as inner:
        for member in inner:
            if not member.isfile() or not member.name.lower().endswith(_TEXTS):
                continue
            text = inner.extractfile(member)
            data = _limited(text, left) if text else b""
            left -= len(data)
            files[member.name.removeprefix("./")] = decode_source(data)
    return files if any(name.lower().endswith(_TEXTS[:3]) or "\\begin" in text for name, text in files.items()) else {}


def _limited(stream: Any, most: int) -> bytes:
    data: bytes = stream.read(most + 1)
    if len(data) > most:
        raise ValueError(f"more than {MOST_SOURCE:,} bytes of source")
    return data


def _is_tar(head: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def decode_source(data: bytes) -> str:
    """UTF-8, or else what was used before."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace") if b"latin1" not in data else data.decode("latin-1")
