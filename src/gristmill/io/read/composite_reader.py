"""CompositeReader: the base of the readers that users name. It lists files, then reads them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import EmptyTask
from gristmill.io.read.file_listing import Paths
from gristmill.io.read.file_partitions import WHOLE_FILES, FilePartitioningStage
from gristmill.io.read.files_reader import QUARANTINE, FilesReader, Rows


class CompositeReader(CompositeStage[EmptyTask, Rows]):
    """Lists files, then reads them. A reader is a dataclass of its parameters, and says which files it reads and how.

    The parameters below are no fields of a dataclass, so that each reader can have them in its own order.
    """

    _catalogue_kind = "reader"

    extensions: ClassVar[Sequence[str]]
    """The extensions of the files to read, unless `file_extensions` names others."""

    split_by: ClassVar[str] = WHOLE_FILES
    """How one file is split into tasks."""

    listing_class: ClassVar[type[FilePartitioningStage]] = FilePartitioningStage

    file_paths: Paths
    files_per_partition: int | None
    blocksize: int | str | None = None
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None

    def __post_init__(self) -> None:
        self.decompose()  # so that a wrong parameter is an error now, not in the run

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        return [self.lister(), self.reading_stage()]

    def lister(self) -> FilePartitioningStage:
        return self.listing_class(
            self.paths(),
            self.files_per_partition,
            self.blocksize,
            self.file_extensions or self.default_extensions(),
            self.storage_options,
            self.limit,
            split_by=self.split_by,
        )

    def paths(self) -> Paths:
        return self.file_paths

    def default_extensions(self) -> Sequence[str]:
        return self.extensions

    @abstractmethod
    def reading_stage(self) -> FilesReader[Any, Rows]:
        """The stage that reads the files of a task."""
