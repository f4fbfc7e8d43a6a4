"""The task of NeMo Curator, a film with its clips, in stages of users."""

from __future__ import annotations

import io
from pathlib import Path

import av

from gristmill import ProcessingStage
from gristmill.video import ClipTranscodingStage, FixedStrideExtractorStage, VideoReader, VideoTask
from gristmill.video.video_task import Clip
from tests.video.film_fixtures import FILM, film, rows_of


class Judge(ProcessingStage[VideoTask, VideoTask]):
    """Scores clips, filters the second, drops the third, adds one."""

    def process(self, task: VideoTask) -> VideoTask:
        video = task.data
        assert video.metadata.width == 640
        assert video.metadata.framerate == 24
        assert video.source_bytes == FILM.read_bytes()
        for clip in video.clips:
            clip.aesthetic_score = clip.duration / 10
        video.filtered_clips.append(video.clips.pop(1))
        del video.clips[1]
        video.clips.append(Clip((1.0, 2.5)))
        return task


class Plain(ProcessingStage[VideoTask, VideoTask]):
    def process(self, task: VideoTask) -> VideoTask | None:
        return task if Path(task.data.input_video).exists() else None


class Peek(ProcessingStage[VideoTask, VideoTask]):
    def process(self, task: VideoTask) -> VideoTask:
        for clip in task.data.clips:
            with av.open(io.BytesIO(clip.encoded_data)) as opened:
                clip.columns["seen"] = sum(1 for _ in opened.decode(video=0))
        return task


def test_what_a_stage_does_to_clips_is_done_to_their_rows() -> None:
    rows = rows_of([VideoReader(str(FILM)), FixedStrideExtractorStage(5.0, 5.0), Judge()])
    found = [(row["start"], row["end"], row.get("aesthetic_score"), row["filtered"]) for row in rows]
    assert found == [(0, 5, 0.5, False), (15, 20, 0.5, False), (1.0, 2.5, None, False), (5, 10, 0.5, True)]
    assert rows[2]["start_pts"] == 12_288
    assert len({row["clip_id"] for row in rows}) == 4


def test_a_stage_that_changes_nothing_changes_nothing(tmp_path: Path) -> None:
    film(tmp_path / "a.mp4")
    before = [
        VideoReader([str(FILM), str(tmp_path / "a.mp4")], files_per_partition=2),
        FixedStrideExtractorStage(1.0, 1.0, 0.5),
    ]
    assert rows_of([*before, Plain()]) == rows_of(before)
    assert rows_of([before[0], Plain()]) == rows_of([before[0]])


def test_the_bytes_of_a_clip_are_cut_when_they_are_asked_for() -> None:
    stages = [
        VideoReader(str(FILM)),
        FixedStrideExtractorStage(5.0, 5.0, limit_clips=2),
        ClipTranscodingStage(),
        Peek(),
    ]
    assert [row["seen"] for row in rows_of(stages)] == [120, 120]
