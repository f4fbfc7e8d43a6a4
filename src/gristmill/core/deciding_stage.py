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
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch, column_cache, scatter_to_rows
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import ProcessingStage

B = TypeVar("B", bound=Batch)


@fast_dataclass(frozen=True, slots=True)
class Rule:
    """One of several rules of a filter: a number of each row, its measure, must lie within limits. Without any, the
    rule is off."""

    name: str
    low: float | None = None
    high: float | None = None
    low_name: str = ""
    high_name: str = ""
    """The parameters that set the limits."""
    spared: float | None = None
    """A number that passes although it is outside."""
    measured_with: Any = None
    """The parameters that the numbers depend on: other numbers are not to be judged by this rule."""
    kind: pa.DataType = pa.float64()
    """The type of the numbers."""

    @property
    def is_on(self) -> bool:
        return self.low is not None or self.high is not None

    def holds(self, numbers: pa.Array) -> pa.BooleanArray:
        """Whether each number is within the limits; null where there is no number."""
        numbers = numbers.cast(pa.float64(), safe=False)
        held = pa.repeat(literal(True, pa.bool_()), len(numbers))
        if self.low is not None:
            held = pc.and_(held, pc.greater_equal(numbers, literal(float(self.low), pa.float64())))
        if self.high is not None:
            held = pc.and_(held, pc.less_equal(numbers, literal(float(self.high), pa.float64())))
        if self.spared is not None:
            held = pc.or_(held, pc.equal(numbers, literal(float(self.spared), pa.float64())))
        return held


@dataclass(frozen=True, slots=True)
class Decision:
    """For each row whether it is kept, and the scores behind that by the label of the filter that computed them."""

    keep: pa.Array
    scores: dict[str, pa.Array] = field(default_factory=dict)
    aside: pa.Array | None = field(default=None, kw_only=True)
    """Rows that are not kept because the stage has set them aside: they are in quarantine and not rejected."""


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

    def thresholds(self) -> dict[str, str]:
        """What the scores of each label are compared with, as text for people: `{"words": "min_words=50"}`."""
        return {}

    def judge(self, scores: Mapping[str, pa.Array]) -> dict[str, pa.Array] | None:
        """Whether rows with these scores are kept, by label. Labels that cannot be judged by the score alone are left
        out; None: no label of this stage can."""
        return None


@fast_dataclass(frozen=True, slots=True)
class FilterStep:
    """One filter of a stage: what it reads, under which label and in which column its scores are given."""

    tool: Any
    field: str
    label: str
    score_field: str | None = None
    invert: bool = False


class FilteringStage(DecidingStage[B]):
    """Keeps the rows that pass all of its filters. A subclass says how one step scores and judges a batch."""

    _steps: list[FilterStep]

    def decide(self, batch: B) -> Decision:
        alive = pa.repeat(literal(True, pa.bool_()), batch.num_items)
        scores = {}
        for step in self._steps:
            self._look(step, batch)
            found, verdict = self._judge(step, batch)
            keep = self._kept(step, verdict)
            scores[step.label] = scatter_to_rows(found, alive)
            alive = scatter_to_rows(keep, alive).fill_null(literal(False, pa.bool_()))
            batch = batch.keep(keep)
        return Decision(alive, scores)

    def decide_all(self, everything: B, batch: B) -> Decision:
        """The decision of every filter on all rows of `everything`: those of `batch`, and those that were dropped from
        it before. A filter also scores rows that an earlier filter of the stage drops."""
        judged = {step.label: self._judge(step, everything) for step in self._steps}
        known = set(everything.data.column_names)
        column_cache(batch).update({name: value for name, value in column_cache(everything).items() if name in known})
        for step in self._steps:
            self._look(step, batch)
        kept = [self._kept(step, judged[step.label][1]) for step in self._steps]
        return Decision(reduce(pc.and_, kept), {label: scores for label, (scores, _) in judged.items()})

    def judge(self, scores: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        found = {}
        for step in self._steps:
            if step.label in scores and (verdict := self._verdict(step, scores[step.label])) is not None:
                found[step.label] = self._kept(step, verdict)
        return found

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

    def _judge(self, step: FilterStep, batch: B) -> tuple[pa.Array, pa.Array]:
        """The scores of a batch, and whether each row is kept."""
        raise NotImplementedError

    def _verdict(self, step: FilterStep, scores: pa.Array) -> pa.Array | None:
        """Whether rows with these scores are kept; None if the score alone does not decide that."""
        raise NotImplementedError

    def _threshold(self, step: FilterStep) -> str | None:
        """What the filter compares its scores with, as text; None if it does not say."""
        raise NotImplementedError

    def _look(self, step: FilterStep, batch: B) -> None:
        """Count something about the rows that a filter is given."""
