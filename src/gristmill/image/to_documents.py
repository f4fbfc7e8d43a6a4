"""From images to documents: the rows of images without the images, for stages and writers of text."""

from __future__ import annotations

from gristmill.image.batch import ImageBatch
from gristmill.samples.batch import DocumentBatch
from gristmill.samples.to_documents import ConvertToDocumentsStage


class ConvertImageBatchToDocumentBatchStage(ConvertToDocumentsStage[ImageBatch, DocumentBatch]):
    """Makes documents of the `fields` of images; by default of all but their bytes."""
