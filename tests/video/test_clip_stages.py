"""Stages that cut films into shots, and filter clips by motion."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.video import (
    ContentClipExtractionStage,
    FixedStrideExtractorStage,
    MotionFilterStage,
    MotionVectorDecodeStage,
    TransNetV2ClipExtractionStage,
    VideoBatch,
    VideoBlurFilter,
    VideoBrightnessFilter,
    VideoFingerprintStage,
    VideoFrameExtractionStage,
    VideoFrozenFilter,
    VideoLetterboxFilter,
    VideoReader,
    VideoScore,
    VideoScoreFilter,
    VideoTextFilter,
    VideoWatermarkFilter,
)
from tests.video.film_fixtures import FILM
from tests.video.shot_films import FPS, cut_film, scene, write_film

LENGTHS = (60, 50, 30, 100)
PICTURE_FILTERS = [
    VideoBrightnessFilter(), VideoBlurFilter(), VideoFrozenFilter(), VideoLetterboxFilter(), VideoTextFilter(),
    VideoWatermarkFilter(),
]  # fmt: skip


def run(stages: Sequence[Any], sources: Sequence[Path], **options: Any) -> tuple[list[dict[str, Any]], Any]:
    tasks = [VideoBatch({"video_id": [path.stem], "source": [str(path)]}) for path in sources]
    result = Pipeline("p", stages=list(stages)).run(
        LocalExecutor(num_workers=0), initial_tasks=tasks, max_errors=99, **options
    )
    return [row for task in result for row in task.to_rows()], result


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_film(tmp_path_factory.mktemp("film") / "cuts.mp4", LENGTHS)


@pytest.mark.parametrize("stage", [
    ContentClipExtractionStage(max_length_s=None, min_length_s=0),
    ContentClipExtractionStage("adaptive", max_length_s=None, min_length_s=0),
    TransNetV2ClipExtractionStage(max_length_s=None, min_length_s=0, crop_s=0),
])  # fmt: skip
def test_clips_are_the_shots(film: Path, stage: Any) -> None:
    rows, result = run([VideoFrameExtractionStage(), stage], [film])
    edges = [0, *accumulate(LENGTHS)]
    assert [row["num_frames"] for row in rows] == list(LENGTHS)
    assert [row["start"] for row in rows] == pytest.approx([edge / FPS for edge in edges[:-1]])
    assert rows[-1]["end"] == pytest.approx(sum(LENGTHS) / FPS)
    assert all(one["end_pts"] == other["start_pts"] for one, other in pairwise(rows))
    assert len({row["clip_id"] for row in rows}) == len(LENGTHS)
    assert result.summary().stages[-1].counts["decoded_frames"] == sum(LENGTHS)


def test_lengths_and_limits(film: Path) -> None:
    rows, _ = run([ContentClipExtractionStage(min_length_s=1.5, max_length_s=2.0, crop_s=0.1)], [film])
    assert [round(row["duration"], 3) for row in rows] == [
        2.0,
        round(50 / FPS - 0.2, 3),
        2.0,
        round(100 / FPS - 2.2, 3),
    ]
    rows, _ = run([ContentClipExtractionStage(limit_clips=1)], [film])
    assert len(rows) == 1


def test_a_film_without_cuts_is_one_clip_or_none() -> None:
    quiet = VideoBatch({"video_id": ["f"], "source": [str(FILM)]})
    whole = ContentClipExtractionStage(threshold=255, fades=False, max_length_s=None)
    [row] = [row for task in whole.process(quiet) for row in task.to_rows()]
    assert row["num_frames"] == 480
    none = ContentClipExtractionStage(threshold=255, fades=False, entire_scene_as_clip=False)
    assert [row for task in none.process(quiet) for row in task.to_rows()] == []


def test_shots_and_all_scores_of_clips_come_from_one_pass(tmp_path: Path) -> None:
    stages = [
        TransNetV2ClipExtractionStage(min_length_s=1.0, crop_s=0),
        MotionVectorDecodeStage(),
        MotionFilterStage(global_mean_threshold=0.0005),
        VideoScore(VideoBlurFilter(), "sharpness"),
    ]
    rows, result = run(stages, [FILM], rejected=tmp_path / "rejected", scores=tmp_path / "scores")
    counts = [int(stage.counts.get("decoded_frames", 0)) for stage in result.summary().stages]
    assert sum(counts) == 480
    assert rows
    assert all(row["sharpness"] > 0 and row["motion_score_global_mean"] >= 0.0005 for row in rows)
    assert all(row["motion_source"] == "vectors" for row in rows)


def test_stills_are_dropped_and_no_clip_for_its_codec(tmp_path: Path) -> None:
    x265 = {"preset": "ultrafast", "x265-params": "log-level=none:pools=1"}
    intra = {"preset": "ultrafast", "g": "1"}
    still = list(repeat(next(scene(2, 1)), 60))
    films = [
        write_film(tmp_path / "still.mp4", still, options={"preset": "ultrafast"}),
        write_film(tmp_path / "still265.mp4", still, "libx265", options=x265),
        write_film(tmp_path / "moving.mp4", scene(2, 60), options={"preset": "ultrafast"}),
        write_film(tmp_path / "moving265.mp4", scene(2, 60), "libx265", options=x265),
        write_film(tmp_path / "intra.mp4", scene(2, 60), options=intra),
    ]
    stages = [MotionVectorDecodeStage(), MotionFilterStage()]
    rows, result = run(stages, films, rejected=tmp_path / "rejected", scores=tmp_path / "scores")
    assert {row["video_id"]: row["motion_source"] for row in rows} == {
        "moving": "vectors", "moving265": "blocks", "intra": "blocks",
    }  # fmt: skip
    stats = result.summary().stages[-1]
    assert (stats.rows_in, stats.rows_out) == (5, 3)
    told = {row["video_id"]: row for row in pq.read_table(tmp_path / "rejected").to_pylist()}
    assert set(told) == {"still", "still265"}
    assert told["still"]["rejected_threshold"] == "global_mean_threshold=0.00098"
    kept, _ = run([MotionVectorDecodeStage(), MotionFilterStage(score_only=True)], films)
    assert len(kept) == 5


@pytest.mark.parametrize(("scores", "kept", "by"), [
    ((0.01, 0.01), True, None), ((0.0001, 0.01), False, "motion_score_global_mean"),
    ((0.01, 0.0), False, "motion_score_per_patch_min_256"), ((None, None), False, "motion_score_global_mean"),
])  # fmt: skip
def test_verdicts(scores: Any, kept: bool, by: str | None) -> None:
    names = ("motion_score_global_mean", "motion_score_per_patch_min_256")
    columns = [pa.array([score], pa.float64()) for score in scores]
    stage = MotionFilterStage()
    decision = stage.decide(VideoBatch(pa.table(columns, names)))
    assert decision.keep.to_pylist() == [kept]
    if by is not None:
        assert decision.dropped_by is not None
        assert decision.dropped_by.to_pylist() == [by]
    assert stage.thresholds()["motion_score_global_mean"] == "global_mean_threshold=0.00098"
    assert [rule.low_name for rules in stage.rules().values() for rule in rules] == [
        "global_mean_threshold", "per_patch_min_256_threshold",
    ]  # fmt: skip


def test_clips_of_clips_are_cut_within(film: Path) -> None:
    rows, _ = run([FixedStrideExtractorStage(3.0, 3.0), ContentClipExtractionStage(min_length_s=0.2)], [film])
    first = [row for row in rows if row["end"] <= 3.0 + 1e-6]
    assert [round(row["duration"] * FPS) for row in first] == [60, 12]


@pytest.mark.parametrize(("make", "message"), [
    (lambda: ContentClipExtractionStage("hash"), "method is 'hash'"),
    (lambda: ContentClipExtractionStage(max_length_mode="loop"), "stride or truncate"),
    (lambda: TransNetV2ClipExtractionStage(threshold=2), "between 0 and 1"),
    (lambda: MotionVectorDecodeStage(target_fps=0), "above 0"),
    (lambda: MotionFilterStage(global_mean_threshold=-1), "0 or more"),
    (lambda: VideoFrameExtractionStage(decoder_mode="dali"), "decoder_mode is 'dali'"),
])  # fmt: skip
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_workers_give_the_same_rows(film: Path, tmp_path: Path) -> None:
    """Stages, with their detectors and models, are sent to other processes."""
    stages = [
        TransNetV2ClipExtractionStage(min_length_s=1.0, crop_s=0),
        MotionVectorDecodeStage(),
        MotionFilterStage(global_mean_threshold=0.0),
        VideoScoreFilter([VideoBlurFilter(1.0), VideoFrozenFilter()], ["sharpness", "frozen"]),
        VideoFingerprintStage(),
    ]
    tasks = [VideoBatch({"video_id": [path.stem], "source": [str(path)]}) for path in (film, FILM)]
    found = []
    for workers in (0, 2):
        result = Pipeline("p", stages=stages).run(LocalExecutor(num_workers=workers), initial_tasks=tasks)
        found.append(sorted((row["clip_id"], str(row)) for task in result for row in task.to_rows()))
    assert found[0] == found[1]
    assert len(found[0]) > 6


def odd_films(folder: Path) -> dict[str, Path]:
    films = {name: write_film(folder / f"{name}.mp4", scene(1, count)) for name, count in (("one", 1), ("two", 2))}
    films["tiny"] = write_film(folder / "tiny.mp4", (picture[:16, :18] for picture in scene(1, 30)))
    deep = {"preset": "ultrafast", "x265-params": "log-level=none:pools=1", "profile": "main10"}
    films["ten bits"] = write_film(folder / "deep.mkv", scene(1, 30), "libx265", options=deep, pixels="yuv420p10le")
    films["full colour"] = write_film(folder / "444.mkv", scene(1, 30), pixels="yuv444p")
    lasting = chain.from_iterable(repeat(picture, 2) for picture in scene(1, 15))
    films["interlaced"] = write_film(
        folder / "interlaced.mp4", lasting, options={"preset": "ultrafast", "x264-params": "interlaced=1"}
    )
    return films


def test_odd_films_go_through_all_stages(tmp_path: Path) -> None:
    films = odd_films(tmp_path)
    stages = [
        TransNetV2ClipExtractionStage(min_length_s=0, crop_s=0),
        MotionVectorDecodeStage(),
        MotionFilterStage(score_only=True),
        VideoScore(PICTURE_FILTERS, [tool.name for tool in PICTURE_FILTERS]),
        VideoFingerprintStage(),
    ]
    rows, result = run(stages, list(films.values()))
    assert list(result.quarantined()) == []
    assert {row["video_id"] for row in rows} == {path.stem for path in films.values()}
    found = {row["video_id"]: row for row in rows}
    assert found["one"]["motion_score_global_mean"] is None
    assert found["one"]["VideoBrightnessFilter"] > 0
    assert found["deep"]["motion_source"] == "blocks"
    assert found["deep"]["motion_score_global_mean"] > 0
    assert found["444"]["VideoBrightnessFilter"] == pytest.approx(found["deep"]["VideoBrightnessFilter"], abs=0.02)


def test_a_preview_shows_each_clip_of_a_film() -> None:
    stages = [
        VideoReader(str(FILM)),
        FixedStrideExtractorStage(5.0, 5.0),
        MotionVectorDecodeStage(),
        MotionFilterStage(),
    ]
    rows = Pipeline("clips", stages=stages).preview(n=10)
    ran = Pipeline("clips", stages=stages).run(LocalExecutor(num_workers=0))
    assert [row.data["start"] for row in rows] == [0.0, 5.0, 10.0, 15.0]
    kept = [start for batch in ran for start in batch.data.column("start").to_pylist()]
    assert [row.data["start"] for row in rows if row.kept] == kept
    assert len(kept) < 4
    assert len({row.scores["motion_score_global_mean"] for row in rows}) == 4
