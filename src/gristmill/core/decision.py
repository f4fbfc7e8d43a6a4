"""Decisions: what a filtering stage thought of each row.

A stage that has `decide(batch)` can be asked for its verdict without dropping anything. Previews and
reports are built on it: a filter that gives its scores has nothing else to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from gristmill.core.batch import Batch


@dataclass(frozen=True, slots=True)
class Decision:
    """One verdict per row, and the scores behind it under the names of what computed them."""

    keep: pa.Array
    scores: dict[str, pa.Array] = field(default_factory=dict)
    aside: pa.Array | None = field(default=None, kw_only=True)
    """Rows that are not kept because the stage has set them aside: they are in quarantine, and not rejected."""


class DecidingStage(Protocol):
    """A stage that keeps or drops rows."""

    def decide(self, batch: Any) -> Decision: ...

    def apply(self, batch: Any, decision: Decision) -> Batch: ...

    # It may also have `thresholds() -> dict[str, str]`: what the scores of each name are compared with; and
    # `decide_batch(batches) -> list[Decision]`, to work on `batch_size` of them at once; and `together = True`, if what
    # it thinks of a row depends on others, so that it is not known from scores what other parameters would do.


def is_deciding(stage: Any) -> bool:
    """Whether a stage is one that `DecidingStage`. It is asked for every task, and `isinstance` takes long with protocols."""
    return callable(getattr(stage, "decide", None)) and callable(getattr(stage, "apply", None))


def thresholds_of(stage: Any) -> dict[str, str]:
    told = getattr(stage, "thresholds", None)
    return told() if is_deciding(stage) and callable(told) else {}


def decide_batches(stage: Any, batches: Sequence[Batch]) -> Sequence[Decision]:
    """What a stage thinks of the rows of each batch."""
    together = getattr(stage, "decide_batch", None)
    return together(batches) if together else [stage.decide(batch) for batch in batches]
