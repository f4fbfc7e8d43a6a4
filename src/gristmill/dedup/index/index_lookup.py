"""Partitions of new rows joined with the rows of indexes that have the same keys.

The rows of an index are read together with the partition that new rows of the same key are in; only those whose key a
new row has are kept. They have the columns of new rows and a `snapshot`, but no row of this run: a stage ranks them
first and gives no verdict on them.

Costs eight bytes of memory for each key of a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import conform_to_schema
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import ProcessingStage
from gristmill.core.stage_roles import PlanningRole, RecordsLocation
from gristmill.dedup.clusters.cluster_table import ID, SNAPSHOT
from gristmill.dedup.columns.arrow_numpy import Numbers
from gristmill.dedup.index.index_files import IndexFileReader
from gristmill.dedup.index.stage_indexes import StageIndexes
from gristmill.io.exchange.exchange import DEFAULT_SORT_BYTES, Exchange, ListPartitions, PartitionTask


@fast_dataclass(frozen=True)
class IndexLookup:
    """How the rows of one table of an index are joined with new rows."""

    table: int
    keys: Callable[[pa.Table], Numbers]
    """The keys of new rows, as 64-bit numbers."""
    rows: Callable[[pa.Table, Numbers], pa.Table]
    """The rows of the table that have one of the given sorted keys, with the columns of new rows."""


@fast_dataclass
class IndexedPart(PartitionTask):
    """A partition of new rows, and the files of indexes that may have the same keys."""

    index_files: tuple[IndexFileReader, ...] = field(default=(), kw_only=True, repr=False)
    lookup: IndexLookup = field(kw_only=True, repr=False)
    key_range: tuple[int, int] = field(default=(0, 1), kw_only=True)
    prefix_ids: bool = field(default=False, kw_only=True)

    def pieces(self) -> Iterator[pa.Table]:
        if not self.index_files or not self.rows:
            yield from super().pieces()
            return
        # Pieces are read twice: for their keys, and to be passed on. A small partition is held instead.
        held = list(super().pieces()) if sum(run.nbytes for run in self.data) <= DEFAULT_SORT_BYTES else None
        keys = [np.unique(self.lookup.keys(piece)) for piece in (super().pieces() if held is None else held)]
        wanted = np.unique(np.concatenate(keys))
        for file in self.index_files if len(wanted) else ():
            for rows in file.rows(self.lookup.table, *self.key_range):
                known = self.lookup.rows(rows, wanted)
                if known.num_rows:
                    yield conform_to_schema(self._with_snapshot(known, file.snapshot), self.schema)
        yield from super().pieces() if held is None else held

    def _with_snapshot(self, known: pa.Table, snapshot: str) -> pa.Table:
        """Rows of an index with the name of their snapshot: in a column and, with `prefix_ids`, before their ids."""
        snapshots = pa.repeat(literal(snapshot, pa.string()), known.num_rows)
        if self.prefix_ids:
            ids = pc.binary_join_element_wise(snapshots, known[ID], literal(":", pa.string()))
            known = known.set_column(known.column_names.index(ID), ID, ids)
        return known.append_column(SNAPSHOT, snapshots)


def part_fields(part: PartitionTask) -> dict[str, Any]:
    """The arguments that make a copy of a partition, as a subclass of `PartitionTask` with more fields."""
    return {entry.name: getattr(part, entry.name) for entry in fields(PartitionTask) if entry.init}


class IndexedPartitions(ListPartitions, PlanningRole):
    """Lists partitions, each with the files of indexes that may have its keys."""

    def __init__(self, exchange: Exchange, name: str, indexes: StageIndexes, lookup: IndexLookup) -> None:
        super().__init__(exchange, name)
        self.indexes, self.lookup = indexes, lookup

    def check(self) -> None:
        self.indexes.check()

    def set_input_bytes(self, nbytes: int | None) -> None:
        if self.exchange.num_partitions is None:
            self.exchange.partitions = max(self.exchange.partitions, self.indexes.partitions())

    def prepare_run(self, memory: dict[str, Any]) -> None:
        self.indexes.load_run_identity(memory)

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        super().assign_directories(url, storage_options, lasting)
        self.indexes.set_run_directory(url, lasting)

    def see_pipeline(self, stages: Sequence[ProcessingStage[Any, Any]]) -> None:
        others = (stage.indexes for stage in stages if isinstance(stage, IndexedPartitions))
        self.indexes.see_pipeline(stages, others)

    def sources(self) -> Iterator[Sequence[PartitionTask]]:
        self.indexes.choose_additions(self.exchange.listing)
        files, of = self.indexes.files(), self.exchange.partitions
        for number, parts in enumerate(super().sources()):
            yield [self._joined(part, number, of, files) for part in parts]

    def _joined(self, part: PartitionTask, number: int, of: int, files: Sequence[IndexFileReader]) -> IndexedPart:
        arguments = part_fields(part)
        arguments["stamp"] = self.indexes.stamp(part.stamp)
        if part.schema.names:
            arguments["schema"] = part.schema.append(pa.field(SNAPSHOT, pa.string()))
        return IndexedPart(
            **arguments,
            index_files=tuple(file for file in files if file.touches(number, of)),
            lookup=self.lookup,
            key_range=(number, of),
            prefix_ids=self.indexes.prefix_ids,
        )
