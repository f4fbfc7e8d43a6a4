"""LLMJudgeStage and LLMFilter: models judge documents by a rubric, alone or several of them.

The score of a document is the mean over its criteria and judges. With several judges, their agreement is 1 where all
say the same, and 0 where they are as far apart as the scale allows. Judges answer in JSON; one that does not, even when
asked again, has no say, and a document that no judge could judge goes to quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.deciding_stage import DecidingStage, Decision, Measures, Rule
from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.llm_request import FailedRequest, LLMRequest
from gristmill.models.llm.prompt import Prompt
from gristmill.models.llm.spending import Budget
from gristmill.samples.batch import DocumentBatch
from gristmill.synthetic.conversation import text_of_value
from gristmill.synthetic.prompt_stage import DocumentLLMStage, own_prompt
from gristmill.synthetic.rubric import Rubric

if TYPE_CHECKING:
    from gristmill.core.stage import Columns

Judgement = Mapping[str, float]


class JudgingStage(DocumentLLMStage):
    """Base of stages that ask judges."""

    is_base: ClassVar[bool] = True

    def __init__(
        self,
        rubric: Any = None,
        client: Any = None,
        model_name: str = "",
        judges: Sequence[str] = (),
        input_field: str = "text",
        *,
        prompt: str = "",
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        cache: str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        cache_only: bool = False,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> None:
        models = list(judges) or [model_name]
        super().__init__(
            client,
            models[0],
            generation_config,
            cache=cache,
            cache_options=cache_options,
            cache_only=cache_only,
            budget=budget,
        )
        if rubric is None:
            raise ValueError(f"{self.name}: rubric must be given: a YAML file, a mapping, or a criterion in words")
        self.rubric, self.judges, self.model_name = rubric, judges, model_name
        self.input_field, self.prompt = input_field, prompt
        self._models, self._rubric = models, Rubric.of(rubric)
        self.schema = self._rubric.schema()
        self.rubric_text = self._rubric.text()
        self._prompt = Prompt(prompt or own_prompt("judge"), name="" if prompt else "judge")
        self.prompt_version = self._prompt.version

    def check(self) -> None:
        super().check()
        self._prompt.check(["document", "rubric"], needed=["document", "rubric"])

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.input_field]

    def judge_texts(self, texts: Sequence[str]) -> list[list[Judgement | FailedRequest]]:
        """What each judge says of each text."""
        requests = [request for text in texts for request in self._requests(text)]
        outcomes = iter(self.ask(requests))
        found = []
        for _ in texts:
            said = [next(outcomes) for _ in self._models]
            found.append([one if isinstance(one, FailedRequest) else one.value for one in said])
        return found

    def _requests(self, text: str) -> list[LLMRequest]:
        messages = self._prompt.fill({"document": text, "rubric": self.rubric_text})
        return [self.request(messages, model=model) for model in self._models]

    def documents_of(self, batch: DocumentBatch) -> list[str]:
        """The texts to judge; of conversations, all that was said."""
        rows = batch.to_rows()
        return [text_of_value(row.get(self.input_field)) for row in rows]

    def mean_score(self, judgements: Sequence[Judgement]) -> float | None:
        return _mean([self._rubric.score(one) for one in judgements])

    def agreement(self, judgements: Sequence[Judgement]) -> float | None:
        """How near judges are to each other, from 0 to 1; null with fewer than two."""
        low, high = self._rubric.scale
        gaps = [
            abs(one[name] - other[name]) / (high - low)
            for one, other in combinations(judgements, 2)
            for name in self._rubric.criteria
        ]
        return 1 - sum(gaps) / len(gaps) if gaps else None


class LLMJudgeStage(JudgingStage):
    """Has models judge documents by a rubric: `judge_score`, a column for each criterion, and `judge_agreement`.

    `rubric` is a YAML file, a mapping with `criteria` and `scale`, or one criterion in words. `judges` are names of
    models, in place of `model_name`. Columns begin with `prefix`.
    """

    def __init__(
        self,
        rubric: Any = None,
        client: Any = None,
        model_name: str = "",
        judges: Sequence[str] = (),
        input_field: str = "text",
        prefix: str = "judge",
        *,
        prompt: str = "",
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        cache: str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        cache_only: bool = False,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            rubric,
            client,
            model_name,
            judges,
            input_field,
            prompt=prompt,
            generation_config=generation_config,
            cache=cache,
            cache_options=cache_options,
            cache_only=cache_only,
            budget=budget,
        )
        self.prefix = prefix

    def outputs(self) -> tuple[list[str], Columns]:
        names = ["score", "agreement", *self._rubric.criteria]
        return ["data"], [f"{self.prefix}_{name}" for name in names]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        said = self.judge_texts(self.documents_of(task))
        failed = [all_failed(one) for one in said]
        judged = [[one for one in row if not isinstance(one, FailedRequest)] for row in said]
        batch, _ = self.set_aside_failed(task, failed)
        judged = [row for row, failure in zip(judged, failed, strict=True) if failure is None]
        columns: dict[str, list[float | None]] = {
            "score": [self.mean_score(row) for row in judged],
            "agreement": [self.agreement(row) for row in judged],
            **{name: [_mean([one[name] for one in row]) for row in judged] for name in self._rubric.criteria},
        }
        for name, values in columns.items():
            batch = batch.with_column(f"{self.prefix}_{name}", make_array(values, pa.float64()))
        return batch


class LLMFilter(JudgingStage, DecidingStage[DocumentBatch]):
    """Keeps documents that models judge to be good: whose mean score by a rubric is `min_score` or more.

    `rubric` may be one criterion in words: `LLMFilter("The text explains something.", min_score=3, ...)`. With
    `score_field`, scores are kept in that column.
    """

    limit_parameters: ClassVar[tuple[str, ...]] = ("min_score",)

    def __init__(
        self,
        rubric: Any = None,
        min_score: float = 3.0,
        client: Any = None,
        model_name: str = "",
        judges: Sequence[str] = (),
        input_field: str = "text",
        score_field: str | None = None,
        *,
        prompt: str = "",
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        cache: str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        cache_only: bool = False,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            rubric,
            client,
            model_name,
            judges,
            input_field,
            prompt=prompt,
            generation_config=generation_config,
            cache=cache,
            cache_options=cache_options,
            cache_only=cache_only,
            budget=budget,
        )
        self.min_score, self.score_field = min_score, score_field

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.score_field] if self.score_field else []

    def decide(self, batch: DocumentBatch) -> Decision:
        said = self.judge_texts(self.documents_of(batch))
        failed = [all_failed(one) for one in said]
        self._report_failed(batch, failed)
        scores = [self.mean_score([one for one in row if not isinstance(one, FailedRequest)]) for row in said]
        keep = [score is not None and score >= self.min_score for score in scores]
        aside = make_array([failure is not None for failure in failed], pa.bool_())
        return Decision(
            make_array(keep, pa.bool_()), {self._rubric.name: make_array(scores, pa.float64())}, aside=aside
        )

    def _report_failed(self, batch: DocumentBatch, failed: Sequence[FailedRequest | None]) -> None:
        if not any(failed):
            return
        file = batch.metadata.get(SOURCE_FILE)
        for row, failure in zip(batch.to_rows(), failed, strict=True):
            if failure is not None:
                position = row.pop(POSITION, None)
                self.set_aside(failure.reason, row={**row, "raw_answer": failure.raw}, file=file, position=position)

    def apply(self, batch: DocumentBatch, decision: Decision) -> DocumentBatch:
        if self.score_field:
            batch = batch.with_column(self.score_field, decision.scores[self._rubric.name])
        return batch.keep(decision.keep)

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return self.apply(task, self.decide(task))

    def thresholds(self) -> dict[str, str]:
        return {self._rubric.name: f"min_score={self.min_score:g}"}

    def rules(self) -> dict[str, Sequence[Rule]]:
        return {self._rubric.name: [Rule("", low=float(self.min_score), low_name="min_score")]}

    def judge(
        self, scores: Mapping[str, pa.Array], measures: Mapping[str, Measures] | None = None
    ) -> dict[str, pa.Array] | None:
        [rule] = self.rules()[self._rubric.name]
        return {name: rule.holds(column) for name, column in scores.items() if name == self._rubric.name}


def all_failed(said: Sequence[Judgement | FailedRequest]) -> FailedRequest | None:
    """The first failure, if no judge has answered."""
    failures = [one for one in said if isinstance(one, FailedRequest)]
    return failures[0] if len(failures) == len(said) else None


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None
