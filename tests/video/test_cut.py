"""Cutting: a clip has exactly its frames, and those that are copied are not touched."""

from __future__ import annotations

import io
import random
from collections import Counter
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest

from gristmill.core.errors import PlanError
from gristmill.video import ClipTranscodingStage
from gristmill.video.batch import BadVideo
from gristmill.video.decode import probe_video
from gristmill.video.transcode.cut import CutClip, open_cutter
from gristmill.video.transcode.encoders import ENCODERS, TranscodeSettings, encoder_problem
from gristmill.video.transcode.packet_plan import PacketTime, decoding_times, plan_packets
from tests.video.film_fixtures import FILM, film

UNEVEN = [int(at * 33.3 + (at % 7) * 4) for at in range(100)]

FILMS: dict[str, dict[str, Any]] = {
    "plain": {}, "b_frames": {"b_frames": 3}, "ts": {"container": "ts", "b_frames": 2}, "turned": {"rotation": 90},
    "early": {"container": "mkv", "times": list(range(-5, 95))}, "avi": {"codec": "mpeg4", "container": "avi"},
    "vp9": {"codec": "libvpx-vp9", "container": "webm"}, "hevc": {"codec": "libx265"}, "av1": {"codec": "libsvtav1"},
    "uneven": {"container": "mkv", "times": UNEVEN, "time_base": Fraction(1, 1000)},
}  # fmt: skip


def decoded(source: Any) -> list[tuple[Fraction, Any]]:
    """Time and brightness of each frame."""
    with av.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
        stream = opened.streams.video[0]
        stream.thread_count = 1
        return [(frame.pts * stream.time_base, frame.to_ndarray(format="gray")) for frame in opened.decode(stream)]


def check_clip(clip: CutClip, wanted: list[tuple[Fraction, Any]]) -> None:
    got = decoded(clip.data)
    assert len(got) == len(wanted) == clip.num_frames
    assert got[0][0] == 0
    errors = [float(abs((a - got[0][0]) - (b - wanted[0][0]))) for (a, _), (b, _) in zip(got, wanted, strict=True)]
    assert max(errors) < 1e-3
    same = [np.array_equal(a, b) for (_, a), (_, b) in zip(got, wanted, strict=True)]
    assert sum(same) >= clip.copied_frames
    noise = [float(np.mean((a.astype(float) - b) ** 2)) for (_, a), (_, b) in zip(got, wanted, strict=True)]
    assert max(noise) < 130  # 27 dB, far from any other frame


def check_cuts(source: Any, count: int, seed: int = 0, longest: int = 90, **wish: Any) -> Counter[str]:
    """Cut at random places and look at what comes out. Returns how often each way was taken."""
    frames, info = decoded(source), probe_video(source)
    chance, ways = random.Random(seed), Counter[str]()
    with open_cutter(source, None, info) as cutter:
        for _ in range(count):
            first = chance.randrange(len(frames) - 2)
            last = chance.randrange(first + 1, min(len(frames), first + longest))
            start, end = (round(frames[at][0] / info.time_base) for at in (first, last))
            clip = cutter.cut(start, end, TranscodeSettings(**wish))
            ways[clip.way] += 1
            check_clip(clip, frames[first:last])
    return ways


@pytest.mark.parametrize("name", FILMS)
def test_cuts_of_all_codecs_and_containers_are_exact(name: str) -> None:
    ways = check_cuts(film(None, 100, gop=24, **FILMS[name]), 8)
    assert set(ways) & {"smart", "copy", "encode"}
    if name in ("plain", "b_frames", "ts", "turned", "early", "uneven"):
        assert ways["smart"]


def test_cuts_of_a_real_film_are_exact() -> None:
    assert check_cuts(str(FILM), 10, longest=150)["smart"] >= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_cuts_are_exact(seed: int) -> None:
    check_cuts(str(FILM), 30, seed + 1, longest=200)
    for form in FILMS.values():
        check_cuts(film(None, 100, gop=24, **form), 4, seed + 1)


def test_a_clip_between_key_frames_is_copied() -> None:
    with open_cutter(str(FILM)) as cutter:
        clip = cutter.cut(12_288 * 3, 12_288 * 6, TranscodeSettings())
    assert (clip.way, clip.num_frames, clip.copied_frames) == ("copy", 72, 72)
    check_clip(clip, decoded(str(FILM))[72:144])


