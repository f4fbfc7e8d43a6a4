"""Search rows block by block in the background; results found so far can be shown at once.

Only positions are kept: 8 bytes for each matching row, or 100 bytes per block for a query without conditions. The
caller says how many rows are enough. A scan pauses while no page asks for it.

Gives up: sorting more rows than fit in memory, 20 bytes each.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, is_text
from gristmill.io.storage.file_input import BadRecord
from gristmill.view.data.query import ColumnRoles, RowQuery, columns_to_read, matching_rows, numeric_column
from gristmill.view.data.row_access import RowAccess, RowBlock

REST_SECONDS = 20.0
"""After so long without a question a scan rests until the next one."""

Traits = tuple[str | None, str | None, str | None]
"""The stage, the language and the rule of a row."""

MAX_COUNTED_VALUES, OTHERS = 1000, ("(others)", "(others)", "(others)")
"""So many traits are counted; the rest are not told apart."""


@dataclass(frozen=True, slots=True)
class MatchingBlock:
    """Rows of a block that match: all of them, or those at `positions`."""

    source: int
    start: int
    end: int
    count: int
    positions: pa.Array | None = None


class RowScan:
    """Finds the rows that a query asks for."""

    def __init__(self, sources: Sequence[RowAccess], query: RowQuery, columns: ColumnRoles) -> None:
        self.query, self.columns = query, columns
        self.sources = list(sources)
        self.counts: Counter[Traits] = Counter()
        """Rows by stage, language and rule, whichever of them were asked for."""
        self.rows = self.bytes = self.bad = 0
        self.notes: list[str] = []
        self._pieces: list[MatchingBlock] = []
        self._ends: list[int] = []
        self._keys: list[pa.Array] = []
        self._order: pa.Array | None = None
        self._sources_done = 0
        self._condition = threading.Condition()
        self._asked = time.monotonic()
        self._stopped = self._working = False

    # -- asking ----------------------------------------------------------------------------------------------

    def wait(self, enough: int, seconds: float) -> None:
        """Until so many rows have been found, or all, or the time is over. In order there is no first row before the
        last was seen."""
        with self._condition:
            self._asked = time.monotonic()
            if self._sources_done < len(self.sources) and not self._working and not self._stopped:
                self._working = True
                threading.Thread(target=self._work, daemon=True, name="scan").start()
            self._condition.notify_all()
            self._condition.wait_for(lambda: self.done or (not self.query.sort and self.found >= enough), seconds)

    def extend(self, sources: Sequence[RowAccess]) -> bool:
        """Take in sources that have been added; False if others have changed, and all must be done again."""
        with self._condition:
            known = [(source.id, source.size) for source in self.sources]
            if [(source.id, source.size) for source in sources[: len(known)]] != known:
                return False
            self.sources += sources[len(known) :]
            return True

    def stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    @property
    def done(self) -> bool:
        return self._stopped or (self._sources_done == len(self.sources) and not self._working)

    @property
    def found(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def share(self) -> float:
        """How much has been looked at, from 0 to 1."""
        total = sum(source.size for source in self.sources)
        return 1.0 if self.done else min(self.bytes / total, 0.99) if total else 0.0

    def count_by(self, which: int) -> list[tuple[str, int]]:
        """How many rows there are of each stage (0), language (1) or rule (2), among those that the rest of the query
        wants."""
        chosen = (self.query.stage, self.query.language, self.query.rule)
        others = [place for place in range(3) if place != which and chosen[place]]
        sums: Counter[str] = Counter()
        for key, count in list(self.counts.items()):
            if all(key[place] == chosen[place] for place in others):
                sums[key[which] or ""] += count
        return sorted(sums.items(), key=lambda item: (-item[1], item[0]))

    def page(self, first: int, count: int) -> list[tuple[RowAccess, pa.Table]]:
        """Rows by their number among those found, as tables of one source each, with POSITION, in order."""
        if self.query.sort:
            return self._sorted_page(first, count)
        tables = []
        while count > 0 and first < self.found:
            number = bisect_right(self._ends, first)
            piece = self._pieces[number]
            skip = first - (self._ends[number] - piece.count)
            taken = min(count, piece.count - skip)
            tables.append((self.sources[piece.source], self._rows(piece, skip, taken)))
            first, count = first + taken, count - taken
        return tables

    def _rows(self, piece: MatchingBlock, skip: int, count: int) -> pa.Table:
        source = self.sources[piece.source]
        if piece.positions is not None:
            return source.rows_at(piece.positions.slice(skip, count).to_pylist())
        if piece.end - piece.start == piece.count:  # numbered one by one
            return source.rows_between(piece.start + skip, piece.start + skip + count)
        return source.rows_between(piece.start, piece.end).slice(skip, count)

    def _sorted_page(self, first: int, count: int) -> list[tuple[RowAccess, pa.Table]]:
        if self._order is None:
            return []
        wanted = []
        for row in self._order.slice(first, count).to_pylist():
            piece = self._pieces[bisect_right(self._ends, row)]
            place = row - (self._ends[bisect_right(self._ends, row)] - piece.count)
            assert piece.positions is not None
            wanted.append((piece.source, piece.positions[place].as_py()))
        found: dict[tuple[int, int], pa.Table] = {}
        for number in {source for source, _ in wanted}:
            table = self.sources[number].rows_at([position for source, position in wanted if source == number])
            places = table.column(POSITION).to_pylist()
            found |= {(number, position): table.slice(index, 1) for index, position in enumerate(places)}
        return [(self.sources[key[0]], found[key]) for key in wanted if key in found]

    # -- finding ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while True:
                with self._condition:
                    if self._stopped or self._sources_done == len(self.sources):
                        break
                    number = self._sources_done
                self._scan_source(number)
                with self._condition:
                    self._sources_done += 1
                    self._condition.notify_all()
            self._put_in_order()
        finally:
            with self._condition:
                self._working = False
                self._condition.notify_all()

    def _scan_source(self, number: int) -> None:
        source = self.sources[number]
        fields = columns_to_read(self.query, self.columns)
        before = self.bytes
        try:
            for block in source.blocks(fields, self._note):
                if not self._wait_until_wanted():
                    return
                self._add(number, block)
                self.bytes = before + source.bytes_reached(block)
        except Exception as error:  # noqa: BLE001  a file that is gone or damaged hides no other
            self.notes.append(f"{source.name}: {error}")
        self.bytes = before + source.size

    def _wait_until_wanted(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._stopped or time.monotonic() - self._asked < REST_SECONDS)
            return not self._stopped

    def _note(self, record: BadRecord) -> None:
        self.bad += record.records

    def _add(self, number: int, block: RowBlock) -> None:
        piece, keys, counts = self._matching(number, block)
        with self._condition:
            self.rows += block.rows
            for key, count in counts.items():
                self.counts[key if key in self.counts or len(self.counts) < MAX_COUNTED_VALUES else OTHERS] += count
            if piece.count:
                self._pieces.append(piece)
                self._ends.append(self.found + piece.count)
                if keys is not None:
                    self._keys.append(keys)
            self._condition.notify_all()

    def _matching(self, number: int, block: RowBlock) -> tuple[MatchingBlock, Any, Counter[Traits]]:
        table, query = block.table, self.query
        if table is None:
            return (
                MatchingBlock(number, block.start, block.end, block.rows),
                None,
                Counter({(None, None, None): block.rows}),
            )
        mask = matching_rows(query, self.columns, table)
        chosen = table if mask is None else table.filter(mask)
        counts = _count(chosen, self.columns)
        for wanted, name in zip((query.stage, query.language, query.rule), _traits(self.columns), strict=True):
            if wanted:
                chosen = chosen.filter(_equals(chosen, name, wanted))
        if not query.is_filtered and not query.sort:
            return MatchingBlock(number, block.start, block.end, block.rows), None, counts
        places = as_one_array(chosen.column(POSITION))
        keys = numeric_column(query.sort, self.columns, chosen) if query.sort else None
        return MatchingBlock(number, block.start, block.end, len(places), places), keys, counts

    def _put_in_order(self) -> None:
        if not self.query.sort or self._stopped:
            return
        chunks = [chunk for found in self._keys for chunk in getattr(found, "chunks", [found])]
        keys = as_one_array(pa.chunked_array(chunks, pa.float64()))
        order = "descending" if self.query.down else "ascending"
        self._order = pc.sort_indices(keys, sort_keys=[("", order)])  # null last


def _equals(table: pa.Table, name: str | None, wanted: str) -> Any:
    if name is None or name not in table.column_names or not is_text(table.column(name).type):
        return pa.repeat(literal(False, pa.bool_()), table.num_rows)
    return pc.fill_null(pc.equal(table.column(name), literal(wanted, pa.string())), literal(False, pa.bool_()))


def _traits(columns: ColumnRoles) -> tuple[str | None, str | None, str | None]:
    """The columns of the stage, the language and the rule."""
    return columns.stage, columns.language, columns.rule


def _count(table: pa.Table, columns: ColumnRoles) -> Counter[Traits]:
    """Rows by stage, language and rule."""
    values = [_dictionary_encoded(table, name) for name in _traits(columns)]
    if not table.num_rows or all(one is None for one in values):
        return Counter({(None, None, None): table.num_rows})
    names = [[None] if one is None else one.dictionary.to_pylist() for one in values]
    joint = pa.repeat(literal(0, pa.int64()), table.num_rows)
    for one, known in zip(values, names, strict=True):
        joint = pc.multiply(joint, literal(len(known), pa.int64()))
        joint = joint if one is None else pc.add(joint, one.indices.cast(pa.int64()))
    counts: Counter[Traits] = Counter()
    found = pc.value_counts(joint)
    for code, count in zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True):
        rest, rule = divmod(code, len(names[2]))
        stage, language = divmod(rest, len(names[1]))
        counts[names[0][stage], names[1][language], names[2][rule]] = count
    return counts


def _dictionary_encoded(table: pa.Table, name: str | None) -> Any:
    """A column of which there are few different values, by their numbers; null is one of them."""
    if name is None or name not in table.column_names or not is_text(table.column(name).type):
        return None
    return as_one_array(table.column(name)).dictionary_encode("encode")


class ScanCache:
    """The scans that were asked for last. Older ones are stopped."""

    def __init__(self, most: int = 6) -> None:
        self._scans: dict[tuple[RowQuery, ColumnRoles], RowScan] = {}
        self._most = most
        self._lock = threading.Lock()

    def get(self, sources: Sequence[RowAccess], query: RowQuery, columns: ColumnRoles) -> RowScan:
        with self._lock:
            scan = self._scans.pop((query, columns), None)
            if scan is None or not scan.extend(sources):
                if scan:
                    scan.stop()
                scan = RowScan(sources, query, columns)
            self._scans[query, columns] = scan
            while len(self._scans) > self._most:
                self._scans.pop(next(iter(self._scans))).stop()
            return scan

    def stop(self) -> None:
        with self._lock:
            for scan in self._scans.values():
                scan.stop()
