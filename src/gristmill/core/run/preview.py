"""Run the first rows of a pipeline in this process, and show the scores that each filter gave them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import table_to_rows
from gristmill.core.batch import Batch
from gristmill.core.deciding_stage import DecidingStage
from gristmill.core.errors import StageError, printable
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.quarantine import ErrorBudget
from gristmill.core.run.worker import Worker
from gristmill.core.stage import copies_for_this_process
from gristmill.core.stage_roles import GatherRole, WriterRole
from gristmill.core.task import Task

if TYPE_CHECKING:
    from gristmill.core.plan.planner import Plan

_ROW = "__preview_row__"


@fast_dataclass
class PreviewRow:
    """One row as output (as input, if it was dropped), its scores, and the stage that dropped it."""

    data: dict[str, Any]
    scores: dict[str, Any] = field(default_factory=dict)
    dropped_by: str | None = None
    made_by: str | None = None
    """The stage that created the row, if its input row is unknown; then there are no scores of earlier stages."""
    waits_for: str | None = None
    """The stage that needs all rows to decide, at which the preview ended."""

    @property
    def kept(self) -> bool:
        """Whether the row reached the end."""
        return self.dropped_by is None and self.waits_for is None

    @property
    def fate(self) -> str:
        if self.dropped_by:
            return f"dropped by {self.dropped_by}"
        if self.waits_for:
            return f"kept up to {self.waits_for}, which needs all rows"
        return f"made by {self.made_by}" if self.made_by else "kept"

    def shown(self) -> list[tuple[str, str]]:
        """The public columns, as printable text."""
        return [(printable(key), one_line(value)) for key, value in self.data.items() if not key.startswith("_")]


class Preview(Sequence[PreviewRow]):
    """The rows of a preview, and a note on each record that could not be used. `print` it."""

    def __init__(self, rows: list[PreviewRow], notes: Iterable[str] = ()) -> None:
        self.rows, self.notes = rows, list(notes)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __str__(self) -> str:
        lines = []
        for row in self.rows:
            scores = ", ".join(f"{printable(name)}={one_line(value)}" for name, value in row.scores.items())
            lines.append(f"{printable(row.fate):<39}  {scores}".rstrip())
            lines += [f"    {key}: {value}" for key, value in row.shown()]
        lines += [] if lines else ["no rows"]
        if self.notes:
            more = f" (and {len(self.notes) - 1:,} more)" if len(self.notes) > 1 else ""
            lines.append(f"could not be used: {printable(self.notes[0])}{more}")
        return "\n".join(lines)


def one_line(value: Any, most: int = 100) -> str:
    """A value as one line of at most `most` characters."""
    text = f"{value:.4g}" if isinstance(value, float) else printable(str(value)[: 4 * most])
    return printable(" ".join(text.split()), most)


def make_preview(plan: Plan, n: int, initial_tasks: Sequence[Task[Any]] | None) -> Preview:
    """Run n rows through the plan's stages in this process, up to the writer or the first exchange: deduplication of a
    few rows would not show what it does to all."""
    from gristmill.core.run.run_segments import named_sources

    stages = copies_for_this_process([stage for group in plan.main_groups for stage in group.stages])
    worker = Worker(stages, budget=ErrorBudget())  # with a budget, unreadable records do not raise
    worker.setup_on_node()
    worker.setup()
    try:
        first = (task for tasks in named_sources(plan, initial_tasks) for task in tasks)
        last = plan.stages[-1]
        rows = _Trace(worker, n, (last._planned.part_of or last.name) if plan.next_segment else None).run(first)
        return Preview(rows, map(_note, worker.isolator.reported_by_stage if worker.isolator else ()))
    finally:
        worker.teardown()


def _note(aside: Mapping[str, Any]) -> str:
    where = f"{aside['file']}, at {aside['position']:,}: " if aside["file"] and aside["position"] is not None else ""
    return f"{where}{aside['error']}"


class _Trace:
    """Follows numbered rows through the stages."""

    def __init__(self, worker: Worker, n: int, exchange: str | None) -> None:
        self.worker, self.stages, self.n, self.exchange = worker, worker.stages, n, exchange
        self.rows: dict[int, PreviewRow] = {}
        self.others: list[PreviewRow] = []
        self.lost: set[int] = set()
        """Rows that a stage replaced by others without a known mapping; the new ones are shown instead."""

    def run(self, tasks: Iterator[Task[Any]]) -> list[PreviewRow]:
        for task in tasks:
            if self.full:
                break
            self._pass(task, 0)
        rows = [row for number, row in self.rows.items() if number not in self.lost]
        return [*rows, *self.others][: self.n]

    @property
    def full(self) -> bool:
        return self.shown + len(self.others) >= self.n

    @property
    def shown(self) -> int:
        return len(self.rows) - len(self.lost)

    def _pass(self, task: Task[Any], position: int) -> None:
        if isinstance(task, Batch) and _ROW not in task.data.column_names:
            task = self._number(task)
        if isinstance(task, Batch) and not task.num_items:
            return
        while position < len(self.stages) and task.lineage.skips_branch(self.stages[position]._planned.branch):
            position += 1
        if position == len(self.stages) or isinstance(self.stages[position], GatherRole | WriterRole):
            self._arrive(task)
            return
        stage = self.stages[position]
        if isinstance(stage, DecidingStage) and isinstance(task, Batch):
            try:
                kept_rows = self._decide(stage, task)
            except Exception as error:
                raise self.worker.failure(position, task.lineage, error) from error
            self._pass(kept_rows, position + 1)
            return
        before = _row_numbers(task)
        kept: set[int] = set()
        for answer in self._children(position, task):
            child = self._follow(answer, task, stage.name) if isinstance(task, Batch) else answer
            kept |= _row_numbers(child)
            self._pass(child, position + 1)
            if not before and self.full:
                return
        for number in before - kept - self.lost:
            self.rows[number].dropped_by = self.rows[number].dropped_by or stage.name

    def _children(self, position: int, task: Task[Any]) -> Iterator[Task[Any]]:
        stage = self.stages[position]
        try:
            answer = stage.process(task)
            if isinstance(answer, Task):
                yield answer.named(task.lineage)
                return
            for index, child in enumerate(answer or ()):
                yield child.named(task.lineage.child(index, child.lineage.branch))
        except StageError:
            raise
        except Exception as error:
            raise self.worker.failure(position, task.lineage, error) from error

    def _follow(self, answer: Task[Any], parent: Batch, stage: str) -> Task[Any]:
        """The answer with row numbers. A new batch has none; with as many rows as its parent, they are the same."""
        if not isinstance(answer, Batch) or not answer.num_items:
            return answer
        if _ROW in answer.data.column_names:
            return self._tell_apart(answer)
        numbers = parent.data.column(_ROW)
        if answer.num_items == len(numbers):
            return answer.with_data(answer.data.append_column(_ROW, numbers))
        self.lost |= set(numbers.to_pylist())
        return self._number(answer, stage)

    def _tell_apart(self, batch: Batch) -> Batch:
        """Give rows that were made of one row, such as the clips of a film, numbers of their own."""
        numbers: list[int] = batch.data.column(_ROW).to_pylist()
        if len(set(numbers)) == len(numbers):
            return batch
        seen: set[int] = set()
        for index, (number, data) in enumerate(zip(numbers, table_to_rows(batch.data.drop_columns(_ROW)), strict=True)):
            numbers[index] = len(self.rows) if number in seen else number
            seen.add(number)
            self.rows[numbers[index]] = replace(self.rows[number], data=data, scores=dict(self.rows[number].scores))
        place = batch.data.column_names.index(_ROW)
        return batch.with_data(batch.data.set_column(place, _ROW, make_array(numbers, pa.int64())))

    def _number(self, batch: Batch, made_by: str | None = None) -> Batch:
        """Take as many rows as are still needed, and number them so that they can be followed."""
        wanted = batch.slice(0, max(self.n - self.shown, 0))
        numbers = range(len(self.rows), len(self.rows) + wanted.num_items)
        for number, data in zip(numbers, table_to_rows(wanted.data), strict=True):
            self.rows[number] = PreviewRow(data, made_by=made_by)
        return wanted.with_data(wanted.data.append_column(_ROW, make_array(numbers, pa.int64())))

    def _decide(self, stage: Any, batch: Batch) -> Batch:
        decision = stage.decide(batch)
        numbers = batch.data.column(_ROW).to_pylist()
        for name, scores in decision.scores.items():
            for number, score in zip(numbers, scores.to_pylist(), strict=True):
                self.rows[number].scores[name] = score
        for number, keep in zip(numbers, decision.keep.to_pylist(), strict=True):
            if not keep:
                self.rows[number].dropped_by = stage.name
        kept: Batch = stage.apply(batch, decision)
        return kept

    def _arrive(self, task: Task[Any]) -> None:
        if not isinstance(task, Batch):
            self.others.append(PreviewRow({"task": task.data}, waits_for=self.exchange))
            return
        for row in table_to_rows(task.data):
            number = row.pop(_ROW)
            self.rows[number].data = row
            self.rows[number].waits_for = self.exchange


def _row_numbers(task: Task[Any]) -> set[int]:
    if isinstance(task, Batch) and _ROW in task.data.column_names:
        return set(task.data.column(_ROW).to_pylist())
    return set()
