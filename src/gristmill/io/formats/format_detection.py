"""Detect the format and compression of a file from its first bytes and its extension, and name its reader."""

from __future__ import annotations

import codecs
from itertools import islice

from gristmill.core.errors import InputError

GZIP, ZSTD = "gzip", "zstd"

COMPRESSION_BY_EXTENSION = {".gz": GZIP, ".zst": ZSTD}
JSONL_EXTENSIONS = (".jsonl", ".json", ".ndjson")
CSV_EXTENSIONS = (".csv", ".tsv")
TEXT_EXTENSIONS = (".txt", ".text", ".md")
PARQUET_EXTENSIONS = (".parquet", ".pq")
ARROW_EXTENSIONS = (".arrow", ".arrows", ".ipc", ".feather")
TAR_EXTENSIONS = (".tar", ".tgz")

READER_BY_EXTENSION = {
    **dict.fromkeys(JSONL_EXTENSIONS, "JsonlReader"),
    **dict.fromkeys(PARQUET_EXTENSIONS, "ParquetReader"),
    **dict.fromkeys(CSV_EXTENSIONS, "CsvReader"),
    **dict.fromkeys(ARROW_EXTENSIONS, "ArrowReader"),
    **dict.fromkeys(TEXT_EXTENSIONS, "TextReader"),
    **dict.fromkeys(TAR_EXTENSIONS, "WebDatasetReader"),
}

_MAGIC = (
    (b"PAR1", "Parquet", "ParquetReader"),
    (b"ARROW1", "an Arrow file", "ArrowReader"),
    (b"\xff\xff\xff\xff", "an Arrow stream", "ArrowReader"),
    (b"FEA1", "Feather version 1", None),
    (b"ORC", "ORC", None),
    (b"Obj\x01", "Avro", None),
    (b"WARC/", "WARC", None),
    (b"PK\x03\x04", "a zip archive", None),
    (b"BZh", "bzip2", None),
    (b"\xfd7zXZ\x00", "xz", None),
    (b"\x1f\x8b", "gzip", None),
    (b"\x28\xb5\x2f\xfd", "zstd", None),
    (b"%PDF", "PDF", None),
    (b"\x89PNG", "a PNG image", "ImageDirectoryReader"),
    (b"\xff\xd8\xff", "a JPEG image", "ImageDirectoryReader"),
    (b"SQLite format 3", "an SQLite database", None),
    (b"\xff\xfe", "text in UTF-16", None),
    (b"\xfe\xff", "text in UTF-16", None),
)


def with_compressed_extensions(extensions: tuple[str, ...]) -> list[str]:
    return [extension + ending for extension in extensions for ending in ("", *COMPRESSION_BY_EXTENSION)]


def extension_of(path: str) -> str:
    """The extension, including that of the compression: `.jsonl.gz`."""
    name = path.rsplit("/", 1)[-1].lower()
    stem, dot, last = name.rpartition(".")
    if not dot or not stem:
        return ""
    ending = f".{last}"
    return extension_of(stem) + ending if ending in COMPRESSION_BY_EXTENSION else ending


def reader_for_extension(extension: str) -> str | None:
    plain, _, last = extension.rpartition(".")
    return READER_BY_EXTENSION.get(plain if f".{last}" in COMPRESSION_BY_EXTENSION else extension)


def detect_compression(path: str, head: bytes) -> str | None:
    """The compression of a file. Its first bytes decide; its extension only if they are not text."""
    if head.startswith(b"\x1f\x8b"):
        return GZIP
    skippable = head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F
    if head.startswith(b"\x28\xb5\x2f\xfd") or skippable:
        return ZSTD
    named = next((kind for ending, kind in COMPRESSION_BY_EXTENSION.items() if path.lower().endswith(ending)), None)
    return None if named is None or not head or is_text(head) else named


def is_text(head: bytes) -> bool:
    """Whether the bytes may be the beginning of UTF-8 text."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


def detect_format(head: bytes) -> tuple[str, str | None]:
    """The format of a file by its first bytes, and its reader; ("", None) if unknown."""
    for magic, kind, reader in _MAGIC:
        if head.startswith(magic):
            return kind, reader
    if head[257:262] == b"ustar":
        return "a tar archive", "WebDatasetReader"
    if b"\0" in head:
        return "", None
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if text.startswith(b"<"):
        return "HTML or XML", None
    if text.startswith(b"{"):
        return "JSON lines", "JsonlReader"
    return ("CSV", "CsvReader") if _is_csv(text) else ("", None)


def _is_csv(text: bytes) -> bool:
    lines = list(islice(text.splitlines(), 3))
    return len(lines) > 1 and any(
        lines[0].count(mark) and len({line.count(mark) for line in lines}) == 1 for mark in (b",", b"\t")
    )


def wrong_format_error(path: str, wanted: str, head: bytes) -> InputError | None:
    """The error to raise if the first bytes show another format than the wanted one; None if they do not."""
    kind, reader = detect_format(head)
    if not kind or kind == wanted:
        return None
    return InputError(f"{path} is not {wanted}; it looks like {kind}" + (f": use {reader}" if reader else ""))


def unreadable_file_error(path: str, wanted: str, reader: str, head: bytes, error: Exception) -> InputError | None:
    """The error to raise in planning for a file that its reader cannot open. None if by its first bytes or its name it
    has the wanted format, but is damaged: then it is reported when it is read, and other files are not affected."""
    kind, other = detect_format(head)
    if other == reader or (not kind and reader_for_extension(extension_of(path)) == reader):
        return None
    return wrong_format_error(path, wanted, head) or InputError(f"{path} cannot be read as {wanted}: {error}")
