"""Filters of clips that use a model of pictures: how pleasing they are, and whether they are unsafe.

A score is made for each of a few frames a second, and reduced to one for the clip. Both work on whole films too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.deciding_stage import Decision
from gristmill.models.score_heads import ScoreHead
from gristmill.samples.model_stages import LoadsAestheticHead, LoadsUnsafeHead, ThresholdScoreStage, unit_rows
from gristmill.video.batch import VideoBatch
from gristmill.video.embedding.frame_model_stage import FrameModelStage
from gristmill.video.filters import MAX, MIN, check_reduction, reduced
from gristmill.video.score import checked_rows

if TYPE_CHECKING:
    from gristmill.core.stage import Columns
    from gristmill.models.model_loader import Array


class _FrameScoreStage(FrameModelStage, ThresholdScoreStage[VideoBatch]):
    """Scores frames, and keeps clips by the reduced score."""

    reduction: str
    _head: ScoreHead | None = None

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.score_field]

    def teardown(self) -> None:
        super().teardown()
        self._head = None

    def decide_batch(self, batches: Sequence[VideoBatch]) -> list[Decision]:
        return [self._decision_on(batch) for batch in batches]

    def _decision_on(self, batch: VideoBatch) -> Decision:
        scores: list[float | None] = []
        for piece in self.pieces(batch):
            outputs = self._run_frames(checked_rows(piece, self.measured(piece)))
            scores += [reduced(self._frame_scores(one), self.reduction) if len(one) else None for one in outputs]
            self.forget_frames(piece, last=len(scores) == batch.num_items)
        column = make_array(scores, pa.float64())
        return Decision(self._kept(column), {self.score_field: column})

    @abstractmethod
    def _frame_scores(self, outputs: Array) -> Array:
        """The score of each frame, from what the model gives."""


class ClipAestheticFilterStage(LoadsAestheticHead, _FrameScoreStage):
    """How pleasing a clip is, from about 1 to 10; keeps the threshold and above.

    It is LAION's predictor, a head on CLIP ViT-L/14, for `target_fps` frames a second; `reduction` makes one score of
    them: "min", "mean", "max" or "median". Models and weights are found as `ImageAestheticFilterStage` finds them.
    """

    def __init__(
        self,
        model_dir: str | Path | None = None,
        score_threshold: float = 0.5,
        reduction: str = MIN,
        target_fps: float = 1.0,
        num_gpus_per_worker: float = 0.25,
        verbose: bool = False,
        model_inference_batch_size: int = 32,
        weights_path: str | Path | None = None,
        score_field: str = "aesthetic_score",
        engine: str = "auto",
    ) -> None:
        super().__init__(model_dir, num_gpus_per_worker, model_inference_batch_size, verbose, engine)
        check_reduction(type(self).__name__, reduction)
        self._set_rate(target_fps)
        self.score_threshold, self.reduction, self.score_field = score_threshold, reduction, score_field
        self.weights_path = None if weights_path is None else str(weights_path)

    def check(self) -> None:
        super().check()
        self.wanted().check()

    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
        super().setup_on_node(node_info, worker_metadata)
        self.wanted().fetch()

    def setup(self, worker_metadata: Any = None) -> None:
        self._find_device(worker_metadata)
        self._head = ScoreHead.read(self._head_file())
        self._load(self.wanted().fetch())

    def _frame_scores(self, outputs: Array) -> Array:
        assert self._head is not None, "loaded by setup"
        return self._head(unit_rows(outputs))


class VideoNSFWFilterStage(LoadsUnsafeHead, _FrameScoreStage):
    """How likely a clip is unsafe for work, from 0 to 1; keeps clips below the threshold.

    `target_fps` frames a second are scored, and the worst counts, unless `reduction` says otherwise. The models are
    those of `ImageNSFWFilterStage`: "open_nsfw" comes with `gristmill[nsfw]`.
    """

    rule = "below"

    def __init__(
        self,
        model_dir: str | Path | None = "open_nsfw",
        score_threshold: float = 0.5,
        reduction: str = MAX,
        target_fps: float = 1.0,
        num_gpus_per_worker: float = 0.25,
        verbose: bool = False,
        model_inference_batch_size: int = 32,
        weights_path: str | Path | None = None,
        score_field: str = "nsfw_score",
        engine: str = "auto",
    ) -> None:
        super().__init__(model_dir or "open_nsfw", num_gpus_per_worker, model_inference_batch_size, verbose, engine)
        check_reduction(type(self).__name__, reduction)
        self._set_rate(target_fps)
        self.score_threshold, self.reduction, self.score_field = score_threshold, reduction, score_field
        self.weights_path = None if weights_path is None else str(weights_path)

    def setup(self, worker_metadata: Any = None) -> None:
        self._find_device(worker_metadata)
        file = self._local_head()
        if file is None:
            self._load(self.wanted().place())
            return
        self._head = ScoreHead.read(file, relu=True, sigmoid=True)
        self._load(self.wanted().fetch())

    def _frame_scores(self, outputs: Array) -> Array:
        return self._probabilities(outputs) if self._head is None else self._head(unit_rows(outputs))
