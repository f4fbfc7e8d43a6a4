"""Spans of text that were there before, in the same document or in an earlier one.

All windows of n bytes are looked up among those before them, in a table with a place for each. What is found is what
a suffix array finds: each byte that lies in a repetition of n bytes or more, other than its first occurrence. It takes
12 bytes of memory for each byte of text, so larger corpora go in parts, between which nothing is found.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gristmill.core.native import kernels
from gristmill.dedup import reference
from gristmill.dedup.columns import Column, as_text, from_numbers, numbers
from gristmill.dedup.lines import cut_at, layout

_SPAN = np.dtype([("row", "<i8"), ("start", "<i8"), ("end", "<i8")])


def repeated_spans(column: Column, n: int = 100) -> pa.Table:
    """The spans of at least `n` bytes that were there before: `row`, `start` and `end`, in bytes, in order.

    A span neither begins nor ends within a character, and may be a few bytes shorter for it. Null has none.
    """
    if n < 1:
        raise ValueError(f"n={n} is too small: spans have 1 byte or more")
    texts = as_text(column)
    if kernels is not None:
        found = np.frombuffer(kernels.repeated_spans(texts, n), _SPAN)
    else:
        found = np.array(reference.repeated_spans([text or "" for text in texts.to_pylist()], n), _SPAN)
    return pa.table({name: from_numbers(found[name]) for name in _SPAN.names or ()})


def without_spans(column: Column, spans: pa.Table) -> pa.LargeStringArray:
    """The texts without some spans of theirs, which do not overlap; null stays null."""
    found = layout(column)
    rows, starts, ends = (numbers(spans[name], np.int64) for name in ("row", "start", "end"))
    starts, ends = np.sort(found.offsets[rows] + starts), np.sort(found.offsets[rows] + ends)
    pieces = cut_at(found, np.concatenate([starts, ends]))
    begins = pieces.bounds[:-1]
    drop = np.searchsorted(starts, begins, "right") > np.searchsorted(ends, begins, "right")  # in a span that is open
    return pieces.without(drop)
