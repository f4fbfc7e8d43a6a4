"""Stages that measure how much moves in clips, and drop those in which hardly anything does.

    MotionVectorDecodeStage   adds the two scores, from motion vectors or by block matching
    MotionFilterStage         keeps clips by them

Films in HEVC, VP9 or AV1, and films of key frames only, have no motion vectors that can be read: their blocks are
matched instead, so no clip is dropped for its codec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import DecidingStage, Decision, Measures, Rule
from gristmill.core.stage import Columns
from gristmill.core.stage_roles import ScoringRole
from gristmill.samples.argument_checks import check_not_negative, check_ratio
from gristmill.video.batch import BadVideo, VideoBatch
from gristmill.video.frame_analyser import FrameAnalyser
from gristmill.video.frame_stage import FrameStage
from gristmill.video.motion.motion_analyser import AUTO, BLOCKS, ClipMotion, MotionAnalyser, clip_motion
from gristmill.video.one_pass import Measured, measured_rows

GLOBAL_MEAN, PATCH_MIN = MOTION_SCORES = ("motion_score_global_mean", "motion_score_per_patch_min_256")
MOTION_SOURCE = "motion_source"
"""Column: "vectors" or "blocks"."""

_LAST = 2**62


class MotionVectorDecodeStage(FrameStage, ScoringRole):
    """Adds how much moves in each clip: over the whole picture, and in that part of about 256 x 256 pixels in which the
    least does. Null: the clip is too short.

    The motion is the length of the vectors divided by the sum of width and height. `target_fps` frames a second are
    measured, and of those a share of `target_duration_ratio` is used, at least ten: spread over the clip, and not its
    beginning. `motion_from` is "auto", "vectors" or "blocks". `num_cpus_per_worker` changes nothing.
    """

    not_identity: ClassVar[tuple[str, ...]] = ("num_cpus_per_worker", "verbose")

    def __init__(
        self,
        num_cpus_per_worker: float = 6.0,
        verbose: bool = False,
        target_fps: float = 2.0,
        target_duration_ratio: float = 0.5,
        motion_from: str = AUTO,
    ) -> None:
        super().__init__()
        check_ratio("MotionVectorDecodeStage", "target_duration_ratio", target_duration_ratio)
        self.num_cpus_per_worker, self.verbose = num_cpus_per_worker, verbose
        self.target_fps, self.target_duration_ratio, self.motion_from = target_fps, target_duration_ratio, motion_from
        self.analysers()

    def analysers(self) -> Sequence[FrameAnalyser]:
        return [MotionAnalyser(self.target_fps, self.motion_from)]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [*MOTION_SCORES, MOTION_SOURCE]

    def recorded(self) -> list[str]:
        return list(MOTION_SCORES)

    def process_measured(self, rows: VideoBatch, measured: Sequence[Measured]) -> VideoBatch:
        analyser = MotionAnalyser(self.target_fps, self.motion_from)
        found = [self._motion(one) for one in measured]
        sources = [analyser.source_of(one.info) for one in measured]
        if self.motion_from == AUTO:
            missing = [row for row, one in enumerate(found) if one is None and sources[row] != BLOCKS]
            for row, motion in zip(missing, self._by_blocks(rows, missing), strict=True):
                found[row], sources[row] = motion, BLOCKS
        for name, values in (
            (GLOBAL_MEAN, [None if one is None else one.global_mean for one in found]),
            (PATCH_MIN, [None if one is None else one.per_patch_min_256 for one in found]),
        ):
            rows = rows.with_column(name, make_array(values, pa.float64()))
        return rows.with_column(MOTION_SOURCE, make_array(sources, pa.string()))

    def _motion(self, video: Measured) -> ClipMotion | None:
        start, end = video.span or (video.info.start_pts, _LAST)
        return clip_motion(video.series[0], start, end, self.target_duration_ratio)

    def _by_blocks(self, rows: VideoBatch, missing: list[int]) -> list[ClipMotion | None]:
        """The motion of rows whose frames have no vectors."""
        if not missing:
            return []
        again = measured_rows(rows.take(missing), [MotionAnalyser(self.target_fps, BLOCKS)], stage=self)
        return [None if isinstance(one, BadVideo) else self._motion(one) for one in again]


class MotionFilterStage(DecidingStage[VideoBatch]):
    """Keeps clips in which enough moves: by the scores that `MotionVectorDecodeStage` has added.

    A clip is dropped if its mean is below `global_mean_threshold`, or if in one part of the picture it is below
    `per_patch_min_256_threshold`: subtitles over a still, a slide show. With `score_only` none is.
    `num_gpus_per_worker` and `motion_filter_batch_size` change nothing.
    """

    takes_empty = True
    not_identity: ClassVar[tuple[str, ...]] = ("num_gpus_per_worker", "motion_filter_batch_size", "verbose")
    limit_parameters: ClassVar[tuple[str, ...]] = (
        "global_mean_threshold", "per_patch_min_256_threshold", "score_only",
    )  # fmt: skip

    def __init__(
        self,
        score_only: bool = False,
        global_mean_threshold: float = 0.00098,
        per_patch_min_256_threshold: float = 0.000001,
        num_gpus_per_worker: float = 0,
        motion_filter_batch_size: int = 256,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        for name in ("global_mean_threshold", "per_patch_min_256_threshold"):
            check_not_negative("MotionFilterStage", name, locals()[name])
        self.score_only, self.global_mean_threshold = score_only, global_mean_threshold
        self.per_patch_min_256_threshold, self.num_gpus_per_worker = per_patch_min_256_threshold, num_gpus_per_worker
        self.motion_filter_batch_size, self.verbose = motion_filter_batch_size, verbose

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], dict.fromkeys(MOTION_SCORES, "double")

    def decide(self, batch: VideoBatch) -> Decision:
        scores = {name: as_one_array(batch.data.column(name)).cast(pa.float64()) for name in MOTION_SCORES}
        kept = list(self.judge(scores).values())
        first_drops = np.array(pc.invert(kept[0]).to_pylist(), bool)
        labels = [MOTION_SCORES[0] if drops else MOTION_SCORES[1] for drops in first_drops]
        return Decision(pc.and_(*kept), scores, dropped_by=make_array(labels, pa.string()))

    def apply(self, batch: VideoBatch, decision: Decision) -> VideoBatch:
        return batch.keep(decision.keep)

    def _limits(self) -> dict[str, tuple[str, float]]:
        return {
            GLOBAL_MEAN: ("global_mean_threshold", self.global_mean_threshold),
            PATCH_MIN: ("per_patch_min_256_threshold", self.per_patch_min_256_threshold),
        }

    def rules(self) -> dict[str, Sequence[Rule]]:
        if self.score_only:
            return {}
        return {label: (Rule("", low=limit, low_name=name),) for label, (name, limit) in self._limits().items()}

    def judge(
        self, scores: Mapping[str, pa.Array], measures: Mapping[str, Measures] | None = None
    ) -> dict[str, pa.Array]:
        verdicts: dict[str, Any] = {}
        for label, (_, limit) in self._limits().items():
            if label in scores:
                enough = pc.greater_equal(scores[label], limit).fill_null(self.score_only)
                verdicts[label] = pc.or_(enough, pa.scalar(self.score_only))
        return verdicts

    def thresholds(self) -> dict[str, str]:
        return (
            {} if self.score_only else {label: f"{name}={limit!r}" for label, (name, limit) in self._limits().items()}
        )
