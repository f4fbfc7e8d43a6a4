"""Formats of videos, known by the first bytes of a file and never by its name.

FFmpeg is always told the format: left to guess, it would also take playlists that name other files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MP4, MKV, AVI, TS, MPG, FLV = FORMATS = ("mp4", "mkv", "avi", "ts", "mpg", "flv")

EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    MP4: ("mp4", "mov", "m4v", "3gp", "qt"),
    MKV: ("mkv", "webm"),
    AVI: ("avi",),
    TS: ("ts", "m2ts", "mts"),
    MPG: ("mpg", "mpeg"),
    FLV: ("flv",),
}
"""The extensions of files of each format, without a dot, the usual one first."""

FFMPEG_NAMES: Mapping[str, str] = {
    MP4: "mov", MKV: "matroska", AVI: "avi", TS: "mpegts", MPG: "mpeg", FLV: "flv",
}  # fmt: skip
"""What FFmpeg calls the formats."""

HEAD_BYTES = 400
"""How many of the first bytes `video_format` looks at: two packets of a transport stream."""

_ATOMS = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot", b"styp", b"moof"})
_BEGINNINGS = ((b"\x1aE\xdf\xa3", MKV), (b"FLV\x01", FLV), (b"\x00\x00\x01\xba", MPG))


def video_format(data: Any) -> str | None:
    """The format that the first bytes show; None if it is none of `FORMATS`."""
    head = bytes(data[:HEAD_BYTES])
    if head[4:8] in _ATOMS:
        return MP4
    for beginning, kind in _BEGINNINGS:
        if head.startswith(beginning):
            return kind
    if head[:4] == b"RIFF" and head[8:11] == b"AVI":
        return AVI
    for first, size in ((0, 188), (4, 192)):  # the second has a time stamp before each packet
        if len(head) > first + size and head[first] == head[first + size] == 0x47:
            return TS
    return None


def shown_beginning(data: Any) -> str:
    """The first bytes, for a message."""
    return repr(bytes(data[:16]))
