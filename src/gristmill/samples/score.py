"""Base classes of the stages that run filters on samples.

    SampleScoreFilter   scores samples and drops some by their score
    SampleScore         only adds the score as a column

A modality subclasses both and writes `decoder`. Filters of one stage, and stages that share a worker, decode each
sample once. A sample that cannot be decoded goes to quarantine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import Decision, FilteringStage, FilterStep, Rule, StepDecision
from gristmill.core.errors import shorten
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.core.stage_roles import ScoringRole
from gristmill.samples.batch import BadSample, S, SampleBatch
from gristmill.samples.decode import Decoder, decode_once, share_decoded
from gristmill.samples.filters import SIZE, SampleFilter


class ScoresSamples:
    """What the two stages share: from a batch to what a filter looks at."""

    filter_class: ClassVar[type[SampleFilter]]
    """The base class of the filters of the modality."""

    kind: ClassVar[type[SampleBatch]]

    @abstractmethod
    def decoder(self, looks_at: str) -> Decoder:
        """How the objects are made that filters with this `looks_at` are given."""

    def encoded_field(self) -> str:
        """The column with the encoded bytes."""
        return self.kind.encoded_column

    def filter_inputs(self, batch: SampleBatch, looks_at: str) -> Sequence[Any]:
        """What filters with this `looks_at` are given, for each row.

        A row that cannot be decoded raises instead of being set aside here, since `decide` must have no side effects.
        The worker then splits the batch until it has found the row; the others keep what was decoded.
        """
        field = self.encoded_field()
        if looks_at == SIZE:
            return pc.binary_length(as_one_array(batch.data.column(field))).to_pylist()  # type: ignore[no-any-return]
        decoder = self.decoder(looks_at)
        objects = batch.objects.get(decoder.name)
        if objects is None:
            results = decode_once(batch, decoder, field)
            objects = [None if isinstance(result, BadSample) else result for result in results]
            batch.objects[decoder.name] = objects
        if any(one is None for one in objects):
            if batch.num_items > 1:
                raise BadSample(f"one of the {batch.sample_name}s cannot be read")
            result = decode_once(batch, decoder, field)[0]
            raise result if isinstance(result, BadSample) else BadSample(f"the {batch.sample_name} cannot be read")
        return objects

    def score_column(self, tool: SampleFilter, batch: SampleBatch) -> pa.Array:
        if not batch.num_items:
            return make_array([], tool.score_type)
        return tool.score_batch(self.filter_inputs(batch, tool.looks_at))

    def _as_filters(self, given: Any) -> list[Any]:
        filters: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
        stage, wanted = type(self).__name__, self.filter_class.__name__
        for one in filters:
            if not isinstance(one, self.filter_class):
                hint = f"write {one.__name__}(...), not the class" if isinstance(one, type) else f"not {one!r}"
                raise TypeError(f"{stage} takes one {wanted}, or a list of them: {hint}")
        if not filters:
            raise ValueError(f"{stage} was given an empty list: give at least one {wanted}")
        return filters

    def _as_columns(self, names: str | Sequence[str | None] | None, count: int) -> list[str | None]:
        columns = [names] * count if names is None or (isinstance(names, str) and count == 1) else names
        given = [] if isinstance(columns, str) else [name for name in columns if name is not None]
        if isinstance(columns, str) or len(columns) != count or len(set(given)) != len(given):
            raise ValueError(
                f"{type(self).__name__}: score_field is {names!r}: give one column for each of {count} filters, or None"
            )
        return list(columns)


class SampleScoreFilter(ScoresSamples, FilteringStage[S]):
    """Scores samples and keeps those that the filter keeps, or with `invert` those that it does not.

    `filter_obj` is a filter, or a list that is run in order: a sample that one drops is not scored by the next.
    `score_field` is the column for the scores, or a list of one for each filter; None: they are not written.
    """

    takes_empty = True

    def __init__(
        self,
        filter_obj: Any,
        score_field: str | Sequence[str | None] | None = None,
        invert: bool = False,
    ) -> None:
        super().__init__()
        self.filter_obj, self.score_field, self.invert = filter_obj, score_field, invert
        filters = self._as_filters(filter_obj)
        columns = self._as_columns(score_field, len(filters))
        names = [one.name for one in filters]
        labels = [name if names[:at].count(name) == 0 else f"{name} {at + 1}" for at, name in enumerate(names)]
        self._steps = [
            FilterStep(one, self.encoded_field(), label, column, invert)
            for one, label, column in zip(filters, labels, columns, strict=True)
        ]
        if not self._own_name:
            self.name = shorten(names)

    def decide(self, batch: S) -> Decision:
        share_decoded(batch)  # each filter is given a batch made of this one
        return super().decide(batch)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.encoded_field()]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [step.score_field for step in self._steps if step.score_field is not None]

    def _judge(self, step: FilterStep, batch: S) -> StepDecision:
        scores = self.score_column(step.tool, batch)
        return StepDecision(scores, step.tool.keep_batch(scores))

    def _rules(self, step: FilterStep) -> Sequence[Rule]:
        rules: Sequence[Rule] = step.tool.deciding_rules()
        return rules

    def _verdict(self, step: FilterStep, scores: pa.Array) -> pa.Array | None:
        verdicts: pa.Array = step.tool.keep_batch(scores)
        return verdicts

    def _threshold(self, step: FilterStep) -> str | None:
        threshold = type(step.tool).threshold
        return threshold(step.tool) if callable(threshold) else None  # a filter may have a number of that name


class SampleScore(ScoresSamples, ProcessingStage[S, S], ScoringRole):
    """Adds a column with the score of each sample, and drops none."""

    takes_empty = True

    def __init__(self, score_fn: Any, score_field: str | Sequence[str]) -> None:
        super().__init__()
        self.score_fn, self.score_field = score_fn, score_field
        filters = self._as_filters(score_fn)
        self._steps = list(zip(filters, self._as_columns(score_field, len(filters)), strict=True))
        if not self._own_name:
            self.name = shorten([one.name for one in filters])

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.encoded_field()]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], self.recorded()

    def recorded(self) -> list[str]:
        return [column for _, column in self._steps if column is not None]

    def process(self, task: S) -> S:
        for tool, column in self._steps:
            if column is not None:
                task = task.with_column(column, self.score_column(tool, task))
        return task
