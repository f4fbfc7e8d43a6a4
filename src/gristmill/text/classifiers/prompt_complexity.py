"""PromptTaskComplexityClassifier: what task a prompt sets, and how complex it is in six dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import InputError
from gristmill.core.stage_roles import ScoringRole
from gristmill.models.text.classifier_heads import ClassifierHead
from gristmill.models.text.text_tokenizer import read_json
from gristmill.samples.batch import DocumentBatch
from gristmill.text.classifiers.text_model_stage import INPUT_ID_FIELD, TextModelStage, rows_of_batches

if TYPE_CHECKING:
    from gristmill.core.stage import Columns
    from gristmill.models.model_loader import Array
    from gristmill.models.text.text_encoder import TextEncoder

SCORE, PROBABILITY, TASKS = "prompt_complexity_score", "task_type_prob", ("task_type_1", "task_type_2")
TASK_TYPE = "task_type"
SHARES = {
    "creativity_scope": 0.35, "reasoning": 0.25, "constraint_ct": 0.15, "domain_knowledge": 0.15,
    "contextual_knowledge": 0.05, "number_of_few_shots": 0.05,
}  # fmt: skip
"""How the dimensions add up to the complexity."""

DIMENSIONS = (
    "creativity_scope", "reasoning", "contextual_knowledge", "number_of_few_shots", "domain_knowledge",
    "no_label_reason", "constraint_ct",
)  # fmt: skip
COLUMNS = (SCORE, *TASKS, PROBABILITY, *DIMENSIONS)
LEAST_SECOND, LEAST_SHOTS = 0.1, 0.05
"""Below these the second task is "NA", and the number of examples 0."""


class PromptTaskComplexityClassifier(TextModelStage, ScoringRole):
    """The task and the complexity of English prompts, by NVIDIA's prompt-task-and-complexity-classifier.

    Adds the two most likely of 11 tasks with the probability of the first, six dimensions from 0 to 1, and their
    weighted sum `prompt_complexity_score`. Rows are not dropped: use `Filter` on a column.
    """

    default_model: ClassVar[str] = "nvidia/prompt-task-and-complexity-classifier"
    _text_encoder: TextEncoder | None = None

    def __init__(
        self,
        cache_dir: str | Path | None = None,
        text_field: str = "text",
        filter_by: Sequence[str] | None = None,
        max_chars: int | None = None,
        sort_by_length: bool = True,
        model_inference_batch_size: int = 256,
        autocast: bool = True,
        keep_tokens: bool = False,
        use_existing_tokens: bool = False,
        engine: str = "auto",
        model_identifier: str | Path | None = None,
    ) -> None:
        if filter_by:
            raise NotImplementedError("PromptTaskComplexityClassifier has no single label: use Filter on its columns")
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

    def _open(self, place: Path) -> None:
        self._head, self._scale = ClassifierHead.read(place), PromptScale.read(place)
        self._text_encoder = self._encoder(place)

    def teardown(self) -> None:
        self._text_encoder = None

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [*COLUMNS, *([INPUT_ID_FIELD] if self.keep_tokens else [])]

    def recorded(self) -> list[str]:
        return [SCORE]

    def process_batch(self, tasks: Sequence[DocumentBatch]) -> list[DocumentBatch]:
        encoder = self._text_encoder
        assert encoder is not None, "loaded by setup"
        tokens = self._tokens(encoder, tasks)
        found = encoder.reduce_rows([row for rows in tokens for row in rows], self._head)
        split = rows_of_batches(found, [len(rows) for rows in tokens])
        return [self._with_columns(*three) for three in zip(tasks, split, tokens, strict=True)]

    def _with_columns(
        self, batch: DocumentBatch, values: Sequence[Array], tokens: Sequence[Sequence[int]]
    ) -> DocumentBatch:
        rows = [self._scale.describe(row) for row in values]
        for name in COLUMNS:
            kind = pa.string() if name in TASKS else pa.float64()
            batch = batch.with_column(name, make_array([row[name] for row in rows], kind))
        return self._with_tokens(batch, tokens)


class PromptScale:
    """What the probabilities of the model's branches mean, as its configuration says."""

    def __init__(self, config: Mapping[str, Any], place: Path) -> None:
        try:
            self.sizes = {name: int(size) for name, size in config["target_sizes"].items()}
            self.tasks = {int(number): str(name) for number, name in config["task_type_map"].items()}
            self.weights = {name: np.array(values, np.float64) for name, values in config["weights_map"].items()}
            self.divisors = {name: float(value) for name, value in config["divisor_map"].items()}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{place}/config.json is not that of a classifier of prompts: {error!r} is missing or wrong"
            ) from error

    @classmethod
    def read(cls, place: Path) -> PromptScale:
        return cls(read_json(place / "config.json"), place)

    def describe(self, probabilities: Array) -> dict[str, Any]:
        """The columns of one prompt, from the probabilities of all branches one after the other."""
        ends = np.cumsum(list(self.sizes.values()))[:-1]
        parts = dict(zip(self.sizes, np.split(probabilities.astype(np.float64), ends), strict=True))
        first, second = np.argsort(-parts[TASK_TYPE], kind="stable")[:2].tolist()
        likely = [round(float(parts[TASK_TYPE][number]), 3) for number in (first, second)]
        row: dict[str, Any] = {name: self._dimension(name, parts[name]) for name in DIMENSIONS}
        row[TASKS[0]], row[PROBABILITY] = self.tasks[first], likely[0]
        row[TASKS[1]] = self.tasks[second] if likely[1] >= LEAST_SECOND else "NA"
        row[SCORE] = round(sum(share * row[name] for name, share in SHARES.items()), 5)
        return row

    def _dimension(self, name: str, probabilities: Array) -> float:
        score = round(float((probabilities * self.weights[name]).sum()) / self.divisors[name], 4)
        return 0.0 if name == "number_of_few_shots" and score < LEAST_SHOTS else score
