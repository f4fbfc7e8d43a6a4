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

import numpy as np
import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.columns import literal
from gristmill.core.compute import pc
from gristmill.core.sample import row_ids
from gristmill.core.spread import column_of
from gristmill.core.task import GatherTask, WrittenFiles, digest
from gristmill.dedup.columns import numbers, values_of
from gristmill.dedup.digest import hash64
from gristmill.io.commit import SIDE_ROOM
from gristmill.io.exchange import CommitRuns, Exchange
from gristmill.io.partitions import sort_bytes
from gristmill.io.runs import read_index, runs_of
from gristmill.io.sorting import sorted_pieces
from gristmill.io.target import TEMPORARY, Target
from gristmill.io.verdicts import KEEP
from gristmill.io.write_parquet import GROUP_BYTES, GROUP_ROWS, row_groups

if TYPE_CHECKING:
    from gristmill.core.stage import Lasting, ProcessingStage

FOLDER = "clusters"
NOTHING = "nothing-found.parquet"
ID, CLUSTER, KEPT, PARTNER, SIMILARITY = "id", "cluster", "kept", "partner", "similarity"
SNAPSHOT = "snapshot"
KEY, TABLE = "key", "table"
"""The column that rows of an index are found by, a hash; and while they are under way, the number of their table."""

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
        return values_of(column_of(batch.data, id_field)).cast(pa.string())  # the same whatever else is in its block
    owner, numbers = row_ids(batch)
    start = literal(digest([owner]), pa.string())
    return pc.binary_join_element_wise(start, numbers.cast(pa.string()), literal("_", pa.string()))


class CommitVerdicts(CommitRuns):
    """Commits verdicts, and writes the rows of the cluster table that are among them. `extra` names more columns."""

    not_identity = ("target", "lasting", "place", "prefix", "others")

    def __init__(
        self,
        verdicts: Exchange,
        name: str,
        extra: Sequence[str] = (),
        memory_gb: float | None = None,
        place: Target | None = None,
    ) -> None:
        """`place` is a directory for the table, where it is all that is wanted: nothing comes after it."""
        super().__init__(verdicts, name)
        self.extra, self.memory_gb, self.place = tuple(extra), memory_gb, place
        self.lasting: Target | None = None
        self.prefix, self.others = "", tuple[str, ...]()
        """How the files of this table begin, and those of other stages of the pipeline."""

    def settle(self, url: str, storage_options: Mapping[str, Any], lasting: Lasting = None) -> None:
        super().settle(url, storage_options, lasting)
        self.prefix = f"segment{url.rpartition('/')[2]}-"
        if self.place:
            lasting = self.place.url, self.place.storage_options
        self.lasting = Target(f"{lasting[0]}/{FOLDER}", lasting[1]) if lasting else None

    def meet(self, stages: Sequence[ProcessingStage[Any, Any]]) -> None:
        them = [stage for stage in stages if isinstance(stage, CommitVerdicts) and stage is not self]
        self.others = tuple(stage.prefix for stage in them)

    def owns(self) -> str | None:
        return self.place.url if self.place else None

    def side_room(self) -> tuple[str, Mapping[str, Any]]:
        target = self.place or self.target
        return target.file(SIDE_ROOM), target.storage_options

    def spare_room(self) -> tuple[str, Mapping[str, Any]]:
        target = self.place or self.target
        return target.file(TEMPORARY, target.new_run()), target.storage_options

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
            rows = sorted_pieces(self._tables(files), [CLUSTER, ID], sort_bytes(self.memory_gb), folder=room)
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
        if self.lasting is None or not info:  # somebody wants to know what a run would do
            return
        known = {f"{path.rpartition('/')[2].removesuffix('.runs')}.parquet" for out in outputs for path in out.data}
        there = [name for name in self.lasting.names() if name.endswith(".parquet")]
        ours = {name for name in there if name in known or name.startswith(self.others)}
        for name in set(there) - ours - {NOTHING}:  # of an earlier run, with more partitions
            self.lasting.remove(self.lasting.file(name))
        if not ours:
            self._record_nothing(self.lasting)
        else:
            self.lasting.remove(self.lasting.file(NOTHING))

    def _record_nothing(self, target: Target) -> None:
        """A table without rows, so that who looks for one finds it."""
        import pyarrow.parquet as pq

        target.make()
        with target.create(target.file(NOTHING)) as file:
            pq.write_table(self._told.empty_table(), file)


def count_clusters(target: Target) -> tuple[int, int]:
    """Of a cluster table: how many rows are not kept, and how many clusters there are."""
    import pyarrow.parquet as pq

    gone = kept = 0
    found = [np.zeros(0, np.uint64)]
    for name in target.names():
        if name.endswith(".parquet"):
            with target.open(target.file(name)) as file:
                table = pq.ParquetFile(file)
                indexed = SNAPSHOT in table.schema_arrow.names  # the row that a cluster keeps may be in an index
                for batch in table.iter_batches(columns=[KEPT, *([CLUSTER] if indexed else [])], use_threads=False):
                    true = batch.column(KEPT).true_count
                    kept, gone = kept + true, gone + batch.num_rows - true
                    if indexed:
                        found.append(np.unique(numbers(hash64(batch.column(CLUSTER)))))
    return gone, len(np.unique(np.concatenate(found))) or kept
