"""Keep a random share of the rows, the same in every run.

Each row gets a number from 0 to 1, a hash of the seed, the stage's name and the row's file and position, and is kept if
it is below the fraction. So the result does not depend on batches or workers, and a smaller fraction keeps a subset.

Rows without a position are identified by their index in the batch, so other batch sizes keep other rows. Rows with the
same position, such as the sentences of one document, are kept or dropped together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.batch import SOURCE_FILE, Batch
from gristmill.core.deciding_stage import DecidingStage, Decision, Measures, Rule
from gristmill.core.task import digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gristmill.core.stage import Columns

LABEL = "Sample"
"""The name of the drawn numbers among the scores of a row."""

_INT, _UINT = pa.int64(), pa.uint64()
_STEP = literal(0x9E3779B97F4A7C15, _UINT)
_ROUNDS = [
    (literal(30, _UINT), literal(0xBF58476D1CE4E5B9, _UINT)),
    (literal(27, _UINT), literal(0x94D049BB133111EB, _UINT)),
]
_LAST_SHIFT = literal(31, _UINT)
_TO_53_BITS, _UNIT = literal(11, _UINT), literal(2.0**-53, pa.float64())


class Sample(DecidingStage[Batch]):
    """Keeps a random share of the rows, the same ones in every run with the same seed and stage name.

    `fraction` is the share to keep, from 0 to 1. Stages of one name and seed draw the same numbers: to sample a
    second time in a pipeline, give that stage another seed, or another name with `.with_(name=...)`.
    """

    takes_empty = True
    limit_parameters: ClassVar[tuple[str, ...]] = ("fraction",)

    def __init__(self, fraction: float, seed: int = 0) -> None:
        super().__init__()
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ValueError(f"Sample: fraction is {fraction!r}, must be a share from 0 to 1, such as 0.1")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"Sample: seed is {seed!r}, must be a whole number, such as 0")
        self.fraction, self.seed = fraction, seed

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def decide(self, batch: Batch) -> Decision:
        owner, numbers = row_ids(batch)
        drawn = draw_uniform(numbers, int(digest([str(self.seed), self.name, owner]), 16))
        return Decision(pc.less(drawn, literal(float(self.fraction), pa.float64())), {LABEL: drawn})

    def thresholds(self) -> dict[str, str]:
        return {LABEL: f"fraction={self.fraction!r}"}

    def rules(self) -> dict[str, Sequence[Rule]]:
        return {LABEL: (Rule("", high=self.fraction, high_name="fraction", strict=True),)}

    def judge(
        self, scores: Mapping[str, pa.Array], measures: Mapping[str, Measures] | None = None
    ) -> dict[str, pa.Array]:
        """The verdict on numbers that were drawn before."""
        return {LABEL: pc.less(scores[LABEL], literal(float(self.fraction), pa.float64()))} if LABEL in scores else {}

    def apply(self, batch: Batch, decision: Decision) -> Batch:
        return batch.keep(decision.keep)


def row_ids(batch: Batch) -> tuple[str, pa.Array]:
    """What names a row in every run: what the rows belong to, and the number of each in it (uint64)."""
    if POSITION in batch.data.column_names:
        positions = batch.data.column(POSITION).combine_chunks()
        if pa.types.is_integer(positions.type) and not positions.null_count:
            owner = str(batch.metadata.get(SOURCE_FILE) or batch.lineage.source)
            return owner, positions.view(_UINT) if positions.type == _INT else positions.cast(_UINT, safe=False)
    everywhere = pa.repeat(literal(True, pa.bool_()), batch.num_items)
    return batch.lineage.id, pc.indices_nonzero(everywhere)  # 0, 1, 2, ... without a Python object for each


def draw_uniform(numbers: pa.Array, key: int) -> pa.Array:
    """A number from 0 up to 1, without 1, for each: the splitmix64 generator that starts at `key`, at those steps."""
    bits = pc.add(pc.multiply(numbers, _STEP), literal(key, _UINT))  # these wrap, as the generator wants
    for shift, factor in _ROUNDS:
        bits = pc.multiply(_fold(bits, shift), factor)
    bits = _fold(bits, _LAST_SHIFT)
    return pc.multiply(pc.shift_right(bits, _TO_53_BITS).cast(pa.float64()), _UNIT)


def _fold(bits: pa.Array, shift: pa.Scalar) -> pa.Array:
    return pc.bit_wise_xor(bits, pc.shift_right(bits, shift))
