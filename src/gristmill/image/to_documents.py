"""From images to documents: the rows of images without the images, for stages and writers of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.core.stage import Columns
from gristmill.image.batch import IMAGE_ID, ImageBatch
from gristmill.image.image_object import COLUMN_BY_FIELD
from gristmill.samples.batch import DocumentBatch
from gristmill.samples.to_documents import ConvertToDocumentsStage


class ConvertImageBatchToDocumentBatchStage(ConvertToDocumentsStage[ImageBatch, DocumentBatch]):
    """Makes documents of the `fields` of images; by default of all but their bytes.

    An empty list stands for the id. `embedding`, the name of `ImageObject`, is taken from `image_embedding` if there is
    no column of that name.
    """

    def __init__(self, fields: Sequence[str] | None = None) -> None:
        super().__init__([IMAGE_ID] if fields is not None and not list(fields) else fields)

    def inputs(self) -> tuple[list[str], Columns]:
        return [], [name for name in self.fields or [] if name not in COLUMN_BY_FIELD]

    def process(self, task: ImageBatch) -> Any:
        columns = task.get_columns()
        for name, column in COLUMN_BY_FIELD.items():
            if name in (self.fields or ()) and name not in columns and column in columns:
                task = task.with_column(name, task.data.column(column).combine_chunks())
        return super().process(task)
