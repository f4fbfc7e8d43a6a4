"""Clean up the chunks of documents with a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.stage import Columns
from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.llm_request import Answer
from gristmill.models.llm.llm_stage import LLMStage
from gristmill.models.llm.spending import Budget
from gristmill.samples.batch import DocumentBatch
from gristmill.text.text_columns import text_column


class LLMCleanupStage(LLMStage[DocumentBatch, DocumentBatch]):
    """Lets a language model rewrite each text, by `system_prompt`, into `output_field`.

    `{text}` in the prompt is replaced by the text; without it, the text is the message of the user. A row without an
    answer goes to quarantine. `filter_by_n_tokens` leaves out rows whose `n_tokens_field` is above `max_model_len`.
    """

    def __init__(
        self,
        model: str,
        system_prompt: str,
        client: Any = None,
        text_field: str = "text",
        output_field: str = "cleaned_text",
        temperature: float = 0.7,
        top_p: float = 0.8,
        top_k: int | None = 20,
        *,
        max_model_len: int | None = None,
        max_tokens: int | None = None,
        filter_by_n_tokens: bool = False,
        n_tokens_field: str = "n_tokens",
        cache: str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        cache_only: bool = False,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.system_prompt = model, system_prompt
        self.text_field, self.output_field = text_field, output_field
        self.temperature, self.top_p, self.top_k, self.max_tokens = temperature, top_p, top_k, max_tokens
        self.max_model_len, self.n_tokens_field = max_model_len, n_tokens_field
        self.filter_by_n_tokens = filter_by_n_tokens
        config = GenerationConfig(max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k)
        answers: dict[str, Any] = {"cache": cache, "cache_options": cache_options, "cache_only": cache_only}
        super().__init__(client, model, config, budget=budget, **answers)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.output_field]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        task = self._short_enough(task)
        texts = text_column(self, task.data, self.text_field).to_pylist()
        answers = self.ask([self.request(self._messages(text or "")) for text in texts])
        good = [at for at, answer in enumerate(answers) if isinstance(answer, Answer)]
        for at, answer in enumerate(answers):
            if not isinstance(answer, Answer):
                row = table_to_rows(task.data.slice(at, 1))[0]
                position = row.pop(POSITION, None)
                self.set_aside(answer.reason, row=row, file=task.metadata.get(SOURCE_FILE), position=position)
        kept = task if len(good) == len(answers) else task.take(good)
        cleaned = [answer.text for answer in answers if isinstance(answer, Answer)]
        return kept.with_column(self.output_field, make_array(cleaned, pa.string()))

    def _short_enough(self, task: DocumentBatch) -> DocumentBatch:
        if not self.filter_by_n_tokens or self.max_model_len is None:
            return task
        counts: Sequence[int | None] = task.data.column(self.n_tokens_field).to_pylist()
        kept = [at for at, count in enumerate(counts) if count is None or count <= self.max_model_len]
        self.count("too_long", len(counts) - len(kept))
        return task.take(kept)

    def _messages(self, text: str) -> list[dict[str, str]]:
        if "{text}" in self.system_prompt:
            return [{"role": "user", "content": self.system_prompt.replace("{text}", text)}]
        return [{"role": "system", "content": self.system_prompt}, {"role": "user", "content": text}]
