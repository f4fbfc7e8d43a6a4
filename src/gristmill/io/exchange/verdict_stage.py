"""VerdictStage: keep or drop rows by comparing the keys of all rows, without moving the rows themselves.

    segment 1    each batch is spooled to the run directory; the `keys` of its rows go through an exchange
    segment 2    rounds of keyed stages compare the keys; the last round returns verdicts
    segment 3    the spool is read again, source by source, and the verdicts are applied

Rows come out in the batches, sources and order in which they came in, so output files have the names and the rows that
they would have without the stage, except for the dropped ones. Rows are written once and read once. Rows that are
unchanged since they were read are not written: the spool refers to their file, which is read a second time
(`io/read/reread.py`). JSON lines among them are not even parsed again unless a stage looks at them: a writer copies the
lines that are kept.

What is given up: objects in memory (`Batch.objects`), which cannot be spooled.
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
from gristmill.core.batch import Batch, unread_rows, with_unread_rows
from gristmill.core.deciding_stage import DecidingStage, Decision
from gristmill.core.errors import ContractError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage, SourceStage, take_counts
from gristmill.core.stage_roles import RecordsLocation, ReportingRole, RunStateRole, WholeInputRole
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

TASK, ROW = "__task__", "__row__"
"""Columns that identify the row that a key belongs to: the id of its batch, and its index there."""

KEEP = "keep"
"""The column of verdicts that says whether the row is kept. Without this column, rows with a verdict are dropped."""

SIMILARITY = "similarity"
"""The column of verdicts on duplicates that holds the similarity to the row that is kept."""

SPOOL_CHUNK_BYTES = 64 * 2**20
"""How much of the spool is one task. The verdicts on its rows are held in memory."""

_BATCH_INFO_KEY = b"gristmill"
_TRUE, _NO_SCORE = literal(True, pa.bool_()), literal(None, pa.float64())

UNREAD_BATCH_BYTES = 2 * DEFAULT_BLOCK_BYTES
"""Blocks of lines of one file that need not be parsed are combined into batches of up to this size."""


class VerdictStage(CompositeStage[Batch, Batch], ReportingRole):
    """Keeps or drops rows by comparing the keys of all rows. Subclasses write `keys` and `rounds`.

    `keys(batch)` returns a small table: one row for each row of the batch, or any rows with the columns of
    `identities`. `rounds()` returns keyed stages: the first gets the keys, each other the output of the one before it,
    and the last returns verdicts: the columns of `identities` and `keep`, at most one for each row. Rows without a
    verdict are kept.
    """

    is_base: ClassVar[bool] = True
    folds: ClassVar[bool] = True
    key_share: float = 1 / 16
    """An estimate of the bytes of all keys as a fraction of the input bytes; it sets the number of partitions."""
    adds: Sequence[str] = ()
    """Columns of the verdicts that are added to kept rows. Others only appear with rejected rows, as
    `rejected_similarity` and so on."""
    threshold: Any = None
    """The least similarity at which a row is dropped, for stages that have such a parameter."""
    num_partitions: int | None = None
    memory_gb: float | None = None
    """Memory that a worker may use to sort keys. It limits the size of partitions; larger ones are sorted on disk."""

    @property
    def sums(self) -> bool:
        """Whether `content` is called, to recognise sources by their content."""
        return False

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(self.adds)

    def keys(self, batch: Batch) -> pa.Table:
        raise NotImplementedError

    def content(self, keys: pa.Table) -> int:
        """A checksum of these keys: a sum of a hash of what is compared of each row, so that sums of parts add up."""
        raise NotImplementedError

    def late(self, keys: pa.Table) -> pa.BooleanArray | None:
        """Which keys are not needed in the first round, but in a later one (`SpoolExchange.late_blocks`)."""
        return None

    def rounds(self) -> Sequence[KeyedStage]:
        raise NotImplementedError

    def named_rounds(self, stages: Sequence[KeyedStage]) -> Sequence[KeyedStage]:
        """The stages of `rounds`, named after this one and with as many partitions."""
        for stage in stages:
            stage.name = f"{self.name}_{stage.step_name}"
            stage.num_partitions = self.num_partitions
        return stages

    def set_input_bytes(self, nbytes: int | None) -> None:
        """Called while planning: how many bytes the pipeline reads, if that is known."""

    def thresholds(self) -> dict[str, str]:
        """The columns of verdicts that hold scores of dropped rows, and the parameter each is compared with: the column
        `similarity` for a stage that has a `threshold`."""
        return {SIMILARITY: f"threshold={self.threshold}"} if isinstance(self.threshold, int | float) else {}

    def spool(self, first: KeyedStage, spools: bool) -> SpoolExchange:
        """The exchange for batches and keys. A subclass that inspects all keys before the first round may return its
        own."""
        return SpoolExchange(self, first.columns, first.num_partitions, spools)

    def commit(self, verdicts: Exchange) -> CommitShuffleFiles:
        """The stage that commits verdicts. A subclass that records them may return its own."""
        return CommitShuffleFiles(verdicts, f"{self.name}_commit_verdicts")

    def afterwards(self, spool: SpoolExchange, verdicts: VerdictExchange) -> Sequence[ProcessingStage[Any, Any]]:
        """Further segments that read keys and verdicts before the verdicts are applied."""
        return ()

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        spool, verdicts, stages = self.judging()
        return [
            *stages,
            *self.afterwards(spool, verdicts),
            ListSpoolChunks(spool, verdicts, f"{self.name}_sources"),
            ReadSpool(f"{self.name}_read", self.adds),
            ApplyVerdicts(self),
        ]

    def judging(self, spools: bool = True) -> tuple[SpoolExchange, VerdictExchange, list[ProcessingStage[Any, Any]]]:
        """The two exchanges and the stages that lead to verdicts. Without `spools`, rows are not kept."""
        rounds = self.rounds()
        for keyed in rounds:
            keyed.memory_gb = keyed.memory_gb or self.memory_gb
        spool = self.spool(rounds[0], spools)
        for keyed in rounds:
            keyed.begun(spool)
        verdicts = VerdictExchange(spool)
        stages: list[ProcessingStage[Any, Any]] = [
            WriteShuffleFiles(spool, f"{self.name}_spool"),
            CommitShuffleFiles(spool, f"{self.name}_commit_spool"),
            rounds[0].lister(spool, f"{self.name}_partitions"),
            rounds[0].reducer(),
        ]
        for keyed in rounds[1:]:
            stages += keyed.decompose()
        return spool, verdicts, [*stages, WriteShuffleFiles(verdicts, f"{self.name}_verdicts"), self.commit(verdicts)]


def identities(batch: Batch) -> pa.Table:
    """The columns that identify each row of a batch, to be added to its keys."""
    named = pa.repeat(literal(batch.lineage.id, pa.string()), batch.num_items)
    return pa.table([named, consecutive_integers(batch.num_items)], [TASK, ROW])


class SpoolExchange(Exchange):
    """The batches themselves, and the keys of their rows by partition."""

    def __init__(
        self, stage: VerdictStage, key: Sequence[str], num_partitions: int | None, spools: bool = True
    ) -> None:
        """Without `spools` only the names of batches are stored, not their rows."""
        super().__init__(key, num_partitions, stage.memory_gb)
        self.stage, self.spools = stage, spools
        if stage.sums:
            self.sums = (
                True  # part of the identity: a spool without checksums cannot be reused by a run that needs them
            )
        self._counts: Mapping[str, float] = {}
        self._chunks: dict[str, int] = {}
        self._sources: list[list[SpoolChunk]] = []

    @property
    def chunks(self) -> Mapping[str, int]:
        """The number of the spool chunk that holds each batch, by the id of the batch."""
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
        metadata = {**(batch.data.schema.metadata or {}), _BATCH_INFO_KEY: _batch_info(self.stage, batch, origin)}
        rows = batch.data if self.spools and not origin else batch.data.slice(0, 0)
        yield SPOOL_PARTITION, rows.replace_schema_metadata(metadata)
        if not batch.num_items:
            return
        for name in [name for name in self.planned if name not in batch.data.column_names]:
            batch = batch.with_column(name, pa.nulls(batch.num_items))
        take_counts(self.stage)  # discard those of a batch that failed
        keys = self.stage.keys(batch)
        self._counts = take_counts(self.stage)
        if TASK not in keys.column_names:
            if keys.num_rows != batch.num_items:
                raise ContractError(
                    f"stage {self.stage.name!r}: keys() returned {keys.num_rows} rows for {batch.num_items}. Return "
                    "one for each, or add the columns of identities(batch) to say which row each belongs to"
                )
            named = constant_column(literal(batch.lineage.id, pa.string()), batch.num_items)
            keys = keys.append_column(TASK, named).append_column(ROW, consecutive_integers(batch.num_items))
        numbers = partition_numbers(keys, self.key, self.partitions)
        if (waiting := self.stage.late(keys)) is not None:
            numbers = pc.if_else(waiting, pc.add(numbers, literal(self.partitions, numbers.type)), numbers)
        yield from split_by_partition(keys, numbers)

    def late_blocks(self, partition: int) -> Iterator[ShuffleBlockSlice]:
        """The blocks of the keys of a partition that the first round does not get (`VerdictStage.late`)."""
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
        """The spool chunks of each source."""
        return self._sources


@fast_dataclass
class SpoolChunk:
    """Batches of one source that are read together, as one task."""

    names: list[str] = field(default_factory=list)
    blocks: list[ShuffleBlockSlice] = field(default_factory=list)


def _chunks(path: str, index: ShuffleFileIndex) -> Iterator[SpoolChunk]:
    """Chunks of about `SPOOL_CHUNK_BYTES`. Batches of one input task stay together: reading one again means reading
    the file from the beginning of its slice."""
    chunk, size = SpoolChunk(), 0
    for block in index.blocks:
        if block.partition != SPOOL_PARTITION:
            continue
        same_task = chunk.names and chunk.names[-1].rpartition(".")[0] == block.name.rpartition(".")[0]
        if chunk.names and size + block.nbytes > SPOOL_CHUNK_BYTES and not same_task:
            yield chunk
            chunk, size = SpoolChunk(), 0
        chunk.names.append(block.name)
        chunk.blocks.append(ShuffleBlockSlice(path, block.offset, block.length, 0, block.rows, block.nbytes))
        size += block.nbytes
    if chunk.names:
        yield chunk


class VerdictExchange(Exchange):
    """Verdicts, partitioned by the spool chunk that holds their rows."""

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


# -- reading the spool -------------------------------------------------------------------------------------


@fast_dataclass
class SpoolTask(Task[list[ShuffleBlockSlice]]):
    """A spool chunk, and the verdicts on its rows."""

    names: list[str] = field(kw_only=True)
    verdicts: PartitionTask = field(kw_only=True, repr=False)
    target: OutputDirectory = field(kw_only=True, repr=False)
    source: str = field(kw_only=True)
    stamp: str = field(kw_only=True)
    origin: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def num_items(self) -> int:
        return sum(block.stop for block in self.data)

    def key(self) -> str:
        return self.source

    def fingerprint(self) -> str:
        return self.stamp

    def files(self) -> tuple[str, ...]:
        return self.origin


class ListSpoolChunks(SourceStage[SpoolTask], RunStateRole):
    """Lists the chunks of a spool, source by source."""

    continues = True

    def __init__(self, spool: SpoolExchange, verdicts: VerdictExchange, name: str) -> None:
        super().__init__()
        self.spool, self.verdicts, self.name = spool, verdicts, name
        self._segment_name = ""

    def assign_directories(self, url: str, storage_options: Mapping[str, Any], lasting: RecordsLocation = None) -> None:
        self._segment_name = url.rpartition("/")[2]

    def sources(self) -> Iterator[Sequence[SpoolTask]]:
        spool, verdicts = self.spool.listing, self.verdicts.listing
        stamp = digest([spool.stamp, verdicts.stamp])
        number = 0
        for source, origin, chunks in zip(spool.sources, spool.origins, self.spool.sources, strict=True):
            tasks = []
            for chunk in chunks:
                chunk_verdicts = verdicts.part(str(number), list(verdicts.blocks_of(number)))
                number += 1
                tasks.append(
                    SpoolTask(
                        chunk.blocks,
                        names=chunk.names,
                        verdicts=chunk_verdicts,
                        target=spool.target,
                        source=f"{source}-{self._segment_name}",
                        stamp=stamp,
                        origin=origin,
                    )
                )
            yield tasks


class ReadSpool(ProcessingStage[SpoolTask, Batch], WholeInputRole):
    """Reads spooled batches, and attaches to each row the verdict on it."""

    def __init__(self, name: str, adds: Sequence[str] = ()) -> None:
        super().__init__()
        self.name, self.adds = name, tuple(adds)

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []

    def process(self, task: SpoolTask) -> Iterator[Batch]:
        pieces = list(task.verdicts.pieces())
        verdicts = pa.concat_tables(pieces).combine_chunks() if pieces else None
        rereader, unread = BlockRereader(), UnreadBatchBuilder()
        for block, name in zip(task.data, task.names, strict=True):
            table = read_shuffle_block(task.target, block.path, block.offset, block.length)
            metadata = dict(table.schema.metadata)
            info = orjson.loads(metadata.pop(_BATCH_INFO_KEY))
            origin_info = info.pop("origin")
            origin = BlockOrigin.from_json(origin_info) if origin_info else None
            table = table.replace_schema_metadata(metadata or None)
            on_batch = verdicts
            if verdicts and len(task.names) > 1:
                on_batch = verdicts.filter(pc.equal(verdicts.column(TASK), literal(name, pa.string())))
            # Lines can stay unparsed only if nothing is added to their rows, in columns or in metadata.
            copyable = origin is not None and origin.lines is not None and not metadata and not self.adds and kernels
            if not copyable or not unread.can_add(table.schema, info, block.nbytes):
                yield from unread.batches()
                unread = UnreadBatchBuilder()
            if copyable and origin:
                unread.add(table, info, origin, block, on_batch)
                continue
            if origin:
                table = rereader.table(origin, block.stop).replace_schema_metadata(metadata or None)
            block_verdicts = BlockVerdicts.from_table(table.num_rows, on_batch)
            yield batch_class_named(info.pop("kind"))(block_verdicts.attach_to(table, self.adds), **info)
        yield from unread.batches()


def _batch_info(stage: VerdictStage, batch: Batch, origin: BlockOrigin | None) -> bytes:
    """Everything that a batch has besides its rows, as JSON."""
    info = {"kind": batch_class_name(type(batch)), "dataset_name": batch.dataset_name, "metadata": batch.metadata}
    try:
        return orjson.dumps({**info, "origin": origin.to_json() if origin else None})
    except TypeError as error:
        raise ContractError(
            f"stage {stage.name!r}: batches are spooled to files here, and the metadata of a batch cannot be written "
            f"({error}). Keep only numbers, text, lists and dicts in metadata"
        ) from error


# -- applying verdicts -------------------------------------------------------------------------------------


class UnreadBatchBuilder:
    """Combines blocks of unparsed lines into one batch."""

    def __init__(self) -> None:
        self._rows: UnreadLinesWithVerdicts | None = None
        self._info: dict[str, Any] = {}

    def can_add(self, schema: pa.Schema, info: Mapping[str, Any], nbytes: int) -> bool:
        """Whether a block fits: same columns, same batch info, and not too large."""
        rows = self._rows
        if rows is None:
            return True
        same = info == self._info and schema.equals(rows.columns.schema)
        return same and rows.nbytes + nbytes <= UNREAD_BATCH_BYTES

    def add(
        self,
        columns: pa.Table,
        info: dict[str, Any],
        origin: BlockOrigin,
        block: ShuffleBlockSlice,
        verdicts: pa.Table | None,
    ) -> None:
        self._rows = self._rows or UnreadLinesWithVerdicts(columns)
        self._info = info
        block_verdicts = BlockVerdicts.from_table(block.stop, verdicts)
        self._rows.add(origin, block.stop, block.nbytes, block_verdicts.attach_to)
        self._rows.block_verdicts.append(block_verdicts)

    def batches(self) -> Iterator[Batch]:
        if self._rows is not None:
            info = dict(self._info)
            yield with_unread_rows(batch_class_named(info.pop("kind"))(self._rows.columns, **info), self._rows)


class UnreadLinesWithVerdicts(UnreadLines):
    """Unparsed lines, with the verdicts on their rows."""

    def __init__(self, columns: pa.Table) -> None:
        super().__init__(columns)
        self.block_verdicts: list[BlockVerdicts] = []

    def keep(self) -> pa.BooleanArray:
        """Whether each row is kept."""
        return pa.concat_arrays([verdicts.keep() for verdicts in self.block_verdicts])

    def scores(self, name: str) -> pa.Array:
        """A column of the verdicts as a score for each row; null without one."""
        return pa.concat_arrays([verdicts.score(name) for verdicts in self.block_verdicts])


@fast_dataclass(frozen=True)
class BlockVerdicts:
    """The verdicts on the rows of a block. `verdict_rows` holds for each row the index of its verdict, or null."""

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
        judged, indices = np.zeros(count, np.bool_), np.zeros(count, np.int64)
        judged[numbers] = True
        if (distinct := int(judged.sum())) != verdicts.num_rows:
            raise ContractError(
                f"{verdicts.num_rows} verdicts are on {distinct} rows: return at most one verdict for each row"
            )
        indices[numbers] = np.arange(distinct)
        validity = pa.py_buffer(np.packbits(judged, bitorder="little"))
        buffers = [validity, pa.py_buffer(indices)]
        return cls(count, verdicts, pa.Array.from_buffers(pa.int64(), count, buffers, count - distinct))

    def keep(self) -> pa.BooleanArray:
        """Whether each row is kept."""
        if self.verdicts is None or self.verdict_rows is None:
            return pa.repeat(_TRUE, self.count)
        if KEEP not in self.verdicts.column_names:
            return self.verdict_rows.is_null()
        return pc.if_else(self.verdict_rows.is_valid(), self._column(KEEP), _TRUE)

    def score(self, name: str) -> pa.Array:
        """A column of the verdicts as a number for each row; null without one."""
        if self.verdicts is None or name not in self.verdicts.column_names:
            return pa.nulls(self.count, pa.float64())
        return self._column(name).cast(pa.float64())

    def attach_to(self, table: pa.Table, adds: Sequence[str] = ()) -> pa.Table:
        """Append `VERDICT` and the other columns of the verdicts to the rows. These get a prefix, so that they never
        replace a column of the user's, unless they are in `adds`."""
        table = table.append_column(VERDICT, self.keep())
        for name in self.verdicts.column_names if self.verdicts is not None else ():
            if name in (TASK, ROW, KEEP):
                continue
            column, values = verdict_column_name(name, adds), self._column(name)
            if column in table.column_names:
                table = table.set_column(table.column_names.index(column), column, values)
            else:
                table = table.append_column(column, values)
        return table

    def _column(self, name: str) -> pa.Array:
        assert self.verdicts is not None
        return as_one_array(self.verdicts.column(name)).take(self.verdict_rows)


