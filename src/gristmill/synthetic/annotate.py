"""AnnotateStage: labels by a model, such as those that a small classifier is trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.llm_request import Answer, FailedRequest, LLMRequest
from gristmill.models.llm.prompt import Prompt
from gristmill.models.llm.spending import Budget
from gristmill.samples.batch import DocumentBatch
from gristmill.synthetic.prompt_stage import DocumentLLMStage, own_prompt

if TYPE_CHECKING:
    from gristmill.core.stage import Columns


class AnnotateStage(DocumentLLMStage):
    """Has a model choose one of `labels` for each document.

    `labels` are names, or names with what they mean. With `votes` above 1 the model is asked so often, each time with
    another seed, and the label that comes most often is taken (of several, the one that stands first in `labels`);
    `label_agreement` is its share. `max_chars` is how much of a document the model sees; the document stays whole.
    """

    _prompt_name: ClassVar[str] = "annotate"

    def __init__(
        self,
        labels: Sequence[str] | Mapping[str, str] = (),
        client: Any = None,
        model_name: str = "",
        question: str = "Which label fits the text best?",
        *,
        input_field: str = "text",
        label_field: str = "label",
        votes: int = 1,
        max_chars: int | None = None,
        prompt: str = "",
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        cache: str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        cache_only: bool = False,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            client,
            model_name,
            generation_config,
            cache=cache,
            cache_options=cache_options,
            cache_only=cache_only,
            budget=budget,
        )
        if isinstance(labels, str) or len(labels) < 2 or len(set(labels)) < len(labels):
            raise ValueError(f"{self.name}: labels is {labels!r:.200}, must be two or more different names")
        if votes < 1:
            raise ValueError(f"{self.name}: votes is {votes!r}, must be 1 or more")
        self.labels, self.question, self.input_field, self.label_field = labels, question, input_field, label_field
        self.votes, self.max_chars, self.prompt = votes, max_chars, prompt
        self._names = list(labels)
        meanings = [f"- {name}: {labels[name]}" if isinstance(labels, Mapping) else f"- {name}" for name in self._names]
        self._fixed = {"labels": "\n".join(meanings), "question": question}
        self._prompt = Prompt(prompt or own_prompt(self._prompt_name), name="" if prompt else self._prompt_name)
        self.prompt_version = self._prompt.version
        chosen = {"type": "string", "enum": self._names}
        self.schema = {"type": "object", "properties": {"label": chosen}, "required": ["label"]}

    def check(self) -> None:
        super().check()
        self._prompt.check(["document", "labels", "question"], needed=["document"])

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.input_field]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.label_field, f"{self.label_field}_agreement"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        requests = [request for text in self.texts_of(task, self.input_field) for request in self._requests(text or "")]
        outcomes = self.ask(requests)
        voted = [self._voted(outcomes[at : at + self.votes]) for at in range(0, len(outcomes), self.votes)]
        failed = [vote if isinstance(vote, FailedRequest) else None for vote in voted]
        batch, _ = self.set_aside_failed(task, failed)
        kept = [vote for vote in voted if not isinstance(vote, FailedRequest)]
        batch = batch.with_column(self.label_field, make_array([label for label, _ in kept], pa.string()))
        return batch.with_column(
            f"{self.label_field}_agreement", make_array([share for _, share in kept], pa.float64())
        )

    def _requests(self, text: str) -> list[LLMRequest]:
        messages = self._prompt.fill({**self._fixed, "document": text[: self.max_chars]})
        return [self.request(messages, number) for number in range(self.votes)]

    def _voted(self, outcomes: Sequence[Answer | FailedRequest]) -> tuple[str, float] | FailedRequest:
        labels = [outcome.value["label"] for outcome in outcomes if isinstance(outcome, Answer)]
        if not labels:
            return next(outcome for outcome in outcomes if isinstance(outcome, FailedRequest))
        counts = Counter(labels)
        best = max(self._names, key=lambda name: counts[name])
        return best, counts[best] / len(labels)
