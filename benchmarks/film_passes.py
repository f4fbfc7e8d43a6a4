"""Figure: decode, analyse and cut films. CPU seconds of one process for one film, made of the bundled one: 720p, H.264.

    python benchmarks/film_passes.py [ROUNDS]

The bare loop decodes the film with PyAV and one thread, and does nothing with its frames. Beside it: the same through
`analyse_video`; one pass for shots, motion, and brightness, sharpness, borders and change of two frames a second; the
content detector alone; whole pipelines that split the film every ten seconds, measure motion, keep two frames a second
and write the clips, by copying and by encoding; and cutting clips at places that are no key frames, in both ways.

The targets: decoding at most 10% above the bare loop, the pass over shots, motion and pictures at most 30%.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from process_measurement import WORK, stable

from gristmill import LocalExecutor, Pipeline
from gristmill.video import (
    ClipFrameExtractionStage,
    ClipTranscodingStage,
    ClipWriterStage,
    ContentDetector,
    FixedStrideExtractorStage,
    MotionAnalyser,
    MotionVectorDecodeStage,
    VideoBlackFilter,
    VideoBlurFilter,
    VideoFrozenFilter,
    VideoLetterboxFilter,
    VideoReader,
    analyse_video,
)
from gristmill.video.transcode.cut import open_cutter
from gristmill.video.transcode.encoders import ENCODE, TranscodeSettings

SOURCE = Path(__file__).resolve().parents[1] / "examples" / "video" / "film" / "big_buck_bunny.mp4"
REPEATS = 3
PIPELINES = ("split_copy", "split_smart", "split_x264")


def run(rounds: int = 3) -> dict[str, Any]:
    path = film()
    pictures = [
        one().analyser() for one in (VideoBlackFilter, VideoBlurFilter, VideoFrozenFilter, VideoLetterboxFilter)
    ]
    passes: dict[str, Callable[[], Any]] = {
        "bare_loop": lambda: bare_loop(path),
        "decode": lambda: analyse_video(str(path), []),
        "analysis_pass": lambda: analyse_video(str(path), [ContentDetector(), MotionAnalyser(2.0), *pictures]),
        "content_detector": lambda: analyse_video(str(path), [ContentDetector()]),
        "split_copy": lambda: split(path, ClipTranscodingStage(cut="copy")),
        "split_smart": lambda: split(path, ClipTranscodingStage()),
        "split_x264": lambda: split(path, ClipTranscodingStage(encoder="libx264")),
        "cut_smart": lambda: cuts(path, TranscodeSettings()),
        "cut_encode": lambda: cuts(path, TranscodeSettings(cut=ENCODE)),
    }
    found: dict[str, list[float]] = {}
    for round_number in range(rounds + 1):
        for name, work in passes.items():
            began = time.process_time()
            work()
            if round_number:  # the first is for modules and caches
                found.setdefault(name, []).append(time.process_time() - began)
    frames = 480 * REPEATS
    return {
        "film_seconds": 20 * REPEATS,
        "film_mb": round(path.stat().st_size / 1e6, 1),
        **{f"{name}_cpu_s": stable(seconds) for name, seconds in found.items()},
        **{f"{name}_fps": round(frames / min(found[name])) for name in ("bare_loop", "decode", "content_detector")},
        "decode_over_bare": ratio(found, "decode", "bare_loop"),
        "analysis_over_bare": ratio(found, "analysis_pass", "bare_loop"),
        **{f"{name}_cpu_s_per_20_s": round(min(found[name]) / REPEATS, 3) for name in PIPELINES},
        "smart_over_encode": ratio(found, "cut_smart", "cut_encode"),
    }


def ratio(found: dict[str, list[float]], one: str, other: str) -> float:
    return round(min(found[one]) / min(found[other]), 3)


def film() -> Path:
    """The film, made once."""
    import av

    path = WORK / "film-720p.mp4"
    if path.exists():
        return path
    WORK.mkdir(exist_ok=True)
    draft = path.with_suffix(".draft")
    with av.open(str(draft), "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=24, options={"preset": "medium", "crf": "23", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        number = 0
        for _ in range(REPEATS):
            with av.open(str(SOURCE)) as container:
                for frame in container.decode(video=0):
                    large = frame.reformat(1280, 720, "yuv420p", interpolation="BICUBIC")
                    large.pts, large.time_base = number, Fraction(1, 24)
                    large.pict_type = av.video.frame.PictureType.NONE
                    out.mux(stream.encode(large))
                    number += 1
        out.mux(stream.encode(None))
    draft.rename(path)
    return path


def bare_loop(path: Path) -> int:
    import av

    with av.open(str(path)) as container:
        container.streams.video[0].thread_count = 1
        return sum(1 for _ in container.decode(video=0))


def split(path: Path, transcoding: ClipTranscodingStage) -> None:
    """Fixed clips, motion, two frames a second in memory, and clips as files."""
    target = WORK / "film-clips"
    shutil.rmtree(target, ignore_errors=True)
    stages = [
        VideoReader(str(path)),
        FixedStrideExtractorStage(10.0, 10.0),
        MotionVectorDecodeStage(),
        ClipFrameExtractionStage(target_fps=2.0, target_res=(360, 640)),
        transcoding,
        ClipWriterStage(target),
    ]
    result = Pipeline("split", stages=stages).run(LocalExecutor(num_workers=0), run_dir=None)
    assert result.summary().rows_out == 2 * REPEATS


def cuts(path: Path, settings: TranscodeSettings) -> None:
    """Clips of ten seconds that begin and end between key frames."""
    with open_cutter(str(path)) as cutter:
        info = cutter.info
        for at in range(5):
            cutter.cut(info.pts(1.3 + 11 * at), info.pts(11.3 + 11 * at), settings)


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else 3), indent=2))
