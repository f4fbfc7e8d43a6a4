"""Rejected rows: what stages have dropped, with the stage, its score and the threshold of each row.

A worker compares what goes into a stage with what comes out, and writes the difference as a fragment. The fragments of
a source are committed together when the source is done, like output (`io/write/side_outputs.py`). Rows are ordered
by stage, then as they were in the input. None of this runs unless `rejected=` was given.

What is given up: rows dropped by a stage that neither is a `DecidingStage` nor keeps the positions of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, VERDICT
from gristmill.core.batch import SOURCE_FILE, Batch
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.score import DecidingStage, Decision
from gristmill.core.task import Task, WrittenFiles

if TYPE_CHECKING:
    from gristmill.core.records.row_scores import ScoreRecorder
    from gristmill.core.stage import Answer, ProcessingStage

REJECTED_POSITION = -1
"""Where rejected rows go, in place of the position of a next stage."""

STAGE, FILTER, SCORE, THRESHOLD = "rejected_by", "rejected_filter", "rejected_score", "rejected_threshold"
FILE, PLACE = "rejected_file", "rejected_position"


def rejected_column_name(name: str) -> str:
    """What a column that belongs to a verdict is called beside a rejected row, whatever columns the row has."""
    return f"rejected_{name.removeprefix(VERDICT)}" if name.startswith(VERDICT) else name


class RejectedFiles(WrittenFiles):
    """The rejected rows of one source, in place for good."""


@fast_dataclass
class RejectedRowRecorder:
    """Finds and writes what stages drop, in a worker. `first` is the number of the worker's first stage in the plan."""

    writer: ProcessingStage[Any, Any] | None
    first: int = 0
    suffix: str = ""
    """Sets the files of a later segment apart from those that an earlier one has written for the same partition."""
    scores: ScoreRecorder | None = None
    """What keeps scores, if they are wanted: they go the same way. Without a `writer` only they are."""
    send: Callable[[Task[Any]], None] = field(default=lambda fragment: None, repr=False)
    aside: list[int] = field(default_factory=list, repr=False)
    """Positions of rows that the stage has just set aside: they are in quarantine, and were not dropped."""

    @property
    def name(self) -> str:
        """What is named when nothing can be written."""
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
        """A stage has answered for a task, whose first row is row `start` of the batch that it was cut from."""
        if self.writer:
            self.write(position, task, start, self._not_aside(self.dropped(stage, task, answer, decision)))
        if self.scores:
            self.scores.add_scores(position, stage, task, answer, decision)

    def dropped(
        self, stage: ProcessingStage[Any, Any], task: Task[Any], answer: Answer[Any], decision: Decision | None
    ) -> pa.Table | None:
        """The rows of a task that the stage has left out."""
        if decision is not None and isinstance(task, Batch):
            return _explained(stage, task, decision)
        return self._missing(stage, task, answer)

    def _not_aside(self, rows: pa.Table | None) -> pa.Table | None:
        if rows is None or not self.aside:
            return rows
        return rows.filter(pc.invert(pc.is_in(rows.column(PLACE), value_set=make_array(self.aside, pa.int64()))))

    def _missing(self, stage: ProcessingStage[Any, Any], task: Task[Any], answer: Answer[Any]) -> pa.Table | None:
        """The rows that a stage without a verdict has left out, known by their positions."""
        if not isinstance(task, Batch) or not task.num_items:
            return None
        if answer is None:
            return _named(task, stage.name)
        outputs = [answer] if isinstance(answer, Task) else list(answer)
        tables = [output.data for output in outputs if isinstance(output, Batch)]
        if POSITION not in task.data.column_names or any(POSITION not in table.column_names for table in tables):
            return None
        if not tables and outputs:  # it makes something else of them
            return None
        kept = pa.chunked_array([chunk for table in tables for chunk in table.column(POSITION).chunks], pa.int64())
        gone = pc.invert(pc.is_in(task.data.column(POSITION), value_set=kept))
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
    """The answer, with all of it made: what is looked through here must be there for others too."""
    lazy = isinstance(answer, Iterable) and not isinstance(answer, Task | list | tuple | str | bytes | Mapping)
    return list(answer) if lazy else answer  # type: ignore[arg-type]


def _explained(stage: Any, task: Batch, decision: Decision) -> pa.Table | None:
    """The dropped rows with the filter that dropped each: the last one that gave it a score."""
    dropped = pc.invert(decision.keep)
    if decision.aside is not None:
        dropped = pc.and_not(dropped, decision.aside)
    if not pc.any(dropped).as_py():
        return None
    thresholds = stage.thresholds() if isinstance(stage, DecidingStage) else {}
    count = task.num_items
    nothing = literal(None, pa.string())
    label, bound = pa.repeat(nothing, count), pa.repeat(nothing, count)
    number = pa.repeat(literal(None, pa.float64()), count)
    for name, scores in decision.scores.items():
        judged = pc.is_valid(scores)
        label = pc.if_else(judged, literal(name, pa.string()), label)
        bound = pc.if_else(judged, literal(thresholds.get(name), pa.string()), bound)
        number = pc.if_else(judged, _numbers(scores), number)
    return _named(task.keep(dropped), stage.name, *(column.filter(dropped) for column in (label, number, bound)))


def _numbers(scores: pa.Array) -> pa.Array:
    kind = scores.type
    if pa.types.is_boolean(kind):
        scores, kind = scores.cast(pa.int8()), pa.int8()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return scores.cast(pa.float64(), safe=False)
    return pa.nulls(len(scores), pa.float64())


def _named(
    rows: Batch, stage: str, label: pa.Array = None, score: pa.Array = None, threshold: pa.Array = None
) -> pa.Table:
    """The rows, with where they were and who dropped them."""
    count = rows.num_items
    table = rows.data
    said = [name for name in table.column_names if name.startswith(VERDICT) and name != VERDICT]
    nothing = pa.nulls(count, pa.string())
    place = table.column(POSITION) if POSITION in table.column_names else pa.nulls(count, pa.int64())
    added = {
        **{rejected_column_name(name): table.column(name) for name in said},
        STAGE: pa.repeat(literal(stage, pa.string()), count),
        FILTER: nothing if label is None else label,
        SCORE: pa.nulls(count, pa.float64()) if score is None else score,
        THRESHOLD: nothing if threshold is None else threshold,
        FILE: pa.repeat(literal(rows.metadata.get(SOURCE_FILE), pa.string()), count),
        PLACE: place,
    }
    table = table.drop_columns([name for name in (VERDICT, *said, *added) if name in table.column_names])
    for name, column in added.items():
        table = table.append_column(name, column)
    return table
