"""TextDuplicatesRemovalWorkflow: from files to files without the rows that a table lists.

The table is what another workflow has found with perform_removal=False, or any table of ids.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from gristmill.core.executor import Executor
from gristmill.core.task import WrittenFiles
from gristmill.dedup.clusters.cluster_table import ID
from gristmill.dedup.clusters.removal_by_id import TextDuplicatesRemovalStage
from gristmill.dedup.workflows.deduplication_workflows import DeduplicationResult
from gristmill.dedup.workflows.files_workflow import FilesWorkflow
from gristmill.io.read.file_listing import Paths


class TextDuplicatesRemovalWorkflow(FilesWorkflow):
    """Removes rows by their ids: those of a cluster table that are not kept, or all of a table of ids.

    The input is that in which they were found, in blocks of any size. `id_field` is as it was then.
    """

    def __init__(
        self,
        input_path: Paths,
        ids_to_remove_path: Paths,
        output_path: str | os.PathLike[str],
        id_field: str | None = None,
        duplicate_id_field: str = ID,
        duplicate_id_read_kwargs: Mapping[str, Any] | None = None,
        cache_path: str | os.PathLike[str] | None = None,
        **files: Any,
    ) -> None:
        """`files`: as for `ExactDeduplicationWorkflow`."""
        super().__init__(input_path, output_path, cache_path, **files)
        self.ids_to_remove_path, self.id_field = ids_to_remove_path, id_field
        self.duplicate_id_field = duplicate_id_field
        self.duplicate_id_read_kwargs = dict(duplicate_id_read_kwargs or {})

    def run(self, executor: Executor | None = None, **settings: Any) -> DeduplicationResult:
        """Write the input without the rows to remove. `settings` are those of `Pipeline.run`."""
        kind = self.filetype()
        options = self.duplicate_id_read_kwargs.get("storage_options")
        stage = TextDuplicatesRemovalStage(self.ids_to_remove_path, self.id_field, self.duplicate_id_field, options)
        result = self.write_rest(kind, stage, executor, settings)
        written = sum(task.rows for task in result if isinstance(task, WrittenFiles))
        removed, listed = result.rows_read - written - len(result.quarantined()), stage.listed()
        told = stage.run_warning(result.summary()[stage.name])  # of this attempt alone
        if listed is not None and removed != listed and not told:
            warnings.warn(stage.doubt(removed, listed), RuntimeWarning, stacklevel=2)
        return DeduplicationResult(self.output_path, None, result.rows_read, removed, 0, result)
