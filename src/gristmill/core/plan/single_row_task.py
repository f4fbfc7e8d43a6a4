"""Stages that work row by row, on tasks of one row, in a pipeline of batches.

A modality subclasses `RowTask` and names its `batch_class`. A stage whose types say that it takes or gives such tasks
runs in a `RowByRow`, which the planner puts around it: the rows of a batch become tasks, and its answers a batch again.
Other stages of the pipeline still work on whole batches. Columns that the stage leaves alone keep their types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.table_conversion import POSITION, column_values, rows_to_table
from gristmill.core.batch import Batch
from gristmill.core.errors import AnswerCountError, ContractError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.function_stage import task_types
from gristmill.core.stage import SETTINGS, Columns, ProcessingStage, SourceStage, share_report
from gristmill.core.task import Task

if TYPE_CHECKING:
    from gristmill.core.stage import NodeInfo, WorkerMetadata

ROWS_PER_BATCH = 4000


@fast_dataclass
class RowTask(Task[dict[str, Any]]):
    """One row as a dict."""

    data: dict[str, Any]

    batch_class: ClassVar[type[Batch]]

    @classmethod
    def from_batch(cls, batch: Batch) -> list[Any]:
        """A task for each row."""
        names = [name for name in batch.get_columns() if name != POSITION]
        values = zip(*(column_values(batch.data.column(name)) for name in names), strict=True)
        rows = (dict(zip(names, row, strict=True)) for row in values) if names else ({} for _ in range(batch.num_items))
        return [cls(row, dataset_name=batch.dataset_name, metadata=dict(batch.metadata)) for row in rows]

    @classmethod
    def to_table(cls, tasks: Sequence[Any]) -> pa.Table:
        """The rows of tasks, with all columns of all of them."""
        return rows_to_table([task.data for task in tasks])

    @classmethod
    def to_batch(cls, batch: Batch, sources: Sequence[int], outputs: Sequence[Any]) -> Batch:
        """The rows that are left of a batch, with what a stage has changed. `sources` says for each task of the output
        which of those of `from_batch` it was made of."""
        kept = batch.take(sources)
        if not outputs:
            return kept
        changed = cls.to_table(outputs)
        before = kept.data
        columns: dict[str, Any] = {}
        for name in before.column_names:
            if name == POSITION:
                columns[name] = before.column(name)
            elif name in changed.column_names:
                values = changed.column(name)
                same = column_values(values) == column_values(before.column(name))
                columns[name] = before.column(name) if same else values
        columns |= {name: changed.column(name) for name in changed.column_names if name not in columns}
        return cls.batch_class(
            pa.table(columns), dataset_name=outputs[0].dataset_name, metadata=dict(outputs[0].metadata)
        )


class RowByRow(ProcessingStage[Any, Any]):
    """Runs a stage that takes or gives tasks of one row."""

    takes_empty = True

    def __init__(self, stage: ProcessingStage[Any, Any], kind: type[RowTask]) -> None:
        self.stage, self.kind = stage, kind
        for setting in SETTINGS:
            if setting != "batch_size":
                setattr(self, setting, getattr(stage, setting))

    def setup_on_node(self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None) -> None:
        self.stage.setup_on_node(node_info, worker_metadata)

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self.stage.setup(worker_metadata)

    def teardown(self) -> None:
        self.stage.teardown()

    def check(self) -> None:
        self.stage.check()

    def inputs(self) -> tuple[list[str], Columns]:
        return [], self.stage.inputs()[1]

    def process(self, task: Task[Any]) -> Iterator[Batch]:
        share_report(self, self.stage)
        if not isinstance(task, Batch):
            yield from self._batches(self._outputs([task]))
            return
        rows = self.kind.from_batch(task)
        size = max(int(self.stage.batch_size), 1)
        sources: list[int] = []
        outputs: list[Any] = []
        for start in range(0, len(rows), size):
            for index, output in self._outputs(rows[start : start + size]):
                sources.append(start + index)
                outputs.append(output)
        yield self.kind.to_batch(task, sources, outputs)

    def _outputs(self, tasks: Sequence[Task[Any]]) -> Iterator[tuple[int, Any]]:
        """The tasks that the stage gives, each with the index of the one that it came from."""
        answers = self.stage.process_batch(tasks)
        if not isinstance(answers, list | tuple) or len(answers) != len(tasks):
            got = f"{len(answers)} answers" if isinstance(answers, list | tuple) else type(answers).__name__
            reason = f"process_batch got {len(tasks)} rows and returned {got}: return one answer per row, in order"
            raise AnswerCountError(self.name, "", (), reason)
        for index, answer in enumerate(answers):
            for output in [answer] if isinstance(answer, Task) else answer or ():
                if not isinstance(output, RowTask):
                    raise ContractError(
                        f"stage {self.name!r} returned {type(output).__name__}: one that takes {self.kind.__name__} "
                        f"must return {self.kind.__name__}, a list of them, or None to drop the row"
                    )
                yield index, output

    def _batches(self, outputs: Iterable[tuple[int, Any]]) -> Iterator[Batch]:
        """Batches of the rows that a stage gives which begins with none."""
        waiting = (output for _, output in outputs)
        while tasks := list(islice(waiting, ROWS_PER_BATCH)):
            first = tasks[0]
            table = type(first).to_table(tasks)
            yield first.batch_class(table, dataset_name=first.dataset_name, metadata=dict(first.metadata))


def row_by_row(stage: ProcessingStage[Any, Any]) -> ProcessingStage[Any, Any]:
    """The stage, in a `RowByRow` if its types say that it takes or gives tasks of one row."""
    if isinstance(stage, RowByRow | SourceStage):
        return stage
    kinds = [kind for kind in task_types(stage) if kind is not None and issubclass(kind, RowTask)]
    return RowByRow(stage, kinds[0]) if kinds else stage
