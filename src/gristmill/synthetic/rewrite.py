"""RewriteStage: better texts instead of bad ones, and no row is lost.

A rewritten text that is no use (a refusal, much too short or long, a loop) is not taken: the row keeps its own text,
and the reason is in `rewrite_problem`. So does a row whose request fails for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import printable
from gristmill.models.llm.failure_watch import FailureWatch, refused_error
from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.llm_request import Answer, FailedRequest
from gristmill.models.llm.spending import Budget
from gristmill.samples.batch import DocumentBatch
from gristmill.synthetic.answer_checks import problem_with, strip_opening
from gristmill.synthetic.before_after import BeforeAfterSamples
from gristmill.synthetic.lineage_columns import add_lineage, lineage_names, row_names
from gristmill.synthetic.prompt_stage import PromptStage

if TYPE_CHECKING:
    from gristmill.core.stage import Columns

ORIGINAL, PROBLEM = "original_text", "rewrite_problem"
Output = Literal["replace", "append", "column"]
OUTPUTS: tuple[Output, ...] = ("replace", "append", "column")

_BECAUSE, _REFUSED = "not_rewritten_because: ", "refused_requests"
_REASONS = 8
"""How many reasons are counted, of which there may be any number."""
_WAY_OUT = "Change what it does not accept (model_name, generation_config, prompt), and start again"
_ALLOW = "allow_failures=True keeps all rows as they are instead"


class RewriteStage(PromptStage):
    """Has a model rewrite documents, such as those of a low bucket. The original row is never lost.

    `output="replace"` puts the new text into `input_field` and the old one into `original_text`; `"append"` adds a row
    with the new text after that of the old one; `"column"` puts it into `output_field`. With
    `select={"bucket": ["low"]}` only those rows are rewritten. A new text must have between `min_length_ratio` and
    `max_length_ratio` of the old one's length, be no refusal and no loop, and not be cut at `max_tokens` (unless
    `keep_cut`); otherwise the row stays as it is, with the reason in `rewrite_problem`. If the endpoint refuses the
    first 20 requests of a worker, or all of the run, the run fails, unless `allow_failures`.
    """

    _prompt_name: ClassVar[str] = "rewrite"
    not_identity: ClassVar[tuple[str, ...]] = (*PromptStage.not_identity, "allow_failures")

    def __init__(
        self,
        client: Any = None,
        model_name: str = "",
        prompt: str = "",
        input_field: str = "text",
        output_field: str = "rewritten",
        output: Output = "replace",
        *,
        system_prompt: str | None = None,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        select: Mapping[str, Sequence[Any]] | None = None,
        min_length_ratio: float | None = 0.2,
        max_length_ratio: float | None = 4.0,
        keep_cut: bool = False,
        allow_failures: bool = False,
        lineage: str | None = "synthetic",
        cache: str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        cache_only: bool = False,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            prompt,
            client,
            model_name,
            input_field,
            output_field,
            system_prompt=system_prompt,
            generation_config=generation_config,
            select=select,
            lineage=lineage,
            cache=cache,
            cache_options=cache_options,
            cache_only=cache_only,
            budget=budget,
        )
        if output not in OUTPUTS:
            raise ValueError(f"RewriteStage: output is {output!r}, must be one of {', '.join(OUTPUTS)}")
        self._samples: BeforeAfterSamples | None = None
        self._reasons: set[str] = set()
        self.output, self.keep_cut, self.allow_failures = output, keep_cut, allow_failures
        self.min_length_ratio, self.max_length_ratio = min_length_ratio, max_length_ratio

    def outputs(self) -> tuple[list[str], Columns]:
        own = {"replace": [self.input_field, ORIGINAL], "append": [self.input_field], "column": [self.output_field]}
        return ["data"], [*own[self.output], PROBLEM, *lineage_names(self.lineage)]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        requests = self.requests_for(task)
        outcomes = self.ask_some(requests)
        documents = self.texts_of(task, self.input_field)
        judged = [self._judged(outcome, document or "") for outcome, document in zip(outcomes, documents, strict=True)]
        texts = [text for text, _ in judged]
        self.count("rewritten", sum(text is not None for text in texts))
        task = task.with_column(PROBLEM, make_array([problem for _, problem in judged], pa.string()))
        answers = [
            outcome if text is not None and isinstance(outcome, Answer) else None
            for outcome, text in zip(outcomes, texts, strict=True)
        ]
        self._keep_samples(row_names(task), documents, texts)
        task = add_lineage(task, self.lineage, self._prompt, requests, answers, row_names(task))
        return self._with_texts(task, documents, texts)

    def _keep_samples(
        self, names: Sequence[str | None], documents: Sequence[str | None], texts: Sequence[str | None]
    ) -> None:
        url, options, _ = self._records
        if not url or self._dry is not None:
            return
        if self._samples is None:
            self._samples = BeforeAfterSamples(self.name, url, options)
        self._samples.add(names, documents, texts)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_samples": None}

    def _judged(self, outcome: Answer | FailedRequest | None, document: str) -> tuple[str | None, str | None]:
        """The new text, and what is wrong with it."""
        if outcome is None:
            return None, None
        if isinstance(outcome, FailedRequest):
            self._count_problem(outcome.reason)
            if outcome.final:
                self.count(_REFUSED)
            return None, outcome.reason
        text = strip_opening(outcome.text)
        problem = problem_with(text, document, self.min_length_ratio, self.max_length_ratio)
        if problem is None and outcome.is_cut and not self.keep_cut:
            problem = "it was cut at max_tokens"
        if problem is not None:
            self._count_problem(problem)
        return (text, None) if problem is None else (None, problem)

    def _count_problem(self, reason: str) -> None:
        self.count("not_rewritten")
        name = _BECAUSE + printable(reason, 200)
        if name in self._reasons or len(self._reasons) < _REASONS:
            self._reasons.add(name)
            self.count(name)

    # -- a run that was in vain ------------------------------------------------------------------------

    def _failure_watch(self) -> FailureWatch | None:
        way_out = f"{_WAY_OUT}; {_ALLOW}"
        return None if self.allow_failures else FailureWatch(self.endpoint, way_out)

    def check_run(self, stats: Any) -> None:
        counts = stats.counts
        refused = counts.get(_REFUSED, 0)
        if self.allow_failures or not refused or counts.get("rewritten") or counts["not_rewritten"] > refused:
            return
        way_out = f"{_WAY_OUT}, with a new run directory, for in this one the rows count as done; {_ALLOW}"
        which = "the only request" if refused == 1 else f"all {refused:,.0f} requests"
        raise refused_error(self.endpoint, which, _most_common(counts).removeprefix(_BECAUSE), way_out, self.name)

    def displayed_counts(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        """Of the reasons, the most common one."""
        shown = super().displayed_counts(counts)
        found, most = {name for name in shown if name.startswith(_BECAUSE)}, _most_common(shown)
        return {name: value for name, value in shown.items() if name == most or name not in {*found, _REFUSED}}

    def _with_texts(
        self, batch: DocumentBatch, documents: Sequence[str | None], texts: Sequence[str | None]
    ) -> DocumentBatch:
        if self.output == "column":
            return batch.with_column(self.output_field, make_array(texts, pa.string()))
        if self.output == "append":
            return self._appended(batch, documents, texts)
        new = [document if text is None else text for document, text in zip(documents, texts, strict=True)]
        old = [None if text is None else document for document, text in zip(documents, texts, strict=True)]
        batch = batch.with_column(self.input_field, make_array(new, pa.string()))
        return batch.with_column(ORIGINAL, make_array(old, pa.string()))

    def _appended(
        self, batch: DocumentBatch, documents: Sequence[str | None], texts: Sequence[str | None]
    ) -> DocumentBatch:
        """Each row, and after it one with its new text. The first has no lineage, for no model has made it."""
        rows = [row for row, text in enumerate(texts) for _ in range(1 if text is None else 2)]
        is_new = [new for text in texts for new in ([False] if text is None else [False, True])]
        values = [texts[row] if new else documents[row] for row, new in zip(rows, is_new, strict=True)]
        both = batch.take(rows).with_column(self.input_field, make_array(values, pa.string()))
        for name in lineage_names(self.lineage):
            column = both.data.column(name)
            listed = [value if new else None for value, new in zip(column.to_pylist(), is_new, strict=True)]
            both = both.with_column(name, make_array(listed, column.type))
        return both


def _most_common(counts: Mapping[str, float]) -> str:
    """The counter of the most common reason, "" if there is none."""
    found = sorted(name for name in counts if name.startswith(_BECAUSE))
    return max(found, key=lambda name: counts[name], default="")
