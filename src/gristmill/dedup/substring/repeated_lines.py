"""Cuts out lines, paragraphs or sentences that many documents of the corpus have.

Documents stay in their sources. A hash of each unit goes through an exchange, and the positions of units that occur too
often come back to their rows (`cut_spans.py`). At most `min_count` positions of a unit are held in memory, so a line
that half of the documents have needs no more memory than others.

Gives up units that differ in more than `normalize` lists, and grammar (`text_units.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.batch import Batch
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.stage import Columns
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, from_numbers, numbers
from gristmill.dedup.columns.batch_texts import texts_of
from gristmill.dedup.columns.column_hashes import hash128
from gristmill.dedup.columns.normalisation import normalisation_without
from gristmill.dedup.substring.cut_spans import END, START, SpanStage, check_exchange, span_table
from gristmill.dedup.substring.text_units import UNITS, cut_units
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.io.exchange.verdict_stage import ROW, TASK, identities

DOCUMENTS, OCCURRENCES = COUNTS = ("documents", "occurrences")
FIRST, NONE = KEEPS = ("first", "none")
HASH_COLUMN = "__hash__"


class LineDeduplicationStage(SpanStage):
    """Cuts lines, paragraphs or sentences out of documents if many documents have them.

    `unit` is "line", "paragraph" (ended by blank lines) or "sentence". Units that at least `min_count` documents have,
    or that occur that many times (`count_by="occurrences"`), are cut out: all but the first (`keep="first"`), or all
    (`keep="none"`). Units of fewer than `min_length` characters stay. White space around a unit never counts.
    `normalize` lists differences to ignore: "case", "whitespace", "punctuation", "unicode". Documents with only white
    space left are dropped. Output files have the same names and order as without this stage.
    """

    def __init__(
        self,
        text_field: str = "text",
        unit: str = "line",
        min_count: int = 2,
        min_length: int = 20,
        keep: str = FIRST,
        count_by: str = DOCUMENTS,
        normalize: Sequence[str] = (),
        num_partitions: int | None = None,
        memory_gb: float | None = None,
    ) -> None:
        super().__init__()
        for name, value, known in (("unit", unit, UNITS), ("keep", keep, KEEPS), ("count_by", count_by, COUNTS)):
            if value not in known:
                raise ValueError(f"LineDeduplicationStage: {name} is {value!r}, must be one of {', '.join(known)}")
        if min_count < 2 or min_length < 1:
            raise ValueError(
                f"LineDeduplicationStage: min_count is {min_count}, must be 2 or more, and min_length is {min_length}, "
                "must be 1 or more"
            )
        check_exchange(num_partitions, memory_gb)
        self.text_field, self.unit, self.min_count, self.min_length = text_field, unit, min_count, min_length
        self.keep, self.count_by, self.normalize, self.num_partitions = keep, count_by, normalize, num_partitions
        self.memory_gb = memory_gb
        self._form = normalisation_without("LineDeduplicationStage", normalize)

    def keys(self, batch: Batch) -> pa.Table:
        pieces = cut_units(texts_of(self.name, batch.data, self.text_field), self.unit)
        form = self._form.apply(pieces.texts) if self._form else pieces.texts
        bare = pc.utf8_trim_whitespace(form)
        long = np.flatnonzero(numbers(pc.utf8_length(bare).cast(pa.int64())) >= self.min_length)
        rows = pieces.rows[long]
        base = pieces.bounds[pieces.firsts[:-1]][rows]
        hashes = hash128(bare.take(from_numbers(long)))
        known = identities(batch)
        return span_table(
            known, rows, pieces.bounds[long] - base, pieces.bounds[long + 1] - base, **{HASH_COLUMN: hashes}
        )

    def finders(self) -> Sequence[KeyedStage]:
        return [FindRepeatedUnits(f"{self.name}_units", self.min_count, self.keep, self.count_by, self.num_partitions)]


@fast_dataclass
class _OpenGroup:
    """The last group of the tables seen so far, which may continue in the next one."""

    held: pa.Table | None = None
    """Its rows, as long as they are fewer than `min_count`."""
    known: Numbers | None = None
    """Its hash, once there are enough rows: all later rows of it are cut out."""


class FindRepeatedUnits(KeyedStage):
    """Outputs the positions of units that occur too often."""

    key = HASH_COLUMN

    def __init__(self, name: str, min_count: int, keep: str, count_by: str, num_partitions: int | None = None) -> None:
        super().__init__()
        self.name, self.num_partitions = name, num_partitions
        self.min_count, self.keep, self.count_by = min_count, keep, count_by

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [TASK, ROW]

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        group = _OpenGroup()
        for table in tables:
            if table.num_rows:
                yield self._judge(table, group)

    def _judge(self, table: pa.Table, group: _OpenGroup) -> pa.Table:
        """The positions to cut out of a table; updates `group`."""
        if group.held is not None:
            table = pa.concat_tables([group.held, table]).combine_chunks()
        hashes = _halves(table)
        new = np.append(True, (hashes[1:] != hashes[:-1]).any(axis=1))
        goes_on = group.known is not None and bool((group.known == hashes[0]).all())
        numbered = np.cumsum(new) - 1
        counted = new | _new_document(table) if self.count_by == DOCUMENTS else np.ones(len(new), np.bool_)
        enough = np.bincount(numbered, counted) >= self.min_count
        enough[0] |= goes_on
        drop = enough[numbered]
        if self.keep == FIRST:
            firsts = np.flatnonzero(new)[1 if goes_on else 0 :]
            drop[firsts] = False
        last = int(np.flatnonzero(new)[-1])
        group.known = hashes[-1].copy() if enough[-1] else None
        group.held = None if enough[-1] else table.slice(last)
        return table.select([TASK, ROW, START, END]).filter(from_numbers(drop))


def _halves(table: pa.Table) -> Numbers:
    """Hashes of 8 or 16 bytes as a matrix of 64-bit numbers."""
    hashes = as_one_array(table[HASH_COLUMN])
    width = hashes.type.byte_width // 8
    return np.frombuffer(hashes.buffers()[1], np.uint64, width * len(hashes), hashes.offset * width * 8).reshape(
        -1, width
    )


def _new_document(table: pa.Table) -> Numbers:
    """Whether each row is of another document than the one before it."""
    tasks, rows = numbers(as_one_array(table[TASK]).dictionary_encode().indices), numbers(table[ROW])
    return np.append(True, (tasks[1:] != tasks[:-1]) | (rows[1:] != rows[:-1]))
