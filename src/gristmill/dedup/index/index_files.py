"""The files of an index: keys of documents, by ranges of their hash.

A file holds the rows whose keys are in one range of hashes, as blocks (`io/exchange/shuffle_files.py`) with a checksum
each: first those of the first table, by ascending hash. Ranges of any two sizes can be compared, so a run that reads
need not have the same number of partitions as the run that wrote.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import orjson
import pyarrow as pa

from gristmill.core.arrow.hash_partitioning import partition_numbers, split_by_partition
from gristmill.core.errors import InputError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.dedup.clusters.cluster_table import KEY, TABLE
from gristmill.dedup.columns.arrow_numpy import from_numbers, numbers
from gristmill.dedup.index.dedup_index import IndexFile
from gristmill.io.exchange.shuffle_files import (
    SHUFFLE_BLOCK_BYTES,
    ShuffleBlock,
    ShuffleFileIndex,
    ShuffleFileWriter,
    read_index,
    table_from_stream,
    table_to_stream,
)
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.parquet_format import value_bytes

HELD_BYTES = 64 * 2**20
CUT_ROWS = 4096
MOST_CUTS = 256


# -- ranges ------------------------------------------------------------------------------------------------


def overlapping_ranges(part: int, of: int, parts: int) -> range:
    """Which of `parts` equal ranges overlap range `part` of `of` (see `core/arrow/hash_partitioning.py`)."""
    low, high = -(-(part << 32) // of), -(-((part + 1) << 32) // of) - 1
    return range(low * parts >> 32, (high * parts >> 32) + 1)


# -- writing -----------------------------------------------------------------------------------------------


class _ChecksummedRunsWriter(ShuffleFileWriter):
    """Writes blocks with a checksum of each."""

    def copy_block(
        self, partition: int, raw: pa.Buffer, rows: int, nbytes: int, name: str = "", content: str = ""
    ) -> None:
        super().copy_block(partition, raw, rows, nbytes, f"{zlib.crc32(raw):08x}")


def count_cuts(rows: int) -> int:
    return min(max(rows // CUT_ROWS, 1), MOST_CUTS)


def write_rows(
    file: BinaryIO, pieces: Iterable[pa.Table], tables: Sequence[pa.Schema], part: int, of: int, cuts: int
) -> None:
    """Write the rows of range `part` of `of`. The column `TABLE` is the number of the table that a row belongs to."""
    about = {"part": part, "of": of, "cuts": cuts}
    writer = _ChecksummedRunsWriter(file, ShuffleFileIndex(pa.schema([]), dataset_name=orjson.dumps(about).decode()))
    for held in _in_large_tables(pieces):
        for number, schema in enumerate(tables):
            mine = held.filter(from_numbers(numbers(held.column(TABLE)) == number)).select(schema.names)
            mine = mine.cast(schema)
            for cut, rows in split_by_partition(mine, partition_numbers(mine, [KEY], of * cuts)):
                table = rows.combine_chunks()
                writer.copy_block(number * of * cuts + cut, table_to_stream(table), table.num_rows, value_bytes(table))
    writer.close()


def _in_large_tables(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Pieces joined to tables of about `HELD_BYTES`."""
    waiting: list[pa.Table] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += piece.nbytes
        if size >= HELD_BYTES:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def describe_index_file(
    target: OutputDirectory, name: str, size: int, checksum: str
) -> tuple[IndexFile, dict[int, int]]:
    """The description of a file that was written, and the number of rows of each table."""
    index = read_index(target, target.file(name))
    about = orjson.loads(index.dataset_name)
    ranges = about["of"] * about["cuts"]
    counts: dict[int, int] = {}
    for run in index.blocks:
        counts[run.partition // ranges] = counts.get(run.partition // ranges, 0) + run.rows
    return IndexFile(name, size, checksum, sum(counts.values()), **about), counts


# -- reading -----------------------------------------------------------------------------------------------


@fast_dataclass(frozen=True)
class IndexFileReader:
    """Reads one file of an index. `snapshot` is the name of what its rows were added with."""

    target: OutputDirectory
    file: IndexFile
    snapshot: str

    @property
    def path(self) -> str:
        return self.target.file(self.file.name)

    def touches(self, part: int, of: int) -> bool:
        """Whether it may have rows of partition `part` of `of`."""
        return self.file.part in overlapping_ranges(part, of, self.file.of)

    def rows(self, table: int, part: int, of: int) -> Iterator[pa.Table]:
        """The rows of a table that may be in partition `part` of `of`, and some rows of others."""
        ranges = self.file.of * self.file.cuts
        wanted = overlapping_ranges(part, of, ranges)
        runs = [run for run in self._runs() if run.partition - table * ranges in wanted]
        for together in _adjacent(runs):
            yield from self._tables(together)

    def _runs(self) -> list[ShuffleBlock]:
        try:
            size = self.target.size(self.path)
            blocks = read_index(self.target, self.path).blocks if size == self.file.size else None
        except FileNotFoundError as error:
            raise self._damaged("it does not exist") from error
        except (InputError, ValueError, KeyError, TypeError) as error:
            raise self._damaged("its end has changed") from error
        if blocks is None:
            raise self._damaged(f"it has {size:,} bytes, but should have {self.file.size:,}")
        return blocks

    def _tables(self, runs: Sequence[ShuffleBlock]) -> Iterator[pa.Table]:
        start, end = runs[0].offset, runs[-1].offset + runs[-1].length
        try:
            raw = memoryview(self.target.read(self.path, start, end - start))
        except FileNotFoundError as error:
            raise self._damaged("it does not exist") from error
        for run in runs:
            mine = raw[run.offset - start : run.offset - start + run.length]
            if len(mine) != run.length or f"{zlib.crc32(mine):08x}" != run.name:
                raise self._damaged(f"the {run.length:,} bytes from {run.offset:,} on have changed")
            yield table_from_stream(mine)  # type: ignore[arg-type]

    def _damaged(self, why: str) -> InputError:
        return InputError(
            f"{self.path}, a file of an index, cannot be read: {why}. Restore the file, or read an earlier version of "
            "the index that does not use it (DedupIndex(..., version=...))"
        )


def _adjacent(runs: Sequence[ShuffleBlock]) -> Iterator[list[ShuffleBlock]]:
    """Groups of adjacent blocks that are read at once, up to about `SHUFFLE_BLOCK_BYTES`."""
    waiting: list[ShuffleBlock] = []
    for run in runs:
        end = waiting[-1].offset + waiting[-1].length if waiting else 0
        if waiting and (run.offset != end or end - waiting[0].offset >= SHUFFLE_BLOCK_BYTES):
            yield waiting
            waiting = []
        waiting.append(run)
    if waiting:
        yield waiting
