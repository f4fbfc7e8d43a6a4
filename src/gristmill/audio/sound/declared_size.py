"""How many bytes the header of a wav or mp3 says that there are: what a file that was cut short is known by.

Decoders correct such headers by the size of the file, silently or with a line on the terminal, and give what is left.
"""

from __future__ import annotations

import struct
from typing import Any

from gristmill.audio.batch import BadAudio
from gristmill.audio.sound.audio_format import MP3, WAV

_SEARCHED_BYTES = 2**16
_UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
"""What programs write into the header of a wav that goes to a pipe."""

TOLERATED_SHARE = 0.01


def check_promised_size(file: Any, kind: str, size: int) -> None:
    """Raise BadAudio if the header of an open file of `size` bytes promises more. The file is left at any position."""
    promised = _wav_bytes(file) if kind == WAV else _mp3_bytes(file) if kind == MP3 else None
    if promised is not None and promised > size and promised - size > TOLERATED_SHARE * promised:
        raise BadAudio(f"cut short: the {kind} header says {promised:,} bytes, and there are only {size:,}")


def _wav_bytes(file: Any) -> int | None:
    """Where the samples of a wav end by its header; None if it does not say."""
    file.seek(0)
    head = file.read(_SEARCHED_BYTES)
    at = 12
    while head[:4] == b"RIFF" and at + 8 <= len(head):
        name, size = struct.unpack_from("<4sI", head, at)
        if name == b"data":
            return None if size in _UNKNOWN_SIZES else at + 8 + size
        at += 8 + size + size % 2
    return None


def _mp3_bytes(file: Any) -> int | None:
    """Where an mp3 ends by its Xing or Info header; None without one."""
    file.seek(0)
    head = file.read(10)
    start = 0
    if head[:3] == b"ID3" and len(head) == 10:
        start = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
    file.seek(start)
    frame = file.read(256)
    found = max(frame.find(b"Xing"), frame.find(b"Info"))
    if found < 0 or found > 48 or len(frame) < found + 16:
        return None
    flags, _, nbytes = struct.unpack_from(">III", frame, found + 4)
    return start + nbytes if flags & 3 == 3 else None
