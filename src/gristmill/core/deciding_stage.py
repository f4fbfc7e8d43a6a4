"""Stages that keep or drop rows, and the scores behind their decisions.

A `DecidingStage` can be asked for its decision on each row without dropping any. Previews, rejected rows, score files,
reports and what-if questions are built on that alone: a filter that returns its scores has nothing else to do.

`FilteringStage` is one that scores rows with several filters, one after the other, whatever its rows are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar, NamedTuple, TypeVar

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch, column_cache, scatter_to_rows
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import ProcessingStage

B = TypeVar("B", bound=Batch)

Measures = Mapping[str, pa.Array]
"""One column of numbers for each rule of a filter, by its name."""


@fast_dataclass(frozen=True, slots=True)
class Rule:
    """One of several rules of a filter: a number of each row, its measure, must lie within limits. Without any, the
    rule is off."""

    name: str
    low: float | None = None
    high: float | None = None
    low_name: str = ""
    high_name: str = ""
    """The parameters that set the limits; as `parameter=value` where the limit is not the parameter's value."""
    spared: float | None = None
    """A number that passes although it is outside."""
    strict: bool = False
    """The limits themselves are outside."""
    measured_with: Mapping[str, Any] | None = None
    """The parameters that the numbers depend on, by name: other numbers are not to be judged by this rule."""
    kind: pa.DataType = pa.float64()
    """The type of the numbers."""

    @property
    def is_on(self) -> bool:
        return self.low is not None or self.high is not None

    def holds(self, numbers: pa.Array) -> pa.BooleanArray:
        """Whether each number is within the limits; null where there is no number."""
        numbers = numbers.cast(pa.float64(), safe=False)
        held = pa.repeat(literal(True, pa.bool_()), len(numbers))
        from_low, to_high = (pc.greater, pc.less) if self.strict else (pc.greater_equal, pc.less_equal)
        if self.low is not None:
            held = pc.and_(held, from_low(numbers, literal(float(self.low), pa.float64())))
        if self.high is not None:
            held = pc.and_(held, to_high(numbers, literal(float(self.high), pa.float64())))
        if self.spared is not None:
            held = pc.or_(held, pc.equal(numbers, literal(float(self.spared), pa.float64())))
        return held


def rule_of_bounds(tool: Any, low: float | None, high: float | None) -> Rule:
    """The rule that the score of a filter lies within bounds, with the parameters that these are."""
    return Rule("", low, high, _parameter(tool, "min", low), _parameter(tool, "max", high))


def _parameter(tool: Any, prefix: str, value: float | None) -> str:
    """The one parameter of a filter with this value; of several, the one with this prefix. Else it is not known."""
    same = [name for name, own in vars(tool).items() if own == value and type(own) in (int, float) and name[0] != "_"]
    same = [name for name in same if name.startswith(prefix)] or same
    return same[0] if value is not None and len(same) == 1 else ""


def all_hold(rules: Sequence[Rule], measures: Measures, rows: int) -> pa.BooleanArray:
    """Whether rows with these numbers break no rule; null where a number decides that is not known."""
    held = pa.repeat(literal(True, pa.bool_()), rows)
    for rule in rules:
        if rule.is_on:
            here = rule.holds(measures[rule.name]) if rule.name in measures else pa.nulls(rows, pa.bool_())
            held = pc.and_kleene(held, here)
    return held


@dataclass(frozen=True, slots=True)
class Decision:
    """For each row whether it is kept, and the scores behind that by the label of the filter that computed them."""

    keep: pa.Array
    scores: dict[str, pa.Array] = field(default_factory=dict)
    measures: dict[str, Measures] = field(default_factory=dict, kw_only=True)
    """For filters of several rules the number of each rule, by label."""
    dropped_by: pa.Array | None = field(default=None, kw_only=True)
    """The label of the filter that drops each row; None: it is the last with a score for the row."""
    aside: pa.Array | None = field(default=None, kw_only=True)
    """Rows that are not kept because the stage has set them aside: they are in quarantine and not rejected."""
    columns: dict[str, pa.Array] = field(default_factory=dict, kw_only=True)
    """What `apply` adds to the rows and is no score: it is not recorded."""


class DecidingStage(ProcessingStage[B, B]):
    """A stage that keeps or drops rows. Write `decide` and `apply`; the rest has defaults."""

    depends_on_other_rows: ClassVar[bool] = False
    """True: the decision on a row depends on others, as in deduplication, so what other parameters would do cannot be
    computed from scores."""

    @abstractmethod
    def decide(self, batch: B) -> Decision:
        """The decision on each row of a batch, which stays as it is."""
        raise NotImplementedError

    @abstractmethod
    def apply(self, batch: B, decision: Decision) -> B:
        """The batch that leaves the stage: without the rows that are dropped, and with columns that the stage adds."""
        raise NotImplementedError

    def process(self, task: B) -> B:
        return self.apply(task, self.decide(task))

    def decide_batch(self, batches: Sequence[B]) -> Sequence[Decision]:
        """The decisions on `batch_size` batches, for stages that are faster on several at once."""
        return [self.decide(batch) for batch in batches]

    limit_parameters: ClassVar[tuple[str, ...]] = ()
    """The parameters that scores are compared with, of a stage that writes `judge` itself: the scores do not depend on
    them."""

    def thresholds(self) -> dict[str, str]:
        """What the scores of each label are compared with, as text for people: `{"words": "min_words=50"}`."""
        return {}

    def rules(self) -> dict[str, Sequence[Rule]]:
        """The rules of each label, where those decide which rows are kept, or with `invert` which are dropped. A single
        rule without a name is about the score itself."""
        return {}

    def judge(
        self, scores: Mapping[str, pa.Array], measures: Mapping[str, Measures] | None = None
    ) -> dict[str, pa.Array] | None:
        """Whether rows with these scores, or these measures, are kept, by label: null where it is not known. Labels
        that cannot be judged by numbers alone are left out; None: no label of this stage can."""
        return None


