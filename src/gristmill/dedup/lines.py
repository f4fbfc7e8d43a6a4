"""Documents in pieces: lines, paragraphs or sentences, so that those which come again can be left out.

Pieces of a document, joined, are the document: each has its line feeds at its end. So they lie in the memory of the
column that they were cut from, and what is left after some are dropped keeps its form. Blank pieces have no key:
they repeat nothing. Gives up grammar: a sentence ends where a mark and a space are, also after an abbreviation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.core.columns import literal
from gristmill.core.compute import pc
from gristmill.dedup.columns import Column, Numbers, as_text, from_numbers, numbers, validity, whole
from gristmill.dedup.digest import HASH, hash128
from gristmill.dedup.normalise import Normalisation

UNITS = ("line", "paragraph", "sentence")

_CLOSERS = b"(?:[\"')\\]]|\xe2\x80[\x99\x9d]|\xc2\xbb)*"
_SENTENCE = re.compile(
    rb"(?:[.!?]|\xe2\x80\xa6)" + _CLOSERS + rb"[ \t\r\n]+|\xe3\x80\x82|\xef\xbc[\x81\x9f]|\n+", re.DOTALL
)
"""Where a sentence ends: a mark, what closes after it, and white space; a full-width mark; or the end of a line."""


@dataclass(frozen=True)
class Pieces:
    """The pieces of a column of documents."""

    texts: pa.LargeStringArray
    """All pieces, in order."""
    bounds: Numbers
    """Where each piece starts, and where the last one ends."""
    firsts: Numbers
    """The number of each document's first piece, and at the end how many pieces there are."""
    valid: pa.Buffer | None
    """Which documents are not null."""

    @property
    def rows(self) -> Numbers:
        """The document of each piece."""
        return np.repeat(np.arange(len(self.firsts) - 1), np.diff(self.firsts))

    @property
    def places(self) -> Numbers:
        """The number of each piece in its document."""
        found: Numbers = np.arange(len(self.texts)) - np.repeat(self.firsts[:-1], np.diff(self.firsts))
        return found

    def keys(self, normalisation: Normalisation | None = None) -> pa.FixedSizeBinaryArray:
        """A hash for each piece, by which it is known again, without the white space around it; null for blank ones."""
        bare = pc.utf8_trim_whitespace(normalisation.apply(self.texts) if normalisation else self.texts)
        blank = pc.equal(pc.binary_length(bare), literal(0, pa.int64()))
        return pc.if_else(blank, pa.nulls(len(bare), HASH), hash128(bare))

    def without(self, drop: Numbers) -> pa.LargeStringArray:
        """The documents without the pieces that a mask names; null stays null."""
        kept = self.texts.filter(from_numbers(~drop))
        sizes = np.where(drop, 0, np.diff(self.bounds))
        ends = np.append(0, np.cumsum(sizes))[self.firsts].astype(np.int64)
        buffers = [self.valid, pa.py_buffer(ends), kept.buffers()[2] or pa.py_buffer(b"")]
        return pa.Array.from_buffers(pa.large_string(), len(self.firsts) - 1, buffers)


class Layout(NamedTuple):
    """Where the bytes of a column of strings lie: one row behind the other, and nothing for null."""

    offsets: Numbers
    """Where each row starts, and where the last one ends."""
    data: Numbers
    valid: pa.Buffer | None


def layout(column: Column) -> Layout:
    """The bytes of a column of strings."""
    texts = as_text(column).cast(pa.large_string())
    valid = validity(texts)
    if texts.null_count:
        texts = pc.fill_null(texts, literal("", pa.string()).cast(pa.large_string()))
    if not len(texts):
        return Layout(np.zeros(1, np.int64), np.zeros(0, np.uint8), valid)
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, texts.offset * 8)
    size = int(offsets[-1] - offsets[0])
    data = np.frombuffer(texts.buffers()[2], np.uint8, size, int(offsets[0])) if size else np.zeros(0, np.uint8)
    return Layout(offsets - offsets[0], data, valid)


def cut(column: Column, unit: str = "line") -> Pieces:
    """Cut documents into lines, paragraphs (ended by two or more line feeds) or sentences."""
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r} is unknown; it is one of {', '.join(UNITS)}")
    found = layout(column)
    if unit == "sentence":
        return cut_at(found, _sentence_ends(found))
    feeds = found.data == ord("\n")
    if unit == "paragraph":
        before = np.append(False, feeds)[: len(feeds)]
        before[found.offsets[:-1][found.offsets[:-1] < len(feeds)]] = False  # it belongs to another document
        feeds = feeds & before & ~np.append(feeds[1:], False)[: len(feeds)]
    return cut_at(found, np.flatnonzero(feeds) + 1)


def _sentence_ends(found: Layout) -> Numbers:
    data, bounds = found.data.tobytes(), found.offsets.tolist()
    ends = [match.end() for start, end in pairwise(bounds) for match in _SENTENCE.finditer(data, start, end)]
    return np.array(ends, np.int64)


def cut_at(found: Layout, ends: Numbers) -> Pieces:
    """Documents cut at some bytes, counted from the first byte of the first document, and at the end of each."""
    bounds = np.unique(np.concatenate([found.offsets, ends.astype(np.int64)]))
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(found.data)]
    pieces = pa.Array.from_buffers(pa.large_string(), len(bounds) - 1, buffers)
    return Pieces(pieces, bounds, np.searchsorted(bounds, found.offsets), found.valid)


def repeated(keys: Column, at_least: int = 2) -> Numbers:
    """Which pieces of a column of keys come `at_least` times or more, and are not the first of theirs; null is not."""
    codes = whole(keys).dictionary_encode().indices.cast(pa.int64())
    numbered = numbers(pc.fill_null(codes, literal(-1, pa.int64())))
    _, firsts, inverse, counts = np.unique(numbered, return_index=True, return_inverse=True, return_counts=True)
    again = counts[inverse] >= at_least
    again[firsts] = False
    return again & (numbered >= 0)