def test_copying_begins_at_the_key_frame_before() -> None:
    with open_cutter(str(FILM)) as cutter:
        clip = cutter.cut(12_288 * 4, 12_288 * 6, TranscodeSettings(cut="copy"))
    assert (clip.way, clip.start_pts, clip.num_frames) == ("copy", 12_288 * 3, 72)


@pytest.mark.parametrize("encoder", [name for name in ENCODERS if name not in ("libopenh264", "h264_nvenc")])
def test_clips_are_encoded_by_the_encoder_that_was_asked_for(encoder: str) -> None:
    with open_cutter(str(FILM)) as cutter:
        clip = cutter.cut(12_288, 12_288 * 2, TranscodeSettings(cut="encode", encoder=encoder, height=90))
    assert clip.way == "encode"
    with av.open(io.BytesIO(clip.data)) as container:
        assert clip.codec == container.streams.video[0].codec_context.codec.canonical_name
    got = decoded(clip.data)
    assert len(got) == 24
    assert got[0][1].shape == (90, 160)


def test_the_same_clip_has_the_same_bytes() -> None:
    wishes = [TranscodeSettings(), TranscodeSettings(cut="encode"), TranscodeSettings(cut="copy")]
    made = []
    for order in (1, -1):
        with open_cutter(str(FILM)) as cutter:
            made.append([cutter.cut(20_000, 90_000, wish).data for wish in wishes[::order]][::order])
    assert made[0] == made[1]


@pytest.mark.parametrize("sound", [True, False])
def test_sound_is_kept_or_dropped(sound: bool) -> None:
    with open_cutter(str(FILM)) as cutter:
        clips = [cutter.cut(30_000, 100_000, TranscodeSettings(cut=cut, sound=sound)) for cut in ("auto", "encode")]
    for clip in clips:
        with av.open(io.BytesIO(clip.data)) as opened:
            seconds = sum(frame.samples / 44_100 for frame in opened.decode(audio=0)) if opened.streams.audio else None
        assert (seconds == pytest.approx(70_000 / 12_288, abs=0.05)) if sound else (seconds is None)


def test_a_turned_film_is_turned_in_every_way_of_cutting() -> None:
    data = film(None, 60, rotation=90)
    info = probe_video(data)
    with open_cutter(data, None, info) as cutter:
        for cut in ("auto", "copy", "encode"):
            clip = cutter.cut(info.pts(0.25), info.pts(2), TranscodeSettings(cut=cut))
            assert probe_video(clip.data).rotation == 90


def test_a_span_behind_the_end_is_refused() -> None:
    with open_cutter(str(FILM)) as cutter, pytest.raises(BadVideo, match=r"no frames between 30\.000 s"):
        cutter.cut(12_288 * 30, 12_288 * 31, TranscodeSettings())


def test_damage_in_the_middle_leaves_other_clips_alone() -> None:
    data = bytearray(film(None, 240, gop=24))
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(200)
    info = probe_video(bytes(data))
    with open_cutter(bytes(data), None, info) as cutter:
        clip = cutter.cut(info.pts(0.1), info.pts(1.9), TranscodeSettings(cut="encode"))
    assert clip.num_frames == 43


def test_an_encoder_that_is_not_there_is_an_error_that_names_others() -> None:
    missing = next(name for name in ENCODERS if encoder_problem(name) is not None)
    with pytest.raises(PlanError, match="There are: libx264"):
        ClipTranscodingStage(encoder=missing).check()
    with pytest.raises(ValueError, match="must be one of: libx264"):
        ClipTranscodingStage(encoder="x264")


def test_packets_that_others_are_predicted_from_end_a_copy() -> None:
    # I0 P3 B1 B2 P6 B4 B5, in the order of decoding
    packets = [PacketTime(pts, pts == 0) for pts in (0, 3, 1, 2, 6, 4, 5)]
    plan = plan_packets(packets, 0, 5)
    assert plan is not None
    assert (plan.copied, plan.tail_pts) == ((0, 1, 2, 3), 4)
    whole = plan_packets(packets, 0, 7)
    assert whole is not None
    assert (len(whole.copied), whole.tail_pts) == (7, 7)
    assert plan_packets(packets, 1, 5) is None
    times = decoding_times([0, 3, 1, 2, 6, 4, 5], 1)
    assert times == sorted(times)
    assert all(dts <= pts for dts, pts in zip(times, [0, 3, 1, 2, 6, 4, 5], strict=True))
