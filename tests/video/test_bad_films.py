"""Films that are odd or damaged: they are decoded, measured and cut as far as they are good."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.video import (
    ClipTranscodingStage,
    ClipWriterStage,
    FixedStrideExtractorStage,
    VideoBlackFilter,
    VideoBlurFilter,
    VideoReader,
    VideoScore,
    VideoScoreFilter,
)
from gristmill.video.decode import DecodeLimits, analyse_video, probe_video
from gristmill.video.frame_analyser import CollectedFrames, FrameRequest
from tests.video.film_fixtures import film, pictures
from tests.video.test_cut import decoded
from tests.video.test_one_pass import BrightnessFilter


def whole_run(folder: Path, *more: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Read, split, score, and cut: the rows that are left, and why others went."""
    stages = [
        VideoReader(str(folder / "in")),
        FixedStrideExtractorStage(1.0, 1.0, 0.02),
        VideoScore([BrightnessFilter(), BrightnessFilter(fps=3.0)], ["all", "some"]),
        *more,
        ClipWriterStage(folder / "out"),
    ]
    result = Pipeline("odd", stages=stages).run(LocalExecutor(num_workers=0), max_errors=1000)
    import pyarrow.parquet as pq

    rows = [row for path in (folder / "out").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    return rows, [record.error for record in result.quarantined()]


def changing_size(path: Path) -> None:
    """A transport stream whose pictures become larger in the middle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    halves = [film(None, 48, container="ts"), film(None, 48, size=(320, 240), container="ts")]
    with av.open(str(path), "w", format="mpegts") as out:
        copied: Any = None
        for number, half in enumerate(halves):
            with av.open(io.BytesIO(half)) as source:
                copied = copied or out.add_stream_from_template(source.streams.video[0], opaque=True)
                for packet in source.demux(video=0):
                    if packet.size:
                        made = av.Packet(bytes(packet))
                        made.pts, made.dts = packet.pts + 180_000 * number, packet.dts + 180_000 * number
                        made.time_base, made.is_keyframe, made.stream = packet.time_base, packet.is_keyframe, copied
                        out.mux(made)


def wide_range(path: Path) -> None:
    """Ten bits for each colour, as HDR has."""
    with av.open(str(path), "w") as out:
        options = {"preset": "ultrafast", "x265-params": "log-level=none:pools=1"}
        stream = out.add_stream("libx265", rate=24, options=options)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p10le"
        stream.codec_context.thread_count = 1
        for number, picture in enumerate(pictures(48)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p10le")
            frame.pts, frame.time_base = number, Fraction(1, 24)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def with_cover(path: Path) -> None:
    """A film behind a cover picture, which is the first video stream of its file."""
    base = film(None, 48)
    with av.open(str(path), "w", format="mp4") as out, av.open(io.BytesIO(base)) as source:
        cover = out.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        copied = out.add_stream_from_template(source.streams.video[0], opaque=True)
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        frame.pts, frame.time_base = 0, Fraction(1)
        packets = [*cover.encode(frame), *cover.encode(None)]
        for packet in packets:
            out.mux(packet)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = copied
                out.mux(packet)


def test_odd_films_are_measured_and_cut(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    film(tmp_path / "in" / "one_frame.mp4", 1)
    film(tmp_path / "in" / "fast.mp4", 240, rate=240)
    film(tmp_path / "in" / "odd_size.mp4", 24, size=(162, 122))
    film(tmp_path / "in" / "turned.mp4", 24, rotation=270)
    film(tmp_path / "in" / "early.mkv", 48, container="mkv", times=list(range(-5, 43)))
    wide_range(tmp_path / "in" / "ten_bits.mp4")
    rows, errors = whole_run(tmp_path, ClipTranscodingStage(encoder="libx264"))
    assert not errors
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["video_id"]] = counts.get(row["video_id"], 0) + row["num_frames"]
        clip = tmp_path / "out" / row["clip_location"]
        assert len(decoded(str(clip))) == row["num_frames"]
    assert counts == {"one_frame": 1, "fast": 240, "odd_size": 24, "turned": 24, "early": 48, "ten_bits": 48}


def test_pictures_that_change_their_size_are_decoded_and_encoded(tmp_path: Path) -> None:
    changing_size(tmp_path / "in" / "change.ts")
    rows, _ = whole_run(tmp_path, ClipTranscodingStage(encoder="libx264"))
    assert sum(row["num_frames"] for row in rows) == 96
    assert all(len(decoded(str(tmp_path / "out" / row["clip_location"]))) == row["num_frames"] for row in rows)


def test_a_cover_picture_is_no_film(tmp_path: Path) -> None:
    with_cover(tmp_path / "cover.mp4")
    info = probe_video(str(tmp_path / "cover.mp4"))
    assert (info.codec, info.width) == ("h264", 160)


def test_broken_packets_set_aside_the_clips_that_they_are_in(tmp_path: Path) -> None:
    data = bytearray(film(None, 240, gop=24))
    middle = len(data) // 2
    data[middle : middle + 60] = bytes(60)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.mp4").write_bytes(data)
    rows, errors = whole_run(tmp_path)
    assert 1 <= len(errors) <= 3
    assert all("damaged at " in error and ".000 s: damaged" in error for error in errors)
    assert len(rows) + len(errors) == 10


def test_frames_in_mid_stream_may_not_pass_the_limits(tmp_path: Path) -> None:
    changing_size(tmp_path / "change.ts")
    with pytest.raises(ValueError, match="in mid-stream"):
        analyse_video(str(tmp_path / "change.ts"), [], limits=DecodeLimits(max_pixels=160 * 121))
    with pytest.raises(ValueError, match="max_frames=10"):
        analyse_video(film(None, 48), [], limits=DecodeLimits(max_frames=10))
    with pytest.raises(ValueError, match="max_seconds=1"):
        probe_video(film(None, 48), limits=DecodeLimits(max_seconds=1))


def test_a_film_is_decoded_as_pyav_decodes_it() -> None:
    for form in ({"b_frames": 2}, {"codec": "libvpx-vp9", "container": "webm"}, {"container": "ts"}):
        data = film(None, 60, **form)
        found = analyse_video(data, [CollectedFrames(FrameRequest("rgb"))])
        with av.open(io.BytesIO(data)) as opened:
            stream = opened.streams.video[0]
            wanted = [(frame.pts, frame.to_ndarray(format="rgb24")) for frame in opened.decode(stream)]
        assert found.results[0].pts.tolist() == [pts for pts, _ in wanted]
        frames = found.results[0].columns["frames"]
        assert all(np.abs(a.astype(int) - b).max() <= 4 for a, (_, b) in zip(frames, wanted, strict=True))


def test_filters_of_pictures_share_the_pass_too(tmp_path: Path) -> None:
    film(tmp_path / "in" / "dark.mp4", 48, frames=[np.zeros((120, 160, 3), np.uint8)] * 48)
    film(tmp_path / "in" / "light.mp4", 48)
    rows, _ = whole_run(tmp_path, VideoScoreFilter([VideoBlackFilter(), VideoBlurFilter(0.0)]))
    assert {row["video_id"] for row in rows} == {"light"}
