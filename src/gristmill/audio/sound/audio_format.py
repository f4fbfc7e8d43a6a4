"""Formats of recordings, known by the first bytes of a file and never by its name alone.

soundfile (libsndfile) reads wav, flac, mp3 and aiff; PyAV (FFmpeg) reads the rest, and the sound of videos. FFmpeg is
always told the format: left to guess, it would also take playlists that name other files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WAV, FLAC, MP3, OGG, M4A, AAC, WEBM, AIFF, CAF, AVI, ASF, AMR, AU, W64 = FORMATS = (
    "wav", "flac", "mp3", "ogg", "m4a", "aac", "webm", "aiff", "caf", "avi", "asf", "amr", "au", "w64",
)  # fmt: skip

EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    WAV: ("wav", "wave"),
    FLAC: ("flac",),
    MP3: ("mp3",),
    OGG: ("ogg", "opus", "oga"),
    M4A: ("m4a", "mp4", "mov", "m4b", "m4v", "3gp"),
    AAC: ("aac",),
    WEBM: ("webm", "mkv", "mka", "weba"),
    AIFF: ("aiff", "aif", "aifc"),
    CAF: ("caf",),
    AVI: ("avi",),
    ASF: ("wma", "wmv", "asf"),
    AMR: ("amr",),
    AU: ("au", "snd"),
    W64: ("w64",),
}
"""The extensions of files of each format, without a dot, the usual one first."""

SOUNDFILE_FORMATS = frozenset({WAV, FLAC, MP3, AIFF, AU, W64})
"""The formats that soundfile decodes at least as fast as PyAV."""

FFMPEG_NAMES: Mapping[str, str] = {
    WAV: "wav", FLAC: "flac", MP3: "mp3", OGG: "ogg", M4A: "mov", AAC: "aac", WEBM: "matroska", AIFF: "aiff",
    CAF: "caf", AVI: "avi", ASF: "asf", AMR: "amr", AU: "au", W64: "w64",
}  # fmt: skip
"""What FFmpeg calls the formats."""

_BEGINNINGS = (
    (b"fLaC", FLAC), (b"OggS", OGG), (b"\x1aE\xdf\xa3", WEBM), (b"ID3", MP3), (b"caff", CAF), (b"#!AMR", AMR),
    (b".snd", AU), (b"riff\x2e\x91\xcf\x11", W64), (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", ASF),
)  # fmt: skip
_AFTER_SIZE = {(b"RIFF", b"WAVE"): WAV, (b"RF64", b"WAVE"): WAV, (b"RIFF", b"AVI "): AVI, (b"FORM", b"AIFF"): AIFF}
_AFTER_SIZE[b"FORM", b"AIFC"] = AIFF

HEAD_BYTES = 16
"""How many of the first bytes `audio_format` looks at."""


def audio_format(data: Any) -> str | None:
    """The format that the first bytes show; None if it is none of `FORMATS`."""
    head = bytes(data[:HEAD_BYTES])
    if head[4:8] == b"ftyp":
        return M4A
    for beginning, kind in _BEGINNINGS:
        if head.startswith(beginning):
            return kind
    if (chunks := (head[:4], head[8:12])) in _AFTER_SIZE:
        return _AFTER_SIZE[chunks]
    if len(head) >= 4 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:  # the sync word of MPEG audio
        layer = head[1] >> 1 & 3
        return AAC if not layer and head[1] & 0xF0 == 0xF0 else MP3 if layer else None
    return None


def shown_beginning(data: Any) -> str:
    """The first bytes, for a message."""
    return repr(bytes(data[:HEAD_BYTES]))