def verdict_column_name(name: str, adds: Sequence[str]) -> str:
    """The name of a column of verdicts once it is attached to rows."""
    return name if name in adds or name.startswith("__") else f"{VERDICT}{name}"


class ApplyVerdicts(DecidingStage[Batch]):
    """Drops rows by their verdicts, and removes the columns that hold these."""

    takes_empty = True
    depends_on_other_rows: ClassVar[bool] = True
    """Verdicts depend on other rows, so the effect of other parameters cannot be computed from scores."""

    def __init__(self, stage: VerdictStage) -> None:
        super().__init__()
        self.stage, self.name = stage, stage.name

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(self.stage.adds)

    def decide(self, batch: Batch) -> Decision:
        rows, names = unread_rows(batch), self.stage.thresholds()
        if isinstance(rows, UnreadLinesWithVerdicts):
            keep, scores = rows.keep(), {name: rows.scores(name) for name in names}
        else:
            keep, scores = (
                as_one_array(batch.data.column(VERDICT)),
                {name: self._verdict_scores(batch.data, name) for name in names},
            )
        return Decision(keep, {name: pc.if_else(keep, _NO_SCORE, column) for name, column in scores.items()})

    def _verdict_scores(self, table: pa.Table, name: str) -> pa.Array:
        """A column of the verdicts for each row of a table they are attached to."""
        column = verdict_column_name(name, self.stage.adds)
        if column not in table.column_names:  # no row of the batch has a verdict
            return pa.nulls(table.num_rows, pa.float64())
        return as_one_array(table.column(column)).cast(pa.float64())

    def thresholds(self) -> dict[str, str]:
        return self.stage.thresholds()

    def apply(self, batch: Batch, decision: Decision) -> Batch:
        kept = batch.keep(decision.keep)
        if isinstance(unread_rows(kept), UnreadLinesWithVerdicts):
            return with_unread_rows(kept, unread_rows(kept).without_verdicts())
        table = kept.data
        first = table.column_names.index(VERDICT)
        extra = [name for name in table.column_names[first:] if name not in self.stage.adds]
        return kept.with_data(table.drop_columns(extra))
