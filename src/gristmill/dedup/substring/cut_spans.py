"""Cuts spans out of documents: the common part of stages that find repeated parts (`SpanStage`).

Spans are verdicts that come back to their rows (`io/exchange/verdict_stage.py`). The rounds of a stage find spans, one
in a row; here they are collected for each document and cut out, and documents with only white space left are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import VERDICT
from gristmill.core.batch import Batch
from gristmill.core.deciding_stage import Decision
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.dedup.columns.arrow_numpy import Numbers, as_one_array, flags, from_numbers, numbers
from gristmill.dedup.columns.batch_texts import texts_of, with_texts
from gristmill.dedup.substring.text_units import StringLayout, cut_at_bytes, string_layout
from gristmill.io.exchange.exchange import Exchange
from gristmill.io.exchange.external_sort import group_starts
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.io.exchange.verdict_stage import KEEP, ROW, TASK, ApplyVerdicts, VerdictStage

START, END = "__start__", "__end__"
"""Start and end of a span in its document, in bytes."""

REMOVED = "removed_bytes"
SPANS = "__spans__"
"""The spans of a row, as pairs of 64-bit numbers."""

_PAIR = 16
_NONE = np.zeros(1, np.int64)


class SpanStage(VerdictStage):
    """Cuts spans out of documents, found from the keys of all documents. Implement `keys` and `finders`."""

    is_base = True
    text_field: str
    num_partitions: int | None
    passing: Sequence[str] = ()
    """Columns that an earlier stage has added for this one only; they are removed."""

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_field]

    def finders(self) -> Sequence[KeyedStage]:
        """Keyed stages. The last one outputs spans: rows with the columns of `identities`, `START` and `END`."""
        raise NotImplementedError

    def rounds(self) -> Sequence[KeyedStage]:
        return [*self.finders(), RowSpans(f"{self.name}_rows", self.num_partitions)]

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        *parts, _ = super().decompose()
        return [*parts, CutSpans(f"{self.name}_cut", self.text_field, self.passing), DropEmpty(self)]


def check_exchange(num_partitions: int | None, memory_gb: float | None) -> None:
    """Raise for wrong numbers when a stage is built, not when it is planned."""
    Exchange(num_partitions=num_partitions, memory_gb=memory_gb)


def span_table(known: pa.Table, rows: Numbers, starts: Numbers, ends: Numbers, **keys: pa.Array) -> pa.Table:
    """Spans of the rows of a batch, with the keys by which they are compared."""
    positions = from_numbers(rows.astype(np.int64))
    columns = [known[TASK].take(positions), known[ROW].take(positions), from_numbers(starts), from_numbers(ends)]
    return pa.table([*keys.values(), *columns], [*keys, TASK, ROW, START, END])


class RowSpans(KeyedStage):
    """Collects the spans of each row in one verdict."""

    key = (TASK, ROW)
    order = (START,)

    def __init__(self, name: str, num_partitions: int | None = None, field: str = SPANS) -> None:
        super().__init__()
        self.name, self.num_partitions, self.field = name, num_partitions, field

    def outputs(self) -> tuple[list[str], Columns]:
        return [], []  # verdicts are no columns of the rows

    def process_groups(self, table: pa.Table) -> pa.Table:
        firsts = pc.indices_nonzero(group_starts(None, table, self.columns))
        bounds = np.append(numbers(firsts).astype(np.int64), table.num_rows) * _PAIR
        pairs = np.stack([numbers(table[START]), numbers(table[END])], axis=1)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(pairs))]
        spans = pa.Array.from_buffers(pa.large_binary(), len(firsts), buffers)
        keep = pa.repeat(literal(True, pa.bool_()), len(firsts))
        return pa.table([table[TASK].take(firsts), table[ROW].take(firsts), keep, spans], [TASK, ROW, KEEP, self.field])


class CutSpans(ProcessingStage[Batch, Batch]):
    """Cuts out the spans of each row. A row of which nothing is left keeps its text, and is marked to be dropped."""

    takes_empty = True

    def __init__(self, name: str, text_field: str, passing: Sequence[str] = ()) -> None:
        super().__init__()
        self.name, self.text_field, self.passing = name, text_field, passing

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def process(self, task: Batch) -> Batch:
        table = task.data
        table = table.drop_columns([name for name in self.passing if name in table.column_names])
        if SPANS not in table.column_names or not table.num_rows:
            return task.with_data(table)
        spans = as_one_array(table[SPANS])
        texts = texts_of(self.name, table, self.text_field)
        left, removed = cut_out(string_layout(texts), spans)
        blank = flags(pc.equal(pc.binary_length(pc.utf8_trim_whitespace(left)), literal(0, pa.int64())))
        cut = removed > 0
        table = with_texts(table, self.text_field, left, cut & ~blank)
        keep = flags(table[VERDICT]) & ~(cut & blank)
        table = table.set_column(table.column_names.index(VERDICT), VERDICT, from_numbers(keep))
        table = table.drop_columns([SPANS])
        return task.with_data(
            table if REMOVED in table.column_names else table.append_column(REMOVED, from_numbers(removed))
        )


class DropEmpty(ApplyVerdicts):
    """Drops rows of which nothing is left, and counts documents and bytes that were cut."""

    def decide(self, batch: Batch) -> Decision:
        table = batch.data
        if table.column_names[-1] == REMOVED:
            removed = numbers(table[REMOVED])
            self.count("documents_cut", int((removed > 0).sum()))
            self.count("bytes_removed", int(removed.sum()))
        return super().decide(batch)


def cut_out(texts: StringLayout, spans: pa.Array) -> tuple[pa.LargeStringArray, Numbers]:
    """Texts without their spans (pairs of 64-bit numbers), and how many bytes each has lost.

    Spans may overlap. Parts of characters at the ends of merged spans are not cut.
    """
    rows, pairs = unpack_spans(spans)
    starts, ends = _whole_characters(texts, *_merged(texts.offsets[rows, None] + pairs))
    pieces = cut_at_bytes(texts, np.concatenate([starts, ends]))
    begins = pieces.bounds[:-1]
    drop = np.searchsorted(starts, begins, "right") > np.searchsorted(
        ends, begins, "right"
    )  # more spans begun than ended
    left = pieces.without(drop)
    kept = np.frombuffer(left.buffers()[1], np.int64)[: len(left) + 1]
    return left, np.diff(texts.offsets) - np.diff(kept)


def unpack_spans(spans: pa.Array) -> tuple[Numbers, Numbers]:
    """The row of each span, and the spans."""
    valid = spans.drop_null()
    bounds = np.frombuffer(valid.buffers()[1], np.int64, len(valid) + 1, valid.offset * 8) if len(valid) else _NONE
    count = int(bounds[-1] - bounds[0]) // _PAIR
    data = valid.buffers()[2] if count else b""
    pairs = np.frombuffer(data, np.int64, count * 2, int(bounds[0])).reshape(-1, 2)
    return np.repeat(np.flatnonzero(flags(spans.is_valid())), np.diff(bounds) // _PAIR), pairs


def _merged(pairs: Numbers) -> tuple[Numbers, Numbers]:
    """Spans, with those that touch or overlap merged."""
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pairs[:, 1])
    new = np.append(True, pairs[1:, 0] > reach[:-1])[: len(pairs)]
    return pairs[new, 0], reach[np.append(new[1:], True)[: len(pairs)]]


def _whole_characters(texts: StringLayout, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Spans without parts of characters at their ends."""
    data = np.append(texts.data, np.zeros(1, np.uint8))
    for _ in range(3):  # a UTF-8 character has up to three continuation bytes
        starts = starts + ((data[starts] & 0xC0 == 0x80) & (starts < ends))
        ends = ends - ((data[ends] & 0xC0 == 0x80) & (starts < ends))
    return starts, ends
