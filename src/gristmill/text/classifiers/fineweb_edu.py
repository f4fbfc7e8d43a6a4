"""Classifiers of the educational value of text, from 0 to 5: FineWeb-Edu's, and two by NVIDIA trained like it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.text.classifiers.distributed_data import LabelStage

if TYPE_CHECKING:
    from gristmill.models.model_loader import Array

HIGH, LOW, THRESHOLD = "high_quality", "low_quality", 2.5


class EducationalValueStage(LabelStage):
    """Scores text by a regression: columns for the score, from 0 to 5, the nearest whole number, and the label."""

    is_base: ClassVar[bool] = True
    default_model: ClassVar[str]
    column_prefix: ClassVar[str]

    def __init__(
        self,
        cache_dir: str | Path | None = None,
        label_field: str | None = None,
        float_score_field: str | None = None,
        int_score_field: str | None = None,
        text_field: str = "text",
        filter_by: Sequence[str] | None = None,
        max_chars: int | None = None,
        sort_by_length: bool = True,
        model_inference_batch_size: int = 256,
        autocast: bool = True,
        *,
        keep_tokens: bool = False,
        use_existing_tokens: bool = False,
        engine: str = "auto",
        model_identifier: str | Path | None = None,
        float_score_column: str | None = None,
        int_score_column: str | None = None,
    ) -> None:
        super().__init__(
            model_identifier or self.default_model,
            cache_dir,
            text_field=text_field,
            max_chars=max_chars,
            max_seq_length=512,
            sort_by_length=sort_by_length,
            model_inference_batch_size=model_inference_batch_size,
            autocast=autocast,
            keep_tokens=keep_tokens,
            use_existing_tokens=use_existing_tokens,
            engine=engine,
        )
        self.filter_by = filter_by
        self.label_field = label_field or f"{self.column_prefix}-score-label"
        self.float_score_field = float_score_field or float_score_column or f"{self.column_prefix}-score-float"
        self.int_score_field = int_score_field or int_score_column or f"{self.column_prefix}-score-int"
        self.float_score_column, self.int_score_column = self.float_score_field, self.int_score_field

    def _column_names(self) -> list[str]:
        return [self.float_score_field, self.int_score_field, self.label_field]

    def _label_columns(self, values: Sequence[Array]) -> dict[str, pa.Array]:
        raw = [float(row[0]) for row in values]
        scores = [min(5.0, max(0.0, one)) for one in raw]
        return {
            self.float_score_field: make_array(scores, pa.float64()),
            self.int_score_field: make_array([int(np.rint(one)) for one in scores], pa.int64()),
            self.label_field: make_array([HIGH if one >= THRESHOLD else LOW for one in raw], pa.string()),
        }

    def _score_names(self) -> list[str]:
        return [self.float_score_field, self.label_field]


class FineWebEduClassifier(EducationalValueStage):
    """The educational value of English text, from 0 to 5, by FineWeb-Edu's classifier; 2.5 and above is high_quality.

    Columns are `fineweb-edu-score-float`, `-int` and `-label`. `filter_by=["high_quality"]` keeps that label.
    """

    default_model, column_prefix = "HuggingFaceFW/fineweb-edu-classifier", "fineweb-edu"


class FineWebMixtralEduClassifier(EducationalValueStage):
    """The educational value of English text, from 0 to 5, as Mixtral 8x22B annotates it, by NVIDIA's classifier.

    Columns are `fineweb-mixtral-edu-score-float`, `-int` and `-label`.
    """

    default_model, column_prefix = "nvidia/nemocurator-fineweb-mixtral-edu-classifier", "fineweb-mixtral-edu"


class FineWebNemotronEduClassifier(EducationalValueStage):
    """The educational value of English text, from 0 to 5, as Nemotron-4-340B annotates it, by NVIDIA's classifier.

    Columns are `fineweb-nemotron-edu-score-float`, `-int` and `-label`.
    """

    default_model, column_prefix = "nvidia/nemocurator-fineweb-nemotron-4-edu-classifier", "fineweb-nemotron-edu"
