"""Copies of films and clips: by fingerprints in time, by embeddings, by bytes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import ExactDeduplicationStage, FingerprintDeduplicationStage
from gristmill.video import FixedStrideExtractorStage, VideoBatch, VideoFingerprintStage, VideoHashStage
from gristmill.video.frames.video_fingerprint import picture_codes
from tests.video.film_fixtures import FILM
from tests.video.shot_films import scene, write_film


def frames_of(path: Path, size: tuple[int, int] | None = None, start: int = 0, end: int | None = None) -> Any:
    with av.open(str(path)) as container:
        for frame in islice(container.decode(video=0), start, end):
            width, height = size or (frame.width, frame.height)
            yield frame.reformat(width, height, "rgb24").to_ndarray()


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("copies")
    small = {"preset": "ultrafast", "crf": "30"}
    vp9 = {"deadline": "realtime", "cpu-used": "8", "crf": "40", "b": "0"}
    return [
        FILM,
        write_film(folder / "smaller.mp4", frames_of(FILM, (320, 180), 0, 288), options=small),
        write_film(folder / "cut.mp4", frames_of(FILM, (480, 270), 100, 340), options=small),
        write_film(folder / "slow.mkv", list(frames_of(FILM, (320, 180), 0, 288))[::2], "libvpx-vp9", 12, vp9),
        write_film(folder / "other.mp4", scene(1, 120), options=small),
        write_film(folder / "another.mp4", scene(2, 120), options=small),
    ]


def run(stages: list[Any], films: list[Path]) -> list[dict[str, Any]]:
    rows = VideoBatch({"video_id": [film.stem for film in films], "source": [str(film) for film in films]})
    result = Pipeline("p", stages=stages).run(LocalExecutor(num_workers=0), initial_tasks=[rows], max_errors=9)
    return [row for task in result for row in task.to_rows()]


def test_copies_of_films_are_found_however_they_were_encoded_and_cut(copies: list[Path]) -> None:
    stages = [VideoFingerprintStage(), FingerprintDeduplicationStage(max_error=0.15)]
    kept = [row["video_id"] for row in run(stages, copies)]
    assert kept == [FILM.stem, "other", "another"]


def test_clips_of_one_film_are_not_copies_of_each_other() -> None:
    split = FixedStrideExtractorStage(4.0, 4.0)
    stages = [split, VideoFingerprintStage(), FingerprintDeduplicationStage(max_error=0.15)]
    assert len(run(stages, [FILM])) == 5
    assert len(run(stages, [FILM, FILM])) == 5


def test_a_clip_has_the_codes_of_its_part_of_the_film() -> None:
    [whole] = run([VideoFingerprintStage()], [FILM])
    clips = run([FixedStrideExtractorStage(4.0, 4.0), VideoFingerprintStage()], [FILM])
    assert b"".join(row["fingerprint"] for row in clips) == whole["fingerprint"]
    assert len(whole["fingerprint"]) == 4 * 480


def test_pictures_of_one_colour_have_no_code() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, 90, 160)).astype(np.uint8)
    noise[:, :40] //= 4
    noise[1] = 77
    codes = picture_codes(noise)
    assert codes[1] == 0
    assert codes[0]
    assert codes[0] != codes[2]


def test_codes_hardly_change_with_the_size() -> None:
    picture = next(scene(3, 1, 640, 384)).mean(axis=2).astype(np.uint8)
    small = picture.reshape(192, 2, 320, 2).mean(axis=(1, 3)).astype(np.uint8)
    one, other = picture_codes(picture[None])[0], picture_codes(small[None])[0]
    assert int(one ^ other).bit_count() <= 1


def test_the_same_bytes_have_the_same_hash_in_another_container(tmp_path: Path) -> None:
    with av.open(str(FILM)) as source, av.open(str(tmp_path / "copy.mkv"), "w") as target:
        stream = source.streams.video[0]
        out = target.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is not None:
                packet.stream = out
                target.mux(packet)
    other = write_film(tmp_path / "other.mp4", frames_of(FILM, (320, 180), 0, 48))
    (tmp_path / "bad.mp4").write_bytes(b"no film")
    rows = run([VideoHashStage()], [FILM, tmp_path / "bad.mp4", other, tmp_path / "copy.mkv"])
    assert [row["video_id"] for row in rows] == [FILM.stem, "other", "copy"]
    assert rows[0]["video_hash"] == rows[2]["video_hash"] != rows[1]["video_hash"]


def test_exact_copies_of_clips_are_dropped() -> None:
    stages = [FixedStrideExtractorStage(10.0, 10.0), VideoHashStage(), ExactDeduplicationStage("video_hash")]
    assert len(run(stages, [FILM, FILM])) == 2
