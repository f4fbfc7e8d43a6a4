"""TranslationStage: translates texts, or the texts within conversations, segment by segment.

A translation is taken if it has all marks of what must stay (`translation_segments.py`), a sensible length, and for
languages with a script of their own, that script. A segment that fails is asked for again, `max_tries` times with
another seed; if it fails again, its row goes to quarantine with the reason. Segments that several rows share, such as
menu entries, are translated once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import to_array
from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.llm_request import Answer, FailedRequest, LLMRequest
from gristmill.models.llm.prompt import Prompt
from gristmill.models.llm.spending import Budget
from gristmill.models.llm.structured_output import schema_of
from gristmill.samples.batch import DocumentBatch
from gristmill.synthetic.answer_checks import problem_with, strip_opening
from gristmill.synthetic.conversation import replace_at, texts_at
from gristmill.synthetic.lineage_columns import add_lineage, lineage_names
from gristmill.synthetic.prompt_stage import DocumentLLMStage, own_prompt
from gristmill.synthetic.translation_segments import Segment, SegmentedText, script_share, segmented

if TYPE_CHECKING:
    from gristmill.core.stage import Columns

AXES = ("fluency", "accuracy", "idiomaticity", "terminology", "handling_of_format")
FAITH_SCHEMA = {
    "type": "object",
    "properties": {axis: {"type": "integer", "enum": [1, 2, 3, 4, 5]} for axis in AXES},
    "required": list(AXES),
    "additionalProperties": False,
}
SHORT = 20
"""Segments of fewer characters may become any number of times as long."""

OutputMode = Literal["replaced", "raw", "both"]
_MODES: tuple[OutputMode, ...] = ("replaced", "raw", "both")


@dataclass(slots=True)
class _Row:
    """One row on its way: its texts by path, and what has become of it."""

    values: dict[str, Any]
    texts: dict[str, list[SegmentedText]]
    failed: FailedRequest | None = None
    scores: dict[str, float] | None = None

    def segments(self) -> Iterator[Segment]:
        for texts in self.texts.values():
            for text in texts:
                yield from text.segments


class TranslationStage(DocumentLLMStage):
    """Translates a column, several, or the texts at a path such as `messages.*.content`.

    `segmentation_mode` is "coarse" (lines) or "fine" (sentences). `output_mode="replaced"` puts translations where the
    texts were; "raw" adds them in `output_field`, with the same shape; "both" does both. `skip_translated` leaves rows
    alone that have something in `output_field`. `enable_faith_eval` has the model score each translation on five axes,
    1 to 5, in columns that begin with `faith_`; with `filter_enabled`, rows whose mean is below `faith_threshold` are
    dropped.
    """

    def __init__(
        self,
        source_lang: str = "",
        target_lang: str = "",
        text_field: str | Sequence[str] = "text",
        output_field: str = "translated_text",
        segmentation_mode: Literal["coarse", "fine"] = "coarse",
        min_segment_chars: int = 0,
        client: Any = None,
        model_name: str = "",
        *,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        prompt: str = "",
        enable_faith_eval: bool = False,
        faith_threshold: float = 2.5,
        filter_enabled: bool = True,
        output_mode: OutputMode = "raw",
        skip_translated: bool = False,
        min_length_ratio: float | None = 0.3,
        max_length_ratio: float | None = 3.5,
        max_tries: int = 2,
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
        self.source_lang, self.target_lang, self.text_field = source_lang, target_lang, text_field
        self.output_field, self.segmentation_mode = output_field, segmentation_mode
        self.min_segment_chars, self.output_mode, self.prompt = min_segment_chars, output_mode, prompt
        self.enable_faith_eval, self.faith_threshold = enable_faith_eval, faith_threshold
        self.filter_enabled, self.skip_translated = filter_enabled, skip_translated
        self.min_length_ratio, self.max_length_ratio = min_length_ratio, max_length_ratio
        self.max_tries, self.lineage = max_tries, lineage
        self._prompt = Prompt(prompt or own_prompt("translate"), name="" if prompt else "translate")
        self._faith = Prompt(own_prompt("faithfulness"), name="faithfulness")
        self.prompt_version = f"{self._prompt.version} {self._faith.version}"
        self._paths = [text_field] if isinstance(text_field, str) else list(text_field)
        self._languages = {"source_lang": source_lang, "target_lang": target_lang}
        self._check_parameters()

    def _check_parameters(self) -> None:
        if not self.source_lang or not self.target_lang:
            raise ValueError(f"{self.name}: source_lang and target_lang must be given, such as 'en' and 'de'")
        for name, choices in (("segmentation_mode", ("coarse", "fine")), ("output_mode", _MODES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{self.name}: {name} is {getattr(self, name)!r}, must be one of {', '.join(choices)}")

    def check(self) -> None:
        super().check()
        self._prompt.check(["text", "source_lang", "target_lang"], needed=["text", "target_lang"])

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [path.partition(".")[0] for path in self._paths]

    def outputs(self) -> tuple[list[str], Columns]:
        names = [path.partition(".")[0] for path in self._paths] if self.output_mode != "raw" else []
        names += [self.output_field] if self.output_mode != "replaced" else []
        names += [f"faith_{axis}" for axis in (*AXES, "avg")] if self.enable_faith_eval else []
        return ["data"], [*names, *lineage_names(self.lineage)]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        rows = [self._row(values) for values in task.to_rows()]
        wanted = {segment: None for row in rows for segment in row.segments()}
        translated = self._translated(list(wanted))
        for row in rows:
            failures = (translated[segment] for segment in row.segments())
            row.failed = next((one for one in failures if isinstance(one, FailedRequest)), None)
        batch, _ = self.set_aside_failed(task, [row.failed for row in rows])
        rows = [row for row in rows if row.failed is None]
        texts = {segment: text for segment, text in translated.items() if isinstance(text, str)}
        batch = self._with_translations(batch, rows, texts)
        return self._with_faith(batch, rows, texts) if self.enable_faith_eval else batch

    # -- segments --------------------------------------------------------------------------------------

    def _row(self, values: dict[str, Any]) -> _Row:
        if self.skip_translated and values.get(self.output_field):
            return _Row(values, {})
        cut = {
            path: [segmented(text, self.segmentation_mode, self.min_segment_chars) for text in texts_at(values, path)]
            for path in self._paths
        }
        return _Row(values, cut)

    def _translated(self, segments: Sequence[Segment]) -> dict[Segment, str | FailedRequest]:
        """The translation of each segment. Those that fail are asked for again, with the next seed."""
        found: dict[Segment, str | FailedRequest] = {}
        left = list(segments)
        for number in range(self.max_tries):
            for segment, outcome in zip(left, self.ask([self._request(one, number) for one in left]), strict=True):
                found[segment] = self._checked(segment, outcome)
            left = [segment for segment in left if isinstance(found[segment], FailedRequest)]
        return found

    def _request(self, segment: Segment, number: int) -> LLMRequest:
        return self.request(self._prompt.fill({**self._languages, "text": segment.text}), number)

    def _checked(self, segment: Segment, outcome: Answer | FailedRequest) -> str | FailedRequest:
        if isinstance(outcome, FailedRequest):
            return outcome
        text = strip_opening(outcome.text)
        most = None if len(segment.text) < SHORT else self.max_length_ratio
        least = None if len(segment.text) < SHORT else self.min_length_ratio
        problem = "it was cut at max_tokens" if outcome.is_cut else problem_with(text, segment.text, least, most)
        share = script_share(text, self.target_lang)
        if problem is None and share is not None and share < 0.3:
            problem = f"only {share:.0%} of its letters are of {self.target_lang}"
        restored = segment.restored(text)
        if problem is None and restored is None:
            problem = "it lacks something that must not be translated, such as a URL or code"
        if problem is not None or restored is None:
            return FailedRequest(f"a translation is not taken: {problem}", outcome.text)
        return restored

    # -- what comes out --------------------------------------------------------------------------------

    def _with_translations(
        self, batch: DocumentBatch, rows: Sequence[_Row], texts: Mapping[Segment, str]
    ) -> DocumentBatch:
        fields = list(dict.fromkeys(path.partition(".")[0] for path in self._paths))
        new = [self._replaced(row, texts) for row in rows]
        done = [bool(row.texts) for row in rows]
        if self.output_mode != "raw":
            for name in fields:
                batch = batch.with_column(name, to_array([values.get(name) for values in new]))
        if self.output_mode != "replaced":
            only = [
                (values.get(fields[0]) if len(fields) == 1 else {name: values.get(name) for name in fields})
                if made
                else row.values.get(self.output_field)
                for row, values, made in zip(rows, new, done, strict=True)
            ]
            batch = batch.with_column(self.output_field, to_array(only))
        first = [self._first_request(row) for row in rows]
        answers = [Answer(request.key, request.model, "", "stop") if request else None for request in first]
        return add_lineage(batch, self.lineage, self._prompt, first, answers)

    def _first_request(self, row: _Row) -> LLMRequest | None:
        segment = next(row.segments(), None)
        return None if segment is None else self._request(segment, 0)

    def _replaced(self, row: _Row, texts: Mapping[Segment, str]) -> dict[str, Any]:
        values: dict[str, Any] = row.values
        for path, cut in row.texts.items():
            joined = iter([text.joined([texts[segment] for segment in text.segments]) for text in cut])
            values = replace_at(values, path, lambda _, joined=joined: next(joined))  # type: ignore[misc]
        return values

    def _with_faith(self, batch: DocumentBatch, rows: Sequence[_Row], texts: Mapping[Segment, str]) -> DocumentBatch:
        judged = [row for row in rows if row.texts]
        for row, outcome in zip(judged, self.ask([self._faith_request(row, texts) for row in judged]), strict=True):
            row.scores = None if isinstance(outcome, FailedRequest) else dict(outcome.value)
        means = [None if row.scores is None else sum(row.scores.values()) / len(AXES) for row in rows]
        for axis in AXES:
            scores = [None if row.scores is None else row.scores[axis] for row in rows]
            batch = batch.with_column(f"faith_{axis}", make_array(scores, pa.int64()))
        batch = batch.with_column("faith_avg", make_array(means, pa.float64()))
        if not self.filter_enabled:
            return batch
        return batch.take([at for at, mean in enumerate(means) if mean is None or mean >= self.faith_threshold])

    def _faith_request(self, row: _Row, texts: Mapping[Segment, str]) -> LLMRequest:
        new = self._replaced(row, texts)
        source = "\n\n".join(text for path in self._paths for text in texts_at(row.values, path))
        translation = "\n\n".join(text for path in self._paths for text in texts_at(new, path))
        messages = self._faith.fill({**self._languages, "source": source, "translation": translation})
        return LLMRequest(self.model_name, messages, self._config, schema_of(FAITH_SCHEMA))
