"""Filters by what the pictures of a film show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.image import ImageBlurFilter, ImageColourfulnessFilter, ImageFileSizeFilter
from gristmill.video import (
    VideoBatch,
    VideoBlackFilter,
    VideoBlurFilter,
    VideoBrightnessFilter,
    VideoFrozenFilter,
    VideoImageFilter,
    VideoLetterboxFilter,
    VideoScore,
    VideoScoreFilter,
    VideoTextFilter,
    VideoWatermarkFilter,
)
from tests.video.film_fixtures import FILM
from tests.video.shot_films import HEIGHT, WIDTH, scene, write_film

COUNT = 48


def blurred() -> Iterator[Any]:
    for picture in scene(1, COUNT):
        small = picture.reshape(HEIGHT // 16, 16, WIDTH // 16, 16, 3).mean(axis=(1, 3))
        rows = np.linspace(0, len(small) - 1, HEIGHT)
        down = (rows % 1)[:, None, None]
        tall = small[rows.astype(int)] * (1 - down) + small[np.minimum(rows.astype(int) + 1, len(small) - 1)] * down
        columns = np.linspace(0, small.shape[1] - 1, WIDTH)
        right = (columns % 1)[None, :, None]
        left, beside = tall[:, columns.astype(int)], tall[:, np.minimum(columns.astype(int) + 1, small.shape[1] - 1)]
        yield (left * (1 - right) + beside * right).astype(np.uint8)


def boxed() -> Iterator[Any]:
    for picture in scene(1, COUNT):
        picture[:32] = picture[-32:] = 0
        yield picture


def printed() -> Iterator[Any]:
    letters = np.random.default_rng(0).integers(0, 2, (HEIGHT // 2, WIDTH // 4)) * 255
    page = np.kron(letters, np.ones((2, 4)))[..., None].repeat(3, axis=2).astype(np.uint8)
    return repeat(page, COUNT)


def marked() -> Iterator[Any]:
    ground = (60 + np.add.outer(np.arange(HEIGHT) / 4, np.arange(WIDTH) / 4))[..., None].repeat(3, axis=2)
    stamp = np.random.default_rng(0).integers(0, 2, (16, 16)).repeat(2, axis=0).repeat(2, axis=1)
    tiled = np.tile(np.pad(stamp, 16), (HEIGHT // 64, WIDTH // 64))[..., None]
    for number in range(COUNT):
        picture = (ground + 24 * tiled).astype(np.uint8)
        picture[:, : 2 * number + 8] += 20
        yield picture


FILMS: dict[str, Callable[[], Iterator[Any]]] = {
    "plain": lambda: scene(1, COUNT),
    "dark": lambda: (picture // 30 for picture in scene(1, COUNT)),
    "still": lambda: repeat(next(scene(1, 1)), COUNT),
    "half_still": lambda: chain(scene(1, COUNT // 2), repeat(next(scene(1, 1)), COUNT // 2)),
    "blurred": blurred,
    "boxed": boxed,
    "printed": printed,
    "marked": marked,
}

DROPS = [
    (VideoBrightnessFilter(), {"dark"}),
    (VideoBlackFilter(), {"dark"}),
    (VideoFrozenFilter(0.6), {"still", "printed"}),
    (VideoFrozenFilter(0.3), {"still", "half_still", "printed"}),
    (VideoBlurFilter(), {"dark", "blurred"}),
    (VideoLetterboxFilter(), {"boxed", "dark"}),
    (VideoTextFilter(), {"printed"}),
    (VideoWatermarkFilter(0.5), {"marked"}),
]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    for name, frames in FILMS.items():
        write_film(folder / f"{name}.mp4", frames(), options={"preset": "ultrafast", "crf": "10"})
    return folder


def batch(folder: Path) -> VideoBatch:
    return VideoBatch({"video_id": list(FILMS), "source": [str(folder / f"{name}.mp4") for name in FILMS]})


@pytest.mark.parametrize(("tool", "dropped"), DROPS, ids=lambda value: getattr(value, "name", ""))
def test_each_filter_drops_what_it_is_for(films: Path, tool: Any, dropped: set[str]) -> None:
    stage = VideoScore(tool, "score")
    scores = {row["video_id"]: row["score"] for row in stage.process(batch(films)).to_rows()}
    kept = {name for name, score in scores.items() if tool.keep_video(score)}
    unclear = {"dark"} if isinstance(tool, VideoLetterboxFilter) else set()
    assert set(FILMS) - kept - unclear == dropped - unclear, scores


def test_all_filters_share_one_pass_and_say_why(films: Path, tmp_path: Path) -> None:
    tools = [tool for tool, _ in DROPS if tool.name != "VideoWatermarkFilter"]
    pipeline = Pipeline("films", stages=[VideoScoreFilter(tools)])
    result = pipeline.run(
        LocalExecutor(num_workers=0),
        initial_tasks=[batch(films)],
        rejected=tmp_path / "rejected",
        scores=tmp_path / "scores",
    )
    kept = [row["video_id"] for task in result for row in task.to_rows()]
    assert kept == ["plain", "marked"]
    [stats] = result.summary().stages
    assert stats.counts["decoded_frames"] == COUNT * len(FILMS)
    told = {row["video_id"]: row for row in pq.read_table(tmp_path / "rejected").to_pylist()}
    assert set(told) == set(FILMS) - set(kept)
    assert told["boxed"]["rejected_threshold"] == "max_border=0.05"
    assert told["boxed"]["rejected_score"] == pytest.approx(1 / 3, abs=0.05)


def test_filters_of_images_work_on_frames(films: Path) -> None:
    rows = VideoScore(
        [
            VideoImageFilter(ImageBlurFilter(), "min"),
            VideoImageFilter(ImageBlurFilter(), "share", min_share=0.9),
            VideoImageFilter(ImageColourfulnessFilter(), "mean"),
        ],
        ["least", "share", "colours"],
    ).process(batch(films))
    found = {row["video_id"]: row for row in rows.to_rows()}
    assert found["plain"]["share"] == 1
    assert found["blurred"]["share"] == 0
    assert found["blurred"]["least"] < 50 < found["plain"]["least"]
    assert found["printed"]["colours"] < 3 < found["plain"]["colours"]


def test_the_score_of_the_filter_of_images_decides() -> None:
    tool = VideoImageFilter(ImageBlurFilter(30.0), "min")
    assert tool.keep_video(30)
    assert not tool.keep_video(29)
    assert "min_sharpness" in tool.threshold()
    share = VideoImageFilter(ImageBlurFilter(30.0), "share", min_share=0.4)
    assert share.keep_video(0.4)
    assert share.threshold() == "min_share=0.4"
    assert [rule.low for rule in (*tool.deciding_rules(), *share.deciding_rules())] == [30.0, 0.4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VideoImageFilter(ImageFileSizeFilter()), "does not score pixels"),
        (lambda: VideoImageFilter(ImageBlurFilter(), "sum"), "reduction is 'sum'"),
        (lambda: VideoBlurFilter(reduction="sum"), "reduction is 'sum'"),
        (lambda: VideoBlurFilter(fps=0), "above 0"),
        (lambda: VideoBrightnessFilter(0.9, 0.1), "leaves nothing"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_clip_by_itself_has_the_score_that_it_has_in_its_film() -> None:
    clip = {"video_id": "f", "source": str(FILM), "clip_id": "c"}
    tools = [tool for tool, _ in DROPS]
    stage = VideoScore(tools, [f"s{at}" for at in range(len(tools))])
    for start in (100, 12_288 * 9 + 1):
        span = {"start_pts": start, "end_pts": start + 50_000}
        alone = stage.process(VideoBatch([clip | span])).to_rows()[0]
        whole = stage.process(VideoBatch([clip | {"start_pts": 0, "end_pts": 2**40}, clip | span])).to_rows()[1]
        assert alone == whole
        assert alone["s0"] is not None
