"""The cluster table: which rows were found to be the same, which one of them was kept, and how similar they are.

    id           the row: what its `id_field` holds, or a name made of its file and its place there
    cluster      the id of the row that stands for all of them
    kept         whether the row was kept
    partner      the row that it was found to be the same as; none for the one that is kept
    similarity   from 0 to 1
    snapshot     if rows are compared with an index: what the partner was added to it with; none for rows of this run

Rows of an index have the ids that they were added with. In a run without `id_field` their snapshot and a colon come
first, as cluster and as partner: files of two snapshots may have the same names.

It is Parquet, sorted by cluster and id in each file, in the directory `clusters` of the run (`run_dir`), or of `_run`
beside the output for a run without one.
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
from gristmill.core.sample import row_ids
from gristmill.core.task import GatherTask, WrittenFile, WrittenFiles, digest
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, errors_name_column, numbers, values_of
from gristmill.dedup.columns.column_hashes import hash64
from gristmill.io.exchange.exchange import CommitShuffleFiles, Exchange
from gristmill.io.exchange.external_sort import sort_tables
from gristmill.io.exchange.partitions import sort_memory_bytes
from gristmill.io.exchange.shuffle_files import read_index, read_partition_blocks
from gristmill.io.storage.output_directory import TEMPORARY_DIRECTORY, OutputDirectory
from gristmill.io.verdicts import apply_verdicts
from gristmill.io.verdicts.verdict_stage import KEEP, VerdictExchange
from gristmill.io.write.commit import RECORDS_DIRECTORY
from gristmill.io.write.parquet_format import ROW_GROUP_BYTES, ROW_GROUP_ROWS, row_groups

if TYPE_CHECKING:
    from gristmill.core.stage import ProcessingStage, RecordsLocation
    from gristmill.io.verdicts.verdict_stage import VerdictStage

CLUSTERS_DIRECTORY = "clusters"
EMPTY_TABLE_FILE = "nothing-found.parquet"
_PARQUET = ".parquet"
_TABLE = re.compile(r"segment\d+(-round\d+)?-\d+\.parquet")
"""The names of the files of a table."""

ID, CLUSTER, KEPT, PARTNER, SIMILARITY = "id", "cluster", "kept", "partner", apply_verdicts.SIMILARITY
SNAPSHOT = "snapshot"
CLUSTER_TABLE_RECORD = "cluster_table"
"""Under this name the record of a run tells whose a table is, how its files begin, and what was compared with what."""

KEY, TABLE = "key", "table"
"""The column that rows of an index are found by, a hash; and while they are under way, the number of their table."""

OWNER = "owner"
"""What the numbers in the column `ID` belong to, a hash of 64 bits, where these are not the names."""

_BETWEEN = literal("_", pa.string())

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
    """A name for each row: what a column holds, or the hash of its file and its place in it."""
    if id_field is not None:
        column = required_column(batch.data, id_field)
        with errors_name_column(stage, id_field):
            return values_of(column).cast(pa.string())  # the same whatever else is in its block
    owner, places = row_ids(batch)
    return _joined(literal(digest([owner]), pa.string()), places)


def row_name_parts(batch: Batch) -> tuple[pa.Scalar, pa.Array]:
    """What `ids` makes names of if no column holds them, for the columns `OWNER` and `ID` of a table that is given to
    `join_row_names`: of most rows nobody asks for the name, and texts are costly."""
    owner, places = row_ids(batch)
    return literal(int(digest([owner]), 16), pa.uint64()), places


def join_row_names(table: pa.Table) -> pa.Array:
    """Names of rows, as text."""
    named = as_one_array(table.column(ID))
    if OWNER not in table.column_names:
        return named.cast(pa.string())
    owners = as_one_array(table.column(OWNER)).dictionary_encode()
    hashes = make_array([f"{owner:016x}" for owner in owners.dictionary.to_pylist()], pa.string())
    return _joined(hashes.take(owners.indices), named)


def _joined(owner: Any, places: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(owner, places.cast(pa.string()), _BETWEEN)


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
    """Commits verdicts, and writes the rows of the cluster table that are among them. `extra` names more columns."""

    not_identity = ("target", "lasting", "table_target", "prefix", "other_prefixes")

    def __init__(
        self,
        verdicts: Exchange,
        name: str,
        extra: Sequence[str] = (),
        memory_gb: float | None = None,
        place: OutputDirectory | None = None,
    ) -> None:
        """`place` is a directory for the table, where it is all that is wanted: nothing comes after it."""
        super().__init__(verdicts, name)
        self.extra, self.memory_gb, self.table_target = tuple(extra), memory_gb, place
        self.lasting: OutputDirectory | None = None
        self.prefix, self.other_prefixes = "", tuple[str, ...]()
        """How the files of this table begin, and those of other stages of the pipeline."""
        self._recorded_sizes: dict[str, int] | None = None

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        super().assign_directories(url, storage_options, lasting)
        self.prefix = f"segment{url.rpartition('/')[2]}-"
        if self.table_target:
            lasting = self.table_target.url, self.table_target.storage_options
        self.lasting = OutputDirectory(f"{lasting[0]}/{CLUSTERS_DIRECTORY}", lasting[1]) if lasting else None

    @property
    def stage(self) -> VerdictStage:
        """The one that looks for duplicates."""
        assert isinstance(self.exchange, VerdictExchange)
        return self.exchange.spool.stage

    def see_pipeline(self, stages: Sequence[ProcessingStage[Any, Any]]) -> None:
        them = [stage for stage in stages if isinstance(stage, CommitVerdicts) and stage is not self]
        self.other_prefixes = tuple(stage.prefix for stage in them)

    def output_directory(self) -> str | None:
        return self.table_target.url if self.table_target else None

    def records_directory(self) -> tuple[str, Mapping[str, Any]]:
        target = self.table_target or self.target
        return target.file(RECORDS_DIRECTORY), target.storage_options

    def temporary_directory(self) -> tuple[str, Mapping[str, Any]]:
        target = self.table_target or self.target
        return target.file(TEMPORARY_DIRECTORY, target.new_temporary_name()), target.storage_options

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
        """Raise if there are Parquet files that are no part of this table: they would be read as if they were. What
        lies in the directory of a run is the run's, also if the pipeline was another one then."""
        there = [name for name in target.names() if name.endswith(_PARQUET) and name != EMPTY_TABLE_FILE]
        ours = [
            name for name in there if _TABLE.fullmatch(name) and (not self.table_target or name.startswith(self.prefix))
        ]
        if others := sorted(set(there) - set(ours)):
            raise PlanError(
                f"stage {self.name!r}: {target.url} has {shorten(others)}, which this stage has not written, and they "
                "would be read with its cluster table. Move them away, or choose another directory"
            )

    def has_files(self, files: Sequence[WrittenFile]) -> bool:
        """Also the table must be there: it may be wanted in another place than before."""
        runs, tables = _runs(files), [file for file in files if file.path.endswith(_PARQUET)]
        if self.lasting is None or not super().has_files(runs):
            return super().has_files(runs)
        if self._recorded_sizes is None:
            self._recorded_sizes = self.lasting.sizes()
        return len(tables) == len(runs) and all(
            self._is_there(self.lasting, self._recorded_sizes, file) for file in tables
        )

    def _is_there(self, target: OutputDirectory, sizes: Mapping[str, int], file: WrittenFile) -> bool:
        """Whether a file of the table is as it was written. In a directory of the user's there may be one of another
        run; it is read as a whole for this, as it is when rows are counted."""
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
        with self.target.scratch() as room:
            rows = sort_tables(self._tables(files), [CLUSTER, ID], sort_memory_bytes(self.memory_gb), folder=room)
            with target.create(path) as file, pq.ParquetWriter(file, self._table_schema, compression="zstd") as writer:
                for group in row_groups(rows, ROW_GROUP_BYTES, ROW_GROUP_ROWS):
                    writer.write_table(group)
        return (WrittenFile(path, file.size, file.checksum),)

    def _tables(self, files: WrittenFiles) -> Iterator[pa.Table]:
        told = self._table_schema
        for path in files.data:
            index = read_index(self.target, path)
            for partition in sorted({run.partition for run in index.blocks}):
                for table in read_partition_blocks(self.target, path, index, partition):
                    named = [KEEP if name == KEPT else name for name in told.names]
                    mine = table.select(named).rename_columns(told.names)
                    yield mine if mine.schema.equals(told) else mine.cast(told)

    @property
    def _table_schema(self) -> pa.Schema:
        return pa.schema([*SCHEMA, *((name, pa.string()) for name in self.extra)])

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
        outputs = list(outputs)
        super().complete(map(_without_table, outputs), info)
        if self.lasting is None or not info:  # somebody wants to know what a run would do
            return
        written = {file.path.rpartition("/")[2] for output in outputs for file in output.written}
        there = [name for name in self.lasting.names() if _TABLE.fullmatch(name)]
        ours = {name for name in there if name in written or name.startswith(self.other_prefixes)}
        for name in set(there) - ours:  # of an earlier run, with more partitions
            self.lasting.remove(self.lasting.file(name))
        if not ours:
            self._record_nothing(self.lasting)
        else:
            self.lasting.remove(self.lasting.file(EMPTY_TABLE_FILE))

    def _record_nothing(self, target: OutputDirectory) -> None:
        """A table without rows, so that who looks for one finds it."""
        import pyarrow.parquet as pq

        target.create_directory()
        with target.create(target.file(EMPTY_TABLE_FILE)) as file:
            pq.write_table(self._table_schema.empty_table(), file)


def _runs(files: Iterable[WrittenFile]) -> tuple[WrittenFile, ...]:
    return tuple(file for file in files if not file.path.endswith(_PARQUET))


def _without_table(output: WrittenFiles) -> WrittenFiles:
    alone = output.named(output.lineage)
    alone.written = _runs(output.written)
    return alone


def count_clusters(target: OutputDirectory) -> tuple[int, int]:
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
