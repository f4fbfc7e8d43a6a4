"""Rejected rows: Parquet, one file per source, committed like output, in a directory that belongs to the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.core.errors import PlanError, shorten
from gristmill.core.records.rejected_rows import RejectedFiles
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import CommitFiles, WriteFragments, data_files
from gristmill.io.write.parquet_format import ParquetFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gristmill.core.task import GatherTask, WrittenFiles

REJECTED_MARK = "_rejected"
"""A file that says whose the directory is: what earlier runs have left in it may be removed, what others have not."""


class WriteRejected(WriteFragments):
    """Writes what stages drop."""

    def check(self) -> None:
        super().check()
        found = data_files(self.target, self.form)
        if found and not self.target.exists(self.target.file(REJECTED_MARK)):
            raise PlanError(
                f"rejected={self.target.url!r} holds {shorten(found)}, which no run has put there as rejected rows: "
                "choose a directory of its own for them"
            )

    def prepare_run(self, memory: dict[str, Any]) -> None:
        super().prepare_run(memory)
        memory["place"] = self.target.url
        with self.target.create(self.target.file(REJECTED_MARK)):
            pass


class CommitRejected(CommitFiles):
    """Joins what was rejected of one source."""

    name = "commit_rejected"

    def process(self, task: GatherTask) -> RejectedFiles:
        files = super().process(task)
        return RejectedFiles(files.data, rows=files.rows, written=files.written, storage_options=files.storage_options)

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
        """Fragments of attempts that were given up have names of their own, and nobody has taken them."""
        self.target.remove_stale_files(everything=True)


def rejected_row_stages(url: str, storage_options: Mapping[str, Any]) -> tuple[WriteRejected, CommitRejected]:
    """What an earlier run has left is removed, unless it is that one which is resumed."""
    target, form = OutputDirectory(url, storage_options), ParquetFormat()
    writer = WriteRejected(target, form, mode="overwrite")
    writer.name = "write_rejected"
    return writer, CommitRejected(target, form, mode="overwrite")
