"""Images, audio and video in rows, recognised by their first bytes, whatever the data calls them.

Nothing is served but what begins like a picture or a recording of a kind listed here, and as that kind. SVG is none of
them: it can hold scripts.

Rows may name files. Only those in the folder of the dataset are opened, and nothing is fetched from the web: data must
not make this machine call others, or show what the user never opened. `FilesNamedByRows(follow=True)` is for data that
is trusted.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gristmill.interleaved.item_columns import TEXT
from gristmill.io.storage.file_input import GLOB_CHARACTERS, file_system

MAX_MEDIA_BYTES, PIECE_BYTES = 256 * 2**20, 2**20
MAGIC_BYTES = 32
_WEB = frozenset(("http", "https", "ftp"))

MEDIA_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".avif"),
    *(".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac"),
    *(".mp4", ".webm", ".mov", ".m4v", ".mkv", ".avi", ".ts"),
)
"""A text that ends like this may be the path of a file."""

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"\xff\xf1", "audio/aac"),
    (b"\xff\xf9", "audio/aac"),
    (b"\x1a\x45\xdf\xa3", "video/webm"),
)


def content_type(head: bytes) -> str | None:
    """What bytes are, if they are something that is shown."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}.get(head[8:12])
    if head[:2] == b"BM" and head[6:10] == b"\0\0\0\0":
        return "image/bmp"
    if head[4:8] == b"ftyp":
        brand = head[8:12]
        return "image/avif" if brand in (b"avif", b"avis") else "audio/mp4" if brand == b"M4A " else "video/mp4"
    return None


@dataclass(frozen=True, slots=True)
class MediaContent:
    """Something to see or to hear: bytes in a row, or the path of a file."""

    kind: str
    content: bytes | None = None
    path: str | None = None
    offset: int = 0
    size: int | None = None
    """Of a part of a file."""

    @property
    def family(self) -> str:
        return self.kind.partition("/")[0]

    def read(self, storage_options: Mapping[str, Any]) -> bytes:
        """All bytes, up to a limit."""
        return b"".join(self.pieces(storage_options, 0, min(self.length(storage_options), MAX_MEDIA_BYTES)))

    def length(self, storage_options: Mapping[str, Any]) -> int:
        """How many bytes there are."""
        if self.content is not None:
            return len(self.content)
        assert self.path is not None
        system, path = file_system(self.path, storage_options)
        there = max(int(system.info(path)["size"]) - self.offset, 0)
        return there if self.size is None else min(self.size, there)

    def pieces(self, storage_options: Mapping[str, Any], start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` up to, but without, `end`, some at a time."""
        if self.content is not None:
            yield self.content[start:end]
            return
        assert self.path is not None
        system, path = file_system(self.path, storage_options)
        with system.open(path, "rb") as file:
            file.seek(self.offset + start)
            while start < end and (piece := file.read(min(PIECE_BYTES, end - start))):
                start += len(piece)
                yield piece


@dataclass(frozen=True)
class FilesNamedByRows:
    """Opens the files that rows name: only in the folder of the dataset, unless `follow`."""

    follow: bool = False
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def find(
        self, named: str, beside: str, dataset: str, offset: int = 0, size: int | None = None
    ) -> MediaContent | None:
        """A file that is named by a row of a file in the folder `beside`, or a part of it, if that is shown."""
        if "::" in named or "\0" in named:
            return None
        path = self._followed(named, beside) if self.follow else _inside(named, beside, dataset)
        if path is None:
            return None
        try:
            system, inner = file_system(path, self.storage_options)
            if system.info(inner)["type"] != "file":  # opening a pipe would wait for ever
                return None
            with system.open(inner, "rb") as file:
                file.seek(offset)
                kind = content_type(file.read(MAGIC_BYTES))
        except Exception:  # noqa: BLE001  a row may name anything
            return None
        return MediaContent(kind, path=path, offset=offset, size=size) if kind else None

    @staticmethod
    def _followed(named: str, beside: str) -> str | None:
        """Anywhere on the same file system."""
        if "://" in named:
            return named if named.partition("://")[0] == beside.partition("://")[0] else None
        return named if named.startswith("/") and "://" not in beside else posixpath.join(beside, named)


def _inside(named: str, beside: str, dataset: str) -> str | None:
    """The path of a file in the folder of the dataset, links resolved; None for any other, and for those of the web."""
    scheme, remote, _ = dataset.partition("://")
    if not remote:
        path, folder = os.path.realpath(os.path.join(beside, named)), os.path.realpath(dataset)  # noqa: PTH118
        return path if os.path.commonpath([path, folder]) == folder else None
    if scheme in _WEB or "%" in named or "\\" in named or GLOB_CHARACTERS & set(named):
        return None
    path = named if "://" in named else f"{scheme}://{posixpath.join(beside.partition('://')[2], named)}"
    inside = path.startswith(f"{dataset.rstrip('/')}/") and ".." not in path.split("/")
    return path if inside else None


def media_in_cell(value: Any, find: Callable[[str], MediaContent | None]) -> MediaContent | None:
    """The medium that a cell holds: bytes, a record of bytes and path, or the path of a file."""
    if isinstance(value, Mapping):
        inner = next((value[name] for name in ("bytes", "path") if value.get(name)), None)
        return None if isinstance(inner, Mapping) else media_in_cell(inner, find)
    if isinstance(value, bytes | bytearray | memoryview):
        kind = content_type(bytes(value[:MAGIC_BYTES]))
        return MediaContent(kind, content=bytes(value)) if kind else None
    if isinstance(value, str) and len(value) < 4096 and value.lower().endswith(MEDIA_SUFFIXES):
        return find(value)
    return None


def media_of_items(
    items: Any, find: Callable[[str, int, int | None], MediaContent | None]
) -> dict[str, MediaContent | None]:
    """The items of an interleaved document that are no text, by a name for each; None for one that cannot be shown."""
    if not isinstance(items, list) or not all(isinstance(item, Mapping) and "kind" in item for item in items):
        return {}
    return {f"items.{at}": _medium_of(item, find) for at, item in enumerate(items) if item["kind"] != TEXT}


def _medium_of(
    item: Mapping[str, Any], find: Callable[[str, int, int | None], MediaContent | None]
) -> MediaContent | None:
    data, ref = item.get("bytes"), item.get("ref") or {}
    if isinstance(data, bytes):
        kind = content_type(data[:MAGIC_BYTES])
        return MediaContent(kind, content=data) if kind else None
    path, offset, size = ref.get("path"), ref.get("offset") or 0, ref.get("size")
    return find(path, offset, size) if isinstance(path, str) and isinstance(offset, int) and offset >= 0 else None