@fast_dataclass(frozen=True, slots=True)
class FilterStep:
    """One filter of a stage: what it reads, under which label and in which column its scores are given."""

    tool: Any
    field: str
    label: str
    score_field: str | None = None
    invert: bool = False


class StepDecision(NamedTuple):
    """What one filter says to the rows of a batch."""

    scores: pa.Array
    keep: pa.Array
    measures: Measures | None = None


class FilteringStage(DecidingStage[B]):
    """Keeps the rows that pass all of its filters. A subclass says how one step scores and judges a batch."""

    _steps: list[FilterStep]

    scores_are_given: ClassVar[bool] = False
    """True: scores are a column of the rows, and filters only judge them."""

    def decide(self, batch: B) -> Decision:
        alive = pa.repeat(literal(True, pa.bool_()), batch.num_items)
        scores: dict[str, pa.Array] = {}
        measures: dict[str, Measures] = {}
        kept: list[pa.Array] = []
        for step in self._steps:
            self._look(step, batch)
            judged = self._judge(step, batch)
            keep = self._kept(step, judged.keep)
            kept.append(scatter_to_rows(keep, alive))
            scores[step.label] = scatter_to_rows(judged.scores, alive)
            if judged.measures:
                found = {name: scatter_to_rows(numbers, alive) for name, numbers in judged.measures.items()}
                measures[step.label] = found
            alive = kept[-1].fill_null(literal(False, pa.bool_()))
            batch = batch.keep(keep)
        return Decision(alive, scores, measures=measures, dropped_by=self._dropped_by(kept))

    def decide_all(self, everything: B, batch: B) -> Decision:
        """The decision of every filter on all rows of `everything`: those of `batch`, and those that were dropped from
        it before. A filter also scores rows that an earlier filter of the stage drops."""
        judged = {step.label: self._judge(step, everything) for step in self._steps}
        known = set(everything.data.column_names)
        column_cache(batch).update({name: value for name, value in column_cache(everything).items() if name in known})
        for step in self._steps:
            self._look(step, batch)
        kept = [self._kept(step, judged[step.label].keep) for step in self._steps]
        scores = {label: one.scores for label, one in judged.items()}
        measures = {label: one.measures for label, one in judged.items() if one.measures}
        return Decision(reduce(pc.and_, kept), scores, measures=measures, dropped_by=self._dropped_by(kept))

    def _dropped_by(self, kept: Sequence[pa.Array]) -> pa.Array:
        """The label of the first filter that drops each row; null if none does."""
        count, text = len(kept[0]), pa.string()
        labels = pa.nulls(count, text)
        for step, keep in reversed([*zip(self._steps, kept, strict=True)]):
            drops = pc.equal(keep, literal(False, pa.bool_())).fill_null(literal(False, pa.bool_()))
            if drops.true_count:
                labels = pc.if_else(drops, literal(step.label, text), labels)
        return labels

    def judge(
        self, scores: Mapping[str, pa.Array], measures: Mapping[str, Measures] | None = None
    ) -> dict[str, pa.Array]:
        found = {}
        for step in self._steps:
            if measures and step.label in measures:
                verdict = all_hold(self._rules(step), measures[step.label], len(scores[step.label]))
                found[step.label] = pc.invert(verdict) if step.invert else verdict
            elif step.label in scores and (verdict := self._verdict(step, scores[step.label])) is not None:
                found[step.label] = self._kept(step, verdict)
        return found

    def rules(self) -> dict[str, Sequence[Rule]]:
        found = {step.label: self._rules(step) for step in self._steps}
        return {label: rules for label, rules in found.items() if rules}

    def filter_steps(self) -> Sequence[FilterStep]:
        """The filters, in order."""
        return self._steps

    @staticmethod
    def _kept(step: FilterStep, keep: pa.Array) -> pa.Array:
        keep = keep.cast(pa.bool_()).fill_null(literal(False, pa.bool_()))
        return pc.invert(keep) if step.invert else keep

    def apply(self, batch: B, decision: Decision) -> B:
        for step in self._steps:
            if step.score_field is not None:
                batch = batch.with_column(step.score_field, decision.scores[step.label])
        return batch.keep(decision.keep)

    def thresholds(self) -> dict[str, str]:
        texts = {step.label: (self._threshold(step), step.invert) for step in self._steps}
        return {
            label: f"not ({text})" if invert else text for label, (text, invert) in texts.items() if text is not None
        }

    # -- what a subclass writes ------------------------------------------------------------------------

    def _judge(self, step: FilterStep, batch: B) -> StepDecision:
        """The scores of a batch, and whether each row is kept."""
        raise NotImplementedError

    def _rules(self, step: FilterStep) -> Sequence[Rule]:
        """The rules by which a filter decides; none if it decides in another way."""
        return ()

    def _verdict(self, step: FilterStep, scores: pa.Array) -> pa.Array | None:
        """Whether rows with these scores are kept; None if the score alone does not decide that."""
        raise NotImplementedError

    def _threshold(self, step: FilterStep) -> str | None:
        """What the filter compares its scores with, as text; None if it does not say."""
        raise NotImplementedError

    def _look(self, step: FilterStep, batch: B) -> None:
        """Count something about the rows that a filter is given."""
