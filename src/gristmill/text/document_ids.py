"""AddId: an id for each document, the same in every run and however the input is split.

Gives up: rows without a position in a file, which are identified only by their batch. Documents that a stage has made
from one are numbered in the order of their batch.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import ColumnError
from gristmill.core.row_sampling import row_ids
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import digest
from gristmill.samples.batch import DocumentBatch

if TYPE_CHECKING:
    from gristmill.core.stage import Columns


class AddId(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds a column with an id for each document: `<prefix>_<file>_<position>`.

    The file is a hash of its name below the input directory, and the position is that of the document in the file, so
    ids do not depend on the run, the number of workers or the block size. Parts of one document get `_1`, `_2` and so
    on. A column `id_field` that exists already is an error, unless `overwrite`.
    """

    takes_empty = True

    def __init__(self, id_field: str, id_prefix: str | None = None, overwrite: bool = False) -> None:
        super().__init__()
        if not id_field:
            raise ValueError("AddId: id_field is empty: name the column for the ids")
        self.id_field, self.id_prefix, self.overwrite = id_field, id_prefix, overwrite

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.id_field: "string"}

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if self.id_field in task.get_columns() and not self.overwrite:
            raise ColumnError(
                f"stage {self.name!r}: the column {self.id_field!r} exists already. Choose another id_field, or "
                "overwrite=True to replace it"
            )
        owner, numbers = row_ids(task)
        prefix = "_".join([*([self.id_prefix] if self.id_prefix else []), digest([owner])])
        seen: Counter[int] = Counter()
        ids = []
        for number in numbers.to_pylist():
            ids.append(f"{prefix}_{number}" + (f"_{seen[number]}" if seen[number] else ""))
            seen[number] += 1
        return task.with_column(self.id_field, make_array(ids, pa.string()))
