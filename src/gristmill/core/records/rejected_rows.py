"""Record the rows that stages drop, each with the stage, the rule that it breaks, its number and the limit.

A worker compares a stage's input with its output and writes the difference as a fragment. The fragments of a source are
committed together when the source is done, like output (`io/write/side_outputs.py`), ordered by stage and then by input
position. None of this runs without `rejected=`.

Not recorded: rows dropped by a stage that is not a `DecidingStage` and does not keep the position column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.row_keys import missing_rows, part_values
from gristmill.core.arrow.table_conversion import POSITION, VERDICT
from gristmill.core.batch import SOURCE_FILE, Batch
from gristmill.core.deciding_stage import Decision
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.drop_reasons import drop_reasons, dropped_rows
from gristmill.core.task import Task, WrittenFiles

if TYPE_CHECKING:
    from gristmill.core.records.row_scores import ScoreRecorder
    from gristmill.core.stage import Answer, ProcessingStage

REJECTED_POSITION = -1
"""Marks an output as rejected rows, where other outputs have the position of their next stage."""

STAGE, FILTER, RULE = "rejected_by", "rejected_filter", "rejected_rule"
SCORE, LIMIT, THRESHOLD = "rejected_score", "rejected_limit", "rejected_threshold"
FILE, PLACE, PART = "rejected_file", "rejected_position", "rejected_part"
_PARTS = ((FILTER, "filter"), (RULE, "rule"), (SCORE, "score"), (LIMIT, "limit"), (THRESHOLD, "threshold"))


def rejected_column_name(name: str) -> str:
    """The name of a verdict column in the rejected rows, chosen so as not to clash with the row's own columns."""
    return f"rejected_{name.removeprefix(VERDICT)}" if name.startswith(VERDICT) else name


class RejectedFiles(WrittenFiles):
    """The committed rejected rows of one source."""


@fast_dataclass
class RejectedRowRecorder:
    """Writes the rows that a worker's stages drop. `first` is the number of the worker's first stage in the plan."""

    writer: ProcessingStage[Any, Any] | None
    first: int = 0
    suffix: str = ""
    """Appended to the partition, so that a later segment does not overwrite the files of an earlier one."""
    scores: ScoreRecorder | None = None
    """Records scores, if requested. Without a `writer`, only scores are recorded."""
    send: Callable[[Task[Any]], None] = field(default=lambda fragment: None, repr=False)
    aside: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list, repr=False)
    """Rows that the last call quarantined, with their positions. They are missing from its output, but were not
    dropped."""

    @property
    def name(self) -> str:
        """The name of the writer, for errors."""
        writer = self.writer or (self.scores.writer if self.scores else None)
        return writer.name if writer else ""

    def judged(
        self,
        position: int,
        stage: ProcessingStage[Any, Any],
        task: Task[Any],
        start: int,
        answer: Answer[Any],
        decision: Decision | None,
    ) -> None:
        """Record a stage's answer for a task whose first row is row `start` of the batch it was sliced from."""
        if self.writer:
            self.write(position, task, start, self._not_aside(self.dropped(stage, task, answer, decision)))
        if self.scores:
            self.scores.add_scores(position, stage, task, answer, decision)

    def dropped(
        self, stage: ProcessingStage[Any, Any], task: Task[Any], answer: Answer[Any], decision: Decision | None
    ) -> pa.Table | None:
        """The rows of a task that are missing from the answer."""
        if decision is not None and isinstance(task, Batch):
            return _explained(stage, task, decision)
        return self._missing(stage, task, answer)

    def _not_aside(self, rows: pa.Table | None) -> pa.Table | None:
        if rows is None or not self.aside:
            return rows
        places = make_array([position for position, _ in self.aside], pa.int64())
        there = pc.is_in(rows.column(PLACE), value_set=places)
        if PART in rows.column_names:
            values = [value for _, row in self.aside for value in row.values() if isinstance(value, str)]
            part = rows.column(PART)
            there = pc.and_(there, pc.or_(pc.is_null(part), pc.is_in(part, value_set=make_array(values, pa.string()))))
        return rows.filter(pc.invert(there))

    def _missing(self, stage: ProcessingStage[Any, Any], task: Task[Any], answer: Answer[Any]) -> pa.Table | None:
        """The rows that a stage without decisions dropped, identified by position; None if that is not possible."""
        if not isinstance(task, Batch) or not task.num_items:
            return None
        if answer is None:
            return _named(task, stage.name)
        outputs = [answer] if isinstance(answer, Task) else list(answer)
        tables = [output.data for output in outputs if isinstance(output, Batch)]
        if POSITION not in task.data.column_names or any(POSITION not in table.column_names for table in tables):
            return None
        if not tables and outputs:  # the stage turned the rows into something other than batches
            return None
        gone, _ = missing_rows(task, [output for output in outputs if isinstance(output, Batch)])
        return _named(task.keep(gone), stage.name)

    def write(self, position: int, task: Task[Any], start: int, rows: pa.Table | None) -> None:
        if rows is None or not rows.num_rows or self.writer is None:
            return
        lineage = task.lineage
        name = replace(lineage, id=f"{self.first + position}.{lineage.id}.{start}")
        metadata = task.metadata
        if self.suffix and "partition" in metadata:
            metadata = {**metadata, "partition": f"{metadata['partition']}{self.suffix}"}
        batch = Batch(rows, dataset_name=task.dataset_name, metadata=metadata).named(name)
        fragment: Any = self.writer.process(batch)
        self.send(fragment.named(name))


def materialise_answer(answer: Answer[Any]) -> Answer[Any]:
    """The answer, with a lazy one turned into a list, since it is iterated twice: here and by the worker."""
    lazy = isinstance(answer, Iterable) and not isinstance(answer, Task | list | tuple | str | bytes | Mapping)
    return list(answer) if lazy else answer  # type: ignore[arg-type]


def _explained(stage: Any, task: Batch, decision: Decision) -> pa.Table | None:
    """The dropped rows, each with what dropped it."""
    dropped = dropped_rows(decision)
    if not pc.any(dropped).as_py():
        return None
    reasons = drop_reasons(stage, decision)
    columns = {name: getattr(reasons, part).filter(dropped) for name, part in _PARTS}
    return _named(task.keep(dropped), stage.name, columns)


def _named(rows: Batch, stage: str, reasons: Mapping[str, pa.Array] | None = None) -> pa.Table:
    """The rows with the columns that say where they came from and what dropped them."""
    count = rows.num_items
    table = rows.data
    verdict_columns = [name for name in table.column_names if name.startswith(VERDICT) and name != VERDICT]
    unknown = {name: pa.nulls(count, pa.float64() if name in (SCORE, LIMIT) else pa.string()) for name, _ in _PARTS}
    added = {
        **{rejected_column_name(name): table.column(name) for name in verdict_columns},
        STAGE: pa.repeat(literal(stage, pa.string()), count),
        **(reasons or unknown),
        FILE: pa.repeat(literal(rows.metadata.get(SOURCE_FILE), pa.string()), count),
        PLACE: table.column(POSITION) if POSITION in table.column_names else pa.nulls(count, pa.int64()),
    }
    if part_column := type(rows).part_column:
        parts = part_values(table, part_column)
        added[PART] = pa.nulls(count, pa.string()) if parts is None else parts
    table = table.drop_columns([name for name in (VERDICT, *verdict_columns, *added) if name in table.column_names])
    for name, column in added.items():
        table = table.append_column(name, column)
    return table
