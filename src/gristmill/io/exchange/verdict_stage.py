"""Verdicts: rows stay where they are, small keys of them move, and what was found out comes back to the rows.

    segment 1    each batch is spooled in the run directory, as it is; `keys` of its rows go through an exchange
    segment 2    rounds of keyed stages look at the keys; the last gives verdicts
    segment 3    the spool is read again, source by source, and the verdicts are applied

So rows come out in the batches, sources and order in which they went in, and output files have the names and the rows
that they would have without the stage, but for those that were dropped. Large rows are written once and read once;
those that are as they were read are not written, but read a second time from their files (`reread.py`).

What is given up: objects in memory (`Batch.objects`), which a spool cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.hash_partitioning import (
    consecutive_integers,
    constant_column,
    partition_numbers,
    required_column,
    split_by_partition,
)
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.arrow.table_conversion import VERDICT
from gristmill.core.batch import Batch
from gristmill.core.decision import Decision
from gristmill.core.errors import ContractError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage, RecordsLocation, SourceStage
from gristmill.core.task import Task, WrittenFiles, digest
from gristmill.io.exchange.exchange import (
    CommitShuffleFiles,
    Exchange,
    PartitionTask,
    ShuffleBlockSlice,
    WriteShuffleFiles,
)
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.io.exchange.shuffle_files import (
    SPOOL_PARTITION,
    ShuffleFileIndex,
    batch_class_name,
    batch_class_named,
    read_shuffle_block,
)
from gristmill.io.read.reread import BlockOrigin, BlockRereader, UnreadLines, origin_of
from gristmill.io.storage.file_input import DEFAULT_BLOCK_BYTES
from gristmill.io.storage.output_directory import OutputDirectory

if TYPE_CHECKING:
    from gristmill.io.exchange.exchange import ShuffleBlockSlice

__all__ = ["KEEP", "ROW", "TASK", "ApplyVerdicts", "SpoolExchange", "VerdictExchange", "VerdictStage", "identities"]

SPOOL_CHUNK_BYTES = 64 * 2**20
"""Of the spool, that is read by one worker at a time; its verdicts are held in memory."""

_BATCH_INFO_KEY = b"gristmill"


class VerdictStage(CompositeStage[Batch, Batch]):
    """Keeps or drops rows by what the keys of all rows say. Write `keys` and `rounds`.

    `keys(batch)` gives a small table: a row for each row of the batch, or some rows with the columns of `identities`.
    `rounds()` are keyed stages: the first gets the keys, each the next what the one before it gives, and the last gives
    verdicts: rows with the columns of `identities`, at most one for each row, and `keep`. Rows without one are kept.
    """

    is_base: ClassVar[bool] = True
    folds: ClassVar[bool] = True
    key_share: float = 1 / 16
    """What keys are of the input, in bytes, as far as that is known: there are as many partitions of them as fit."""
    adds: Sequence[str] = ()
    """Columns of the verdicts that are added to the rows that are kept; others are only seen with rejected rows, as
    `rejected_similarity` and so on."""
    memory_gb: float | None = None
    """What a worker may use for sorting keys; what is more is sorted on disk, and there are more partitions."""

    @property
    def sums(self) -> bool:
        """Whether `content` is asked for."""
        return False

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(self.adds)

    def keys(self, batch: Batch) -> pa.Table:
        raise NotImplementedError

    def content(self, keys: pa.Table) -> int:
        """A number by which the rows of some keys are known again: a sum over what is compared of each row."""
        raise NotImplementedError

    def late(self, keys: pa.Table) -> pa.BooleanArray | None:
        """Which keys the first round has no use for: a later one asks for them (`Spool.late_runs`)."""
        return None

    def rounds(self) -> Sequence[KeyedStage]:
        raise NotImplementedError

    def thresholds(self) -> dict[str, str]:
        """The columns of verdicts that hold the scores of rows that are dropped, and what each is compared with. With a
        stage that has a `threshold`, that is the column `similarity`."""
        least = getattr(self, "threshold", None)
        return {SIMILARITY: f"threshold={least}"} if isinstance(least, int | float) else {}

    def spool(self, first: KeyedStage, spools: bool) -> SpoolExchange:
        """Where batches wait and keys begin their way; one that looks at all keys before the first round may take its
        place."""
        return SpoolExchange(self, first.columns, first.num_partitions, spools)

    def commit(self, verdicts: Exchange) -> CommitShuffleFiles:
        """The stage that commits verdicts; one that keeps a record of them may take its place."""
        return CommitShuffleFiles(verdicts, f"{self.name}_commit_verdicts")

    def afterwards(self, spool: SpoolExchange, verdicts: VerdictExchange) -> Sequence[ProcessingStage[Any, Any]]:
        """Segments of their own that look at keys and verdicts before these are applied."""
        return ()

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        spool, verdicts, parts = self.judging()
        return [
            *parts,
            *self.afterwards(spool, verdicts),
            ListSpoolChunks(spool, verdicts, f"{self.name}_sources"),
            ReadSpool(f"{self.name}_read", self.adds),
            ApplyVerdicts(self),
        ]

    def judging(self, spools: bool = True) -> tuple[SpoolExchange, VerdictExchange, list[ProcessingStage[Any, Any]]]:
        """What leads to verdicts: where rows wait, if they do, where verdicts are, and the stages."""
        rounds = self.rounds()
        for one in rounds:
            one.memory_gb = one.memory_gb or self.memory_gb
        spool = self.spool(rounds[0], spools)
        for one in rounds:
            one.begun(spool)
        verdicts = VerdictExchange(spool)
        parts: list[ProcessingStage[Any, Any]] = [
            WriteShuffleFiles(spool, f"{self.name}_spool"),
            CommitShuffleFiles(spool, f"{self.name}_commit_spool"),
            rounds[0].lister(spool, f"{self.name}_partitions"),
            rounds[0].reducer(),
        ]
        for one in rounds[1:]:
            parts += one.decompose()
        return spool, verdicts, [*parts, WriteShuffleFiles(verdicts, f"{self.name}_verdicts"), self.commit(verdicts)]


def identities(batch: Batch) -> pa.Table:
    """What each row of a batch is known by."""
    named = pa.repeat(literal(batch.lineage.id, pa.string()), batch.num_items)
    return pa.table([named, consecutive_integers(batch.num_items)], [TASK, ROW])


class SpoolExchange(Exchange):
    """Batches as they are, and the keys of their rows by partition."""

    def __init__(
        self, stage: VerdictStage, key: Sequence[str], num_partitions: int | None, spools: bool = True
    ) -> None:
        """Without `spools` batches are only known by their names: nobody will want them back."""
        super().__init__(key, num_partitions, stage.memory_gb)
        self.stage, self.spools = stage, spools
        if stage.sums:
            self.sums = True  # a part of its identity: what was spooled without sums is of no use
        self._counts: Mapping[str, float] = {}
        self._chunks: dict[str, int] = {}
        self._sources: list[list[SpoolChunk]] = []

    @property
    def chunks(self) -> Mapping[str, int]:
        """The part of the spool that each batch is in."""
        return self._chunks

    def required_columns(self) -> Columns:
        return self.stage.inputs()[1]

    def content_checksum(self, parts: Sequence[tuple[int, pa.Table]]) -> str:
        if not self.stage.sums:
            return ""
        return f"{sum(self.stage.content(keys) for number, keys in parts if number >= 0) % 2**64:016x}"

    def take_counts(self) -> Mapping[str, float]:
        return self._counts

    def run_warning(self, stats: Any) -> str | None:
        return self.stage.run_warning(stats)

    def set_input_bytes(self, nbytes: int | None) -> None:
        self.stage.set_input_bytes(nbytes)
        super().set_input_bytes(None if nbytes is None else int(nbytes * self.stage.key_share))

    def columns(self, batch: Batch) -> tuple[pa.Table, frozenset[str]]:
        return pa.table({}), frozenset()

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        self._counts = {}
        origin = origin_of(batch) if self.spools else None
        kept = {**(batch.data.schema.metadata or {}), _BATCH_INFO_KEY: _batch_info(self.stage, batch, origin)}
        rows = batch.data if self.spools and not origin else batch.data.slice(0, 0)
        yield SPOOL_PARTITION, rows.replace_schema_metadata(kept)
        if not batch.num_items:
            return
        late = [name for name in self.planned if name not in batch.data.column_names]
        for name in late:
            batch = batch.with_column(name, pa.nulls(batch.num_items))
        self.stage.take_counts()  # of a batch that could not be ended
        keys = self.stage.keys(batch)
        self._counts = self.stage.take_counts()
        if TASK not in keys.column_names:
            if keys.num_rows != batch.num_items:
                raise ContractError(
                    f"stage {self.stage.name!r}: keys gave {keys.num_rows} rows for {batch.num_items}. Give one for "
                    "each, or say with the columns of identities(batch) which row each belongs to"
                )
            named = constant_column(literal(batch.lineage.id, pa.string()), batch.num_items)
            keys = keys.append_column(TASK, named).append_column(ROW, consecutive_integers(batch.num_items))
        numbers = partition_numbers(keys, self.key, self.partitions)
        if (waiting := self.stage.late(keys)) is not None:
            numbers = pc.if_else(waiting, pc.add(numbers, literal(self.partitions, numbers.type)), numbers)
        yield from split_by_partition(keys, numbers)

    def late_blocks(self, partition: int) -> Iterator[ShuffleBlockSlice]:
        """Where the keys of a partition are that the first round does not get."""
        return self.listing.blocks_of(self.partitions + partition)

    def list_files(self, outputs: Iterable[WrittenFiles]) -> None:
        self._sources = []
        super().list_files(outputs)
        chunks = [chunk for source in self._sources for chunk in source]
        self._chunks = {name: number for number, chunk in enumerate(chunks) for name in chunk.names}

    def on_file_listed(self, path: str, index: ShuffleFileIndex) -> None:
        self._sources.append(list(_chunks(path, index)))

    @property
    def sources(self) -> Sequence[Sequence[SpoolChunk]]:
        """The parts of the spool of each source."""
        return self._sources


@fast_dataclass
class SpoolChunk:
    """Batches of one source that are read together."""

    names: list[str] = field(default_factory=list)
    blocks: list[ShuffleBlockSlice] = field(default_factory=list)


def _chunks(path: str, index: ShuffleFileIndex) -> Iterator[SpoolChunk]:
    """Parts of about `SPOOL_CHUNK_BYTES`. Batches of one task may have to be read in one go, and stay together."""
    chunk, size = SpoolChunk(), 0
    for run in index.blocks:
        if run.partition != SPOOL_PARTITION:
            continue
        together = chunk.names and chunk.names[-1].rpartition(".")[0] == run.name.rpartition(".")[0]
        if chunk.names and size + run.nbytes > SPOOL_CHUNK_BYTES and not together:
            yield chunk
            chunk, size = SpoolChunk(), 0
        chunk.names.append(run.name)
        chunk.blocks.append(ShuffleBlockSlice(path, run.offset, run.length, 0, run.rows, run.nbytes))
        size += run.nbytes
    if chunk.names:
        yield chunk


class VerdictExchange(Exchange):
    """Verdicts, by the part of the spool that their rows are in."""

    def __init__(self, spool: SpoolExchange) -> None:
        super().__init__(num_partitions=1)
        self.spool = spool

    def split_batch(self, batch: Batch) -> Iterable[tuple[int, pa.Table]]:
        table, _ = self.columns(batch)
        if not table.num_rows:
            return []
        encoded = required_column(table, TASK).combine_chunks().dictionary_encode()
        chunks = make_array([self.spool.chunks[name] for name in encoded.dictionary.to_pylist()], pa.uint64())
        return split_by_partition(table, chunks.take(encoded.indices))


# -- the rows again ----------------------------------------------------------------------------------------


@fast_dataclass
class SpoolTask(Task[list[ShuffleBlockSlice]]):
    """A part of the spool, and the verdicts on its rows."""

    names: list[str] = field(kw_only=True)
    verdicts: PartitionTask = field(kw_only=True, repr=False)
    target: OutputDirectory = field(kw_only=True, repr=False)
    source: str = field(kw_only=True)
    stamp: str = field(kw_only=True)
    origin: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def num_items(self) -> int:
        return sum(run.stop for run in self.data)

    def key(self) -> str:
        return self.source

    def fingerprint(self) -> str:
        return self.stamp

    def files(self) -> tuple[str, ...]:
        return self.origin


class ListSpoolChunks(SourceStage[SpoolTask]):
    """Lists the sources of a spool, in their order."""

    continues = True

    def __init__(self, spool: SpoolExchange, verdicts: VerdictExchange, name: str) -> None:
        super().__init__()
        self.spool, self.verdicts, self.name = spool, verdicts, name
        self._place = ""

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        self._place = url.rpartition("/")[2]

    def sources(self) -> Iterator[Sequence[SpoolTask]]:
        spool, verdicts = self.spool.listing, self.verdicts.listing
        stamp = digest([spool.stamp, verdicts.stamp])
        number = 0
        for source, origin, chunks in zip(spool.sources, spool.origins, self.spool.sources, strict=True):
            parts = []
            for chunk in chunks:
                judged = verdicts.part(str(number), list(verdicts.blocks_of(number)))
                number += 1
                parts.append(
                    SpoolTask(
                        chunk.blocks,
                        names=chunk.names,
                        verdicts=judged,
                        target=spool.target,
                        source=f"{source}-{self._place}",
                        stamp=stamp,
                        origin=origin,
                    )
                )
            yield parts


class ReadSpool(ProcessingStage[SpoolTask, Batch]):
    """Reads batches as they were spooled, and looks up the verdict on each row."""

    indivisible = True

    def __init__(self, name: str, adds: Sequence[str] = ()) -> None:
        super().__init__()
        self.name, self.adds = name, tuple(adds)

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def process(self, task: SpoolTask) -> Iterator[Batch]:
        pieces = list(task.verdicts.pieces())
        judged = pa.concat_tables(pieces).combine_chunks() if pieces else None
        again, copied = BlockRereader(), UnreadBatchBuilder()
        for run, name in zip(task.data, task.names, strict=True):
            table = read_shuffle_block(task.target, run.path, run.offset, run.length)
            known = dict(table.schema.metadata)
            about = orjson.loads(known.pop(_BATCH_INFO_KEY))
            told = about.pop("origin")
            origin = BlockOrigin.from_json(told) if told else None
            table = table.replace_schema_metadata(known or None)
            mine = judged
            if judged and len(task.names) > 1:
                mine = judged.filter(pc.equal(judged.column(TASK), literal(name, pa.string())))
            lines = origin is not None and origin.lines is not None and not known and not self.adds and kernels
            if not lines or not copied.can_add(table.schema, about, run.nbytes):
                yield from copied.batches()
                copied = UnreadBatchBuilder()
            if lines and origin:
                copied.add(table, about, origin, run, mine)
                continue
            if origin:
                table = again.table(origin, run.stop).replace_schema_metadata(known or None)
            found = BlockVerdicts.from_table(table.num_rows, mine)
            yield batch_class_named(about.pop("kind"))(found.attach_to(table, self.adds), **about)
        yield from copied.batches()


def _batch_info(stage: VerdictStage, batch: Batch, origin: BlockOrigin | None) -> bytes:
    """What else there is to a batch than its rows."""
    told = {"kind": batch_class_name(type(batch)), "dataset_name": batch.dataset_name, "metadata": batch.metadata}
    try:
        return orjson.dumps({**told, "origin": origin.to_json() if origin else None})
    except TypeError as error:
        raise ContractError(
            f"stage {stage.name!r}: rows wait in files here, and the metadata of a batch cannot go there ({error}). "
            "Keep numbers, text, lists and dicts in it"
        ) from error


TASK, ROW = "__task__", "__row__"
"""What a row is known by while its keys are under way: its batch, and its number there."""

KEEP = "keep"
"""The column of verdicts that says whether the row is kept; without it, it is dropped."""

SIMILARITY = "similarity"
"""The column of verdicts on duplicates that says how like its partner a row is."""

_TRUE, _NO_SCORE = literal(True, pa.bool_()), literal(None, pa.float64())

UNREAD_BATCH_BYTES = 2 * DEFAULT_BLOCK_BYTES
"""Lines of one file that are copied, as far as nobody looks at them, are one batch up to this size."""


class UnreadBatchBuilder:
    """Blocks of lines that become one batch, which need not be read to be judged."""

    def __init__(self) -> None:
        self._rows: UnreadLinesWithVerdicts | None = None
        self._about: dict[str, Any] = {}

    def can_add(self, schema: pa.Schema, about: Mapping[str, Any], nbytes: int) -> bool:
        """Whether a block may be added."""
        rows = self._rows
        if rows is None:
            return True
        same = about == self._about and schema.equals(rows.columns.schema)
        return same and rows.nbytes + nbytes <= UNREAD_BATCH_BYTES

    def add(
        self,
        columns: pa.Table,
        about: dict[str, Any],
        origin: BlockOrigin,
        run: ShuffleBlockSlice,
        verdicts: pa.Table | None,
    ) -> None:
        self._rows = self._rows or UnreadLinesWithVerdicts(columns)
        self._about = about
        found = BlockVerdicts.from_table(run.stop, verdicts)
        self._rows.add(origin, run.stop, run.nbytes, found.attach_to)
        self._rows.block_verdicts.append(found)

    def batches(self) -> Iterator[Batch]:
        if self._rows is not None:
            about = dict(self._about)
            yield batch_class_named(about.pop("kind"))(self._rows.columns, **about).read_later(self._rows)


class UnreadLinesWithVerdicts(UnreadLines):
    """Lines on which there is a verdict each."""

    def __init__(self, columns: pa.Table) -> None:
        super().__init__(columns)
        self.block_verdicts: list[BlockVerdicts] = []
        """What was found out about the rows of each block."""

    def keep(self) -> pa.BooleanArray:
        """Whether each row is kept."""
        return pa.concat_arrays([found.keep() for found in self.block_verdicts])

    def scores(self, name: str) -> pa.Array:
        """What a column of the verdicts says of each row."""
        return pa.concat_arrays([found.score(name) for found in self.block_verdicts])


@fast_dataclass(frozen=True)
class BlockVerdicts:
    """The verdicts on the rows of a block, and which of them is on each row, or none."""

    count: int
    verdicts: pa.Table | None = None
    verdict_rows: pa.Int64Array | None = None

    @classmethod
    def from_table(cls, count: int, verdicts: pa.Table | None) -> BlockVerdicts:
        if verdicts is None or not verdicts.num_rows:
            return cls(count)
        rows = as_one_array(verdicts.column(ROW).cast(pa.int64())).drop_null()
        numbers = np.frombuffer(rows.buffers()[1], np.int64, len(rows), 8 * rows.offset)
        numbers = numbers[(numbers >= 0) & (numbers < count)]
        named, places = np.zeros(count, np.bool_), np.zeros(count, np.int64)
        named[numbers] = True
        if (found := int(named.sum())) != verdicts.num_rows:
            raise ContractError(f"{verdicts.num_rows} verdicts name {found} rows: give at most one for each")
        places[numbers] = np.arange(found)
        bits = np.packbits(named, bitorder="little")
        return cls(
            count,
            verdicts,
            pa.Array.from_buffers(pa.int64(), count, [pa.py_buffer(bits), pa.py_buffer(places)], count - found),
        )

    def keep(self) -> pa.BooleanArray:
        """Whether each row is kept."""
        if self.verdicts is None or self.verdict_rows is None:
            return pa.repeat(_TRUE, self.count)
        if KEEP not in self.verdicts.column_names:
            return self.verdict_rows.is_null()
        return pc.if_else(self.verdict_rows.is_valid(), self._column(KEEP), _TRUE)

    def score(self, name: str) -> pa.Array:
        """A number of the verdicts for each row; null where there is none."""
        if self.verdicts is None or name not in self.verdicts.column_names:
            return pa.nulls(self.count, pa.float64())
        return self._column(name).cast(pa.float64())

    def attach_to(self, table: pa.Table, adds: Sequence[str] = ()) -> pa.Table:
        """The rows, with the verdict on each and what else there is to say. Columns of the user's are not ours to
        change, and other blocks may have others: so what is said has names of its own (`verdict_column_name`), unless it is to be
        added to the rows."""
        table = table.append_column(VERDICT, self.keep())
        for name in self.verdicts.column_names if self.verdicts is not None else ():
            if name in (TASK, ROW, KEEP):
                continue
            told, values = verdict_column_name(name, adds), self._column(name)
            if told in table.column_names:
                table = table.set_column(table.column_names.index(told), told, values)
            else:
                table = table.append_column(told, values)
        return table

    def _column(self, name: str) -> pa.Array:
        assert self.verdicts is not None
        return as_one_array(self.verdicts.column(name)).take(self.verdict_rows)


def verdict_column_name(name: str, adds: Sequence[str]) -> str:
    """What a column of verdicts is called beside the columns of the rows."""
    return name if name in adds or name.startswith("__") else f"{VERDICT}{name}"


class ApplyVerdicts(ProcessingStage[Batch, Batch]):
    """Drops the rows whose verdict says so."""

    takes_empty = True
    together: ClassVar[bool] = True
    """Verdicts depend on other rows: from scores it cannot be told what other parameters would do."""

    def __init__(self, stage: VerdictStage) -> None:
        super().__init__()
        self.stage, self.name = stage, stage.name

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(self.stage.adds)

    def process(self, task: Batch) -> Batch:
        return self.apply(task, self.decide(task))

    def decide(self, batch: Batch) -> Decision:
        rows, names = batch.unread, self.stage.thresholds()
        if isinstance(rows, UnreadLinesWithVerdicts):
            keep, scores = rows.keep(), {name: rows.scores(name) for name in names}
        else:
            keep, scores = (
                as_one_array(batch.data.column(VERDICT)),
                {name: self._verdict_scores(batch.data, name) for name in names},
            )
        return Decision(keep, {name: pc.if_else(keep, _NO_SCORE, column) for name, column in scores.items()})

    def _verdict_scores(self, table: pa.Table, name: str) -> pa.Array:
        """What verdicts say of each row."""
        column = verdict_column_name(name, self.stage.adds)
        if column not in table.column_names:  # there is no verdict on any row
            return pa.nulls(table.num_rows, pa.float64())
        return as_one_array(table.column(column)).cast(pa.float64())

    def thresholds(self) -> dict[str, str]:
        return self.stage.thresholds()

    def apply(self, batch: Batch, decision: Decision) -> Batch:
        kept = batch.keep(decision.keep)
        if isinstance(kept.unread, UnreadLinesWithVerdicts):
            return kept.read_later(kept.unread.without_verdicts())
        table = kept.data
        first = table.column_names.index(VERDICT)
        extra = [name for name in table.column_names[first:] if name not in self.stage.adds]
        return kept.with_data(table.drop_columns(extra))
