"""Joining two sides of any size: both go through an exchange by key, and their partitions are merged, sorted by key.

    segment 1    rows of the pipeline go to partitions
    segment 2    rows of the other side, read from its files, go to as many
    segment 3    the partitions of both are sorted together, those of the other side first in each group

A group passes by as a stream: of it only the other side's rows are held, on disk if they are many. So a key may have
any number of rows on either side. Rows come out by key, those of one key in the order of the input, and the partners of
a row in the order in which they are in their files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.columns import literal
from gristmill.core.record import record
from gristmill.core.spread import column_or_nulls, split, spread
from gristmill.core.stage import Columns, Lasting, ProcessingStage, SourceStage
from gristmill.core.table import conform
from gristmill.core.task import FileGroupTask, digest
from gristmill.io.commit import columns_to_write
from gristmill.io.exchange import CommitRuns, Exchange, WriteRuns
from gristmill.io.files import FilePartition
from gristmill.io.join_match import as_key, key_type
from gristmill.io.join_merge import OTHERS, OURS, SIDE, Merge
from gristmill.io.join_other import Other, key_name
from gristmill.io.partitions import Part, Partitions, batch_of, blocks, sort_bytes
from gristmill.io.sorting import group_starts, sort_table, sorted_pieces


def by_exchange(
    name: str, other: Other, how: str, num_partitions: int | None, memory_gb: float | None
) -> list[ProcessingStage[Any, Any]]:
    """The stages of such a join."""
    ours = OurRows(other, num_partitions, memory_gb)
    others = OtherRows(other, ours)
    return [
        WriteRuns(ours, f"{name}_write"),
        CommitRuns(ours, f"{name}_commit"),
        OtherFiles(other, f"{name}_list_other"),
        ReadOther(other, f"{name}_read_other"),
        WriteRuns(others, f"{name}_write_other"),
        CommitRuns(others, f"{name}_commit_other"),
        JoinPartitions(ours, others, f"{name}_partitions"),
        MergePartition(how, memory_gb, f"{name}_merge"),
    ]


# -- rows go to partitions ---------------------------------------------------------------------------------


class OurRows(Exchange):
    """Rows of the pipeline, by key."""

    def __init__(self, other: Other, num_partitions: int | None, memory_gb: float | None) -> None:
        super().__init__(list(other.keys), num_partitions, memory_gb)
        self.other = other

    def size_up(self, nbytes: int | None) -> None:
        super().size_up(None if nbytes is None else nbytes + self.other.reader.size())

    def parts(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        where = f" of {batch.metadata['file']}" if "file" in batch.metadata else ""
        self.other.fits(batch.data, self.other.kinds, self.other.named(), where)
        table, _ = self.columns(batch)
        return split(table, by_key(table, self.key, self.partitions))


class OtherRows(Exchange):
    """Rows of the other side, by key, with what is wanted of them. Those without a key have no partner."""

    def __init__(self, other: Other, ours: OurRows) -> None:
        super().__init__([key_name(number) for number in range(len(other.keys))], ours.num_partitions)
        self.other, self.ours = other, ours

    def size_up(self, nbytes: int | None) -> None:
        self.partitions = self.ours.partitions

    def needs(self) -> Columns:
        return []

    def columns(self, batch: Batch) -> tuple[pa.Table, frozenset[str]]:
        keys, taken = self.other.columns(batch.data)
        table = pa.table([*keys, *taken.columns], [*self.key, *taken.column_names])
        return columns_to_write(table, None)[0], frozenset()

    def parts(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        table, _ = self.columns(batch)
        table = without_nulls(table, self.key)
        if not self.other.adds:  # that there is one is enough
            table = sort_table(table, self.key)
            table = table.filter(group_starts(None, table, self.key))
        return split(table, by_key(table, self.key, self.partitions))


def by_key(table: pa.Table, keys: Sequence[str], partitions: int) -> pa.Array:
    """The partition of each row: the same for keys that are equal, though their types may differ."""
    columns = [column_or_nulls(table, name) for name in keys]
    plain = [as_key(column, key_type(column.type, column.type)) for column in columns]
    return spread(pa.table(plain, list(keys)), keys, partitions)


@record
class OtherPartition(FilePartition):
    """Files of the other side. Those of the pipeline may have the same names."""

    place: str = field(default="", kw_only=True)

    def key(self) -> str:
        return f"{super().key()}-{self.place}"


class OtherFiles(SourceStage[FileGroupTask]):
    """Lists the files of the other side."""

    continues = True

    def __init__(self, other: Other, name: str) -> None:
        super().__init__()
        self.other, self.name = other, name
        self._place = ""

    def check(self) -> None:
        self.other.look()

    def reads(self) -> Sequence[str]:
        return self.other.reader.lister.reads()

    def settle(self, url: str, storage_options: Mapping[str, Any], lasting: Lasting = None) -> None:
        self._place = url.rpartition("/")[2]

    def sources(self) -> Iterator[Sequence[FileGroupTask]]:
        for tasks in self.other.reader.lister.sources():
            yield [self._apart(task) for task in tasks]

    def _apart(self, task: FileGroupTask) -> FileGroupTask:
        told = {entry.name: getattr(task, entry.name) for entry in fields(FilePartition) if entry.init}
        return OtherPartition(**told, place=self._place)


class ReadOther(ProcessingStage[FileGroupTask, Batch]):
    """Reads files of the other side. What the plan looks at are those of the pipeline, which this knows nothing of."""

    def __init__(self, other: Other, name: str) -> None:
        super().__init__()
        self.reading, self.name = other.reader.reading, name

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def take_counts(self) -> dict[str, float]:
        return {**super().take_counts(), **self.reading.take_counts()}

    def process(self, task: FileGroupTask) -> Iterator[Batch]:
        self.reading.__dict__["_aside"] = self.__dict__.get("_aside")  # what it sets aside is set aside here
        yield from self.reading.process(task)


# -- partitions meet ---------------------------------------------------------------------------------------


@record
class JoinPart(Part):
    """A partition of rows of the pipeline, and that of the other side with the same keys."""

    others: Part = field(kw_only=True, repr=False)
    keys: tuple[str, ...] = field(kw_only=True)
    both: pa.Schema = field(kw_only=True, repr=False)
    """The columns of both together: keys, side, ours, and those that are added."""

    def pieces(self) -> Iterator[pa.Table]:
        names = [key_name(number) for number in range(len(self.keys))]
        for piece in self.others.pieces():
            keyed = self._keyed(piece, names, OTHERS)
            yield without_nulls(keyed, names)
        for piece in super().pieces():
            yield self._keyed(piece, self.keys, OURS)

    def _keyed(self, piece: pa.Table, keys: Sequence[str], side: int) -> pa.Table:
        kinds = self.both.types[: len(keys)]
        columns = [as_key(column_or_nulls(piece, name), kind) for name, kind in zip(keys, kinds, strict=True)]
        rest = piece.drop_columns([name for name in piece.column_names if side == OTHERS and name in keys])
        names = [*self.both.names[: len(keys)], SIDE, *rest.column_names]
        sides = pa.repeat(literal(side, pa.int64()), piece.num_rows)
        return conform(pa.table([*columns, sides, *rest.columns], names), self.both)


class JoinPartitions(Partitions):
    """Lists the partitions of both sides together."""

    def __init__(self, exchange: OurRows, others: OtherRows, name: str) -> None:
        super().__init__(exchange, name)
        self.exchange: OurRows = exchange
        self.others = others

    def sources(self) -> Iterator[Sequence[Part]]:
        ours, others = self.exchange.listing, self.others.listing
        schema = self._schema(ours.schema, others.schema)
        for number, (part,) in enumerate(super().sources()):
            theirs = others.part(part.name, list(others.runs_of(number)))
            told = {entry.name: getattr(part, entry.name) for entry in fields(Part) if entry.init}
            told["stamp"] = digest([part.stamp, theirs.stamp])
            yield [JoinPart(**told, others=theirs, keys=self.exchange.key, both=schema)]

    def _schema(self, ours: pa.Schema, others: pa.Schema) -> pa.Schema:
        other, keys = self.exchange.other, []
        for number, name in enumerate(self.exchange.key):
            mine, theirs = _type(ours, name), _type(others, key_name(number))
            other.comparable(name, mine, theirs)
            keys.append((key_name(number), key_type(mine, theirs)))
        added = other.added()
        added |= {entry.name: entry.type for entry in others if entry.name not in self.others.key}
        other.fits(ours.empty_table(), {}, list(added), "")
        return pa.schema([*keys, (SIDE, pa.int64()), *ours, *added.items()])


def without_nulls(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows that have all of a key."""
    for name in keys:
        if table.column(name).null_count:
            table = table.filter(table.column(name).is_valid())
    return table


def _type(schema: pa.Schema, name: str) -> pa.DataType:
    return schema.field(name).type if name in schema.names else pa.null()


class MergePartition(ProcessingStage[JoinPart, Batch]):
    """Merges the two partitions, sorted by key."""

    indivisible = True

    def __init__(self, how: str, memory_gb: float | None, name: str) -> None:
        super().__init__()
        self.how, self.memory_gb, self.name = how, memory_gb, name

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def process(self, task: JoinPart) -> Iterator[Batch]:
        keys = task.both.names[: len(task.keys)]
        ours = list(task.schema.names)
        start = 0
        with task.target.scratch() as room:
            pieces = sorted_pieces(task.pieces(), [*keys, SIDE], sort_bytes(self.memory_gb), folder=room)
            merge = Merge(self.how, keys, ours, task.both.names[len(keys) + 1 + len(ours) :], room)
            for table in merge.tables(blocks(pieces)):
                yield batch_of(task, table, start)
                start += table.num_rows
            self.count("rows_with_partner", merge.found)
            if not start:
                yield batch_of(task, merge.nothing(task.both.empty_table()), 0)
