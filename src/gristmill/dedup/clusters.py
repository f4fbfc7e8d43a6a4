"""The cluster table: which rows were found to be the same, which one of them was kept, and how similar they are.

    id           the row: what its `id_field` holds, or a name made of its file and its place there
    cluster      the id of the row that stands for all of them
    kept         whether the row was kept
    partner      the row that it was found to be the same as; none for the one that is kept
    similarity   from 0 to 1
    snapshot     if rows are compared with an index: what the partner was added to it with; none for rows of this run

It is Parquet, sorted by cluster and id in each file, in the directory `clusters` of the run (`run_dir`), or of `_run`
beside the output for a run without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.columns import literal
from gristmill.core.compute import pc
from gristmill.core.sample import row_ids
from gristmill.core.spread import column_of
from gristmill.core.task import GatherTask, WrittenFiles, digest
from gristmill.io.exchange import CommitRuns, Exchange
from gristmill.io.partitions import SORT_BYTES
from gristmill.io.runs import read_index, runs_of
from gristmill.io.sorting import sorted_pieces
from gristmill.io.target import Target
from gristmill.io.verdicts import KEEP
from gristmill.io.write_parquet import GROUP_BYTES, GROUP_ROWS, row_groups

if TYPE_CHECKING:
    from gristmill.core.stage import Lasting

FOLDER = "clusters"
ID, CLUSTER, KEPT, PARTNER, SIMILARITY = "id", "cluster", "kept", "partner", "similarity"
SCHEMA = pa.schema(
    [
        (ID, pa.string()),
        (CLUSTER, pa.string()),
        (KEPT, pa.bool_()),
        (PARTNER, pa.string()),
        (SIMILARITY, pa.float64()),
    ]
)


def ids(batch: Batch, id_field: str | None) -> pa.Array:
    """A name for each row: what a column holds, or the hash of its file and its place in it."""
    if id_field is not None:
        return column_of(batch.data, id_field).cast(pa.string()).combine_chunks()
    owner, numbers = row_ids(batch)
    start = literal(digest([owner]), pa.string())
    return pc.binary_join_element_wise(start, numbers.cast(pa.string()), literal("_", pa.string()))


class CommitVerdicts(CommitRuns):
    """Commits verdicts, and writes the rows of the cluster table that are among them. `extra` names more columns."""

    not_identity = ("target", "lasting")

    def __init__(self, verdicts: Exchange, name: str, extra: Sequence[str] = ()) -> None:
        super().__init__(verdicts, name)
        self.extra = tuple(extra)
        self.lasting: Target | None = None

    def settle(self, url: str, storage_options: Mapping[str, Any], lasting: Lasting = None) -> None:
        super().settle(url, storage_options, lasting)
        self.lasting = Target(f"{lasting[0]}/{FOLDER}", lasting[1]) if lasting else None

    def process(self, task: GatherTask) -> WrittenFiles:
        files = super().process(task)
        if self.lasting is not None:
            self._record(self.lasting, self.lasting.file(f"{self.stem(task)}.parquet"), files)
        return files

    def _record(self, target: Target, path: str, files: WrittenFiles) -> None:
        import pyarrow.parquet as pq

        if not files.rows:
            target.remove(path)
            return
        target.make()
        with self.target.scratch() as room:
            rows = sorted_pieces(self._tables(files), [CLUSTER, ID], SORT_BYTES, folder=room)
            with target.create(path) as file, pq.ParquetWriter(file, self._told, compression="zstd") as writer:
                for group in row_groups(rows, GROUP_BYTES, GROUP_ROWS):
                    writer.write_table(group)

    def _tables(self, files: WrittenFiles) -> Iterator[pa.Table]:
        for path in files.data:
            index = read_index(self.target, path)
            for partition in sorted({run.partition for run in index.runs}):
                for table in runs_of(self.target, path, index, partition):
                    kept = table.rename_columns([KEPT if name == KEEP else name for name in table.column_names])
                    yield kept.select(self._told.names).cast(self._told)

    @property
    def _told(self) -> pa.Schema:
        return pa.schema([*SCHEMA, *((name, pa.string()) for name in self.extra)])

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
        outputs = list(outputs)
        super().complete(outputs, info)
        if self.lasting is None:
            return
        known = {f"{path.rpartition('/')[2].removesuffix('.runs')}.parquet" for out in outputs for path in out.data}
        for name in self.lasting.names():
            if name.endswith(".parquet") and name not in known:  # of an earlier run, with more partitions
                self.lasting.remove(self.lasting.file(name))
