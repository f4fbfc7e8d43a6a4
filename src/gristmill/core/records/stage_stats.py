"""Counters of one stage. They are additive, so those of several workers can be summed in any order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Any

from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.row_summary import RowSummary
from gristmill.core.task import Task

ADDITIVE = (
    *("tasks_in", "tasks_out", "rows_in", "rows_out", "rows_past", "undecided"),
    *("quarantined", "bytes_in", "bytes_out", "seconds"),
)
"""The numbers of `StageStats`."""


@fast_dataclass(slots=True)
class StageStats:
    """Counters of one stage."""

    tasks_in: int = 0
    tasks_out: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_past: int = 0
    """Rows of other branches, which bypass the stage."""
    undecided: int = 0
    """Rows that came in and have no answer yet, in a call that is still running."""
    quarantined: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)
    raw: dict[str, float] | None = None
    """The additive counts, once `counts` has been replaced by those to display (`ReportingRole.displayed_counts`)."""
    summary: RowSummary | None = None
    """A summary of the stage's rows, for the report."""
    part_of: str = ""
    """The name of the composite stage that this stage belongs to, if any."""
    by_source: dict[str, StageStats] | None = None
    """The part of each source, in what a worker reports of a call with several."""

    def add(self, other: StageStats) -> None:
        for name in ADDITIVE:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.add_counts(other.counts)
        if other.summary:
            self.summary = self.summary or RowSummary()
            self.summary.add(other.summary)

    def subtract(self, other: StageStats) -> None:
        """Take away counts that are part of these; not those in a summary, which becomes unknown."""
        for name in ADDITIVE:
            setattr(self, name, getattr(self, name) - getattr(other, name))
        self.counts = {name: value - other.counts.get(name, 0) for name, value in (self.raw or self.counts).items()}
        self.raw = self.summary = None

    def copy(self) -> StageStats:
        """A snapshot of the counts."""
        return replace(self, counts={**self.counts})

    def without_summary(self) -> StageStats:
        return replace(self, summary=None)

    def as_counts(self) -> dict[str, Any]:
        """The counts by name, without the row summary."""
        names = [one.name for one in fields(self) if one.name not in ("raw", "by_source")]
        return {name: None if name == "summary" else getattr(self, name) for name in names}

    def add_counts(self, counts: Mapping[str, float]) -> None:
        for name, value in counts.items():
            self.counts[name] = self.counts.get(name, 0) + value

    @property
    def net(self) -> int:
        """Rows in that did not come out. Negative where a stage makes more rows; 0 where it takes none."""
        return self.rows_in - self.rows_out - self.quarantined if self.rows_in else 0

    @property
    def dropped(self) -> int:
        """Rows that the stage dropped. In a running call it never falls."""
        return max(self.net - self.undecided, 0)

    def count_input(self, task: Task[Any]) -> None:
        self.tasks_in += 1
        self.rows_in += task.num_rows
        self.bytes_in += task.nbytes

    def count_output(self, task: Task[Any]) -> None:
        self.tasks_out += 1
        self.rows_out += task.num_rows
        self.bytes_out += task.nbytes
