"""The cluster table: a row for each row of a cluster of duplicates, written as Parquet.

    id           the row: the value of its `id_field`, or a name made of its file and its position there
    cluster      the id of the row that the cluster keeps
    kept         whether the row was kept
    partner      the row that it is a duplicate of; null for the kept row
    similarity   of the row and its partner, from 0 to 1
    snapshot     if rows are compared with an index: the snapshot of the partner; null for partners of this run

Rows of an index have the ids that they were added with. In a run without `id_field` these are prefixed by their
snapshot and a colon, since files of two snapshots may have the same names.

Each file is sorted by cluster and id. The table is in the directory `clusters` of the run directory (`run_dir`) or, for
a run without one, of OUT.run beside the output directory OUT.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.hash_partitioning import required_column
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.errors import PlanError, shorten
from gristmill.core.row_sampling import row_ids
from gristmill.core.task import GatherTask, WrittenFile, WrittenFiles, digest
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, errors_name_column, numbers, values_of
from gristmill.dedup.columns.column_hashes import hash64
from gristmill.io.exchange import verdict_stage
from gristmill.io.exchange.exchange import CommitShuffleFiles, Exchange, sort_memory_bytes
from gristmill.io.exchange.external_sort import sort_tables
from gristmill.io.exchange.shuffle_files import read_index, read_partition_blocks
from gristmill.io.exchange.verdict_stage import KEEP, VerdictExchange
from gristmill.io.storage.output_directory import OutputDirectory, RecordsDirectory
from gristmill.io.write.parquet_format import ROW_GROUP_BYTES, ROW_GROUP_ROWS, row_groups

if TYPE_CHECKING:
    from gristmill.core.stage import ProcessingStage
    from gristmill.core.stage_roles import Directory, RecordsLocation
    from gristmill.io.exchange.verdict_stage import VerdictStage

CLUSTERS_DIRECTORY = "clusters"
EMPTY_TABLE_FILE = "nothing-found.parquet"
_PARQUET = ".parquet"
_TABLE = re.compile(r"segment\d+(-round\d+)?-\d+\.parquet")
"""The names of the files of a cluster table."""


def is_table_file(name: str) -> bool:
    """Whether a file of this name belongs to a cluster table."""
    return name == EMPTY_TABLE_FILE or _TABLE.fullmatch(name) is not None


ID, CLUSTER, KEPT, PARTNER, SIMILARITY = "id", "cluster", "kept", "partner", verdict_stage.SIMILARITY
SNAPSHOT = "snapshot"
CLUSTER_TABLE_RECORD = "cluster_table"
"""The key in the record of a run under which the stage, file prefix and thresholds of a table are."""

KEY, TABLE = "key", "table"
"""Columns of rows of an index: the hash they are found by, and in exchanges the number of their table."""

OWNER = "owner"
"""The 64-bit hash of the file, if the column `ID` holds positions in it and not yet names."""

_SEPARATOR = literal("_", pa.string())

SCHEMA = pa.schema(
    [
        (ID, pa.string()),
        (CLUSTER, pa.string()),
        (KEPT, pa.bool_()),
        (PARTNER, pa.string()),
        (SIMILARITY, pa.float64()),
    ]
)


def ids(stage: str, batch: Batch, id_field: str | None) -> pa.Array:
    """The id of each row: the value of a column, or the hash of its file and its position there."""
    if id_field is not None:
        column = required_column(batch.data, id_field)
        with errors_name_column(stage, id_field):
            return values_of(column).cast(pa.string())  # so that a value has the same text in every block
    owner, positions = row_ids(batch)
    return _joined(literal(digest([owner]), pa.string()), positions)


def row_name_parts(batch: Batch) -> tuple[pa.Scalar, pa.Array]:
    """The columns `OWNER` and `ID`, of which `join_row_names` makes the ids of rows without an `id_field`.

    Most rows have no duplicate, and their ids as text are never needed.
    """
    owner, positions = row_ids(batch)
    return literal(int(digest([owner]), 16), pa.uint64()), positions


def join_row_names(table: pa.Table) -> pa.Array:
    """The ids of rows, as text."""
    named = as_one_array(table.column(ID))
    if OWNER not in table.column_names:
        return named.cast(pa.string())
    owners = as_one_array(table.column(OWNER)).dictionary_encode()
    hashes = make_array([f"{owner:016x}" for owner in owners.dictionary.to_pylist()], pa.string())
    return _joined(hashes.take(owners.indices), named)


def _joined(owner: Any, positions: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(owner, positions.cast(pa.string()), _SEPARATOR)


def row_numbers(batch: Batch) -> Numbers:
    """A 64-bit number for each row that depends only on its file and its position there.

    Rows with the same position, as when a stage has split a row, are told apart by their order.
    """
    owner, found = row_ids(batch)
    positions = numbers(found, np.uint64)
    new = np.append(True, positions[1:] != positions[:-1])[: len(positions)]
    starts = np.flatnonzero(new)
    repetition = np.arange(len(positions)) - (starts[np.cumsum(new) - 1] if len(positions) else 0)
    bits = positions * np.uint64(0x9E3779B97F4A7C15) + np.uint64(int(digest(["row", owner]), 16))
    bits += repetition.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return (bits ^ (bits >> np.uint64(31))).view(np.int64)


class CommitVerdicts(CommitShuffleFiles):
    """Commits verdicts, and writes them as the cluster table, with `extra` columns of text."""

    not_identity = ("target", "lasting", "table_target", "prefix", "other_prefixes")

    def __init__(
        self,
        verdicts: Exchange,
        name: str,
        extra: Sequence[str] = (),
        memory_gb: float | None = None,
        table_target: OutputDirectory | None = None,
    ) -> None:
        """`table_target` is set if the table is the output of the run, in a directory of the user."""
        super().__init__(verdicts, name)
        self.extra, self.memory_gb, self.table_target = tuple(extra), memory_gb, table_target
        self.lasting: OutputDirectory | None = None
        self.prefix, self.other_prefixes = "", tuple[str, ...]()
        """How the names of the files of this table begin, and those of the tables of other stages."""
        self._recorded_sizes: dict[str, int] | None = None

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        super().assign_directories(url, storage_options, lasting)
        self.prefix = f"segment{url.rpartition('/')[2]}-"
        if self.table_target:
            lasting = self.table_target.url, self.table_target.storage_options
        self.lasting = RecordsDirectory(f"{lasting[0]}/{CLUSTERS_DIRECTORY}", lasting[1]) if lasting else None

    @property
    def stage(self) -> VerdictStage:
        """The deduplication stage that this is a part of."""
        assert isinstance(self.exchange, VerdictExchange)
        return self.exchange.spool.stage

    def see_pipeline(self, stages: Sequence[ProcessingStage[Any, Any]]) -> None:
        others = [stage for stage in stages if isinstance(stage, CommitVerdicts) and stage is not self]
        self.other_prefixes = tuple(stage.prefix for stage in others)

    def output_directory(self) -> str | None:
        return self.table_target.url if self.table_target else None

    def records_directories(self) -> Sequence[Directory]:
        target = self.table_target or self.target
        return [(target.records, target.storage_options)]

    def temporary_directory(self) -> tuple[str, Mapping[str, Any]]:
        target = self.table_target or self.target
        return target.temporary(target.new_temporary_name()), target.storage_options

    def prepare_run(self, memory: dict[str, Any]) -> None:
        super().prepare_run(memory)
        memory[CLUSTER_TABLE_RECORD] = {
            "prefix": self.prefix,
            "stage": self.stage.name,
            "thresholds": self.stage.thresholds(),
        }
        if self.lasting is not None:
            self._refuse_others(self.lasting)

    def _refuse_others(self, target: OutputDirectory) -> None:
        """Raise if the directory has Parquet files of others, which would be read as part of the table.

        All tables in a run directory are of that run, also if its pipeline has changed since.
        """
        files = [name for name in target.names() if name.endswith(_PARQUET) and name != EMPTY_TABLE_FILE]
        ours = [
            name for name in files if _TABLE.fullmatch(name) and (not self.table_target or name.startswith(self.prefix))
        ]
        if others := sorted(set(files) - set(ours)):
            raise PlanError(
                f"stage {self.name!r}: {target.url} has {shorten(others)}, which this stage has not written and which "
                "would be read as part of its cluster table. Move the files away, or choose another directory"
            )

    def has_files(self, files: Sequence[WrittenFile]) -> bool:
        """The table must be there too; its directory may have changed since."""
        runs, tables = _runs(files), [file for file in files if file.path.endswith(_PARQUET)]
        if self.lasting is None or not super().has_files(runs):
            return super().has_files(runs)
        if self._recorded_sizes is None:
            self._recorded_sizes = self.lasting.sizes()
        return len(tables) == len(runs) and all(
            self._is_there(self.lasting, self._recorded_sizes, file) for file in tables
        )

    def _is_there(self, target: OutputDirectory, sizes: Mapping[str, int], file: WrittenFile) -> bool:
        """Whether a file of the table is unchanged. In a directory of the user it may be one of another run with the
        same name and size, so there its checksum is computed."""
        name = file.path.rpartition("/")[2]
        same = sizes.get(name) == file.size
        return same and (not self.table_target or target.checksum_problem(target.file(name), file.checksum) is None)

    def process(self, task: GatherTask) -> WrittenFiles:
        files = super().process(task)
        if self.lasting is not None:
            files.written += self._record(self.lasting, self.lasting.file(f"{self.stem(task)}{_PARQUET}"), files)
            files.data = [file.path for file in files.written]
        return files

    def _record(self, target: OutputDirectory, path: str, files: WrittenFiles) -> tuple[WrittenFile, ...]:
        import pyarrow.parquet as pq

        if not files.rows:
            target.remove(path)
            return ()
        target.create_directory()
        with self.target.scratch() as folder:
            rows = sort_tables(self._tables(files), [CLUSTER, ID], sort_memory_bytes(self.memory_gb), folder=folder)
            with target.create(path) as file, pq.ParquetWriter(file, self._table_schema, compression="zstd") as writer:
                for group in row_groups(rows, ROW_GROUP_BYTES, ROW_GROUP_ROWS):
                    writer.write_table(group)
        return (WrittenFile(path, file.size, file.checksum),)

    def _tables(self, files: WrittenFiles) -> Iterator[pa.Table]:
        schema = self._table_schema
        for path in files.data:
            index = read_index(self.target, path)
            for partition in sorted({run.partition for run in index.blocks}):
                for table in read_partition_blocks(self.target, path, index, partition):
                    columns = [KEEP if name == KEPT else name for name in schema.names]
                    rows = table.select(columns).rename_columns(schema.names)
                    yield rows if rows.schema.equals(schema) else rows.cast(schema)

    @property
    def _table_schema(self) -> pa.Schema:
        return pa.schema([*SCHEMA, *((name, pa.string()) for name in self.extra)])

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
        outputs = list(outputs)
        super().complete(map(_without_table, outputs), info)
        if self.lasting is None or not info:  # a dry run: nothing was written
            return
        written = {file.path.rpartition("/")[2] for output in outputs for file in output.written}
        files = [name for name in self.lasting.names() if _TABLE.fullmatch(name)]
        ours = {name for name in files if name in written or name.startswith(self.other_prefixes)}
        for name in set(files) - ours:  # of an earlier run, with more partitions
            self.lasting.remove(self.lasting.file(name))
        if not ours:
            self._write_empty_table(self.lasting)
        else:
            self.lasting.remove(self.lasting.file(EMPTY_TABLE_FILE))

    def _write_empty_table(self, target: OutputDirectory) -> None:
        """Write a table without rows, so that readers find a schema and not an empty directory."""
        import pyarrow.parquet as pq

        target.create_directory()
        with target.create(target.file(EMPTY_TABLE_FILE)) as file:
            pq.write_table(self._table_schema.empty_table(), file)


def _runs(files: Iterable[WrittenFile]) -> tuple[WrittenFile, ...]:
    return tuple(file for file in files if not file.path.endswith(_PARQUET))


def _without_table(output: WrittenFiles) -> WrittenFiles:
    copy = output.named(output.lineage)
    copy.written = _runs(output.written)
    return copy


def count_clusters(target: OutputDirectory) -> tuple[int, int]:
    """The number of dropped rows and of clusters in a cluster table."""
    import pyarrow.parquet as pq

    dropped = kept = 0
    clusters = [np.zeros(0, np.uint64)]
    for name in target.names():
        if name.endswith(".parquet"):
            with target.open(target.file(name)) as file:
                table = pq.ParquetFile(file)
                indexed = SNAPSHOT in table.schema_arrow.names  # the row that a cluster keeps may be in an index
                for batch in table.iter_batches(columns=[KEPT, *([CLUSTER] if indexed else [])], use_threads=False):
                    in_batch = batch.column(KEPT).true_count
                    kept, dropped = kept + in_batch, dropped + batch.num_rows - in_batch
                    if indexed:
                        clusters.append(np.unique(numbers(hash64(batch.column(CLUSTER)))))
    return dropped, len(np.unique(np.concatenate(clusters))) or kept
