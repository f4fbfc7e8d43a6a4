"""Recordings made for tests: tones and noise, in any format."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile

RATE = 16_000


def tone(seconds: float, rate: int = RATE, hertz: float = 440.0, channels: int = 1, level: float = 0.3) -> Any:
    """A sine, frames by channels; each channel has its own pitch."""
    time = np.arange(round(seconds * rate)) / rate
    waves = [level * np.sin(2 * np.pi * hertz * (channel + 1) * time) for channel in range(channels)]
    return np.stack(waves, axis=1).astype(np.float32)


def noise(seconds: float, rate: int = RATE, level: float = 0.1, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).standard_normal((round(seconds * rate), 1)) * level).astype(np.float32)


def wav(samples: Any, rate: int = RATE, subtype: str = "PCM_16", form: str = "WAV") -> bytes:
    """Samples encoded by libsndfile: WAV, FLAC, MP3, OGG ..."""
    data = io.BytesIO()
    soundfile.write(data, samples, rate, subtype=subtype if form in ("WAV", "FLAC") else None, format=form)
    return data.getvalue()


def encoded(samples: Any, rate: int, container: str, codec: str, bit_rate: int = 64_000, video: bool = False) -> bytes:
    """Samples encoded by FFmpeg: m4a, opus, webm ..., with a picture track if `video`."""
    data = io.BytesIO()
    with av.open(data, "w", format=container) as out:
        layout = {1: "mono", 2: "stereo"}[samples.shape[1]]
        stream = out.add_stream(codec, rate=rate, layout=layout)
        stream.bit_rate = bit_rate
        pictures = out.add_stream("mpeg4", rate=10) if video else None
        if pictures:
            pictures.width = pictures.height = 16
            pictures.pix_fmt = "yuv420p"
            for number in range(10):
                picture = av.VideoFrame.from_ndarray(np.full((16, 16, 3), 20 * number, np.uint8), format="rgb24")
                out.mux(pictures.encode(picture))
            out.mux(pictures.encode(None))
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout=layout)
        frame.rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        fifo = av.AudioFifo()
        fifo.write(frame)
        size = stream.codec_context.frame_size or 1024
        while block := fifo.read(size, partial=True):
            out.mux(stream.encode(block))
        out.mux(stream.encode(None))
    return data.getvalue()


def write_manifest_file(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows))
    return str(path)


def read_manifest_file(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
