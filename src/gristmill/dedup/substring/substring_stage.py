"""Finds spans of text that occurred before, in the same document or in an earlier one, and cuts them out.

In memory (`repeated_spans`) all windows of n bytes are looked up in a hash table of the windows before them. This finds
what a suffix array finds: each byte in a repetition of n bytes or more, other than its first occurrence. It takes 12
bytes of memory for each byte of text.

For a corpus of any size (`SubstringDeduplicationStage`) the same spans are found in two steps:

    anchors    The anchor of a window is the run of n / 2 bytes in it with the least hash. Neighbouring windows share
               one, so there are few. Hashes of all anchors go through an exchange, and repeated ones come back.
    windows    The text around each repeated anchor goes through a second exchange, so that all windows with the same
               anchor are in one partition. They are looked up as in memory; the spans come back and are cut out.

Equal windows have equal anchors, so no repetition is missed.

Costs two passes over the corpus through the spool. Costs memory if very many documents have a passage of half the
length in different contexts: all text around it is held at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.batch import Batch
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, as_bytes, as_one_array, flags, from_numbers, numbers
from gristmill.dedup.columns.batch_texts import texts_of
from gristmill.dedup.substring.cut_spans import (
    END,
    START,
    RowSpans,
    SpanStage,
    check_exchange,
    span_table,
    unpack_spans,
)
from gristmill.dedup.substring.repeated_lines import HASH_COLUMN, NONE, OCCURRENCES, FindRepeatedUnits
from gristmill.dedup.substring.text_units import cut_at_bytes, string_layout
from gristmill.io.exchange.external_sort import group_starts
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.io.exchange.verdict_stage import ROW, TASK, VerdictStage, identities

_SPAN = np.dtype([("row", "<i8"), ("start", "<i8"), ("end", "<i8")])
_ANCHOR = np.dtype([("row", "<i8"), ("first", "<i8"), ("last", "<i8"), ("place", "<i8"), ("hash", "<u8")])
_ANCHORS, _BODY = "__anchors__", "__body__"
SHORTEST_SPAN = 16


def repeated_spans(column: Column, n: int = 100) -> pa.Table:
    """The spans of at least `n` bytes that occurred before: `row`, `start` and `end`, in bytes, sorted.

    In a column of text, a span neither begins nor ends within a character, so it may be a few bytes shorter. Null has
    none.
    """
    if n < 1:
        raise ValueError(f"n={n} must be 1 byte or more")
    texts = as_bytes(column)
    if kernels is not None:
        found = np.frombuffer(kernels.repeated_spans(texts, n), _SPAN)
    else:
        found = np.array(reference.repeated_spans([text or "" for text in texts.to_pylist()], n), _SPAN)
    return pa.table({name: from_numbers(found[name]) for name in _SPAN.names or ()})


def without_spans(column: Column, spans: pa.Table) -> pa.LargeStringArray:
    """The texts without the given spans, which must not overlap; null stays null."""
    found = string_layout(column)
    rows, starts, ends = (numbers(spans[name], np.int64) for name in ("row", "start", "end"))
    starts, ends = np.sort(found.offsets[rows] + starts), np.sort(found.offsets[rows] + ends)
    pieces = cut_at_bytes(found, np.concatenate([starts, ends]))
    begins = pieces.bounds[:-1]
    drop = np.searchsorted(starts, begins, "right") > np.searchsorted(
        ends, begins, "right"
    )  # more spans begun than ended
    return pieces.without(drop)


# -- a corpus of any size ------------------------------------------------------------------------------------


class SubstringDeduplicationStage(CompositeStage[Batch, Batch]):
    """Cuts passages out of documents that occurred before, word for word, anywhere in the corpus.

    Each byte is cut that is in a passage of `min_length` bytes or more that also occurs in an earlier document, or
    earlier in the same one; the first occurrence stays. 200 bytes are about 50 tokens of English. Characters are never
    cut in parts. Documents with only white space left are dropped. Output files have the same names and order as
    without this stage.
    """

    folds = True

    def __init__(
        self,
        text_field: str = "text",
        min_length: int = 200,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
    ) -> None:
        super().__init__()
        if min_length < SHORTEST_SPAN:
            raise ValueError(
                f"SubstringDeduplicationStage: min_length is {min_length}, must be {SHORTEST_SPAN} bytes or "
                "more: shorter passages repeat in all texts"
            )
        check_exchange(num_partitions, memory_gb)
        self.text_field, self.min_length = text_field, min_length
        self.num_partitions, self.memory_gb = num_partitions, memory_gb

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [RepeatedAnchors(self), RepeatedWindows(self)]

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_field]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []


class RepeatedAnchors(VerdictStage):
    """Adds a column with the repeated anchors of each row."""

    adds = (_ANCHORS,)

    def __init__(self, parent: SubstringDeduplicationStage) -> None:
        super().__init__()
        self.name = f"{parent.name}_anchors"
        self.text_field, self.length = parent.text_field, parent.min_length
        self.num_partitions, self.memory_gb = parent.num_partitions, parent.memory_gb

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_field]

    def keys(self, batch: Batch) -> pa.Table:
        found = anchors(texts_of(self.name, batch.data, self.text_field), self.length)
        return span_table(
            identities(batch), found["row"], found["first"], found["last"], **{HASH_COLUMN: _hashes(found)}
        )

    def rounds(self) -> Sequence[KeyedStage]:
        same = FindRepeatedUnits(f"{self.name}_same", 2, NONE, OCCURRENCES, self.num_partitions)
        return [same, RowSpans(f"{self.name}_rows", self.num_partitions, _ANCHORS)]


class RepeatedWindows(SpanStage):
    """Cuts out the windows around repeated anchors that occurred before."""

    passing = (_ANCHORS,)

    def __init__(self, parent: SubstringDeduplicationStage) -> None:
        super().__init__()
        self.name = parent.name
        self.text_field, self.length = parent.text_field, parent.min_length
        self.num_partitions, self.memory_gb = parent.num_partitions, parent.memory_gb

    def keys(self, batch: Batch) -> pa.Table:
        """The text around each repeated anchor: exactly the windows that have it."""
        table = batch.data
        if _ANCHORS not in table.column_names:
            table = table.slice(0, 0).append_column(_ANCHORS, pa.nulls(0, pa.large_binary()))
        rows, pairs = unpack_spans(as_one_array(table[_ANCHORS]))
        wanted = np.unique(rows)
        texts = texts_of(self.name, table, self.text_field).take(from_numbers(wanted))
        found = anchors(texts, self.length)
        codes = found["row"] * 2**40 + found["first"]
        found = found[np.isin(codes, np.searchsorted(wanted, rows) * 2**40 + pairs[:, 0])]
        starts, ends = found["first"].copy(), found["last"] + self.length
        bodies = _parts(texts, found["row"], starts, ends)
        return span_table(
            identities(batch), wanted[found["row"]], starts, ends, **{HASH_COLUMN: _hashes(found), _BODY: bodies}
        )

    def finders(self) -> Sequence[KeyedStage]:
        return [FindRepeatedWindows(f"{self.name}_windows", self.length, self.num_partitions)]


class FindRepeatedWindows(KeyedStage):
    """Finds the repeated spans in the texts around one anchor."""

    key = HASH_COLUMN

    def __init__(self, name: str, length: int, num_partitions: int | None = None) -> None:
        super().__init__()
        self.name, self.length, self.num_partitions = name, length, num_partitions

    def outputs(self) -> tuple[list[str], Columns]:
        return [], [TASK, ROW]

    def process_sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        held: pa.Table | None = None
        for table in filter(len, tables):
            spans, held = self._spans(table, held)
            yield spans

    def _spans(self, table: pa.Table, held: pa.Table | None) -> tuple[pa.Table, pa.Table]:
        """The repeated spans of a table, and the new texts of its last group, which may continue in the next table:
        they are searched again together with it."""
        before = held.num_rows if held is not None else 0
        table = pa.concat_tables([held, table]).combine_chunks() if held is not None else table
        spans = repeated_spans(table[_BODY], self.length)
        rows, starts, ends = (numbers(spans[name]) for name in ("row", "start", "end"))
        positions, base = np.arange(table.num_rows), numbers(table[START])
        known = np.bincount(rows, ends - starts, table.num_rows)
        last = int(np.flatnonzero(flags(group_starts(None, table, [HASH_COLUMN])))[-1])
        new = (known < numbers(table[END]) - base) & (positions >= last)
        fresh = rows >= before  # spans of held rows were output with the table before
        rows, starts, ends = rows[fresh], starts[fresh], ends[fresh]
        known_rows = table.select([TASK, ROW]).take(from_numbers(rows))
        found = [known_rows[TASK], known_rows[ROW], from_numbers(base[rows] + starts), from_numbers(base[rows] + ends)]
        return pa.table(found, [TASK, ROW, START, END]), table.filter(from_numbers(new))


def anchors(texts: pa.Array, length: int) -> Numbers:
    """The anchors of texts: row, first and last window that have it, position and hash."""
    if kernels is not None:
        return np.frombuffer(kernels.anchors(texts, length, length // 2), _ANCHOR)
    found = [
        (row, *one)
        for row, text in enumerate(texts.to_pylist())
        for one in reference.anchors(text or "", length, length // 2)
    ]
    return np.array(found, _ANCHOR)


def _hashes(found: Numbers) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(8), len(found), [None, pa.py_buffer(np.ascontiguousarray(found["hash"]))])


def _parts(texts: pa.Array, rows: Numbers, starts: Numbers, ends: Numbers) -> pa.Array:
    """Byte ranges of texts as binary: they may begin and end within a character."""
    found = string_layout(texts)
    raw, begins = found.data.data, found.offsets[rows]
    pieces = zip((begins + starts).tolist(), (begins + ends).tolist(), strict=True)
    data = b"".join([raw[start:end] for start, end in pieces])
    bounds = np.append(0, np.cumsum(ends - starts)).astype(np.int64)
    return pa.Array.from_buffers(pa.large_binary(), len(rows), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
