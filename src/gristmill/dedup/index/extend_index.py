"""The stages that add the kept rows of a run to an index.

    ListKeptKeys      lists the sources of the spool again, each with the verdicts on its rows
    ReadKeptKeys      reads the spooled keys without those of dropped rows
    exchange          keys go to the partition of their range of hashes
    WriteIndexFiles   writes a file for each range and, when all are written, the next version of the index

Keys are computed only once, before. The index is extended before verdicts are applied; a run that fails later and is
resumed knows what it has added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import Columns, ProcessingStage, SourceStage
from gristmill.core.stage_roles import CommitRole, RecordsLocation, RunStateRole, WholeInputRole, WriterRole
from gristmill.core.task import Task, WrittenFile, WrittenFiles, digest
from gristmill.dedup.clusters.cluster_table import KEY
from gristmill.dedup.columns.arrow_numpy import Numbers, flags, from_numbers, numbers
from gristmill.dedup.index.dedup_index import IndexAddition
from gristmill.dedup.index.index_files import count_cuts, describe_index_file, write_rows
from gristmill.io.exchange.exchange import (
    CommitShuffleFiles,
    Exchange,
    ListPartitions,
    PartitionTask,
    WriteShuffleFiles,
)
from gristmill.io.exchange.shuffle_files import read_index, read_shuffle_block
from gristmill.io.exchange.verdict_stage import KEEP, ROW, TASK, SpoolExchange, VerdictExchange
from gristmill.io.storage.output_directory import OutputDirectory

if TYPE_CHECKING:
    from gristmill.dedup.index.indexed_stage import IndexedStage
    from gristmill.dedup.index.stage_indexes import StageIndexes

_ROW_BITS = 40


KeyTables = Callable[[], Iterator[pa.Table]]


def extend_stages(
    stage: IndexedStage, indexes: StageIndexes, spool: SpoolExchange, verdicts: VerdictExchange
) -> list[ProcessingStage[Any, Any]]:
    """The stages that add the kept rows of `stage` to an index."""
    exchange = _AdditionExchange([KEY], stage.num_partitions, stage.memory_gb)
    exchange.share = stage.key_share
    name = f"{stage.name}_index"
    return [
        ListKeptKeys(spool, verdicts, indexes, exchange, f"{name}_sources"),
        ReadKeptKeys(stage, f"{name}_keys"),
        WriteShuffleFiles(exchange, f"{name}_write"),
        CommitShuffleFiles(exchange, f"{name}_commit"),
        ListPartitions(exchange, f"{name}_partitions"),
        WriteIndexFiles(indexes, exchange, stage.index_tables(), name),
    ]


class _AdditionExchange(Exchange):
    """The keys to add, whose size is a `share` of the input."""

    share = 1.0

    def set_input_bytes(self, nbytes: int | None) -> None:
        super().set_input_bytes(None if nbytes is None else int(nbytes * self.share))


@fast_dataclass
class SpooledKeys(Task[str]):
    """A file of the spool with the keys of its rows, and the verdicts on them."""

    rows: int = field(kw_only=True)
    names: list[str] = field(kw_only=True, repr=False)
    verdicts: list[PartitionTask] = field(kw_only=True, repr=False)
    target: OutputDirectory = field(kw_only=True, repr=False)
    source: str = field(kw_only=True)
    stamp: str = field(kw_only=True)
    salt: int = field(kw_only=True)

    @property
    def num_items(self) -> int:
        return self.rows

    def key(self) -> str:
        return self.source

    def fingerprint(self) -> str:
        return self.stamp


class ListKeptKeys(SourceStage[SpooledKeys], RunStateRole):
    """Lists the sources of a spool, each with the verdicts on its rows."""

    continues = True

    def __init__(
        self, spool: SpoolExchange, verdicts: VerdictExchange, indexes: StageIndexes, exchange: Exchange, name: str
    ) -> None:
        super().__init__()
        self.spool, self.verdicts, self.indexes, self.name = spool, verdicts, indexes, name
        self.exchange = exchange
        self._segment_name = ""

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        self._segment_name = url.rpartition("/")[2]

    def sources(self) -> Iterator[Sequence[SpooledKeys]]:
        spool, verdicts = self.spool.listing, self.verdicts.listing
        addition = self.indexes.name_addition(spool, verdicts, self.exchange.partitions)
        stamp = digest([spool.stamp, verdicts.stamp, addition])
        number = 0
        for source, path, chunks in zip(spool.sources, spool.paths, self.spool.sources, strict=True):
            judged = [verdicts.part(str(n), list(verdicts.blocks_of(n))) for n in range(number, number + len(chunks))]
            number += len(chunks)
            yield [
                SpooledKeys(
                    path,
                    rows=sum(run.stop for chunk in chunks for run in chunk.blocks),
                    names=[name for chunk in chunks for name in chunk.names],
                    verdicts=judged,
                    target=spool.target,
                    source=f"{source}-{self._segment_name}",
                    stamp=stamp,
                    salt=int(digest(["salt", addition]), 16),
                )
            ]


class DroppedRows:
    """Which rows of a source were dropped."""

    def __init__(self, task: SpooledKeys) -> None:
        self._names = make_array(task.names, pa.string())
        codes = [np.zeros(0, np.int64)]
        for part in task.verdicts:
            for table in part.pieces():
                drop = ~flags(table.column(KEEP)) if KEEP in table.column_names else np.ones(table.num_rows, np.bool_)
                codes.append(self._codes(table.filter(from_numbers(drop))))
        self._dropped = np.unique(np.concatenate(codes))

    def is_kept(self, keys: pa.Table) -> Numbers:
        """Whether the row of each key is kept."""
        return ~np.isin(self._codes(keys), self._dropped)

    def _codes(self, table: pa.Table) -> Numbers:
        """A number for each row of the source: its batch in the upper bits, its position there in the lower ones."""
        batches = pc.index_in(table.column(TASK), value_set=self._names).cast(pa.int64())
        return (numbers(batches) << _ROW_BITS) | numbers(table.column(ROW), np.int64)


class ReadKeptKeys(ProcessingStage[SpooledKeys, Batch], WholeInputRole):
    """Reads the keys of kept rows."""

    def __init__(self, stage: IndexedStage, name: str) -> None:
        super().__init__()
        self.stage, self.name = stage, name

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [KEY]

    def process(self, task: SpooledKeys) -> Iterator[Batch]:
        index = read_index(task.target, task.data)
        runs = [run for run in index.blocks if run.partition >= 0]

        def keys() -> Iterator[pa.Table]:
            for run in runs:
                yield read_shuffle_block(task.target, task.data, run.offset, run.length)

        has_rows = False
        for table in self.stage.index_rows(keys, DroppedRows(task), task.salt):
            if table.num_rows:
                has_rows = True
                yield Batch(table)
        if not has_rows:
            yield Batch(pa.table({}))


class WriteIndexFiles(ProcessingStage[PartitionTask, WrittenFiles], WholeInputRole, WriterRole, CommitRole):
    """Writes what a run adds to an index: a file for each range of hashes, and then the next version."""

    def __init__(self, indexes: StageIndexes, exchange: Exchange, tables: Sequence[pa.Schema], name: str) -> None:
        super().__init__()
        self.indexes, self.exchange, self.name = indexes, exchange, name
        self._tables = tables
        self._file_sizes: dict[str, int] | None = None

    def check(self) -> None:
        self.indexes.check()

    def process(self, task: PartitionTask) -> WrittenFiles:
        target = self.indexes.addition_target
        part = int(task.name.rpartition("-")[2])
        path = target.file(f"{part:05}.runs")
        if not task.rows:
            target.remove(path)
            return WrittenFiles([], rows=0)
        target.create_directory()
        with target.create(path) as file:
            write_rows(file, task.pieces(), self._tables, part, self.exchange.partitions, count_cuts(task.rows))
        written = WrittenFile(path, file.size, file.checksum)
        return WrittenFiles([path], rows=task.rows, written=(written,))

    def has_files(self, files: Sequence[WrittenFile]) -> bool:
        if self._file_sizes is None:
            self._file_sizes = self.indexes.addition_target.sizes()
        sizes = self._file_sizes
        return all(sizes.get(file.path.rpartition("/")[2]) == file.size for file in files)

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
        if not info:  # a dry run: nothing was written
            return
        described, documents, target = [], 0, self.indexes.addition_target
        for output in outputs:
            for file in output.written:
                about, rows = describe_index_file(target, file.path.rpartition("/")[2], file.size, file.checksum)
                described.append(about)
                documents += rows.get(len(self._tables) - 1, 0)
        described.sort(key=lambda file: file.part)
        for name in set(target.names()) - {file.name for file in described}:  # of attempts that were killed
            target.remove(target.file(name))
        self.indexes.publish(IndexAddition("", "", documents, 0, files=tuple(described)))
