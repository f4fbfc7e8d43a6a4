"""TrainTestSplit: assigns each document to a part at random, and to the same part in every run."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.deciding_stage import DecidingStage, Decision
from gristmill.core.errors import did_you_mean
from gristmill.core.row_sampling import draw_uniform, row_ids
from gristmill.core.task import digest
from gristmill.samples.argument_checks import check_count, check_ratio
from gristmill.samples.batch import DocumentBatch
from gristmill.text.text_columns import text_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.core.stage import Columns

_DEFAULT_PARTS = {"train": 0.9, "test": 0.1}


class TrainTestSplit(DecidingStage[DocumentBatch]):
    """Adds a column with the part that each document belongs to, or keeps only one part.

    `parts` are names and shares that add up to 1, by default {"train": 0.9, "test": 0.1}. The part is drawn by a hash
    of `seed`, the document's file and its position there, so it depends neither on the run nor on how the input is
    split. With `group_field`, it is drawn by the text in that column, so that all documents of one site, or all copies
    of one text, are in the same part. With `keep`, only documents of that part are kept, and no column is added.
    """

    takes_empty = True

    def __init__(
        self,
        parts: Mapping[str, float] | None = None,
        seed: int = 0,
        split_field: str = "split",
        keep: str | None = None,
        group_field: str | None = None,
    ) -> None:
        super().__init__()
        shares = dict(_DEFAULT_PARTS if parts is None else parts)
        for part, share in shares.items():
            check_ratio("TrainTestSplit", f"parts[{part!r}]", share)
        check_count("TrainTestSplit", "seed", seed)
        if not shares or min(shares.values()) < 0 or abs(sum(shares.values()) - 1) > 1e-9:
            raise ValueError(f"TrainTestSplit: parts is {parts!r}: the shares must be 0 or more and add up to 1")
        if keep is not None and keep not in shares:
            known = ", ".join(shares)
            raise ValueError(f"TrainTestSplit: keep is {keep!r}.{did_you_mean(keep, shares)} The parts are: {known}")
        self.parts, self.seed, self.split_field, self.keep = parts, seed, split_field, keep
        self.group_field = group_field
        self._shares = shares

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {} if self.group_field is None else {self.group_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.split_field: "string"} if self.keep is None else []

    def decide(self, batch: DocumentBatch) -> Decision:
        drawn = self._draw(batch)
        names = list(self._shares)
        ends = list(accumulate(self._shares.values()))[:-1]
        indices = make_array([0] * len(drawn), pa.int64())
        for end in ends:
            above = pc.greater_equal(drawn, literal(float(end), pa.float64()))
            indices = pc.add(indices, above.cast(pa.int64()))
        labels = make_array(names, pa.string()).take(indices)
        if self.keep is None:
            keep = make_array([True] * len(drawn), pa.bool_())
        else:
            keep = pc.equal(labels, literal(self.keep, pa.string()))
        return Decision(keep, {self.name: labels})

    def apply(self, batch: DocumentBatch, decision: Decision) -> DocumentBatch:
        if self.keep is not None:
            return batch.keep(decision.keep)
        return batch.with_column(self.split_field, decision.scores[self.name])

    def thresholds(self) -> dict[str, str]:
        return {self.name: f"keep={self.keep}"}

    def _draw(self, batch: Batch) -> pa.Array:
        if self.group_field is None:
            owner, numbers = row_ids(batch)
            return draw_uniform(numbers, int(digest([str(self.seed), "TrainTestSplit", owner]), 16))
        groups = text_column(self, batch.data, self.group_field).to_pylist()
        numbers = make_array([int(digest([group or ""]), 16) for group in groups], pa.uint64())
        return draw_uniform(numbers, int(digest([str(self.seed), "TrainTestSplit"]), 16))
