"""A recording at a glance: its first seconds as a small file that browsers play, and as a picture; its waveform.

sound_preview   some seconds as Opus, and their spectrogram as PNG
waveform        the least and the largest sample of each of some hundred stretches
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.audio.sound.encode import OPUS, encode
from gristmill.audio.sound.mel_spectra import mel_power

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

RATE = 16_000
PREVIEW_SECONDS = 6.0
_OPUS_BITS = 16_000
_BANDS, _FFT, _COLUMNS, _RANGE_DB = 64, 1024, 240, 60.0


class SoundPreview(NamedTuple):
    """A picture and a player of the first seconds of a recording, both as files."""

    picture: bytes
    player: bytes
    seconds: float


def sound_preview(blocks: Iterable[Samples]) -> SoundPreview:
    """Of samples at 16 kHz in one channel, in blocks, of which the first seconds are taken."""
    size, excerpt = round(PREVIEW_SECONDS * RATE), np.zeros(0, np.float32)
    for block in blocks:
        excerpt = np.concatenate([excerpt, block])[:size]
        if len(excerpt) == size:
            break
    player = encode(excerpt[:, None], RATE, OPUS, _OPUS_BITS)
    return SoundPreview(grey_png(_spectrogram(excerpt)), player, len(excerpt) / RATE)


def _spectrogram(samples: Samples) -> Any:
    """Brightness by band, the highest first, and moment."""
    power = mel_power(samples, RATE, _BANDS, _FFT)
    starts = np.linspace(0, len(power), min(_COLUMNS, len(power)), endpoint=False).astype(int)
    decibels = 10 * np.log10(np.maximum(np.maximum.reduceat(power, starts, axis=0), 1e-10))
    shares = (decibels - max(float(decibels.max()), -60.0)) / _RANGE_DB + 1
    return (np.clip(shares, 0, 1) * 255).astype(np.uint8).T[::-1]


def grey_png(pixels: Any) -> bytes:
    """A picture of one byte for each pixel, rows by columns."""
    height, width = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


class Waveform(NamedTuple):
    """The least and the largest sample of stretches of one length, and how long all of them are."""

    lows: Any
    highs: Any
    seconds: float


def waveform(blocks: Iterable[Samples], rate: int, columns: int, most_seconds: float) -> Waveform:
    """Of a recording in blocks of any size, of which the first `most_seconds` are looked at."""
    step, limit = max(round(0.01 * rate), 1), round(most_seconds * rate)
    lows, highs, total = [], [], 0
    rest = np.zeros(0, np.float32)
    for block in blocks:
        samples = np.concatenate([rest, block.mean(axis=1) if block.shape[1] > 1 else block[:, 0]])
        samples = samples[: limit - total]
        whole = len(samples) // step * step
        stretches = samples[:whole].reshape(-1, step)
        lows.append(stretches.min(axis=1))
        highs.append(stretches.max(axis=1))
        rest, total = samples[whole:], total + whole
        if total + len(rest) >= limit:
            break
    if len(rest):
        lows.append(rest.min(keepdims=True))
        highs.append(rest.max(keepdims=True))
    low, high = np.concatenate(lows), np.concatenate(highs)
    starts = np.unique(np.linspace(0, len(low), min(columns, len(low)), endpoint=False).astype(int))
    seconds = (total + len(rest)) / rate
    return Waveform(np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts), seconds)
