"""FineMath's classifier: how good a page is as a text about mathematics, from 0 to 5."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gristmill.models.text.text_tokenizer import TextTokenizer
from gristmill.samples.batch import DocumentBatch
from gristmill.text.classifiers.fineweb_edu import EducationalValueStage
from gristmill.text.classifiers.text_model_stage import tokenized
from gristmill.text.text_columns import batch_texts


class FineMathClassifier(EducationalValueStage):
    """How well a text teaches mathematics, from 0 to 5, by FineMath's classifier.

    Columns are `finemath_scores`, `finemath_int_scores` and `finemath-score-label`. The model sees `center_crop_chars`
    characters on either side of the centre of a text; the text itself stays whole. None or 0: it sees the beginning.
    """

    default_model, column_prefix = "HuggingFaceTB/finemath-classifier", "finemath"

    def __init__(
        self,
        cache_dir: str | Path | None = None,
        float_score_column: str = "finemath_scores",
        int_score_column: str = "finemath_int_scores",
        text_field: str = "text",
        max_chars: int | None = None,
        sort_by_length: bool = False,
        model_inference_batch_size: int = 1024,
        autocast: bool = True,
        center_crop_chars: int | None = 10_000,
        *,
        filter_by: Sequence[str] | None = None,
        engine: str = "auto",
        model_identifier: str | Path | None = None,
    ) -> None:
        super().__init__(
            cache_dir,
            text_field=text_field,
            filter_by=filter_by,
            max_chars=max_chars,
            sort_by_length=sort_by_length,
            model_inference_batch_size=model_inference_batch_size,
            autocast=autocast,
            engine=engine,
            model_identifier=model_identifier,
            float_score_column=float_score_column,
            int_score_column=int_score_column,
        )
        self.center_crop_chars = center_crop_chars

    def _batch_tokens(self, tokenizer: TextTokenizer, batch: DocumentBatch) -> Any:
        texts = batch_texts(self, batch, self.text_field).to_pylist()
        return tokenized(tokenizer, [None if text is None else self._seen(text) for text in texts])

    def _seen(self, text: str) -> str:
        if not self.center_crop_chars:
            return text
        centre = len(text) // 2
        return text[max(0, centre - self.center_crop_chars) : centre + self.center_crop_chars]
