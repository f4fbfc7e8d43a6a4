"""Reads archives of papers: a tar of gzipped files, each one source file or a tar of them. Nothing is unpacked to disk.

Gives up: papers of more than 1 GiB unpacked or 32 MiB of source. Such a paper, or one whose gzip or tar is damaged, is
yielded as a `BadRecord` with its offset; the others are read.
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
MAX_UNPACKED_BYTES, MAX_SOURCE_BYTES = 2**30, 32 * 2**20

_LATEX_EXTENSIONS = (".tex", ".ltx", ".latex")
_SOURCE_EXTENSIONS = (*_LATEX_EXTENSIONS, ".sty", ".cls", ".txt")
_BLOCK = 512
_READ_ERRORS = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)


class ArxivPaper(NamedTuple):
    name: str
    kind: str
    files: dict[str, str]
    position: int


class _BoundedStream:
    """A stream with a limit on its size: a megabyte of gzip can unpack to a gigabyte."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.remaining = stream, MAX_UNPACKED_BYTES

    def read(self, size: int = -1) -> bytes:
        data: bytes = self.stream.read(size if size >= 0 else self.remaining + 1)
        self.remaining -= len(data)
        if self.remaining < 0:
            raise ValueError(f"more than {MAX_UNPACKED_BYTES:,} bytes when unpacked")
        return data


def read_papers(path: str) -> Iterator[ArxivPaper | BadRecord]:
    """The papers of an archive in order, with their offsets in the file."""
    size = Path(path).stat().st_size
    offset = 0
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                offset = member.offset_data
                if member.isfile() and member.name.lower().endswith((".gz", ".pdf", ".tex")):
                    yield _read(archive, member)
            offset = archive.offset
        if not _has_end_mark(path, offset):
            yield BadRecord(size, "the archive is truncated: it has no end mark")
    except tarfile.TarError as error:
        yield BadRecord(offset, f"the rest of the archive cannot be read: {error}. Delete it to download it again")


def _has_end_mark(path: str, offset: int) -> bool:
    with open(path, "rb") as opened:
        opened.seek(offset)
        return opened.read(_BLOCK) == bytes(_BLOCK)


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> ArxivPaper | BadRecord:
    if member.name.lower().endswith(".pdf"):
        return ArxivPaper(member.name, PDF, {}, member.offset_data)
    try:
        opened = archive.extractfile(member)
        assert opened is not None  # the member is a file
        with opened:
            files = _unpack(opened)
    except _READ_ERRORS as error:
        return BadRecord(member.offset_data, f"{member.name}: {type(error).__name__}: {error}")
    return ArxivPaper(member.name, SOURCE if files else OTHER, files, member.offset_data)


def _unpack(opened: IO[bytes]) -> dict[str, str]:
    """The source files of a paper by name; empty if it has no LaTeX source."""
    gzipped = opened.read(2) == b"\x1f\x8b"
    opened.seek(0)
    head = _BoundedStream(gzip.GzipFile(fileobj=opened) if gzipped else opened).read(_BLOCK)
    opened.seek(0)
    stream: Any = _BoundedStream(gzip.GzipFile(fileobj=opened) if gzipped else opened)
    if not _is_tar(head):
        if head.startswith((b"%PDF", b"%!PS", b"PK\x03\x04", b"<?xml", b"<html")):
            return {}
        return {"main.tex": decode_source(_read_limited(stream, MAX_SOURCE_BYTES))}
    files: dict[str, str] = {}
    remaining = MAX_SOURCE_BYTES
    with tarfile.open(fileobj=stream, mode="r|") as inner:
        for member in inner:
            if not member.isfile() or not member.name.lower().endswith(_SOURCE_EXTENSIONS):
                continue
            text = inner.extractfile(member)
            data = _read_limited(text, remaining) if text else b""
            remaining -= len(data)
            files[member.name.removeprefix("./")] = decode_source(data)
    is_latex = any(name.lower().endswith(_LATEX_EXTENSIONS) or "\\begin" in text for name, text in files.items())
    return files if is_latex else {}


def _read_limited(stream: Any, max_bytes: int) -> bytes:
    data: bytes = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"more than {MAX_SOURCE_BYTES:,} bytes of source")
    return data


def _is_tar(head: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def decode_source(data: bytes) -> str:
    """Decode as UTF-8, or else as Latin-1 if the source names it, or Windows-1252."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace") if b"latin1" not in data else data.decode("latin-1")
