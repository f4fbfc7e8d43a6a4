"""Encode samples: wav, flac and mp3 by soundfile, Opus and Vorbis by PyAV.

The bytes depend on the samples alone. `waveform_bytes` is what stages keep of sound that they have changed: a wav of
32-bit floats, which is as quick to write and read as memory, and loses nothing.
"""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.audio.sound.audio_format import FLAC, MP3, WAV
from gristmill.core.errors import require

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

OGG_VORBIS, OPUS = "ogg", "opus"
ENCODED_FORMATS = (WAV, FLAC, MP3, OGG_VORBIS, OPUS)
"""The formats that recordings are written in."""

_HEADER_BYTES = 64
_MARK = b"gmil"
_OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
_OPUS_BITS_PER_CHANNEL = 64_000


def waveform_bytes(samples: Samples, rate: int) -> bytes:
    """Samples as a wav of floats, with a header of 64 bytes."""
    samples = np.ascontiguousarray(samples, dtype="<f4")
    channels = samples.shape[1]
    form = struct.pack("<HHIIHH", 3, channels, rate, rate * channels * 4, channels * 4, 32)
    filler = _HEADER_BYTES - 12 - 8 - len(form) - 8 - 8
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + _MARK + struct.pack("<I", filler) + bytes(filler)
    size = min(samples.nbytes, 0xFFFFFFFF)
    head = b"RIFF" + struct.pack("<I", min(_HEADER_BYTES - 8 + size, 0xFFFFFFFF)) + b"WAVE" + chunks
    return b"".join((head, b"data", struct.pack("<I", size), samples.tobytes()))


def read_waveform_bytes(data: Any) -> tuple[Samples, int] | None:
    """The samples and the rate of what `waveform_bytes` wrote, without a copy; None for anything else."""
    if len(data) < _HEADER_BYTES or bytes(data[36:40]) != _MARK or bytes(data[:4]) != b"RIFF":
        return None
    _, channels, rate = struct.unpack_from("<HHI", data, 20)
    flat = np.frombuffer(data, "<f4", offset=_HEADER_BYTES)
    return flat.reshape(-1, channels), rate


def is_waveform_bytes(data: Any) -> bool:
    """Whether these are bytes of `waveform_bytes`, and no file of a user."""
    return len(data) >= _HEADER_BYTES and bytes(data[36:40]) == _MARK


def encode(samples: Samples, rate: int, kind: str, bits: int = _OPUS_BITS_PER_CHANNEL) -> bytes:
    """Samples as a file: wav and flac with 16 bits a sample, mp3, ogg (Vorbis), or opus with so many bits a second for
    one channel. Sound above 1 is cut off."""
    if kind == OPUS:
        return _opus(samples, rate, bits)
    soundfile = require("soundfile", "audio", "recordings")
    data = io.BytesIO()
    if kind in (WAV, FLAC):
        whole = np.clip(np.rint(samples * np.float32(32768)), -32768, 32767).astype(np.int16)
        soundfile.write(data, whole, rate, "PCM_16", format=kind.upper())
    else:
        soundfile.write(data, np.clip(samples, -1, 1), rate, format=kind.upper())
    return data.getvalue()


def _opus(samples: Samples, rate: int, bits: int) -> bytes:
    av = require("av", "audio", "recordings")
    if rate not in _OPUS_RATES:
        soxr = require("soxr", "audio", "resampling")
        samples, rate = soxr.resample(samples, rate, 48_000, "HQ"), 48_000
    channels = samples.shape[1]
    if channels > 2:
        raise ValueError(f"opus takes 1 or 2 channels, and there are {channels}: add MonoConversionStage before")
    data = io.BytesIO()
    layout = "mono" if channels == 1 else "stereo"
    with av.open(data, "w", format="ogg", options={"fflags": "+bitexact", "serial_offset": "0"}) as out:
        stream = out.add_stream("libopus", rate=rate, layout=layout)
        stream.bit_rate = bits // 2 * (channels + 1)
        interleaved = np.ascontiguousarray(np.clip(samples, -1, 1)).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(interleaved, format="flt", layout=layout)
        frame.rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        fifo = av.AudioFifo()
        fifo.write(frame)
        while block := fifo.read(stream.codec_context.frame_size or 960, partial=True):
            out.mux(stream.encode(block))
        out.mux(stream.encode(None))
    return data.getvalue()
