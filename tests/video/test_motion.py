"""How much moves: motion vectors on a grid against a field for each pixel, and block matching."""

from __future__ import annotations

from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gristmill.core.arrow.native_kernels import kernels
from gristmill.video import MotionAnalyser, analyse_video
from gristmill.video.frame_analyser import MOTION_VECTORS, FrameAnalyser, FrameRequest, FrameSeries
from gristmill.video.motion import kernel_reference as reference
from gristmill.video.motion.motion_analyser import MOTION, MOTION_PATCHES, clip_motion
from gristmill.video.motion.vector_grid import PictureGrid, vector_field
from tests.video.film_fixtures import FILM
from tests.video.shot_films import scene, write_film


class KeptVectors(FrameAnalyser):
    """Keeps the motion vectors of all frames."""

    def request(self, info: Any) -> FrameRequest:
        return FrameRequest(MOTION_VECTORS)

    def start(self, info: Any) -> None:
        self.vectors: dict[int, Any] = {}

    def add(self, frames: Any, pts: Any) -> None:
        self.vectors.update(zip(pts.tolist(), [vectors() for vectors in frames], strict=True))

    def finish(self) -> FrameSeries:
        return FrameSeries(np.zeros(0, np.int64), {})


def motion_of_pixels(vectors: Any, width: int, height: int) -> Any:
    """The definition: each block is drawn, pixel by pixel, with its vector."""
    flow = np.zeros((height, width, 2))
    for shape in ((8, 8), (16, 16), (16, 8), (8, 16)):
        for one in vectors[(vectors["w"] == shape[0]) & (vectors["h"] == shape[1])]:
            xs = np.clip(one["dst_x"] - shape[0] // 2 + np.arange(shape[0]), 0, width - 1)
            ys = np.clip(one["dst_y"] - shape[1] // 2 + np.arange(shape[1]), 0, height - 1)
            scale = float(one["motion_scale"])
            flow[ys[:, None], xs[None]] = (-one["motion_x"] / scale, -one["motion_y"] / scale)
    return np.hypot(flow[..., 0], flow[..., 1]) / (width + height)


def in_patches(field: Any) -> Any:
    height, width = field.shape
    rows, columns = max(round(height / 256), 1), max(round(width / 256), 1)
    return np.array([
        field[height * r // rows : height * (r + 1) // rows, width * c // columns : width * (c + 1) // columns].mean()
        for r in range(rows) for c in range(columns)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("size", "codec", "options"),
    [
        ((640, 384), "libx264", {"preset": "medium", "bf": "2"}),  # blocks of all shapes, predicted from both sides
        ((426, 298), "libx264", {"preset": "fast"}),  # cells that are cut by the edge
        ((420, 292), "libx264", {"preset": "fast"}),
        ((322, 182), "mpeg4", {"qscale": "3"}),
    ],
)
def test_the_grid_gives_what_a_field_of_pixels_gives(tmp_path: Path, size: Any, codec: str, options: Any) -> None:
    frames = scene(3, 60, *size, speed=3.5)
    film = write_film(tmp_path / "film.mp4", frames, codec, options=options)
    kept = KeptVectors()
    analysis = analyse_video(str(film), [kept, MotionAnalyser()])
    series = analysis.results[1]
    assert len(series.pts) == 5  # at 0, 0.5, 1 ... seconds
    for number, pts in enumerate(series.pts.tolist()):
        field = motion_of_pixels(kept.vectors[pts], *size)
        assert series.columns[MOTION][number] == pytest.approx(field.mean(), rel=1e-9)
        assert series.columns[MOTION_PATCHES][number] == pytest.approx(in_patches(field), rel=1e-9)
    assert series.columns[MOTION].max() > 0


def test_a_patch_that_stands_still_in_one_spot_still_moves(tmp_path: Path) -> None:
    """Where a few pixels are picked from each patch, one still spot is enough for the score to be 0."""
    vectors = np.zeros(1024 // 16 * 768 // 16, VECTOR_TYPE)
    vectors["w"] = vectors["h"] = 16
    vectors["dst_x"] = np.arange(len(vectors)) % 64 * 16 + 8
    vectors["dst_y"] = np.arange(len(vectors)) // 64 * 16 + 8
    vectors["motion_x"], vectors["motion_scale"] = 8, 4
    vectors["motion_x"][64 * 8 + 8] = 0  # in the middle of the first patch
    grid = PictureGrid.of_vectors(1024, 768)
    patches = grid.patches(vector_field(vectors, grid))
    assert len(patches) == 12
    assert patches.min() == pytest.approx(2 / (1024 + 768) * 255 / 256)


VECTOR_TYPE = np.dtype([
    ("source", "i4"), ("w", "u1"), ("h", "u1"), ("src_x", "i2"), ("src_y", "i2"), ("dst_x", "i2"), ("dst_y", "i2"),
    ("flags", "u8"), ("motion_x", "i4"), ("motion_y", "i4"), ("motion_scale", "u2"),
])  # fmt: skip


NO_B_FRAMES = {"preset": "fast", "bf": "0", "refs": "1"}
"""Each frame is predicted from the one before it, so vectors are movements from frame to frame."""


def clip_score(path: Path, analyser: MotionAnalyser | None = None) -> Any:
    analysis = analyse_video(str(path), [analyser or MotionAnalyser()])
    return clip_motion(analysis.results[0], analysis.info.start_pts, analysis.end_pts)


ENCODERS = [("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}),
            ("libsvtav1", {"preset": "12", "svtav1-params": "lp=1"}),
            ("libx265", {"preset": "ultrafast", "x265-params": "log-level=none:pools=1"})]  # fmt: skip


@pytest.mark.parametrize(("codec", "options"), ENCODERS)
def test_codecs_without_vectors_are_measured_too(tmp_path: Path, codec: str, options: dict[str, str]) -> None:
    still = write_film(tmp_path / "still.mkv", repeat(next(iter(scene(4, 1))), 36), codec, options=options)
    moving = write_film(tmp_path / "moving.mkv", scene(4, 36, speed=1), codec, options=options)
    assert clip_score(still).global_mean < 1e-5
    found = clip_score(moving)
    assert found.global_mean == pytest.approx(1 / (320 + 192), rel=0.35)
    assert found.num_frames == 3


def test_block_matching_agrees_with_vectors(tmp_path: Path) -> None:
    for speed in (1.0, 2.0):
        film = write_film(tmp_path / f"{speed}.mp4", scene(6, 60, 640, 360, speed=speed), options=NO_B_FRAMES)
        by_vectors = clip_score(film, MotionAnalyser(source="vectors"))
        by_blocks = clip_score(film, MotionAnalyser(source="blocks"))
        assert by_blocks.global_mean == pytest.approx(by_vectors.global_mean, rel=0.3)


def test_a_film_of_key_frames_has_no_motion_vectors(tmp_path: Path) -> None:
    film = write_film(tmp_path / "intra.mp4", scene(1, 30), options={"preset": "ultrafast", "g": "1"})
    assert clip_score(film) is None
    assert clip_score(film, MotionAnalyser(source="blocks")).global_mean > 0


def test_what_is_measured_lies_within_the_clip(tmp_path: Path) -> None:
    frames = chain(repeat(next(iter(scene(1, 1))), 96), scene(2, 96, speed=4))
    film = write_film(tmp_path / "half.mp4", frames, options={"preset": "fast"})
    analysis = analyse_video(str(film), [MotionAnalyser()])
    series, info = analysis.results[0], analysis.info
    middle = info.pts(4)
    still = clip_motion(series, info.start_pts, middle)
    moving = clip_motion(series, middle, analysis.end_pts, 1.0)
    assert still is not None
    assert moving is not None
    assert still.global_mean < 1e-5 < moving.global_mean
    assert clip_motion(series, analysis.end_pts, analysis.end_pts + 1000) is None


PICTURES = arrays.arrays(np.uint8, st.tuples(st.just(2), st.integers(0, 20), st.integers(0, 20)))


@pytest.mark.skipif(kernels is None, reason="without a C compiler")
@settings(deadline=None)
@given(PICTURES, st.integers(0, 3), st.integers(0, 40), st.integers(-3, 3), st.integers(-3, 3))
def test_the_kernel_computes_what_the_reference_defines(
    pair: Any, reach: int, per_step: int, right: int, down: int
) -> None:
    height, width = pair.shape[1:]
    pair[1] = np.roll(pair[0], (down, right), (0, 1))
    arguments = (pair[0], pair[1], width, height, reach, per_step)
    assert kernels.block_motion(*arguments) == reference.block_motion(*arguments)


@pytest.mark.parametrize(
    "block_motion", [reference.block_motion, getattr(kernels, "block_motion", reference.block_motion)]
)
def test_blocks_are_found_where_they_were(block_motion: Any) -> None:
    before = np.random.default_rng(0).integers(0, 256, (40, 48), np.uint8)
    frame = np.roll(before, (2, -3), (0, 1))
    found = np.frombuffer(block_motion(before, frame, 48, 40, 4, 4), np.int8).reshape(5, 6, 2)
    assert (found[1:-1, 1:-1] == (3, -2)).all()
    still = np.frombuffer(block_motion(before, before, 48, 40, 4, 4), np.int8)
    assert not still.any()


@pytest.mark.skipif(kernels is None, reason="without a C compiler")
def test_the_kernel_refuses_pictures_of_other_sizes() -> None:
    with pytest.raises(ValueError, match="two grey pictures of the same size"):
        kernels.block_motion(bytes(64), bytes(63), 8, 8, 4, 4)


@pytest.mark.parametrize(("settings", "message"), [({"source": "flow"}, "one of"), ({"target_fps": 0}, "above 0")])
def test_settings_that_make_no_sense_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MotionAnalyser(**settings)


@pytest.mark.parametrize("source", ["vectors", "blocks"])
def test_a_clip_by_itself_has_the_score_that_it_has_in_its_film(source: str) -> None:
    whole = analyse_video(str(FILM), [MotionAnalyser(source=source)])
    info = whole.info
    for start, end in ((0.0, 4.3), (3.7, 9.0), (7.51, 15.2), (15.0, 20.0)):
        span = (info.pts(start), info.pts(end))
        alone = analyse_video(str(FILM), [MotionAnalyser(source=source)], spans=[span], start_pts=info.start_pts)
        found = clip_motion(alone.results[0], *span)
        assert found is not None
        assert found == clip_motion(whole.results[0], *span)
