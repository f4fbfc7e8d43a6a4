"""From samples to documents: the rows without the encoded bytes, for stages and writers of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import ColumnError, did_you_mean
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.samples.batch import DocumentBatch, SampleBatch
from gristmill.samples.sample_files import SIDECARS

In = TypeVar("In", bound=SampleBatch)
Out = TypeVar("Out", bound=DocumentBatch)


class ConvertToDocumentsStage(ProcessingStage[In, Out]):
    """Makes documents of the `fields` of samples; by default of all but their bytes."""

    takes_empty = True

    def __init__(self, fields: Sequence[str] | None = None) -> None:
        super().__init__()
        if isinstance(fields, str):
            raise TypeError(f"fields is the text {fields!r}, must be a list of names: [{fields!r}]")
        self.fields = None if fields is None else list(fields)

    def inputs(self) -> tuple[list[str], Columns]:
        return [], list(self.fields or [])

    def outputs(self) -> tuple[list[str], Columns]:
        return [], list(self.fields or [])

    def process(self, task: In) -> Any:
        names = task.get_columns()
        without = (task.encoded_column, SIDECARS)
        wanted = [name for name in names if name not in without] if self.fields is None else self.fields
        missing = [name for name in wanted if name not in names and name not in self._planned.columns]
        if missing and task.num_items:
            raise ColumnError(
                f"stage {self.name!r}: there is no column {missing[0]!r}.{did_you_mean(missing[0], names)} "
                f"There are: {', '.join(names)}"
            )
        chosen = [name for name in wanted if name in names]
        chosen += [POSITION] if POSITION in names and POSITION not in chosen else []
        return DocumentBatch(task.data.select(chosen), dataset_name=task.dataset_name, metadata=dict(task.metadata))
