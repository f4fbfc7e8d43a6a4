"""Films made for tests, in any codec, and what goes wrong with films in the world."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from gristmill import LocalExecutor, Pipeline
from gristmill.core.batch import Batch

FILM = Path(__file__).parents[2] / "examples" / "video" / "film" / "big_buck_bunny.mp4"
"""Twenty seconds, 480 frames of 640 x 360 pixels at 24 per second, in H.264 with B-frames; key frames at 0, 3, 6, 7.5,
10.5 ... seconds; sound in AAC."""

RATE = 24
os.environ.setdefault("SVT_LOG", "1")  # it prints its settings otherwise
_FAST: Mapping[str, Mapping[str, str]] = {
    "libx264": {"preset": "ultrafast", "crf": "23", "threads": "1"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:pools=1"},
    "libsvtav1": {"preset": "12", "svtav1-params": "lp=1"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "threads": "1"},
}


def pictures(count: int, size: tuple[int, int] = (160, 120), shots: int = 1) -> Iterator[Any]:
    """Pictures in RGB: a bright square that moves over a background, which is another in each of the shots. The number
    of the picture is in the brightness of the first row."""
    width, height = size
    for number in range(count):
        shot = number * shots // count
        picture = np.full(
            (height, width, 3), (40 + 60 * (shot % 3), 90 - 30 * (shot % 2), 60 + 25 * (shot % 4)), np.uint8
        )
        left = (number * 3) % max(width - 32, 1)
        picture[height // 3 : height // 3 + 24, left : left + 24] = (230, 220, 200)
        yield picture


def film(
    path: Path | str | None = None,
    count: int = 48,
    size: tuple[int, int] = (160, 120),
    codec: str = "libx264",
    container: str = "mp4",
    rate: int = RATE,
    shots: int = 1,
    times: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    rotation: int = 0,
    sound: bool = False,
    gop: int = 12,
    b_frames: int = 0,
    options: Mapping[str, str] | None = None,
    frames: Any = None,
) -> bytes:
    """A film as bytes, also written to `path`. `times` are the time stamps of its frames, in units of `time_base`."""
    data = io.BytesIO()
    with av.open(
        data, "w", format={"mkv": "matroska", "webm": "webm", "ts": "mpegts"}.get(container, container)
    ) as out:
        stream = out.add_stream(codec, rate=rate, options={**_FAST.get(codec, {}), **(options or {})})
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        context = stream.codec_context
        context.gop_size, context.max_b_frames, context.thread_count = gop, b_frames, 1
        base = time_base or Fraction(1, rate)
        context.time_base = base
        if rotation:
            stream.set_display_rotation(rotation)
        voice = out.add_stream("aac", rate=16_000, layout="mono") if sound else None
        for number, picture in enumerate(pictures(count, size, shots) if frames is None else frames):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = times[number] if times else number, base
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
        if voice:
            _add_tone(out, voice, count / rate)
    content = data.getvalue()
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
    return content


def _add_tone(out: Any, stream: Any, seconds: float) -> None:
    size, rate = 1024, 16_000
    for start in range(0, int(seconds * rate), size):
        wave = 0.2 * np.sin(2 * np.pi * 440 * np.arange(start, start + size) / rate)
        frame = av.AudioFrame.from_ndarray(wave[None].astype(np.float32), format="fltp", layout="mono")
        frame.rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
        out.mux(stream.encode(frame))
    out.mux(stream.encode(None))


def rows_of(stages: Sequence[Any], **options: Any) -> list[dict[str, Any]]:
    """The rows that a pipeline gives, run in this process."""
    batches = Pipeline("films", stages=list(stages)).run(LocalExecutor(num_workers=0), **options)
    return [row for batch in batches if isinstance(batch, Batch) for row in batch.to_rows()]
