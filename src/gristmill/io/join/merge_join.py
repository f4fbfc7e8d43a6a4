"""Merging two sides that are sorted together by key, the other side's rows first in each group.

Of the group that is open the other side's rows are held, in memory or in a file; rows of ours pass by. Which rows there
are in a block changes nothing: pairs come in the order of our rows, and for each in that of its partners.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.table_conversion import VERDICT
from gristmill.io.exchange.external_sort import group_starts
from gristmill.io.exchange.shuffle_files import table_from_stream, table_to_stream
from gristmill.io.join.key_matching import (
    JOINS_ADDING_COLUMNS,
    NumpyArray,
    keep_mask,
    row_pairs,
    row_sizes,
    take_or_null,
    to_index_array,
    to_numpy_array,
    with_columns,
)

SIDE_COLUMN = "__side__"
OTHER_SIDE, OUR_SIDE = 0, 1

MAX_GROUP_BYTES = 8 * 2**20
"""Of the other side's rows of one key, that are held in memory."""


class SortedMerge:
    """Makes rows of pairs from blocks of both sides."""

    def __init__(
        self, how: str, keys: Sequence[str], ours: Sequence[str], added: Sequence[str], room: str | None
    ) -> None:
        self.how, self.keys, self.ours, self.added, self.room = how, list(keys), list(ours), list(added), room
        self.found = 0
        """Rows of ours that have a partner."""
        self._before: pa.Table | None = None
        self._held: pa.Table | None = None
        self._file: SpilledGroup | None = None

    def tables(self, blocks: Iterable[pa.Table]) -> Iterator[pa.Table]:
        try:
            for block in blocks:
                yield from self._block(block)
        finally:
            self._forget()

    def empty_table(self, empty: pa.Table) -> pa.Table:
        """What there is of no rows: columns."""
        return self._table(empty.select(self.ours), empty, np.zeros(0, np.int64))

    def _block(self, block: pa.Table) -> Iterator[pa.Table]:
        groups = np.cumsum(to_numpy_array(group_starts(self._before, block, self.keys).cast(pa.int8())), dtype=np.int64)
        self._before = block.slice(block.num_rows - 1).select(self.keys)
        side = to_numpy_array(block.column(SIDE_COLUMN))
        others, other_groups = self._of(block.select(self.added or [SIDE_COLUMN]), side == OTHER_SIDE, groups)
        ours, our_groups = self._of(block.select(self.ours), side == OUR_SIDE, groups)
        if self._file is not None:  # group 0 is the one that was open, and the first in the block
            more, rows = int((other_groups == 0).sum()), int((our_groups == 0).sum())
            self._file.add(others.slice(0, more))
            yield from self._spilled_pairs(ours.slice(0, rows), self._file)
            others, other_groups = others.slice(more), other_groups[more:]
            ours, our_groups = ours.slice(rows), our_groups[rows:]
        elif self._held is not None:
            other_groups = np.concatenate([np.zeros(self._held.num_rows, np.int64), other_groups])
            others = pa.concat_tables([self._held, others]).combine_chunks()
        yield from self._pairs(ours, our_groups, others, other_groups)
        self._keep_open_group(others, other_groups, int(groups[-1]))

    def _of(self, table: pa.Table, mask: NumpyArray, groups: NumpyArray) -> tuple[pa.Table, NumpyArray]:
        return table.take(to_index_array(np.flatnonzero(mask))), groups[mask]

    def _keep_open_group(self, others: pa.Table, groups: NumpyArray, last: int) -> None:
        """Keep the other side's rows of the last group, which may go on in the next block."""
        if last and self._file is not None:
            self._forget()
        if self._file is not None:
            return
        held = others.slice(int(np.searchsorted(groups, last)))
        held = held.slice(0, 1) if self.how not in JOINS_ADDING_COLUMNS else held
        self._held = held
        if held.nbytes > MAX_GROUP_BYTES:
            self._file, self._held = SpilledGroup(self.room), None
            self._file.add(held)

    def _forget(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _pairs(
        self, ours: pa.Table, our_groups: NumpyArray, others: pa.Table, other_groups: NumpyArray
    ) -> Iterator[pa.Table]:
        starts = np.searchsorted(other_groups, our_groups, "left")
        counts = np.searchsorted(other_groups, our_groups, "right") - starts
        self.found += int((counts > 0).sum())
        if self.how not in JOINS_ADDING_COLUMNS:
            counts = np.minimum(counts, 1)
        for mine, theirs in row_pairs(starts, counts, row_sizes(ours), row_sizes(others)):
            yield self._table(ours.take(to_index_array(mine)), others, theirs)

    def _spilled_pairs(self, ours: pa.Table, held: SpilledGroup) -> Iterator[pa.Table]:
        """The pairs of rows with a group in a file, which is read for each of them: as much is written, too."""
        self.found += ours.num_rows
        sizes = row_sizes(ours)
        for row in range(ours.num_rows):
            for piece in held.pieces():
                count = np.asarray([piece.num_rows])
                for mine, theirs in row_pairs(np.zeros(1, np.int64), count, sizes[row : row + 1], row_sizes(piece)):
                    yield self._table(ours.take(to_index_array(mine + row)), piece, theirs)

    def _table(self, ours: pa.Table, others: pa.Table, rows: NumpyArray) -> pa.Table:
        """Rows of ours, each with its partner."""
        table = ours.append_column(VERDICT, keep_mask(self.how, rows >= 0))
        return with_columns(table, take_or_null(others.select(self.added), rows)) if self.added else table


class SpilledGroup:
    """Rows in a file, that can be read as often as one likes."""

    def __init__(self, room: str | None) -> None:
        self._file = tempfile.TemporaryFile(prefix="gristmill-join-", dir=room)  # noqa: SIM115
        self._sizes: list[int] = []

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            raw = table_to_stream(rows)
            self._file.write(raw)
            self._sizes.append(len(raw))

    def pieces(self) -> Iterator[pa.Table]:
        self._file.seek(0)
        for size in self._sizes:
            yield table_from_stream(self._file.read(size))

    def close(self) -> None:
        self._file.close()
