"""KeyedStage: a stage that gets all rows of a key together, wherever they were read (group-by, reduce).

Rows go through an exchange by the hash of their key. A partition is read sorted by key, so that groups follow each
other, and a group that does not fit into memory is streamed. Within a group rows are in the order of the input.

What is given up: a single row on which `reduce` fails cannot be quarantined. Its whole group is, with all its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.hash_partitioning import partition_numbers, split_by_partition
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import table_to_rows
from gristmill.core.batch import Batch, as_table
from gristmill.core.errors import ContractError, GristmillError, PlanError
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage, share_report
from gristmill.core.stage_roles import ReportingRole, WholeInputRole
from gristmill.io.exchange.exchange import (
    PARTITION_BLOCK_BYTES,
    CommitShuffleFiles,
    Exchange,
    ListPartitions,
    PartitionTask,
    WriteShuffleFiles,
    partition_batch,
    sort_memory_bytes,
    tables_of_size,
)
from gristmill.io.exchange.external_sort import group_starts, sort_tables, whole_groups
from gristmill.io.write.commit import columns_to_write

if TYPE_CHECKING:
    from gristmill.core.stage import NodeInfo, WorkerMetadata

OUTPUT_ROWS = 10_000
"""Rows returned by `reduce` are collected into batches of this many."""


class KeyedStage(CompositeStage[Batch, Batch], ReportingRole):
    """Processes all rows of a key together. Set `key`, and write one of three methods.

    `reduce(key, rows)` gets a key and an iterator over the rows of its group, as dicts, and returns a row, several or
    none; a group may be larger than memory. `process_groups(table)` gets an Arrow table of whole groups, sorted by key,
    and returns a table: it is faster, but the largest group must fit into memory. `process_sorted(tables)` is as fast,
    for groups of any size, but has to find the ends of groups itself. `combine(table)` is optional: it may reduce the
    rows of one batch before they are sent, as partial sums do; the result must not depend on how often it is applied.
    """

    is_base: ClassVar[bool] = True
    folds: ClassVar[bool] = True
    step_name: ClassVar[str] = ""
    """For a stage that is a round of another: what is appended to the other's name, in plans, progress and reports."""
    key: str | Sequence[str] = ()
    order: Sequence[str] = ()
    """Columns by which the rows of a group are sorted; ties are in the order of the input."""
    num_partitions: int | None = None
    memory_gb: float | None = None
    """Memory that a worker may use for sorting; larger partitions are sorted on disk."""

    def reduce(self, key: Any, rows: Iterator[dict[str, Any]]) -> Any:
        """The rows that replace a group. `key` is a value, or a tuple of values if there are several key columns."""
        raise NotImplementedError

    def process_groups(self, table: pa.Table) -> Any:
        """The table, or rows, that replace whole groups."""
        raise NotImplementedError

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The tables that replace a partition, given as tables sorted by key. A group may span several of them."""
        raise NotImplementedError

    def worth_sorting(self, table: pa.Table) -> pa.Table:
        """The rows that can affect the result, given all rows of some keys. Others are dropped before sorting."""
        return table

    def combine(self, table: pa.Table) -> pa.Table:
        """Fewer rows that stand for those of one batch, before they go through the exchange."""
        return table

    @property
    def columns(self) -> list[str]:
        return [self.key] if isinstance(self.key, str) else list(self.key)

    @property
    def partitions(self) -> int | None:
        """The number of partitions: one without key columns, since all rows are then one group."""
        return self.num_partitions if self.columns else 1

    def written(self) -> str:
        """The name of the method that the subclass has written."""
        names = ("reduce", "process_groups", "process_sorted")
        written = [name for name in names if getattr(type(self), name) is not getattr(KeyedStage, name)]
        if len(written) != 1:
            raise PlanError(f"stage {self.name!r} must have one of reduce(key, rows) and process_groups(table)")
        return written[0]

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        exchange = self.exchange()
        return [
            WriteShuffleFiles(exchange, f"{self.name}_write"),
            CommitShuffleFiles(exchange, f"{self.name}_commit"),
            self.lister(exchange, f"{self.name}_partitions"),
            self.reducer(),
        ]

    def exchange(self) -> Exchange:
        """The exchange that rows go through."""
        combines = type(self).combine is not KeyedStage.combine
        return CombiningExchange(self) if combines else Exchange(self.columns, self.partitions, self.memory_gb)

    def begun(self, first: Exchange) -> None:
        """Called in a `VerdictStage` with the exchange of its first round."""

    def lister(self, exchange: Exchange, name: str) -> ListPartitions:
        """The stage that lists the partitions. A subclass that adds rows to them may return its own."""
        return ListPartitions(exchange, name)

    def reducer(self) -> ReducePartition:
        """The stage that reads the partitions."""
        self.written()
        declares = type(self).outputs is not CompositeStage.outputs
        return (ReducePartitionToColumns if declares else ReducePartition)(self)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], self.columns


class CombiningExchange(Exchange):
    """An exchange by key that combines the rows of each batch before they are written."""

    def __init__(self, keyed: KeyedStage) -> None:
        super().__init__(keyed.columns, keyed.partitions, keyed.memory_gb)
        self.keyed = keyed

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        table, _ = columns_to_write(batch.data, None)
        table = as_table(self.keyed.combine(table)) if table.num_rows else table
        return split_by_partition(table, partition_numbers(table, self.key, self.partitions))


class ReducePartition(ProcessingStage[PartitionTask, Batch], WholeInputRole):
    """Reads a partition sorted by key and calls the methods of a `KeyedStage`."""

    def __init__(self, keyed: KeyedStage) -> None:
        super().__init__()
        self.keyed, self.name, self.resources = keyed, keyed.name, keyed.resources
        self.runtime_env, self.timeout_s, self.max_retries = keyed.runtime_env, keyed.timeout_s, keyed.max_retries

    def setup_on_node(self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None) -> None:
        self.keyed.setup_on_node(node_info, worker_metadata)

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self.keyed.setup(worker_metadata)

    def teardown(self) -> None:
        self.keyed.teardown()

    def process(self, task: PartitionTask) -> Iterator[Batch]:
        share_report(self, self.keyed)
        start = 0
        with task.target.scratch() as folder:
            order = [*self.keyed.columns, *self.keyed.order]
            memory, wanted = sort_memory_bytes(self.keyed.memory_gb), self.keyed.worth_sorting
            pieces = sort_tables(task.pieces(), order, memory, folder=folder, wanted=wanted)
            for table in self._methods[self.keyed.written()](self, pieces):
                yield partition_batch(task, table, start)
                start += table.num_rows
        if not start:
            yield partition_batch(task, pa.table({}), 0)

    def _stream(self, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        return map(self._table, self.keyed.process_sorted(tables_of_size(pieces)))

    def _vectors(self, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for groups in whole_groups(pieces, self.keyed.columns, PARTITION_BLOCK_BYTES):
            try:
                answers = [self.keyed.process_groups(groups)]
            except GristmillError:
                raise
            except Exception:  # noqa: BLE001  one of the groups causes it
                answers = list(self._group_by_group(groups))
            yield from (self._table(answer) for answer in answers if answer is not None)

    def _group_by_group(self, groups: pa.Table) -> Iterator[Any]:
        starts = pc.indices_nonzero(group_starts(None, groups, self.keyed.columns)).to_pylist()
        for start, end in zip(starts, [*starts[1:], groups.num_rows], strict=True):
            group = groups.slice(start, end - start)
            try:
                yield self.keyed.process_groups(group)
            except GristmillError:
                raise
            except Exception as error:  # noqa: BLE001
                self._give_up(error, table_to_rows(group.slice(0, 1))[0], group.num_rows)

    def _groups(self, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        rows = chain.from_iterable(map(table_to_rows, chain.from_iterable(map(_in_blocks, pieces))))
        output: list[dict[str, Any]] = []
        for key, group in groupby(rows, key=self._key_of):
            counted = _CountedRows(group)
            try:
                output += _as_rows(self.keyed.reduce(key, iter(counted)), self.name)
            except GristmillError:
                raise
            except Exception as error:  # noqa: BLE001
                self._give_up(error, {"key": key}, counted.all())
            if len(output) >= OUTPUT_ROWS:
                yield as_table(output)
                output = []
        if output:
            yield as_table(output)

    def _key_of(self, row: Mapping[str, Any]) -> Any:
        values = tuple(nan if row[name] != row[name] else row[name] for name in self.keyed.columns)  # one group of NaN
        return values[0] if isinstance(self.keyed.key, str) else values

    def _give_up(self, error: Exception, row: dict[str, Any], records: int) -> None:
        self.set_aside(error, row=row, records=records)

    def _table(self, answer: Any) -> pa.Table:
        return as_table(answer if not isinstance(answer, Batch) else answer.data)

    _methods: ClassVar[Any] = {"reduce": _groups, "process_groups": _vectors, "process_sorted": _stream}


class ReducePartitionToColumns(ReducePartition):
    """As `ReducePartition`, for a stage that declares its output columns."""

    def outputs(self) -> tuple[list[str], Columns]:
        return self.keyed.outputs()


class _CountedRows:
    """Counts the rows of a group as they are consumed."""

    def __init__(self, rows: Iterator[dict[str, Any]]) -> None:
        self.rows, self.count = rows, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            self.count += 1
            yield row

    def all(self) -> int:
        """The number of all rows; consumes the rest."""
        return self.count + sum(1 for _ in self.rows)


def _in_blocks(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, OUTPUT_ROWS):
        yield table.slice(start, OUTPUT_ROWS)


def _as_rows(answer: Any, name: str) -> list[dict[str, Any]]:
    if answer is None:
        return []
    rows = [answer] if isinstance(answer, Mapping) else list(answer)
    if not all(isinstance(row, Mapping) for row in rows):
        raise ContractError(f"stage {name!r}: reduce must return a row (a dict), several or None, not {answer!r:.80}")
    return [dict(row) for row in rows]
