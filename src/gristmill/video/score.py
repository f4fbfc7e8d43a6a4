"""Stages that run filters on videos and clips.

    VideoScoreFilter   scores videos and drops some by their score
    VideoScore         only adds the score as a column

Filters of one stage, and stages that share a worker, share one decoding pass over each film (`one_pass.py`). A video
that cannot be decoded goes to quarantine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gristmill.core.stage import Columns, ProcessingStage
from gristmill.samples.batch import SampleBatch
from gristmill.samples.decode import Decoder
from gristmill.samples.filters import SIZE, SampleFilter
from gristmill.samples.score import SampleScore, SampleScoreFilter, ScoresSamples
from gristmill.video.batch import BadVideo, VideoBatch
from gristmill.video.filters import FRAMES, HEADER, VideoFilter
from gristmill.video.frame_analyser import FrameAnalyser
from gristmill.video.frame_stage import LooksAtFrames, shown_name
from gristmill.video.one_pass import Measured, films_of, header_rows, measured_rows


class _ScoresVideos(ScoresSamples, LooksAtFrames):
    kind = VideoBatch
    filter_class = VideoFilter

    _steps: Any

    def filters(self) -> list[VideoFilter]:
        raise NotImplementedError

    def analysers(self) -> Sequence[FrameAnalyser]:
        return [one.analyser() for one in self.filters() if one.looks_at == FRAMES]

    def decoder(self, looks_at: str) -> Decoder:
        raise AssertionError(f"{looks_at} of videos is not made of one column")

    def score_column(self, tool: SampleFilter, batch: SampleBatch) -> pa.Array:
        assert isinstance(tool, VideoFilter)
        assert isinstance(batch, VideoBatch)
        if tool.looks_at == SIZE or not batch.num_items:
            return super().score_column(tool, batch)
        if tool.looks_at == HEADER:
            return tool.score_batch(checked_rows(batch, header_rows(batch)))
        own = tool.analyser()
        others = [one for one in self.analysers() if one.key() != own.key()]
        stage = self if isinstance(self, ProcessingStage) else None
        return tool.score_batch(checked_rows(batch, measured_rows(batch, [own], [*others, *self._ahead], stage)))

    def _columns(self) -> list[str]:
        return [self.encoded_field()] if any(one.looks_at == SIZE for one in self.filters()) else []


def checked_rows(batch: VideoBatch, rows: Sequence[Measured | BadVideo]) -> list[Measured]:
    """What is known of rows; raises BadVideo for the first that cannot be decoded, so that the worker finds it."""
    good: list[Measured] = []
    for row, one in enumerate(rows):
        if isinstance(one, BadVideo):
            values = {name: batch.data.column(name)[row].as_py() for name in batch.get_columns() if name != "video"}
            raise BadVideo(f"{shown_name(values)}: {one}")
        good.append(one)
    return good


class VideoScoreFilter(_ScoresVideos, SampleScoreFilter[VideoBatch]):
    """Scores videos and clips and keeps those that the filter keeps, or with `invert` those that it does not.

    `filter_obj` is a filter, or a list that is run in order: a video that one drops is not scored by the next.
    `score_field` is the column for the scores, or a list of one for each filter; None: they are not written.
    """

    max_retries = 0
    """What cannot be decoded once cannot be decoded."""

    def decide(self, batch: VideoBatch) -> Any:
        films_of(batch)  # each filter is given a batch made of this one
        return super().decide(batch)

    def filters(self) -> list[VideoFilter]:
        return [step.tool for step in self._steps]

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], self._columns()


class VideoScore(_ScoresVideos, SampleScore[VideoBatch]):
    """Adds a column with the score of each video or clip, and drops none."""

    max_retries = 0

    def process(self, task: VideoBatch) -> VideoBatch:
        films_of(task)
        return super().process(task)

    def filters(self) -> list[VideoFilter]:
        return [tool for tool, _ in self._steps]

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], self._columns()
