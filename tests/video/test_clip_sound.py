"""The sound of clips in stages of audio, in the same pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import AudioDurationFilter, AudioLoudnessFilter, AudioScoreFilter, VideoToAudioStage
from gristmill.video import (
    AudioToVideoStage,
    ClipWriterStage,
    FixedStrideExtractorStage,
    VideoReader,
    VideoScore,
    VideoWebDatasetReader,
    VideoWebDatasetWriter,
)
from tests.video.film_fixtures import FILM, film
from tests.video.test_one_pass import BrightnessFilter


def test_what_is_heard_in_a_clip_lands_in_its_row_and_clips_are_dropped_by_it(tmp_path: Path) -> None:
    film(tmp_path / "in" / "tone.mp4", 96, sound=True)
    film(tmp_path / "in" / "mute.mp4", 48)
    stages = [
        VideoReader(str(tmp_path / "in")),
        FixedStrideExtractorStage(1.0, 1.0, 0.5),
        VideoToAudioStage(),
        AudioScoreFilter([AudioDurationFilter(0.5), AudioLoudnessFilter(-30, 0)], ["heard_seconds", "lufs"]),
        AudioToVideoStage(),
        VideoScore(BrightnessFilter(), "mean"),
    ]
    result = Pipeline("sound", stages=stages).run(LocalExecutor(num_workers=0), max_errors=10)
    rows = [row for batch in result for row in batch.to_rows()]
    assert [(row["video_id"], row["start"]) for row in rows] == [
        ("tone", 0.0),
        ("tone", 1.0),
        ("tone", 2.0),
        ("tone", 3.0),
    ]
    assert all(row["heard_seconds"] == pytest.approx(1.0) and -30 < row["lufs"] < 0 and row["mean"] > 1 for row in rows)
    assert {"without sound" in record.error for record in result.quarantined()} == {True}
    assert len(result.quarantined()) == 2


def test_the_sound_of_films_in_archives_is_heard_too(tmp_path: Path) -> None:
    split = [VideoReader(str(FILM)), FixedStrideExtractorStage(5.0, 5.0)]
    Pipeline("tars", stages=[*split, VideoWebDatasetWriter(tmp_path / "tars")]).run(LocalExecutor(num_workers=0))
    stages = [
        VideoWebDatasetReader(str(tmp_path / "tars")),
        VideoToAudioStage(),
        AudioScoreFilter(AudioLoudnessFilter(-70, 0), "lufs"),
        AudioToVideoStage(),
        ClipWriterStage(tmp_path / "out"),
    ]
    result = Pipeline("sound", stages=stages).run(LocalExecutor(num_workers=0))
    assert result.summary().rows_out == 4
