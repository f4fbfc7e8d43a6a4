"""Frames of clips in memory, and previews."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gristmill import LocalExecutor, Pipeline, ProcessingStage
from gristmill.video import (
    ClipFrameExtractionStage,
    ClipWriterStage,
    FixedStrideExtractorStage,
    PreviewStage,
    VideoReader,
    VideoScore,
    VideoTask,
)
from tests.video.film_fixtures import FILM, rows_of
from tests.video.test_cut import decoded
from tests.video.test_one_pass import BrightnessFilter, decoded_frames


class Shapes(ProcessingStage[VideoTask, VideoTask]):
    def process(self, task: VideoTask) -> VideoTask:
        for clip in task.data.clips:
            for name, frames in clip.extracted_frames.items():
                clip.columns[name] = "x".join(map(str, frames.shape))
        return task


def test_frames_of_several_rates_stay_with_their_clips() -> None:
    stages = [VideoReader(str(FILM)), FixedStrideExtractorStage(5.0, 5.0), Shapes()]
    stages.insert(2, ClipFrameExtractionStage(target_fps=[1, 2], target_res=(27, 48)))
    rows = rows_of(stages)
    assert [(row["sequence-1000"], row["sequence-2000"]) for row in rows] == [("5x27x48x3", "10x27x48x3")] * 4


def test_single_frames_are_the_first_the_middle_and_the_last() -> None:
    frames = decoded(str(FILM))
    stage = ClipFrameExtractionStage(("first", "middle", "last"))
    [reader, split] = VideoReader(str(FILM)).decompose()[1], FixedStrideExtractorStage(5.0, 5.0)
    from gristmill.core.task import FileGroupTask

    [batch] = reader.process(FileGroupTask([str(FILM)]))
    [made] = stage.process(next(iter(split.process(batch))))
    for clip, found in enumerate(made.objects["decoded_clip_frames"]):
        for name, at in (("first-2000", 0), ("middle-2000", 60), ("last-2000", 119)):
            grey = found[name][0].mean(axis=2)
            near = [float(np.abs(grey - frames[120 * clip + other][1]).mean()) for other in (at, 30, 90)]
            assert min(near) == near[0]


def test_previews_are_made_in_the_pass_of_other_stages(tmp_path: Path) -> None:
    stages: list[Any] = [
        VideoReader(str(FILM)),
        FixedStrideExtractorStage(5.0, 5.0),
        VideoScore(BrightnessFilter(), "mean"),
        PreviewStage(target_fps=2.0, target_height=90),
        ClipWriterStage(tmp_path / "out"),
    ]
    result = Pipeline("previews", stages=stages).run(LocalExecutor(num_workers=0))
    assert sum(decoded_frames(result)) == 480
    previews = sorted((tmp_path / "out" / "previews").iterdir())
    assert len(previews) == 4
    with Image.open(io.BytesIO(previews[0].read_bytes())) as picture:
        assert (picture.size, getattr(picture, "n_frames", 1)) == ((160, 90), 10)


@pytest.mark.parametrize("wrong", [{"target_fps": 0}, {"extraction_policies": ("best",)}])
def test_wrong_wishes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="ClipFrameExtractionStage"):
        ClipFrameExtractionStage(**wrong)
