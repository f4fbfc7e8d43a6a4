"""QAMultilingualSyntheticStage: texts out of nothing but a prompt, in several languages.

The language and the seed of each text are drawn by its number, so that a run with more samples begins with the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.task import EmptyTask
from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.llm_request import FailedRequest
from gristmill.models.llm.llm_stage import LLMStage
from gristmill.models.llm.prompt import Prompt
from gristmill.models.llm.spending import Budget
from gristmill.samples.batch import DocumentBatch
from gristmill.synthetic.lineage_columns import add_lineage, lineage_names

if TYPE_CHECKING:
    from gristmill.core.stage import Columns

ROWS_PER_BATCH = 1000
LANGUAGE = "language"


class QAMultilingualSyntheticStage(LLMStage[EmptyTask, DocumentBatch]):
    """Generates `num_samples` texts by a prompt with `{language}`, each in one of the `languages`; a first stage.

    The texts are in the column `text`, their languages in `language`. Each has a seed of its own, from that of the
    `generation_config` on: give it a temperature above 0, or texts of the same language are the same.
    """

    def __init__(
        self,
        prompt: str = "",
        languages: Sequence[str] = (),
        client: Any = None,
        model_name: str = "",
        num_samples: int = 1,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        *,
        system_prompt: str | None = None,
        lineage: str | None = "synthetic",
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
        if not prompt:
            raise ValueError(f"{self.name}: prompt must be given, a text with {{language}}")
        if isinstance(languages, str) or not languages:
            raise ValueError(f"{self.name}: languages is {languages!r}, must be a list of one or more")
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
            raise ValueError(f"{self.name}: num_samples is {num_samples!r}, must be 1 or more")
        self.prompt, self.languages, self.num_samples = prompt, languages, num_samples
        self.system_prompt, self.lineage = system_prompt, lineage
        self._prompt = Prompt(prompt, system_prompt, "qa_multilingual")
        self.prompt_version = self._prompt.version

    def check(self) -> None:
        super().check()
        self._prompt.check([LANGUAGE])

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["text", LANGUAGE, *lineage_names(self.lineage)]

    def process(self, task: EmptyTask) -> Iterator[DocumentBatch]:
        for start in range(0, self.num_samples, ROWS_PER_BATCH):
            yield self._generated(range(start, min(start + ROWS_PER_BATCH, self.num_samples)))

    def _generated(self, numbers: Sequence[int]) -> DocumentBatch:
        languages = [self.languages[_draw(number, len(self.languages))] for number in numbers]
        filled = [self._prompt.fill({LANGUAGE: language}) for language in languages]
        requests = [self.request(messages, number) for messages, number in zip(filled, numbers, strict=True)]
        texts, kept, made, answers = [], [], [], []
        for language, request, outcome in zip(languages, requests, self.ask(requests), strict=True):
            if isinstance(outcome, FailedRequest):
                self.set_aside(
                    outcome.reason, row={LANGUAGE: language, "sample": request.sample, "raw_answer": outcome.raw}
                )
                continue
            texts.append(outcome.text)
            kept.append(language)
            made.append(request)
            answers.append(outcome)
        columns = [make_array(texts, pa.string()), make_array(kept, pa.string())]
        batch = DocumentBatch(pa.table(columns, names=["text", LANGUAGE]), dataset_name="synthetic")
        return add_lineage(batch, self.lineage, self._prompt, made, answers)


def _draw(number: int, choices: int) -> int:
    return random.Random(number).randrange(choices)  # noqa: S311  the same in every run
