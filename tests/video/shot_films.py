"""Films that are drawn and encoded for tests: scenes of moving shapes, joined by cuts, fades and dissolves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

WIDTH, HEIGHT, FPS = 320, 192, 24


def scene(seed: int, frames: int, width: int = WIDTH, height: int = HEIGHT, speed: float = 2.0) -> Iterator[Any]:
    """A textured background that is panned over, in colours of its own, and a square that moves."""
    draw = np.random.default_rng(seed)
    coarse = draw.integers(0, 200, (height // 16 + 6, width // 16 + 16, 3)).astype(np.float64)
    fine = draw.integers(0, 56, (len(coarse) * 4, coarse.shape[1] * 4, 3)).astype(np.float64)
    ground = np.kron(coarse, np.ones((16, 16, 1))) + np.kron(fine, np.ones((4, 4, 1)))
    tint = draw.uniform(0.2, 1.0, 3)
    square = draw.integers(0, 256, 3)
    for number in range(frames):
        x = int(number * speed) % (ground.shape[1] - width)
        picture = ground[:height, x : x + width] * tint
        place = (20 + int(number * speed)) % max(width - 40, 1)
        picture[40:80, place : place + 40] = square
        yield picture.astype(np.uint8)


def dissolve(before: Sequence[Any], after: Sequence[Any]) -> Iterator[Any]:
    for number, (old, new) in enumerate(zip(before, after, strict=True), 1):
        share = number / (len(before) + 1)
        yield (old * (1 - share) + new * share).astype(np.uint8)


def faded(frames: Sequence[Any], start: float, end: float) -> Iterator[Any]:
    for picture, share in zip(frames, np.linspace(start, end, len(frames)), strict=True):
        yield (picture * share).astype(np.uint8)


def write_film(
    path: Path,
    frames: Iterable[Any],
    codec: str = "libx264",
    fps: int = FPS,
    options: dict[str, str] | None = None,
    pixels: str = "yuv420p",
) -> Path:
    """Encode pictures in RGB as a film without sound."""
    with av.open(str(path), "w") as container:
        stream: Any = None
        for number, picture in enumerate(frames):
            if stream is None:
                stream = container.add_stream(codec, rate=fps, options=options or {"preset": "ultrafast", "crf": "18"})
                stream.width, stream.height, stream.pix_fmt = picture.shape[1], picture.shape[0], pixels
                stream.codec_context.thread_count = 1
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def cut_film(path: Path, lengths: Sequence[int] = (40, 30, 50, 24), **settings: Any) -> Path:
    """Scenes of so many frames that follow each other by cuts."""
    return write_film(
        path, (picture for seed, length in enumerate(lengths) for picture in scene(seed, length)), **settings
    )
