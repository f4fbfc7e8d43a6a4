"""Write recordings and manifests in two steps, as all writers do (`io/write/commit.py`).

ManifestWriterStage   one NeMo manifest, a JSON object per line
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.audio.batch import AUDIO, AudioBatch
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import WrittenFiles
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import Fragment, WriteFragments
from gristmill.io.write.jsonl_format import JsonlFormat
from gristmill.io.write.single_file import CommitOneFile


class ManifestWriterStage(CompositeStage[AudioBatch, WrittenFiles]):
    """Writes one NeMo manifest: all columns but the bytes, in the order of the input, by any number of workers.

    The file appears when the run has succeeded, and never in part. Until then its parts are in `OUTPUT_PATH.parts`.
    """

    name = "write_manifest"
    _catalogue_kind = "writer"

    def __init__(
        self,
        output_path: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not os.fspath(output_path) or os.fspath(output_path).endswith("/"):
            raise ValueError(f"{self.name}: output_path is {output_path!r}, must be the path of a file")
        if isinstance(fields, str):
            raise TypeError(f'{self.name}: fields must be a list of names, as in fields=["{fields}"]')
        self.output_path, self.fields, self.storage_options = output_path, fields, storage_options

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        fields = None if self.fields is None else list(self.fields)
        path = os.fspath(self.output_path)
        target, form = OutputDirectory(f"{path}.parts", self.storage_options), JsonlFormat()
        return [WriteManifestLines(target, form, fields), CommitOneFile(target, form, fields, path=path)]


class WriteManifestLines(WriteFragments):
    """Writes the rows of each batch, without the bytes of recordings, to a temporary file."""

    def process(self, task: AudioBatch) -> Fragment:  # type: ignore[override]
        if AUDIO in task.get_columns():
            task = task.with_data(task.data.drop_columns([AUDIO]))
        return super().process(task)
