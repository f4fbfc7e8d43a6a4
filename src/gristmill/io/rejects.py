"""Rejected rows: Parquet, one file per source, committed like output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.core.rejects import RejectedFiles
from gristmill.io.commit import CommitFiles, WriteFragments
from gristmill.io.target import Target
from gristmill.io.write_parquet import ParquetFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.core.task import GatherTask


class CommitRejected(CommitFiles):
    """Joins what was rejected of one source."""

    name = "commit_rejected"

    def process(self, task: GatherTask) -> RejectedFiles:
        files = super().process(task)
        return RejectedFiles(files.data, rows=files.rows, written=files.written, storage_options=files.storage_options)


def reject_stages(url: str, storage_options: Mapping[str, Any]) -> tuple[WriteFragments, CommitRejected]:
    """The directory belongs to the run: what an earlier one has left in it is removed, unless it is resumed."""
    target, form = Target(url, storage_options), ParquetFormat()
    writer = WriteFragments(target, form, mode="overwrite").with_(name="write_rejected")
    return writer, CommitRejected(target, form, mode="overwrite")
