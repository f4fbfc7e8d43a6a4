"""Makes a directory of films as a crawl would find them: with copies, letterboxes, still pictures and broken files.

    python examples/video/make_data.py [DIRECTORY]

The same bytes each time with the same version of PyAV.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

FILM = Path(__file__).resolve().parent / "film" / "big_buck_bunny.mp4"
SECONDS = 8


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    whole = FILM.read_bytes()
    (folder / "bunny.mp4").write_bytes(whole)
    frames = [frame.to_ndarray(format="rgb24") for frame in first_frames(FILM, SECONDS)]
    write(folder / "bunny-copy.webm", frames, "libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "crf": "40"})
    write(folder / "letterbox.mp4", [letterboxed(frame) for frame in frames])
    write(folder / "thumbnail.mp4", [frame[::4, ::4] for frame in frames])
    write(folder / "blurred.mp4", [blurred(frame) for frame in frames])
    write(folder / "frozen.mp4", [frames[100]] * len(frames))
    write(folder / "black.mp4", [np.zeros_like(frames[0])] * len(frames))
    (folder / "cut-short.mp4").write_bytes(whole[: len(whole) // 2])
    damaged = bytearray(whole)
    damaged[len(whole) // 2 : len(whole) // 2 + 3000] = bytes(3000)
    (folder / "damaged.mp4").write_bytes(damaged)
    (folder / "no-film.mp4").write_text("This is a text.\n")


def first_frames(path: Path, seconds: int) -> list[Any]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        found = []
        for frame in container.decode(stream):
            if frame.pts * stream.time_base >= seconds:
                break
            found.append(frame)
        return found


def letterboxed(frame: Any) -> Any:
    made = frame.copy()
    made[:60] = made[-60:] = 0
    return made


def blurred(frame: Any) -> Any:
    small = frame[::12, ::12]
    big = small.repeat(12, axis=0).repeat(12, axis=1)[: frame.shape[0], : frame.shape[1]].astype(np.float32)
    for axis in (0, 1):
        big = sum(np.roll(big, shift, axis) for shift in range(-8, 9)) / 17
    return big.astype(np.uint8)


def write(path: Path, frames: list[Any], codec: str = "libx264", options: dict[str, str] | None = None) -> None:
    height, width = frames[0].shape[:2]
    with av.open(str(path), "w", options={"fflags": "+bitexact"}) as out:
        stream = out.add_stream(codec, rate=24, options=options or {"preset": "veryfast", "crf": "26"})
        stream.width, stream.height, stream.pix_fmt = width // 2 * 2, height // 2 * 2, "yuv420p"
        stream.codec_context.thread_count = 1
        for number, picture in enumerate(frames):
            content = np.ascontiguousarray(picture[: stream.height, : stream.width])
            frame = av.VideoFrame.from_ndarray(content, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 24)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/video-in"))
