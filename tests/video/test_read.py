"""Reading films: folders, archives, tables; what their headers say; what is no film."""

from __future__ import annotations

import json
import tarfile
import zipfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.video import (
    DecodeLimits,
    FixedStrideExtractorStage,
    VideoParquetReader,
    VideoReader,
    VideoResolutionFilter,
    VideoScoreFilter,
    VideoWebDatasetReader,
)
from tests.video.film_fixtures import FILM, film, pictures, rows_of


def run(stages: list[Any]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows, and why files were set aside, by name."""
    result = Pipeline("films", stages=stages).run(LocalExecutor(num_workers=0), max_errors=1000)
    errors = {Path(record.error.split(": ")[0]).name: record.error for record in result.quarantined()}
    return [row for batch in result for row in batch.to_rows()], errors


FORMS: dict[str, dict[str, Any]] = {
    "plain.mp4": {}, "b.mov": {"b_frames": 2, "container": "mov"}, "turned.mp4": {"rotation": 90},
    "h.mp4": {"codec": "libx265"}, "v.webm": {"codec": "libvpx-vp9", "container": "webm"},
    "a.mp4": {"codec": "libsvtav1"}, "m.avi": {"codec": "mpeg4", "container": "avi"}, "t.ts": {"container": "ts"},
    "k.mkv": {"container": "mkv", "sound": True},
}  # fmt: skip


def test_headers_of_all_containers_and_codecs_become_columns(tmp_path: Path) -> None:
    for name, form in FORMS.items():
        film(tmp_path / "in" / name, **form)
    rows, errors = run([VideoReader(str(tmp_path / "in"))])
    assert not errors
    found = {Path(row["source"]).name: row for row in rows}
    assert {name: row["codec"] for name, row in found.items()} == {
        "plain.mp4": "h264", "b.mov": "h264", "turned.mp4": "h264", "h.mp4": "hevc", "v.webm": "vp9",
        "a.mp4": "libdav1d", "m.avi": "mpeg4", "t.ts": "h264", "k.mkv": "h264",
    }  # fmt: skip
    assert all(row["duration"] == pytest.approx(2.0, abs=0.15) for row in rows)
    assert all(row["fps"] == pytest.approx(24) for row in rows)
    sizes = {(row["width"], row["height"]) for name, row in found.items() if name != "turned.mp4"}
    assert sizes == {(160, 120)}
    assert (found["turned.mp4"]["width"], found["turned.mp4"]["height"]) == (120, 160)
    assert found["k.mkv"]["audio_codec"] == "aac"
    assert found["plain.mp4"]["audio_codec"] is None
    assert all(row["clip_id"] is None and row["start"] == 0 for row in rows)


def test_what_stands_beside_a_film_comes_with_it(tmp_path: Path) -> None:
    film(tmp_path / "in" / "cats" / "one.mp4")
    (tmp_path / "in" / "cats" / "one.txt").write_text("a cat\n")
    (tmp_path / "in" / "cats" / "one.json").write_text('{"by": "me"}')
    [row] = rows_of([VideoReader(str(tmp_path / "in"))])
    assert (row["video_id"], row["caption"], row["metadata"]) == ("cats/one", "a cat", {"by": "me"})


def test_films_in_an_archive_are_read_where_they_lie(tmp_path: Path) -> None:
    for name in ("one", "two"):
        film(tmp_path / f"{name}.mp4", shots=2)
    (tmp_path / "one.txt").write_text("first")
    for archive, mode in (("plain.tar", "w"), ("packed.tar.gz", "w:gz")):
        with tarfile.open(tmp_path / archive, mode) as tar:
            for name in ("one.mp4", "one.txt", "two.mp4"):
                tar.add(tmp_path / name, f"{'long' * 40}/{name}")
            tar.add(tmp_path / "one.txt", "alone.txt")
        rows, errors = run([VideoWebDatasetReader(str(tmp_path / archive)), FixedStrideExtractorStage(1.0, 1.0)])
        assert len(errors) == 1
        assert "has no video" in next(iter(errors.values()))
        stages = [VideoWebDatasetReader(str(tmp_path / archive)), FixedStrideExtractorStage(1.0, 1.0, 0.5)]
        rows, _ = run(stages)
        assert [row["caption"] for row in rows] == ["first"] * 2 + [None] * 2
        assert len({row["clip_id"] for row in rows}) == 4
        assert ("video" in rows[0]) == archive.endswith("gz")
        assert (rows[0]["byte_size"] is None) == archive.endswith("gz")


def test_tables_have_films_as_bytes_or_as_paths(tmp_path: Path) -> None:
    data = film(tmp_path / "one.mp4")
    pq.write_table(pa.table({"id": ["a", "b"], "video": [data, b"none"]}), tmp_path / "bytes.parquet")
    pq.write_table(
        pa.table({"id": ["a", "b"], "url": [str(tmp_path / "one.mp4"), "/none"]}), tmp_path / "paths.parquet"
    )
    for name in ("bytes", "paths"):
        rows, errors = run(
            [VideoParquetReader(str(tmp_path / f"{name}.parquet")), FixedStrideExtractorStage(1, 1, 0.5)]
        )
        assert [(row["video_id"], row["start"]) for row in rows] == [("a", 0.0), ("a", 1.0)]
        assert len(errors) == 1


def test_remote_films_are_read_in_ranges(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/films/one.mp4", FILM.read_bytes())
    [row] = rows_of([VideoReader("memory://films")])
    assert row["num_frames"] == 480
    assert row["source"].startswith("memory://")


@pytest.mark.parametrize(("limit", "count"), [(None, 3), (-1, 3), (2, 2)])
def test_video_limit_limits(tmp_path: Path, limit: int | None, count: int) -> None:
    for name in "abc":
        film(tmp_path / f"{name}.mp4", count=4)
    assert len(rows_of([VideoReader(str(tmp_path), video_limit=limit)])) == count


def bad_films(folder: Path) -> dict[str, str]:
    """Files that are no films, and a word of the reason."""
    good = film(None, 48)
    moov = good.index(b"moov")
    folder.mkdir()
    with zipfile.ZipFile(folder / "zip.mp4", "w") as packed:
        packed.writestr("film.mp4", good)
    contents = {
        "empty.mp4": b"", "truncated.mp4": good[: len(good) // 2], "noise.mkv": bytes(range(256)) * 40,
        "playlist.mp4": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        "concat.mp4": b"ffconcat version 1.0\nfile 'x.mp4'\n",
        "no_moov.mp4": good[: moov - 4] + good[moov - 4 :].replace(b"moov", b"mooz"),
        "huge.mp4": film(None, 2, size=(4096, 2304)),
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    sound_only(folder / "sound.mp4")
    return {
        "zip.mp4": "begins with", "empty.mp4": "no bytes", "truncated.mp4": "cannot be opened",
        "noise.mkv": "begins with", "playlist.mp4": "begins with", "concat.mp4": "begins with",
        "no_moov.mp4": "cannot be opened", "huge.mp4": "max_pixels", "sound.mp4": "without a video stream",
    }  # fmt: skip


def sound_only(path: Path) -> None:
    import av
    import numpy as np

    with av.open(str(path), "w") as out:
        stream = out.add_stream("aac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate, frame.pts, frame.time_base = 16_000, 0, Fraction(1, 16_000)
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def test_what_is_no_film_goes_to_quarantine_with_the_reason(tmp_path: Path) -> None:
    reasons = bad_films(tmp_path / "in")
    film(tmp_path / "in" / "good.mp4")
    rows, errors = run([VideoReader(str(tmp_path / "in"), limits=DecodeLimits(max_pixels=2_000_000))])
    assert [Path(row["source"]).name for row in rows] == ["good.mp4"]
    assert set(errors) == set(reasons)
    assert {name for name, word in reasons.items() if word not in errors[name]} == set()


def test_odd_films_are_films(tmp_path: Path) -> None:
    film(tmp_path / "one_frame.mp4", 1)
    film(tmp_path / "fast.mp4", 240, rate=240)
    film(tmp_path / "late.mkv", 48, container="mkv", times=[100 + at for at in range(48)])
    film(tmp_path / "early.mkv", 48, container="mkv", times=list(range(-5, 43)))
    uneven = [0, 1, 2, 10, 11, 12, *range(30, 72)]
    film(tmp_path / "uneven.mkv", 48, container="mkv", times=uneven)
    rows, errors = run([VideoReader(str(tmp_path)), FixedStrideExtractorStage(1.0, 1.0, 0.0)])
    assert not errors
    by_film: dict[str, list[Any]] = {}
    for row in rows:
        by_film.setdefault(row["video_id"], []).append((row["start"], round(row["end"], 3)))
    assert by_film["one_frame"] == [(0.0, 0.042)]
    assert by_film["fast"] == [(0.0, 1.0)]
    assert by_film["late"] == [(0.0, 1.0), (1.0, 2.0)]
    assert len(by_film["early"]) == 2
    assert len(by_film["uneven"]) == 3


def test_header_filters_do_not_decode(tmp_path: Path) -> None:
    film(tmp_path / "small.mp4")
    film(tmp_path / "wide.mp4", 4, size=(640, 360))
    rows = rows_of([VideoReader(str(tmp_path)), VideoScoreFilter(VideoResolutionFilter(200), "side")])
    assert [(row["video_id"], row["side"]) for row in rows] == [("wide", 360)]


def test_pictures_of_fixtures_differ() -> None:
    first, *_, last = pictures(48, shots=3)
    assert (first != last).any()
    assert json.dumps(first.shape) == "[120, 160, 3]"
