"""Write samples in two steps, as all writers do (`io/write/commit.py`): output appears complete or not at all, and its
bytes do not depend on workers, blocks or interruptions. Objects are written as they are, and never encoded again.

A modality subclasses `SampleWriter` and returns one of the formats of `shard_formats.py`, or Parquet.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.core.task import GatherTask, WrittenFile, WrittenFiles
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import WRITE_MODES, CommitFiles, OutputFormat, WriteFragments
from gristmill.samples.batch import S, SampleBatch
from gristmill.samples.shard_formats import DirectoryFormat, clear_directory


class SampleWriter(CompositeStage[S, WrittenFiles]):
    """Base of the writers of a modality, which sets `kind` and writes `_format`."""

    kind: ClassVar[type[SampleBatch]]
    _catalogue_kind = "writer"

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        mode: str = "ignore",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not os.fspath(output_dir):
            raise ValueError(f"{self.name}: output_dir is empty: name the directory to write to")
        if mode not in WRITE_MODES:
            raise ValueError(f"{self.name}: mode is {mode!r}, must be one of {', '.join(map(repr, WRITE_MODES))}")
        if isinstance(fields, str):
            raise TypeError(f'{self.name}: fields must be a list of names, as in fields=["{fields}"]')
        self.output_dir, self.fields, self.mode, self.storage_options = output_dir, fields, mode, storage_options

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        fields = None if self.fields is None else list(self.fields)
        form, target = self._format(), OutputDirectory(self.output_dir, self.storage_options)
        commit = CommitDirectories if isinstance(form, DirectoryFormat) else CommitFiles
        write = WriteSampleFragments(self.kind, target, form, fields, self.mode)
        return [write, commit(target, form, fields, self.mode)]

    @abstractmethod
    def _format(self) -> OutputFormat:
        """How rows become files."""


class SampleDirectoryWriter(SampleWriter[S]):
    """Writes files with their captions, metadata, labels and sidecars beside them: a directory for each partition of
    the input, and an index that appears when all files are there."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        mode: str = "ignore",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(output_dir, fields, mode, storage_options)
        if mode not in ("ignore", "error"):
            raise ValueError(f"{self.name}: mode is {mode!r}, must be 'ignore' or 'error'")

    def _format(self) -> OutputFormat:
        return DirectoryFormat(self.kind)


class WriteSampleFragments(WriteFragments):
    """Writes each batch of samples to a temporary file."""

    def __init__(self, kind: type[SampleBatch], *settings: Any) -> None:
        super().__init__(*settings)
        self._encoded_column = kind.encoded_column

    def inputs(self) -> tuple[list[str], Columns]:
        return [], [self._encoded_column]


class CommitDirectories(CommitFiles):
    """Commits directories of files. In the manifest and the ledger a directory is named by its index."""

    def process(self, task: GatherTask) -> WrittenFiles:
        fragments: list[Any] = task.data
        if not any(fragment.size for fragment in fragments):
            clear_directory(self.target, self.stem(task))
        return super().process(task)

    def discard_files(self, files: Sequence[WrittenFile]) -> None:
        super().discard_files(files)
        for file in files:
            clear_directory(self.target, file.path.rpartition("/")[2].removesuffix(".parquet"))
