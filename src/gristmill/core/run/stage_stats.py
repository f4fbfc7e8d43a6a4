"""Counters of one stage. They are additive, so those of several workers can be summed in any order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Any

from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.row_sketch import RowSketch
from gristmill.core.task import Task


@fast_dataclass(slots=True)
class StageStats:
    """Counters of one stage."""

    tasks_in: int = 0
    tasks_out: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_past: int = 0
    """Rows of other branches, which bypass the stage."""
    quarantined: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)
    raw: dict[str, float] | None = None
    """The additive counts, once `counts` has been replaced by those to display (`ReportingRole.displayed_counts`)."""
    sketch: RowSketch | None = None
    """A summary of the stage's rows, for the report."""
    part_of: str = ""
    """The name of the composite stage that this stage belongs to, if any."""

    def add(self, other: StageStats) -> None:
        self.tasks_in += other.tasks_in
        self.tasks_out += other.tasks_out
        self.rows_in += other.rows_in
        self.rows_out += other.rows_out
        self.rows_past += other.rows_past
        self.quarantined += other.quarantined
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.seconds += other.seconds
        self.add_counts(other.counts)
        if other.sketch:
            self.sketch = self.sketch or RowSketch()
            self.sketch.add(other.sketch)

    def copy(self) -> StageStats:
        """A snapshot of the counts."""
        return replace(self, counts={**self.counts})

    def as_counts(self) -> dict[str, Any]:
        """The counts by name, without the row sketch."""
        names = [one.name for one in fields(self) if one.name != "raw"]
        return {name: None if name == "sketch" else getattr(self, name) for name in names}

    def add_counts(self, counts: Mapping[str, float]) -> None:
        for name, value in counts.items():
            self.counts[name] = self.counts.get(name, 0) + value

    def count_input(self, task: Task[Any]) -> None:
        self.tasks_in += 1
        self.rows_in += task.num_rows
        self.bytes_in += task.nbytes

    def count_output(self, task: Task[Any]) -> None:
        self.tasks_out += 1
        self.rows_out += task.num_rows
        self.bytes_out += task.nbytes
