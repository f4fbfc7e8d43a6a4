"""A film is decoded once for all stages of a worker and all of its clips, and that changes no score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.video import (
    ClipSpan,
    FixedStrideExtractorStage,
    FrameAnalyser,
    FrameRequest,
    FrameSeries,
    FrameStage,
    Measured,
    VideoBatch,
    VideoDurationFilter,
    VideoRangeFilter,
    VideoScore,
    VideoScoreFilter,
    clip_rows,
)
from gristmill.video.filters import reduced
from gristmill.video.frame_analyser import RGB, CollectedFrames
from tests.video.film_fixtures import FILM, film


class Brightness(FrameAnalyser):
    """The mean brightness of each frame."""

    def __init__(self, fps: float | None = None, keyframes: bool = False, side: int = 32) -> None:
        self.fps, self.keyframes, self.side = fps, keyframes, side
        self._pts: list[Any] = []
        self._means: list[Any] = []

    def request(self, info: Any) -> FrameRequest:
        return FrameRequest(max_side=self.side, fps=self.fps, keyframes=self.keyframes)

    def start(self, info: Any) -> None:
        self._pts, self._means = [], []

    def add(self, frames: Any, pts: Any) -> None:
        self._pts.append(pts)
        self._means.append(frames.mean(axis=(1, 2)))

    def finish(self) -> FrameSeries:
        if not self._pts:
            return FrameSeries(np.zeros(0, np.int64), {"mean": np.zeros(0)})
        return FrameSeries(np.concatenate(self._pts), {"mean": np.concatenate(self._means)})


class BrightnessFilter(VideoRangeFilter):
    def __init__(self, min_mean: float = 0.0, fps: float | None = None, keyframes: bool = False) -> None:
        self.min_mean, self.fps, self.keyframes = min_mean, fps, keyframes

    def analyser(self) -> FrameAnalyser:
        return Brightness(self.fps, self.keyframes)

    def score_video(self, video: Measured) -> float | None:
        return reduced(video.series[0].columns["mean"], "mean")

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_mean, None


class SplitInHalves(FrameStage):
    """Cuts each film in the middle of its frames, for which it must have seen all of it."""

    def analysers(self) -> Sequence[FrameAnalyser]:
        return [Brightness()]

    def process_measured(self, rows: VideoBatch, measured: Sequence[Measured]) -> VideoBatch:
        clips = []
        for row, one in enumerate(measured):
            pts = one.series[0].pts
            middle, end = int(pts[len(pts) // 2]), int(pts[-1]) + 512
            clips += [ClipSpan(row, int(pts[0]), middle), ClipSpan(row, middle, end)]
        return clip_rows(rows, [one.info for one in measured], clips, decoded=True)


class Frames(FrameStage):
    """Adds how many frames at one a second there are."""

    piece_seconds = 4.0

    def analysers(self) -> Sequence[FrameAnalyser]:
        return [CollectedFrames(FrameRequest(RGB, fps=1.0))]

    def process_measured(self, rows: VideoBatch, measured: Sequence[Measured]) -> VideoBatch:
        import pyarrow as pa

        counts = [len(one.series[0].columns["frames"]) for one in measured]
        return rows.with_column("seconds_seen", pa.array(counts, pa.int64()))


def run(stages: Sequence[Any], sources: Sequence[str], **options: Any) -> tuple[list[dict[str, Any]], Any]:
    tasks = [VideoBatch({"video_id": [str(at)], "source": [path]}) for at, path in enumerate(sources)]
    result = Pipeline("p", stages=list(stages)).run(
        LocalExecutor(num_workers=0), initial_tasks=tasks, max_errors=99, **options
    )
    return [row for task in result for row in task.to_rows()], result


def decoded_frames(result: Any) -> list[int]:
    return [int(stats.counts.get("decoded_frames", 0)) for stats in result.summary().stages]


def test_all_stages_of_a_worker_and_all_clips_share_one_pass() -> None:
    stages = [
        SplitInHalves(),
        VideoScoreFilter([BrightnessFilter(1.0), BrightnessFilter(1.0, fps=2.0)], ["all", "some"]),
        VideoScore(BrightnessFilter(keyframes=True), "key"),
        Frames(),
    ]
    rows, result = run(stages, [str(FILM)])
    assert decoded_frames(result) == [480, 0, 0, 0]
    assert [row["num_frames"] for row in rows] == [240, 240]
    assert [row["seconds_seen"] for row in rows] == [10, 10]
    assert all(row["all"] and row["some"] and row["key"] for row in rows)


def test_a_stage_in_a_worker_of_its_own_gives_the_same_scores() -> None:
    filters = [BrightnessFilter(1.0), BrightnessFilter(1.0, fps=3.7), BrightnessFilter(fps=0.9)]
    split = FixedStrideExtractorStage(1.7, 2.9, 0.5)
    together, shared = run([split, *(VideoScore(one, f"s{at}") for at, one in enumerate(filters))], [str(FILM)])
    alone: list[list[Any]] = []
    for one in filters:
        rows, _ = run([split, VideoScore(one, "s")], [str(FILM)])
        single = [run_clip(row, one) for row in rows]
        assert single == [row["s"] for row in rows]
        alone.append([row["s"] for row in rows])
    assert [[row[f"s{at}"] for row in together] for at in range(3)] == alone
    assert sum(decoded_frames(shared)) <= 480


def run_clip(row: dict[str, Any], one: VideoRangeFilter) -> Any:
    """The score of a clip by itself, in a batch of its own."""
    return VideoScore(one, "s").process(VideoBatch([row])).to_rows()[0]["s"]


def test_the_forerunner_of_a_sampled_frame_decides_wherever_decoding_began() -> None:
    clip = {"video_id": "f", "source": str(FILM), "clip_id": "c"}
    for start in (100, 12_288 * 9 + 1, 12_288 * 13):
        spans = {"start_pts": start, "end_pts": start + 30_000}
        far = VideoBatch([clip | spans])
        near = VideoBatch([clip | {"start_pts": 0, "end_pts": 2**40}, clip | spans])
        for fps in (0.4, 2.0, 7.3):
            score = VideoScore(BrightnessFilter(fps=fps), "s")
            assert score.process(far).to_rows()[0]["s"] == score.process(near).to_rows()[1]["s"]


def test_spans_that_begin_where_others_end_lose_no_frame(tmp_path: Any) -> None:
    film(tmp_path / "f.mp4", 48)
    base = {"video_id": "f", "source": str(tmp_path / "f.mp4")}
    spans = [(0, 512), (1024, 1536), (1536, 512 * 10), (512 * 11, 512 * 48)]
    rows = [base | {"clip_id": str(at), "start_pts": a, "end_pts": b} for at, (a, b) in enumerate(spans)]
    measured = SplitInHalves().measured(VideoBatch(rows))
    assert [one.series[0].pts.tolist() for one in measured] == [list(range(a, b, 512)) for a, b in spans]


def test_only_key_frames_are_decoded_if_that_is_enough() -> None:
    rows, result = run([VideoScore(BrightnessFilter(keyframes=True), "s")], [str(FILM)])
    assert decoded_frames(result) == [9]
    assert rows[0]["s"] > 1
    late = [VideoScore(BrightnessFilter(keyframes=True), "s"), VideoScore(BrightnessFilter(), "t")]
    assert decoded_frames(run(late, [str(FILM)])[1]) == [9, 480]


def test_clips_that_a_filter_drops_are_not_decoded() -> None:
    stages = [
        FixedStrideExtractorStage(3.0, 3.0),
        VideoScoreFilter(VideoDurationFilter(min_seconds=2.5), "seconds"),
        VideoScore(BrightnessFilter(), "s"),
    ]
    rows, result = run(stages, [str(FILM)])
    assert [row["seconds"] for row in rows] == [3.0] * 6
    assert decoded_frames(result)[-1] <= 18 * 24 + 1


def test_a_bad_film_goes_to_quarantine_and_the_others_go_on(tmp_path: Any) -> None:
    good = film(tmp_path / "good.mp4", 48)
    (tmp_path / "bad.mp4").write_bytes(good[: len(good) // 3])
    sources = [str(tmp_path / name) for name in ("good.mp4", "bad.mp4", "none.mp4")]
    for stages in ([SplitInHalves()], [VideoScoreFilter(BrightnessFilter(), "s")]):
        rows, result = run(stages, sources)
        assert {row["source"] for row in rows} == {sources[0]}
        assert sorted(record.row["source"] for record in result.quarantined()) == sorted(sources[1:])


def test_clips_behind_the_end_of_a_film_that_lies_are_set_aside_with_their_time(tmp_path: Any) -> None:
    content = film(None, 48, container="mkv")
    (tmp_path / "cut.mkv").write_bytes(content[: len(content) * 2 // 3])
    rows, result = run(
        [FixedStrideExtractorStage(0.5, 0.5, 0.1), VideoScore(BrightnessFilter(), "s")], [str(tmp_path / "cut.mkv")]
    )
    assert 1 <= len(rows) <= 3
    assert len(rows) + len(result.quarantined()) == 4
    assert all("s: " in record.error for record in result.quarantined())


@pytest.mark.parametrize(("limit", "count"), [(0, 7), (-1, 7), (3, 3), (50, 7)])
def test_limit_clips_limits(limit: int, count: int) -> None:
    rows, _ = run([FixedStrideExtractorStage(3.0, 3.0, 1.0, limit_clips=limit)], [str(FILM)])
    assert len(rows) == count
    assert [row["start"] for row in rows] == [3.0 * at for at in range(count)]
    assert len({row["clip_id"] for row in rows}) == count
