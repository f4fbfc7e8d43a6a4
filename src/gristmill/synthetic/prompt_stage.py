"""PromptStage: fills a prompt with each document, and keeps the answer in a column.

The other stages here are built on it. A row whose request fails goes to quarantine with what came instead of an answer;
the others of its batch go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, make_array
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import ColumnError
from gristmill.core.records.selection_counts import SELECTED, ValueNotes, nothing_selected, without_notes
from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.llm_request import Answer, FailedRequest, LLMRequest
from gristmill.models.llm.llm_stage import LLMStage
from gristmill.models.llm.prompt import Prompt
from gristmill.models.llm.spending import Budget
from gristmill.samples.batch import DocumentBatch
from gristmill.synthetic.lineage_columns import add_lineage, lineage_names

if TYPE_CHECKING:
    from gristmill.core.stage import Columns

OWN_PROMPTS = Path(__file__).with_name("prompts")
_DOCUMENT = ("document", "text")
"""The variables that stand for the input of a stage."""


def own_prompt(name: str) -> str:
    """The text of a prompt that comes with Gristmill."""
    return (OWN_PROMPTS / f"{name}.md").read_text(encoding="utf-8")


class DocumentLLMStage(LLMStage[DocumentBatch, DocumentBatch]):
    """Base of stages that ask a model about documents."""

    is_base: ClassVar[bool] = True

    def set_aside_failed(
        self, batch: DocumentBatch, outcomes: Sequence[Answer | FailedRequest | None]
    ) -> tuple[DocumentBatch, list[Answer | None]]:
        """The rows without a failed request, each with its answer; the others are in quarantine."""
        good = [index for index, outcome in enumerate(outcomes) if not isinstance(outcome, FailedRequest)]
        answers = [outcome for outcome in outcomes if not isinstance(outcome, FailedRequest)]
        if len(good) == len(outcomes):
            return batch, answers
        rows, file = batch.to_rows(), batch.metadata.get(SOURCE_FILE)
        for row, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, FailedRequest):
                position = row.pop(POSITION, None)
                raw = {"raw_answer": outcome.raw} if outcome.raw else {}
                self.set_aside(outcome.reason, row={**row, **raw}, file=file, position=position)
        return batch.take(good), answers

    def texts_of(self, batch: DocumentBatch, field: str) -> list[str | None]:
        """A column as texts; values of other types are written as text."""
        if field not in batch.get_columns():
            raise ColumnError(f"stage {self.name!r} needs the column {field!r}, which this batch does not have")
        values = as_one_array(batch.data.column(field)).to_pylist()
        return [value if value is None or isinstance(value, str) else str(value) for value in values]


class PromptStage(DocumentLLMStage):
    """Fills a prompt with each document and keeps the answer in a column.

    `prompt` is a text, or a file that ends with .md or .txt; `{{ document }}` stands for `input_field`, and other
    variables for columns of their names. With `select={"bucket": ["low"]}`, only rows with one of these values are
    asked about, and the others pass with null. Null and blank documents are not asked about. The columns that begin
    with `lineage` say where an answer comes from.
    """

    prompt: str = ""
    system_prompt: str | None = None
    input_field: str = "text"
    output_field: str = "generated"
    _prompt_name: ClassVar[str] = ""
    """The file with the default prompt."""

    def __init__(
        self,
        prompt: str = "",
        client: Any = None,
        model_name: str = "",
        input_field: str = "text",
        output_field: str = "generated",
        *,
        system_prompt: str | None = None,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        select: Mapping[str, Sequence[Any]] | None = None,
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
        self.prompt, self.system_prompt = prompt, system_prompt
        self.input_field, self.output_field = input_field, output_field
        self.select, self.lineage = select, lineage
        self._values = ValueNotes()
        name = "" if prompt else self._prompt_name
        if not prompt and not name:
            raise ValueError(f"{self.name}: prompt must be given, a text with {{{{ document }}}} or a file")
        self._prompt = Prompt(prompt or own_prompt(name), system_prompt, name)
        self.prompt_version = self._prompt.version
        self._columns = sorted(self._prompt.variables() - set(_DOCUMENT))

    def check(self) -> None:
        super().check()
        self._prompt.check([*_DOCUMENT, *self._columns])
        if not any(self._prompt.contains(name) for name in (*_DOCUMENT, *self._columns)):
            self._prompt.check(_DOCUMENT, ["document"])

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.input_field, *self._columns, *(self.select or ())]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.output_field, *lineage_names(self.lineage)]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        requests = self.requests_for(task)
        kept, answers = self.set_aside_failed(task, self.ask_some(requests))
        texts = [answer.text if answer is not None else None for answer in answers]
        kept = kept.with_column(self.output_field, make_array(texts, pa.string()))
        return add_lineage(kept, self.lineage, self._prompt, *_aligned(requests, answers))

    # -- for subclasses --------------------------------------------------------------------------------

    def requests_for(self, batch: DocumentBatch) -> list[LLMRequest | None]:
        """The request for each row; None for one that is not to be asked about."""
        wanted = self._selected(batch)
        documents = self.texts_of(batch, self.input_field)
        others = {name: self.texts_of(batch, name) for name in self._columns}
        requests: list[LLMRequest | None] = []
        for row, (document, asked) in enumerate(zip(documents, wanted, strict=True)):
            if not asked or not document or document.isspace():
                requests.append(None)
                continue
            values = {name: texts[row] or "" for name, texts in others.items()}
            messages = self._prompt.fill({**dict.fromkeys(_DOCUMENT, document), **values})
            requests.append(self.request(messages))
        return requests

    def ask_some(self, requests: Sequence[LLMRequest | None]) -> list[Answer | FailedRequest | None]:
        """The outcome of each request; None where there is none."""
        outcomes = iter(self.ask([request for request in requests if request is not None]))
        return [None if request is None else next(outcomes) for request in requests]

    def _selected(self, batch: DocumentBatch) -> list[bool]:
        chosen, seen = [True] * batch.num_items, {}
        for field, values in (self.select or {}).items():
            texts, wanted = self.texts_of(batch, field), {str(value) for value in values}
            chosen = [before and text in wanted for before, text in zip(chosen, texts, strict=True)]
            seen[field] = texts
        if self.select and any(chosen):
            self.count(SELECTED, sum(chosen))
        else:
            for field, texts in seen.items():
                self._values.note(field, texts, self.count)
        return chosen

    def displayed_counts(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        return without_notes(super().displayed_counts(counts))

    def run_warning(self, stats: Any) -> str | None:
        counts = stats.counts if stats.raw is None else stats.raw
        return nothing_selected(self.name, self.select or {}, counts)


def _aligned(
    requests: Sequence[LLMRequest | None], answers: Sequence[Answer | None]
) -> tuple[list[LLMRequest | None], Sequence[Answer | None]]:
    """The requests of the rows that are left, beside their answers."""
    by_key = {request.key: request for request in requests if request is not None}
    return [by_key.get(answer.key) if answer is not None else None for answer in answers], answers
