"""What stages that score rows and drop some of them have in common, whatever their rows are.

A stage has steps, one for each filter, and says how a step scores and judges a batch. Scores in columns, rejected rows,
reports and what-if questions follow from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch, column_cache, scatter_to_rows
from gristmill.core.decision import Decision
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import ProcessingStage

B = TypeVar("B", bound=Batch)


@fast_dataclass(frozen=True, slots=True)
class FilterStep:
    """One filter of a stage: what it reads, under which label and in which column its scores are given."""

    tool: Any
    field: str
    label: str
    score_field: str | None = None
    invert: bool = False


class FilteringStage(ProcessingStage[B, B]):
    """A stage that decides which rows to keep, one step after the other."""

    _steps: list[FilterStep]

    def process(self, task: B) -> B:
        return self.apply(task, self.decide(task))

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
        """The same for all rows that lie in a batch, also those that were dropped before, and by every filter, also
        those after one that drops the row."""
        judged = {step.label: self._judge(step, everything) for step in self._steps}
        known = set(everything.data.column_names)
        column_cache(batch).update({name: value for name, value in column_cache(everything).items() if name in known})
        for step in self._steps:
            self._look(step, batch)
        kept = [self._kept(step, judged[step.label][1]) for step in self._steps]
        return Decision(reduce(pc.and_, kept), {label: scores for label, (scores, _) in judged.items()})

    def judge(self, scores: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """The verdict of each filter, by its label, on scores that it gave before. Those that it cannot tell from the
        score alone are left out."""
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
        """What each filter compares its scores with, by the label of the scores."""
        told = {}
        for step in self._steps:
            tell = getattr(type(step.tool), "threshold", None)  # the filter may have a parameter of that name
            if callable(tell):
                told[step.label] = f"not ({tell(step.tool)})" if step.invert else tell(step.tool)
        return told

    # -- what a kind of stage says ---------------------------------------------------------------------

    def _judge(self, step: FilterStep, batch: B) -> tuple[pa.Array, pa.Array]:
        """The scores and the verdicts."""
        raise NotImplementedError

    def _verdict(self, step: FilterStep, scores: pa.Array) -> pa.Array | None:
        """The verdicts on scores alone; None if they cannot be told."""
        raise NotImplementedError

    def _look(self, step: FilterStep, batch: B) -> None:
        """Count what else there is to see in the rows that a filter is given."""
