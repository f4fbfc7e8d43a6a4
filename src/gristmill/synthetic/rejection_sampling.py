"""RejectionSamplingStage: several answers to each prompt, a judge, and only the best is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.llm_request import Answer, FailedRequest, LLMRequest
from gristmill.models.llm.prompt import Prompt
from gristmill.models.llm.spending import Budget
from gristmill.models.llm.structured_output import schema_of
from gristmill.samples.batch import DocumentBatch
from gristmill.synthetic.lineage_columns import add_lineage, lineage_names
from gristmill.synthetic.prompt_stage import DocumentLLMStage, own_prompt
from gristmill.synthetic.rubric import Rubric

if TYPE_CHECKING:
    from gristmill.core.stage import Columns

_Chosen = tuple[LLMRequest, Answer, float]
"""A request, its answer, and the score of that."""

JUDGE_CONFIG = GenerationConfig(max_tokens=256)


class RejectionSamplingStage(DocumentLLMStage):
    """Has a model answer each document's prompt `num_samples` times, judges the answers, and keeps the best.

    The best answer is in `output_field`, its score in `score_field`; of answers with equal scores the first is taken.
    Rows whose best answer is below `min_score` are dropped. Answers that are cut at `max_tokens` are not taken unless
    there is no other. `judge_model` judges; without one, the model itself. `judge_prompt` may use `{{ document }}`,
    `{{ answer }}` and `{{ rubric }}`.
    """

    def __init__(
        self,
        prompt: str = "{{ document }}",
        rubric: Any = "The answer is correct, complete and clear.",
        client: Any = None,
        model_name: str = "",
        num_samples: int = 4,
        min_score: float | None = None,
        *,
        judge_model: str = "",
        judge_prompt: str = "",
        input_field: str = "text",
        output_field: str = "answer",
        score_field: str = "answer_score",
        system_prompt: str | None = None,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        judge_config: GenerationConfig | Mapping[str, Any] | None = None,
        lineage: str | None = "synthetic",
        cache: str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        cache_only: bool = False,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> None:
        if generation_config is None:
            generation_config = GenerationConfig(temperature=0.8)
        super().__init__(
            client,
            model_name,
            generation_config,
            cache=cache,
            cache_options=cache_options,
            cache_only=cache_only,
            budget=budget,
        )
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
            raise ValueError(f"{self.name}: num_samples is {num_samples!r}, must be 1 or more")
        self.prompt, self.rubric, self.num_samples, self.min_score = prompt, rubric, num_samples, min_score
        self.judge_model, self.judge_prompt, self.judge_config = judge_model, judge_prompt, judge_config
        self.input_field, self.output_field, self.score_field = input_field, output_field, score_field
        self.system_prompt, self.lineage = system_prompt, lineage
        self._rubric, self._prompt = Rubric.of(rubric), Prompt(prompt, system_prompt, "rejection_sampling")
        self.rubric_text = self._rubric.text()
        self._judge_prompt = Prompt(judge_prompt or own_prompt("judge_answer"), name="judge_answer")
        self.prompt_version = f"{self._prompt.version} {self._judge_prompt.version}"
        self._judge_config = JUDGE_CONFIG if judge_config is None else GenerationConfig.of(judge_config)

    def check(self) -> None:
        super().check()
        self._prompt.check(["document"], needed=["document"])
        self._judge_prompt.check(["document", "answer", "rubric"], needed=["answer", "rubric"])

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.input_field]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.output_field, self.score_field, *lineage_names(self.lineage)]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        documents = [text or "" for text in self.texts_of(task, self.input_field)]
        requests = [self._samples(document) for document in documents]
        best = self._best(documents, requests, self._asked(requests))
        batch, _ = self.set_aside_failed(task, [one if isinstance(one, FailedRequest) else None for one in best])
        chosen = [one for one in best if not isinstance(one, FailedRequest)]
        enough = [index for index, one in enumerate(chosen) if self.min_score is None or one[2] >= self.min_score]
        batch, chosen = batch.take(enough), [chosen[index] for index in enough]
        batch = batch.with_column(self.output_field, make_array([answer.text for _, answer, _ in chosen], pa.string()))
        batch = batch.with_column(self.score_field, make_array([score for _, _, score in chosen], pa.float64()))
        asked, answers = [request for request, _, _ in chosen], [answer for _, answer, _ in chosen]
        return add_lineage(batch, self.lineage, self._prompt, asked, answers)

    def _samples(self, document: str) -> list[LLMRequest]:
        messages = self._prompt.fill({"document": document})
        return [self.request(messages, number) for number in range(self.num_samples)]

    def _asked(self, requests: Sequence[Sequence[LLMRequest]]) -> list[list[Answer | FailedRequest]]:
        outcomes = iter(self.ask([request for samples in requests for request in samples]))
        return [[next(outcomes) for _ in samples] for samples in requests]

    def _best(
        self,
        documents: Sequence[str],
        requests: Sequence[Sequence[LLMRequest]],
        outcomes: Sequence[Sequence[Answer | FailedRequest]],
    ) -> list[_Chosen | FailedRequest]:
        judged = [self._to_judge(*row) for row in zip(documents, requests, outcomes, strict=True)]
        verdicts = iter(self.ask([judgement for row in judged for judgement, _, _ in row]))
        found: list[_Chosen | FailedRequest] = []
        for row, row_outcomes in zip(judged, outcomes, strict=True):
            scored: list[_Chosen] = []
            failures = [outcome for outcome in row_outcomes if isinstance(outcome, FailedRequest)]
            for _, request, answer in row:
                verdict = next(verdicts)
                if isinstance(verdict, FailedRequest):
                    failures.append(verdict)
                else:
                    scored.append((request, answer, self._rubric.score(verdict.value)))
            found.append(max(scored, key=lambda one: one[2]) if scored else failures[0])
        return found

    def _to_judge(
        self, document: str, samples: Sequence[LLMRequest], outcomes: Sequence[Answer | FailedRequest]
    ) -> list[tuple[LLMRequest, LLMRequest, Answer]]:
        """The judgement to ask for of each answer, with its request: of whole answers, if there are any."""
        pairs = zip(samples, outcomes, strict=True)
        answered = [(request, answer) for request, answer in pairs if isinstance(answer, Answer)]
        whole = [(request, answer) for request, answer in answered if not answer.is_cut]
        return [(self._judgement(document, answer.text), request, answer) for request, answer in whole or answered]

    def _judgement(self, document: str, text: str) -> LLMRequest:
        messages = self._judge_prompt.fill({"document": document, "answer": text, "rubric": self.rubric_text})
        model = self.judge_model or self.model_name
        return LLMRequest(model, messages, self._judge_config, schema_of(self._rubric.schema()))
